"""Confidence intervals over seeds.

For a handful of seeds use `t_interval`: resampling three values can only ever
give their own spread, and covers far less than it says. The bootstrap is for
many values (sequences, tasks) or for a statistic other than the mean. Runs
that share their seeds are compared by their differences (`paired_...`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from icml26_jax import checks

# Resampled values held at a time: bounds memory, not the result.
_CHUNK = 2**22


class Interval(NamedTuple):
  """An estimate and where it may lie.

  Attributes:
    estimate: float64, the statistic of the values.
    low: float64 of that shape, lower end.
    high: float64 of that shape, upper end.
  """

  estimate: np.ndarray
  low: np.ndarray
  high: np.ndarray


def t_interval(values, *, confidence: float = 0.95) -> Interval:
  """Student's interval for the mean of a few normal values.

  mean -+ t s / sqrt(S), s being the standard deviation with S - 1 degrees of
  freedom and t the quantile of Student's distribution.

  Args:
    values: `[..., S]` float, S >= 2 seeds on the last axis.
    confidence: in (0, 1).

  Returns:
    Arrays of shape `[...]`.

  Raises:
    ValueError: if there are fewer than 2 seeds, a value is not finite or
      `confidence` is outside (0, 1).
  """
  values = _checked("values", values, confidence)
  seeds = values.shape[-1]
  quantile = scipy.special.stdtrit(seeds - 1, 0.5 + confidence / 2)
  mean = np.mean(values, axis=-1)
  reach = quantile * np.std(values, axis=-1, ddof=1) / np.sqrt(seeds)
  return Interval(mean, mean - reach, mean + reach)


def paired_t_interval(first, second, *, confidence: float = 0.95) -> Interval:
  """Student's interval for the mean of `first - second`, seed by seed.

  Args:
    first: `[..., S]` float.
    second: float of the same shape; its last axis runs over the same seeds.
    confidence: in (0, 1).

  Returns:
    Arrays of shape `[...]`.

  Raises:
    ValueError: if the shapes differ, or as in `t_interval`.
  """
  return t_interval(_differences(first, second), confidence=confidence)


def bootstrap_interval(
  values,
  key: jax.Array,
  *,
  confidence: float = 0.95,
  num_resamples: int = 10_000,
  statistic: Callable[..., np.ndarray] = np.mean,
) -> Interval:
  """Percentile bootstrap interval.

  All leading axes use the same resampled rows, so that quantities measured on
  the same seeds stay together.

  Args:
    values: `[..., S]` float, S >= 2 independent values on the last axis.
    key: typed key; the same key gives the same interval.
    confidence: in (0, 1).
    num_resamples: number of resamples, at least 1.
    statistic: `statistic(array, axis=-1)`, e.g. `np.median`.

  Returns:
    Arrays of shape `[...]`.

  Raises:
    ValueError: if there are fewer than 2 values, a value is not finite, or an
      argument is outside its range.
    TypeError: if `key` is not one typed key.

  References:
    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
  """
  values = _checked("values", values, confidence)
  checks.check_range("num_resamples", num_resamples, low=1)
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape:
    raise TypeError(
      f"key must be one typed key (jax.random.key), got {key.dtype}{key.shape}"
    )
  size = values.shape[-1]
  words = np.asarray(jax.random.key_data(key)).ravel().tolist()
  rows = np.random.default_rng(words).integers(
    size, size=(num_resamples, size), dtype=np.int32
  )
  chunk = max(1, _CHUNK // max(values.size, 1))
  resampled = np.concatenate(
    [
      statistic(values[..., rows[start : start + chunk]], axis=-1)
      for start in range(0, num_resamples, chunk)
    ],
    axis=-1,
  )
  tail = (1 - confidence) / 2
  low, high = np.quantile(resampled, [tail, 1 - tail], axis=-1)
  return Interval(np.asarray(statistic(values, axis=-1)), low, high)


def paired_bootstrap_interval(
  first,
  second,
  key: jax.Array,
  *,
  confidence: float = 0.95,
  num_resamples: int = 10_000,
  statistic: Callable[..., np.ndarray] = np.mean,
) -> Interval:
  """Percentile bootstrap interval of a statistic of `first - second`.

  Args:
    first: `[..., S]` float.
    second: float of the same shape; value s of both was measured on the same
      seed or input.
    key: typed key.
    confidence: in (0, 1).
    num_resamples: number of resamples, at least 1.
    statistic: `statistic(array, axis=-1)`.

  Returns:
    Arrays of shape `[...]`.

  Raises:
    ValueError: if the shapes differ, or as in `bootstrap_interval`.
    TypeError: if `key` is not one typed key.
  """
  return bootstrap_interval(
    _differences(first, second),
    key,
    confidence=confidence,
    num_resamples=num_resamples,
    statistic=statistic,
  )


def _differences(first, second) -> np.ndarray:
  """`first - second` in float64."""
  first = np.asarray(first, np.float64)
  second = np.asarray(second, np.float64)
  if first.shape != second.shape:
    raise ValueError(
      f"first {first.shape} and second {second.shape} must have one shape"
    )
  return first - second


def _checked(name: str, values, confidence: float) -> np.ndarray:
  """Finite float64 values of at least two seeds."""
  checks.check_range(
    "confidence", confidence, low=0.0, high=1.0, open_low=True, open_high=True
  )
  values = np.asarray(values, np.float64)
  if values.ndim < 1 or values.shape[-1] < 2:
    raise ValueError(
      f"{name} must be [..., S] with at least 2 seeds, got shape {values.shape}"
    )
  if not np.all(np.isfinite(values)):
    raise ValueError(f"{name} must be finite, got {values.tolist()}")
  return values
