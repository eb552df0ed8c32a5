"""Measures of text against counting with `collections.Counter`."""

import collections
import math

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import scipy.stats

from icml26_jax.evaluation import ngram, text_metrics


def _runs(tokens, mask, n):
  """All runs of n neighbours that count, as tuples."""
  return [
    tuple(row[i : i + n])
    for row, counted in zip(tokens.tolist(), mask.tolist(), strict=True)
    for i in range(len(row) - n + 1)
    if all(counted[i : i + n])
  ]


def _entropy(items):
  counts = collections.Counter(items).values()
  total = sum(counts)
  return -sum(c / total * math.log(c / total) for c in counts)


@st.composite
def _texts(draw):
  vocab_size = draw(st.sampled_from([1, 2, 6, 5000]))
  rng = np.random.default_rng(draw(st.integers(0, 2**32)))
  shape = draw(st.sampled_from([(1, 1), (1, 50), (6, 9), (4, 0), (25, 2)]))
  mask = rng.random(shape) < draw(st.sampled_from([1.0, 0.7, 0.0]))
  tokens = rng.integers(vocab_size, size=shape)
  # What is behind the mask may be anything.
  return vocab_size, np.where(mask, tokens, 10**6), mask


@hypothesis.given(_texts(), st.integers(1, 5))
def test_entropies_and_distinct_n_equal_counting(text, n):
  vocab_size, tokens, mask = text
  runs = _runs(tokens, mask, n)
  expected = len(set(runs)) / len(runs) if runs else 0.0
  assert text_metrics.distinct_n(tokens, vocab_size, n=n, mask=mask) == expected
  got = text_metrics.conditional_entropy(
    tokens, vocab_size, order=n - 1, mask=mask
  )
  expected = _entropy(runs) - _entropy([run[:-1] for run in runs])
  np.testing.assert_allclose(got, expected, atol=1e-12)
  got = text_metrics.unigram_entropy(tokens, vocab_size, mask=mask)
  singles = _runs(tokens, mask, 1)
  np.testing.assert_allclose(got, _entropy(singles), atol=1e-12)
  got = text_metrics.unigram_entropy(
    tokens, vocab_size, mask=mask, per_row=True
  )
  expected = [
    _entropy(row[counted].tolist())
    for row, counted in zip(tokens, mask, strict=True)
  ]
  np.testing.assert_allclose(got, expected, atol=1e-12)


@hypothesis.given(_texts(), st.sampled_from([0.0, 0.1, 2.0]))
def test_bigrams_equal_counting(text, smoothing):
  vocab_size, tokens, mask = text
  hypothesis.assume(vocab_size <= 6)
  runs = _runs(tokens, mask, 2)
  hypothesis.assume(runs or smoothing)
  counts = collections.Counter(runs)
  total = len(runs) + smoothing * vocab_size**2
  expected = [
    [(counts[a, b] + smoothing) / total for b in range(vocab_size)]
    for a in range(vocab_size)
  ]
  got = text_metrics.bigram_distribution(
    tokens, vocab_size, smoothing=smoothing, mask=mask
  )
  np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_bigram_kl_is_the_divergence_that_scipy_gives():
  rng = np.random.default_rng(0)
  tokens = rng.integers(5, size=(20, 30))
  reference = rng.dirichlet(np.ones(25)).reshape(5, 5)
  p = text_metrics.bigram_distribution(tokens, 5)
  expected = scipy.stats.entropy(p.ravel(), reference.ravel())
  got = text_metrics.bigram_kl(tokens, reference)
  np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_bigram_kl_to_the_text_itself_is_zero():
  tokens = np.random.default_rng(0).integers(5, size=(20, 30))
  mask = np.random.default_rng(1).random((20, 30)) < 0.7
  reference = text_metrics.bigram_distribution(tokens, 5, mask=mask)
  assert text_metrics.bigram_kl(tokens, reference, mask=mask) == 0.0


