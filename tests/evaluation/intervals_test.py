"""Intervals over seeds."""

import hypothesis
from hypothesis import strategies as st
import jax
import numpy as np
import pytest
import scipy.stats

from icml26_jax.evaluation import intervals


@hypothesis.given(
  seed=st.integers(0, 2**32),
  shape=st.sampled_from([(2,), (3,), (4, 3), (2, 3, 10)]),
  confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_t_interval_is_that_of_scipy(seed, shape, confidence):
  values = np.random.default_rng(seed).normal(3, 2, size=shape)
  got = intervals.t_interval(values, confidence=confidence)
  expected = scipy.stats.ttest_1samp(values, 0, axis=-1).confidence_interval(
    confidence
  )
  np.testing.assert_allclose(got.estimate, values.mean(axis=-1), rtol=1e-12)
  np.testing.assert_allclose(got.low, expected.low, rtol=1e-9, atol=1e-9)
  np.testing.assert_allclose(got.high, expected.high, rtol=1e-9, atol=1e-9)


def test_t_interval_of_three_seeds_covers_as_often_as_it_says():
  values = np.random.default_rng(0).normal(size=(20_000, 3))
  got = intervals.t_interval(values, confidence=0.9)
  covered = np.mean((got.low <= 0) & (got.high >= 0))
  # A share of 0.9 over 20,000 trials: standard deviation 0.0021.
  np.testing.assert_allclose(covered, 0.9, atol=4 * 0.0021)


def test_paired_t_interval_is_that_of_scipy():
  first, second = np.random.default_rng(0).normal(size=(2, 5, 3))
  got = intervals.paired_t_interval(first, second)
  expected = scipy.stats.ttest_rel(first, second, axis=-1).confidence_interval()
  np.testing.assert_allclose(got.low, expected.low, rtol=1e-9)
  np.testing.assert_allclose(got.high, expected.high, rtol=1e-9)


def test_pairing_removes_what_the_seeds_share():
  rng = np.random.default_rng(0)
  shared = 100 * rng.normal(size=40)
  first = shared + 1 + 0.1 * rng.normal(size=40)
  got = intervals.paired_bootstrap_interval(first, shared, jax.random.key(0))
  assert 0.9 < got.low < got.estimate < got.high < 1.1


def test_bootstrap_agrees_with_every_resample_listed():
  values = np.array([0.3, 1.0, 2.5, 4.0])
  # All 4^4 resamples are equally likely.
  grids = np.stack(np.meshgrid(*[values] * 4), axis=-1).reshape(-1, 4)
  expected = np.quantile(grids.mean(axis=1), [0.1, 0.9])
  got = intervals.bootstrap_interval(
    values, jax.random.key(0), confidence=0.8, num_resamples=40_000
  )
  assert got.estimate == values.mean()
  # The means lie on a grid; the quantile may move to a neighbour.
  grid = np.unique(grids.mean(axis=1))
  for end, exact in zip((got.low, got.high), expected, strict=True):
    at = np.searchsorted(grid, exact)
    assert grid[max(at - 1, 0)] - 1e-12 <= end <= grid[at + 1] + 1e-12


def test_bootstrap_of_many_normal_values_nears_the_normal_interval():
  values = np.random.default_rng(0).normal(size=2000)
  got = intervals.bootstrap_interval(values, jax.random.key(1))
  reach = 1.96 * values.std() / np.sqrt(2000)
  # The 2.5 % quantile of 10,000 resamples has a relative error of about 2 %.
  np.testing.assert_allclose(got.high - values.mean(), reach, rtol=0.08)
  np.testing.assert_allclose(values.mean() - got.low, reach, rtol=0.08)


def test_leading_axes_use_the_same_resamples():
  values = np.random.default_rng(0).normal(size=(2, 3, 7))
  together = intervals.bootstrap_interval(values, jax.random.key(3))
  for i in range(2):
    for j in range(3):
      alone = intervals.bootstrap_interval(values[i, j], jax.random.key(3))
      for whole, part in zip(together, alone, strict=True):
        np.testing.assert_array_equal(whole[i, j], part)


def test_chunks_do_not_change_the_interval(monkeypatch):
  values = np.random.default_rng(0).normal(size=(2, 7))
  whole = intervals.bootstrap_interval(values, jax.random.key(3))
  monkeypatch.setattr(intervals, "_CHUNK", 1000)
  parts = intervals.bootstrap_interval(values, jax.random.key(3))
  for a, b in zip(whole, parts, strict=True):
    np.testing.assert_array_equal(a, b)


def test_the_key_decides():
  values = np.random.default_rng(0).normal(size=30)
  first, again, other = (
    intervals.bootstrap_interval(values, jax.random.key(seed))
    for seed in (0, 0, 1)
  )
  assert first == again
  assert first != other


def test_other_statistics():
  values = np.random.default_rng(0).normal(size=(3, 51))
  got = intervals.bootstrap_interval(
    values, jax.random.key(0), statistic=np.median, num_resamples=500
  )
  np.testing.assert_array_equal(got.estimate, np.median(values, axis=-1))
  assert np.all((got.low < got.estimate) & (got.estimate < got.high))


def test_equal_values_give_a_point():
  values = np.full((2, 5), 3.25)
  for got in (
    intervals.t_interval(values),
    intervals.bootstrap_interval(values, jax.random.key(0)),
  ):
    for part in got:
      np.testing.assert_array_equal(part, [3.25, 3.25])


@pytest.mark.parametrize(
  ("values", "message"),
  [
    ([1.0], r"at least 2 seeds, got shape \(1,\)"),
    (3.0, r"at least 2 seeds, got shape \(\)"),
    ([1.0, np.nan], "values must be finite"),
  ],
)
def test_bad_values_are_named(values, message):
  with pytest.raises(ValueError, match=message):
    intervals.t_interval(values)
  with pytest.raises(ValueError, match=message):
    intervals.bootstrap_interval(values, jax.random.key(0))


@pytest.mark.parametrize("confidence", [0.0, 1.0, np.nan])
def test_confidence_outside_its_range_is_named(confidence):
  with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\)"):
    intervals.t_interval([1.0, 2.0], confidence=confidence)


def test_other_bad_arguments_are_named():
  key = jax.random.key(0)
  with pytest.raises(ValueError, match=r"num_resamples must be in .*got 0"):
    intervals.bootstrap_interval([1.0, 2.0], key, num_resamples=0)
  with pytest.raises(TypeError, match="key must be one typed key"):
    intervals.bootstrap_interval([1.0, 2.0], np.zeros(2, np.uint32))
  for call in (
    lambda: intervals.paired_t_interval([1.0, 2.0], [1.0, 2.0, 3.0]),
    lambda: intervals.paired_bootstrap_interval([1.0, 2.0], [1.0], key),
  ):
    with pytest.raises(ValueError, match=r"first \(2,\) and second"):
      call()
