"""How distances grow with the noise."""

from __future__ import annotations

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.theory.wasserstein_noise import (
  distance,
  grid,
  noise,
  pairs,
  sample_bounds,
)

Noisy = Literal["both", "first"]


def noise_sweep(
  key: jax.Array,
  mu: jax.Array,
  nu: jax.Array,
  sigmas: jax.Array,
  trials: int,
  p: float,
  *,
  noisy: Noisy = "both",
) -> dict[str, np.ndarray]:
  """Exact distances of two images under more and more noise.

  The same standard normal draws serve every sigma, so that curves are smooth
  in sigma and their slopes far more certain than their heights.

  Args:
    key: typed key; the draws depend on it, `trials` and n only.
    mu: `[n, n]` real, n a power of two.
    nu: `[n, n]` real with the sum of `mu`.
    sigmas: `[S]` standard deviations of a pixel, each at least 0.
    trials: draws for each, at least 1.
    p: order, a Python number of at least 1.
    noisy: "both" adds independent noise to either image, "first" to `mu` only.

  Returns:
    float64 arrays of shape `[S]`: `distance`, the mean of W_p^± on the torus,
    and `l2`, that of the Euclidean distance, each with its standard error
    (`distance_error`, `l2_error`; NaN for a single draw); the largest
    ratio over the draws of the distance to its bounds, `tree_ratio` and, at
    p = 1, `spectral_ratio`, and of the lower bound to the distance,
    `lower_ratio`. These are at most 1 to float32 rounding if the bounds hold,
    and 0 where both are 0.

  Raises:
    ValueError: if n is not a power of two, a sigma is negative, `trials` is
      below 1, `noisy` is unknown, or as `signed_wasserstein`.
    TypeError: if an image is complex or `p` no number.
    RuntimeError: as `signed_wasserstein`.
  """
  pairs.check_order(p)
  pairs.check_pair(mu, nu, ("mu", "nu"))
  n = np.shape(mu)[0]
  grid.checked_levels(n)
  levels = np.asarray(sigmas, np.float64)
  if levels.ndim != 1 or levels.size == 0:
    raise ValueError(f"sigmas must be [S], S >= 1, got shape {levels.shape}")
  checks.check_range(
    "sigmas", levels, low=0.0, high=float("inf"), open_high=True
  )
  checks.check_range("trials", trials, low=1)
  if noisy not in ("both", "first"):
    raise ValueError(checks.unknown("noisy", noisy, ("both", "first")))
  unit = _unit_noise(key, trials, n)
  if noisy == "first":
    unit[1] = 0.0
  # [S, trials, n, n]
  noise_a, noise_b = levels[:, None, None, None] * unit[:, None]
  a = np.asarray(mu, np.float64) + noise_a
  b = np.asarray(nu, np.float64) + noise_b
  exact = np.array(
    [
      [distance.signed_wasserstein(x, y, p) for x, y in zip(*row, strict=True)]
      for row in zip(a, b, strict=True)
    ]
  )
  euclidean = np.sqrt(np.sum((a - b) ** 2, axis=(2, 3)))
  found = _summary("distance", exact) | _summary("l2", euclidean)
  bounds = {
    name: np.asarray(values, np.float64)
    for name, values in _bounds(jnp.asarray(a - b), p).items()
  }
  lower = bounds.pop("lower")
  for name, upper in bounds.items():
    found[f"{name}_ratio"] = _largest_ratio(exact, upper)
  found["lower_ratio"] = _largest_ratio(lower, exact)
  return found


def fit_exponent(sigmas: jax.Array, values: jax.Array) -> float:
  """Slope of log value in log sigma by least squares.

  Args:
    sigmas: `[S]` positive, at least two different ones.
    values: `[S]` positive.

  Returns:
    The exponent e of the best fit value = c sigma^e.

  Raises:
    ValueError: if the shapes differ, a value is not positive and finite, or
      there are fewer than two different sigmas.
  """
  x, y = np.asarray(sigmas, np.float64), np.asarray(values, np.float64)
  if x.ndim != 1 or x.shape != y.shape:
    raise ValueError(
      f"sigmas {x.shape} and values {y.shape} must have one shape [S]"
    )
  if np.unique(x).size < 2:
    raise ValueError(f"sigmas must hold two different values, got {x.tolist()}")
  for name, array in (("sigmas", x), ("values", y)):
    checks.check_range(
      name, array, low=0.0, high=float("inf"), open_low=True, open_high=True
    )
  x, y = np.log(x), np.log(y)
  x = x - x.mean()
  return float(x @ y / (x @ x))


def _unit_noise(key, trials, n) -> np.ndarray:
  """`[2, trials, n, n]` float64 noise with sigma 1."""
  keys = jax.random.split(key, (2, trials))
  draw = jax.vmap(jax.vmap(lambda k: noise.center_noise(k, n, 1.0)))
  unit = np.array(draw(keys), np.float64)
  # Centred in float32 so far; rounding would add up over a sweep's range.
  return unit - unit.mean(axis=(2, 3), keepdims=True)


@functools.partial(jax.jit, static_argnames="p")
def _bounds(difference, p) -> dict[str, jax.Array]:
  """Bounds on each distance, `[S, trials]`, by a - b alone.

  Taken in float64, it keeps noise that is far below the images in float32.
  """

  def one(x):
    zero = jnp.zeros_like(x)
    found = {
      "tree": sample_bounds.tree_upper_bound(x, zero, p),
      "lower": sample_bounds.mass_lower_bound(x, zero, p),
    }
    if p == 1:
      found["spectral"] = sample_bounds.spectral_upper_bound(x, zero)
    return found

  return jax.vmap(jax.vmap(one))(difference)


def _summary(name, values) -> dict[str, np.ndarray]:
  trials = values.shape[1]
  error = (
    values.std(axis=1, ddof=1) / np.sqrt(trials)
    if trials > 1
    else np.full(len(values), np.nan)
  )
  return {name: values.mean(axis=1), f"{name}_error": error}


def _largest_ratio(smaller, larger) -> np.ndarray:
  both_zero = (smaller == 0) & (larger == 0)
  ratio = np.where(both_zero, 0.0, smaller / np.where(both_zero, 1.0, larger))
  return ratio.max(axis=1)
