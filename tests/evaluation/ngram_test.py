"""The interpolated n-gram model against counting with dictionaries."""

import collections

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from icml26_jax.evaluation import ngram


def _count(rows, masks, order):
  """Followers of every context of every length up to `order - 1`."""
  followers = collections.defaultdict(collections.Counter)
  for row, mask in zip(rows, masks, strict=True):
    for i in range(len(row)):
      for n in range(min(order, i + 1)):
        if all(mask[i - n : i + 1]):
          followers[tuple(row[i - n : i])][row[i]] += 1
  return followers


def _probability(followers, context, token, vocab_size):
  """The recursion as it is written."""
  lower = (
    _probability(followers, context[1:], token, vocab_size)
    if context
    else 1 / vocab_size
  )
  counts = followers.get(context, {})
  total, distinct = sum(counts.values()), len(counts)
  if not total:
    return lower
  return (counts.get(token, 0) + distinct * lower) / (total + distinct)


def _nll(followers, row, mask, order, vocab_size):
  result = []
  for i in range(len(row)):
    start = i
    while start > max(0, i - order + 1) and mask[start - 1]:
      start -= 1
    p = _probability(followers, tuple(row[start:i]), row[i], vocab_size)
    result.append(-np.log(p) if mask[i] else 0.0)
  return result


@st.composite
def _cases(draw):
  vocab_size = draw(st.sampled_from([1, 2, 5, 1000]))
  rng = np.random.default_rng(draw(st.integers(0, 2**32)))
  shape = draw(st.sampled_from([(1, 1), (1, 40), (7, 9), (3, 0), (20, 2)]))
  density = draw(st.sampled_from([1.0, 0.8, 0.3, 0.0]))

  def text():
    # Small powers repeat, so that long n-grams recur.
    tokens = (rng.random(shape) ** 3 * vocab_size).astype(np.int32)
    mask = rng.random(shape) < density
    # What is behind the mask may be anything.
    return np.where(mask, tokens, -7), mask

  return vocab_size, draw(st.integers(1, 6)), text(), text()


@hypothesis.given(_cases())
def test_equals_counting_with_dictionaries(case):
  vocab_size, order, (train, train_mask), (test, test_mask) = case
  model = ngram.fit(train, vocab_size, order=order, mask=train_mask)
  got = ngram.nll(model, test, test_mask)
  followers = _count(train.tolist(), train_mask.tolist(), order)
  expected = [
    _nll(followers, row, mask, order, vocab_size)
    for row, mask in zip(test.tolist(), test_mask.tolist(), strict=True)
  ]
  np.testing.assert_allclose(
    got, np.reshape(expected, test.shape), rtol=1e-12, atol=1e-12
  )


@hypothesis.given(
  st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0, 1, 3, 8])
)
def test_probabilities_sum_to_one_and_agree_with_nll(seed, order, given):
  rng = np.random.default_rng(seed)
  model = ngram.fit(rng.integers(6, size=200), 7, order=order)
  contexts = rng.integers(7, size=(20, given))
  got = ngram.probabilities(model, contexts)
  # 7 terms and up to 6 levels of rounding, each of 2^-53.
  np.testing.assert_allclose(got.sum(axis=1), 1.0, rtol=0, atol=42 * 2**-53)
  assert np.all(got > 0)
  for token in range(7):
    rows = np.concatenate([contexts, np.full((20, 1), token)], axis=1)
    expected = np.exp(-ngram.nll(model, rows)[:, -1])
    np.testing.assert_allclose(got[:, token], expected, rtol=1e-12)


def test_sums_to_one_over_a_large_vocabulary_too():
  # V^5 overflows 64 bits.
  rng = np.random.default_rng(0)
  tokens = (rng.random(5000) ** 8 * 50_257).astype(np.int64)
  model = ngram.fit(tokens, 50_257)
  got = ngram.probabilities(model, tokens[:12].reshape(3, 4))
  np.testing.assert_allclose(got.sum(axis=1), 1.0, rtol=1e-12)


def test_witten_bell_by_hand():
  # Of 5 tokens 3 are 0 and 2 are 1; after 0 comes 1 twice and 0 once.
  model = ngram.fit(np.array([0, 1, 0, 0, 1]), 3, order=2)
  unigram = (np.array([3, 2, 0]) + 2 / 3) / (5 + 2)
  after_0 = (np.array([1, 2, 0]) + 2 * unigram) / (3 + 2)
  got = ngram.probabilities(model, np.array([[0], [2]]))
  np.testing.assert_allclose(got, [after_0, unigram], rtol=1e-14)


def test_fitted_on_nothing_is_uniform():
  for empty in (np.zeros(0, int), np.zeros((3, 0), int)):
    model = ngram.fit(empty, 4)
    got = ngram.nll(model, np.array([0, 3, 1]))
    np.testing.assert_allclose(got, np.log(4), rtol=1e-15)


def test_rows_do_not_see_each_other():
  rng = np.random.default_rng(1)
  tokens = rng.integers(5, size=(6, 8))
  model = ngram.fit(rng.integers(5, size=500), 5)
  together = ngram.nll(model, tokens)
  for row, expected in zip(tokens, together, strict=True):
    np.testing.assert_array_equal(ngram.nll(model, row), expected)


def test_longer_contexts_help_on_a_periodic_text():
  tokens = np.tile([0, 0, 1, 0, 2], 200)
  losses = [
    ngram.nll(ngram.fit(tokens, 3, order=order), tokens).mean()
    for order in (1, 2, 3)
  ]
  assert losses[0] > losses[1] + 0.1
  assert losses[1] > losses[2] + 0.1
  # Two tokens tell the next: little more than the smoothing is left.
  assert losses[2] < 0.03


@pytest.mark.parametrize("shape", [(), (5,)])
def test_contexts_of_another_shape_are_named(shape):
  model = ngram.fit(np.arange(5), 5)
  with pytest.raises(ValueError, match=r"contexts must be \[B, C\]"):
    ngram.probabilities(model, np.zeros(shape, int))


def test_bad_arguments_are_named():
  with pytest.raises(ValueError, match=r"order must be in .*got 0"):
    ngram.fit(np.arange(5), 5, order=0)
  with pytest.raises(ValueError, match=r"tokens must be in \[0, 5\), got 5"):
    ngram.fit(np.arange(6), 5)
  model = ngram.fit(np.arange(5), 5)
  with pytest.raises(ValueError, match=r"tokens must be in \[0, 5\), got 9"):
    ngram.nll(model, np.array([9]))
  with pytest.raises(ValueError, match=r"contexts must be in \[0, 5\), got -1"):
    ngram.probabilities(model, np.array([[-1]]))
  with pytest.raises(TypeError, match="contexts must be integers"):
    ngram.probabilities(model, np.zeros((1, 1)))
