"""Noise on every pixel that leaves an image's total mass alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.theory.wasserstein_noise import grid


def center_noise(key: jax.Array, n: int, sigma: float) -> jax.Array:
  """Independent Gaussian noise less its mean over the image.

  eps = sigma (N - mean N) with N standard normal, so that mu + eps has the
  mass of mu; pixels may turn negative.

  Args:
    key: typed key.
    n: pixels on a side, at least 1.
    sigma: standard deviation of a pixel before centring, at least 0; may be
      traced.

  Returns:
    `[n, n]` float; zero if `sigma` is 0 or `n` is 1.

  Raises:
    ValueError: if `n` is below 1 or `sigma` negative.
    TypeError: if `n` is not an integer.

  References:
    Lager, Mordant and Moscovich, ICML 2026, arXiv 2510.01015.
  """
  n = grid.checked_size(n)
  checks.check_range("sigma", sigma, low=0.0, high=float("inf"), open_high=True)
  normal = jax.random.normal(key, (n, n))
  return sigma * (normal - jnp.mean(normal))
