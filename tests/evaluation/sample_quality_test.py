"""Measures of samples and their intervals."""

import jax
import numpy as np
import pytest

from icml26_jax.evaluation import intervals, sample_quality, text_metrics

VOCAB = 5


def _sample(seed, rows=60, length=9):
  rng = np.random.default_rng(seed)
  tokens = rng.choice(VOCAB, (rows, length), p=[0.4, 0.3, 0.15, 0.1, 0.05])
  return tokens, rng.normal(2.0, 0.3, rows)


def _reference():
  q = np.random.default_rng(9).dirichlet(np.ones(VOCAB**2))
  return q.reshape(VOCAB, VOCAB)


def _counts(seed, **sizes):
  return sample_quality.count(*_sample(seed, **sizes), VOCAB)


@pytest.mark.parametrize("seed", range(3))
def test_measures_equal_those_of_text_metrics(seed):
  tokens, nll = _sample(seed)
  got = sample_quality.measure(
    sample_quality.count(tokens, nll, VOCAB), _reference()
  )
  np.testing.assert_allclose(got.nll, nll.mean(), rtol=1e-12)
  np.testing.assert_allclose(
    got.entropy, text_metrics.unigram_entropy(tokens, VOCAB), rtol=1e-12
  )
  np.testing.assert_allclose(
    got.kl, text_metrics.bigram_kl(tokens, _reference()), rtol=1e-9
  )


def test_interval_of_a_mean_is_the_plain_bootstrap():
  key = jax.random.key(3)
  _, nll = _sample(0)
  got = sample_quality.with_intervals(
    _counts(0), _reference(), key, num_resamples=500
  ).nll
  expected = intervals.bootstrap_interval(nll, key, num_resamples=500)
  np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_intervals_equal_recounting_every_resample():
  key = jax.random.key(4)
  tokens, _ = _sample(0, rows=12)
  got = sample_quality.with_intervals(
    _counts(0, rows=12), _reference(), key, num_resamples=40
  )

  def statistic(measure):
    def of_rows(rows, axis):
      chosen = np.atleast_2d(rows).astype(int)
      return np.array([measure(tokens[row]) for row in chosen])

    return of_rows

  for name, measure in (
    ("entropy", lambda x: text_metrics.unigram_entropy(x, VOCAB)),
    ("kl", lambda x: text_metrics.bigram_kl(x, _reference())),
  ):
    expected = intervals.bootstrap_interval(
      np.arange(12), key, num_resamples=40, statistic=statistic(measure)
    )
    interval = getattr(got, name)
    np.testing.assert_allclose(interval.low, expected.low, rtol=1e-9)
    np.testing.assert_allclose(interval.high, expected.high, rtol=1e-9)
    np.testing.assert_allclose(
      interval.estimate, expected.estimate[0], rtol=1e-9
    )


def test_a_sample_does_not_differ_from_itself():
  counts = _counts(0)
  difference = sample_quality.paired_difference(
    counts, counts, _reference(), jax.random.key(0), num_resamples=50
  )
  for interval in difference:
    assert interval == (0.0, 0.0, 0.0)


def test_differences_are_of_the_same_resamples():
  """Rows that move together leave the difference sure."""
  tokens, nll = _sample(0)
  first = sample_quality.count(tokens, nll + 0.5, VOCAB)
  second = sample_quality.count(tokens, nll, VOCAB)
  difference = sample_quality.paired_difference(
    first, second, _reference(), jax.random.key(0), num_resamples=50
  )
  np.testing.assert_allclose(difference.nll, 0.5, rtol=1e-9)


def test_interval_covers_the_truth_as_often_as_it_says():
  """95% of intervals hold the mean; 200 trials, 4 standard errors."""
  rng = np.random.default_rng(0)
  tokens = np.zeros((40, 2), int)
  hits = 0
  for trial in range(200):
    counts = sample_quality.count(tokens, rng.normal(1.0, 1.0, 40), VOCAB)
    found = sample_quality.with_intervals(
      counts,
      np.ones((VOCAB, VOCAB)) / VOCAB**2,
      jax.random.key(trial),
      num_resamples=200,
    ).nll
    hits += found.low <= 1.0 <= found.high
  # The percentile bootstrap of 40 values is a little short: 93.5%.
  assert abs(hits / 200 - 0.935) < 4 * np.sqrt(0.935 * 0.065 / 200)


def test_pooled_samples_are_one():
  pooled = sample_quality.pool([_counts(0), _counts(1)])
  tokens = np.concatenate([_sample(0)[0], _sample(1)[0]])
  got = sample_quality.measure(pooled, _reference())
  np.testing.assert_allclose(
    got.entropy, text_metrics.unigram_entropy(tokens, VOCAB), rtol=1e-12
  )


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
def test_wrong_arguments_are_rejected(tokens, nll, error):
  with pytest.raises(error):
    sample_quality.count(tokens, nll, VOCAB)


def test_unequal_samples_are_not_paired():
  with pytest.raises(ValueError, match="60 and 12"):
    sample_quality.paired_difference(
      _counts(0), _counts(0, rows=12), _reference(), jax.random.key(0)
    )