def test_bigram_kl_of_true_samples_has_its_known_mean():
  # Pairs in rows of two are independent, so that 2 n KL is chi-squared with
  # 15 degrees of freedom: mean 15 / (2 n), standard deviation sqrt(30) / (2 n).
  rng = np.random.default_rng(0)
  reference = rng.dirichlet(10 * np.ones(16))
  n, trials = 5000, 200
  draws = rng.choice(16, size=(trials, n), p=reference)
  values = [
    text_metrics.bigram_kl(
      np.stack([pairs // 4, pairs % 4], axis=1), reference.reshape(4, 4)
    )
    for pairs in draws
  ]
  error = math.sqrt(30) / (2 * n) / math.sqrt(trials)
  np.testing.assert_allclose(np.mean(values), 15 / (2 * n), atol=4 * error)


def test_bigram_kl_is_infinite_for_an_impossible_pair():
  reference = np.array([[0.5, 0.0], [0.25, 0.25]])
  assert text_metrics.bigram_kl(np.array([0, 1]), reference) == math.inf
  assert text_metrics.bigram_kl(np.array([0, 0]), reference) == math.log(2)


def test_bigrams_of_a_float32_chain_are_a_reference():
  transition = np.random.default_rng(0).dirichlet(np.ones(27), size=27)
  joint = (transition / 27).astype(np.float32)
  assert text_metrics.bigram_kl(np.array([0, 1, 2]), joint) > 0


def test_limits_of_the_entropies():
  uniform = np.tile(np.arange(8), 5)
  got = text_metrics.unigram_entropy(uniform, 8)
  np.testing.assert_allclose(got, math.log(8), rtol=1e-14)
  constant = np.zeros(30, int)
  assert text_metrics.unigram_entropy(constant, 8) == 0.0
  assert text_metrics.conditional_entropy(constant, 8, order=3) == 0.0
  # In a periodic text each token tells the next; its runs end unequally
  # often, by one of 39.
  got = text_metrics.conditional_entropy(uniform, 8, order=1)
  np.testing.assert_allclose(got, 0.0, atol=1e-12)
  assert text_metrics.distinct_n(constant, 8, n=2) == 1 / 29


def test_long_runs_over_a_large_vocabulary_stay_apart():
  # (2^16)^5 overflows 64 bits: the first token alone would be lost.
  tokens = np.full((4, 5), 2**16 - 1)
  tokens[:, 0] = [0, 1, 2, 1]
  assert text_metrics.distinct_n(tokens, 2**16, n=5) == 0.75
  got = text_metrics.conditional_entropy(tokens, 2**16, order=4)
  np.testing.assert_allclose(got, 0.0, atol=1e-12)


def test_ngram_nll_is_the_mean_over_tokens_that_count():
  rng = np.random.default_rng(0)
  model = ngram.fit(rng.integers(5, size=300), 5, order=3)
  tokens, mask = rng.integers(5, size=(6, 9)), rng.random((6, 9)) < 0.5
  each = ngram.nll(model, tokens, mask)
  got = text_metrics.ngram_nll(model, tokens, mask=mask)
  np.testing.assert_allclose(got, np.ma.array(each, mask=~mask).mean())
  each = ngram.nll(model, tokens)
  np.testing.assert_allclose(text_metrics.ngram_nll(model, tokens), each.mean())
  nothing = np.zeros((6, 9), bool)
  assert text_metrics.ngram_nll(model, tokens, mask=nothing) == 0.0


@hypothesis.given(st.integers(0, 2**32), st.integers(0, 12))
def test_frontier_holds_exactly_what_is_not_beaten(seed, size):
  rng = np.random.default_rng(seed)
  # Few different values, so that ties are common.
  nll, entropy = rng.integers(4, size=(2, size)).astype(float)
  got = text_metrics.gen_frontier(nll, entropy)
  expected = [
    i
    for i in range(size)
    if not any(
      nll[j] <= nll[i]
      and entropy[j] >= entropy[i]
      and ((nll[j], entropy[j]) != (nll[i], entropy[i]) or j < i)
      for j in range(size)
      if j != i
    )
  ]
  assert sorted(got.tolist()) == expected
  assert np.all(np.diff(entropy[got]) > 0)
  assert np.all(np.diff(nll[got]) > 0)


def test_frontier_is_compared_at_equal_entropy():
  nll = [2.0, 3.0, 2.5, 2.9]
  entropy = [1.0, 3.0, 2.0, 1.5]
  got = text_metrics.frontier_nll(nll, entropy, [[0.9, 1.0, 1.5], [2.5, 3, 4]])
  expected = [[math.nan, 2.0, 2.25], [2.75, 3.0, math.nan]]
  np.testing.assert_allclose(got, expected)
  assert np.isnan(text_metrics.frontier_nll([], [], 1.0))


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda m: m.distinct_n(np.arange(3), 3, n=0), "n must be in .*got 0"),
    (
      lambda m: m.conditional_entropy(np.arange(3), 3, order=-1),
      "order must be in .*got -1",
    ),
    (lambda m: m.unigram_entropy(np.arange(3), 2), r"\[0, 2\), got 2"),
    (
      lambda m: m.bigram_distribution(np.arange(3), 8193),
      "vocab_size must be at most 8192 .*got 8193",
    ),
    (
      lambda m: m.bigram_distribution(np.arange(3), 3, smoothing=-0.1),
      "smoothing must be in .*got -0.1",
    ),
    (
      lambda m: m.bigram_distribution(np.arange(1), 3),
      "at least one pair that counts",
    ),
    (
      lambda m: m.bigram_kl(np.arange(2), np.ones((2, 3)) / 6),
      r"reference must be \[V, V\]",
    ),
    (
      lambda m: m.bigram_kl(np.arange(2), np.ones((2, 2)) / 5),
      "reference must sum to 1, got 0.8",
    ),
    (
      lambda m: m.bigram_kl(np.arange(2), np.array([[2.0, -1.0], [0, 0]])),
      "reference must be in .*got -1.0",
    ),
    (lambda m: m.gen_frontier([1.0], [1.0, 2.0]), "vectors of one length"),
    (lambda m: m.gen_frontier([math.nan], [1.0]), "must be finite"),
  ],
)
def test_bad_arguments_are_named(call, message):
  with pytest.raises(ValueError, match=message):
    call(text_metrics)
