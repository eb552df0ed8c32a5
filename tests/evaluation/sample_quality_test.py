"""Measures of samples and their intervals."""

import numpy as np
import pytest

from icml26_jax.evaluation import sample_quality, text_metrics

VOCAB = 5
P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def _sample(seed, rows=60, length=9):
  rng = np.random.default_rng(seed)
  tokens = rng.choice(VOCAB, (rows, length), p=P)
  return tokens, rng.normal(2.0, 0.3, rows)


def _reference():
  q = np.random.default_rng(9).dirichlet(np.ones(VOCAB**2))
  return q.reshape(VOCAB, VOCAB)


def _scores(seed, **sizes):
  return sample_quality.score(*_sample(seed, **sizes), _reference())


@pytest.mark.parametrize("seed", range(3))
def test_measures_equal_those_of_text_metrics(seed):
  tokens, nll = _sample(seed)
  got = sample_quality.measure(sample_quality.score(tokens, nll, _reference()))
  np.testing.assert_allclose(got.nll, nll.mean(), rtol=1e-12)
  np.testing.assert_allclose(
    got.entropy, text_metrics.unigram_entropy(tokens, VOCAB), rtol=1e-12
  )
  np.testing.assert_allclose(
    got.kl, text_metrics.bigram_kl(tokens, _reference()), rtol=1e-9
  )


def test_intervals_are_centred_on_the_measures():
  scores = _scores(0)
  for measure, interval in zip(
    sample_quality.measure(scores),
    sample_quality.with_intervals(scores),
    strict=True,
  ):
    np.testing.assert_allclose(interval.estimate, measure, rtol=1e-12)
    np.testing.assert_allclose(
      (interval.low + interval.high) / 2, measure, rtol=1e-9
    )


def test_intervals_are_as_wide_as_the_measures_vary():
  """Widths against the spread of 400 samples, within 4 standard errors."""
  samples = [_scores(seed, rows=200) for seed in range(400)]
  spread = np.std([sample_quality.measure(s) for s in samples], axis=0, ddof=1)
  widths = np.mean(
    [
      [
        interval.high - interval.low
        for interval in sample_quality.with_intervals(s)
      ]
      for s in samples[:40]
    ],
    axis=0,
  )
  # t(199) is 1.972. A standard deviation of 400 values is known to 1 in
  # sqrt(2 * 399), and the linearisation is off by about 1 in 200.
  np.testing.assert_allclose(
    widths / (2 * 1.972), spread, rtol=4 / np.sqrt(798) + 0.02
  )


def test_entropy_intervals_cover_the_truth():
  """About 95% of 400 intervals do; the plug-in bias is 4 / (2 n) = 0.001."""
  truth = -np.sum(P * np.log(P))
  hits = 0
  for seed in range(400):
    found = sample_quality.with_intervals(_scores(seed, rows=200)).entropy
    hits += found.low - 0.0012 <= truth <= found.high + 0.0012
  assert abs(hits / 400 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400)


def test_a_sample_does_not_differ_from_itself():
  difference = sample_quality.paired_difference(_scores(0), _scores(0))
  for interval in difference:
    assert interval == (0.0, 0.0, 0.0)


def test_rows_that_move_together_leave_the_difference_sure():
  tokens, nll = _sample(0)
  first = sample_quality.score(tokens, nll + 0.5, _reference())
  second = sample_quality.score(tokens, nll, _reference())
  difference = sample_quality.paired_difference(first, second)
  np.testing.assert_allclose(difference.nll, 0.5, rtol=1e-9)


def test_one_token_only_has_no_entropy():
  reference = np.full((VOCAB, VOCAB), 1 / VOCAB**2)
  scores = sample_quality.score(np.zeros((3, 4), int), np.ones(3), reference)
  got = sample_quality.measure(scores)
  assert got.entropy == 0.0
  np.testing.assert_allclose(got.kl, np.log(VOCAB**2), rtol=1e-12)


@pytest.mark.parametrize(
  ("tokens", "nll", "error"),
  [
    (np.zeros(4, int), np.zeros(4), ValueError),
    (np.zeros((4, 1), int), np.zeros(4), ValueError),
    (np.zeros((4, 3), int), np.zeros(3), ValueError),
    (np.full((4, 3), VOCAB), np.zeros(4), ValueError),
    (np.zeros((4, 3)), np.zeros(4), TypeError),
  ],
)
def test_wrong_samples_are_rejected(tokens, nll, error):
  with pytest.raises(error):
    sample_quality.score(tokens, nll, _reference())


def test_wrong_references_are_rejected():
  tokens, nll = _sample(0)
  with pytest.raises(ValueError, match=r"reference must be \[V, V\]"):
    sample_quality.score(tokens, nll, np.ones(VOCAB))
  with pytest.raises(ValueError, match="reference must be positive"):
    sample_quality.score(tokens, nll, np.zeros((VOCAB, VOCAB)))


def test_unequal_samples_are_not_paired():
  with pytest.raises(ValueError, match="must have one shape"):
    sample_quality.paired_difference(_scores(0), _scores(0, rows=12))
