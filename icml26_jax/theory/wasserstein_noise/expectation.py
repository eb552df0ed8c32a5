"""Bounds on the expected signed distance of noisy images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.special

from icml26_jax import checks
from icml26_jax.theory.wasserstein_noise import grid, pairs

# Largest distance on the torus.
_DIAMETER = math.sqrt(0.5)


def expected_bounds(n: int, sigma: Any, p: float) -> dict[str, Any]:
  """Bounds on E W_p^±(mu + eps, mu) on the torus, for any image mu.

  Noise as of `center_noise`; all bounds are a constant times sigma^(1/p). At
  p > 1 those named below for p = 1 hold through W_p^p <= d^(p-1) W_1, with
  d = sqrt(2) / 2 the largest distance.

  - `paper`: at p = 1 (2 n log2 n + n / 2) sigma / sqrt(pi), at p = 2
    sqrt(4 n sigma / sqrt(pi)), otherwise through p = 1.
  - `tree`: (E tree^p)^(1/p) of `tree_upper_bound`, as
    E sum_Q |eps(Q)| = sigma n 2^k sqrt(2 / pi) sqrt(1 - 4^-k) at level k.
  - `dyadic`, p = 1: sqrt(3) / (2 sqrt(pi)) n log2(n) sigma. Noise is a sum
    over levels of what moves between the four children of a cell, by
    sqrt(2) 2^-k at most; every level costs the same.
  - `spectral`, p = 1: sigma n sqrt(2 S_n), S_n = sum_{k != 0} 1 / lambda_k;
    see `spectral_upper_bound`. Grows as n sqrt(log n), the true rate.
  - `lower`: at p = 1 n sigma sqrt(1 - n^-2) / sqrt(2 pi), the mean of
    `mass_lower_bound`. At p > 1 the mean of X^(1/p), X = ‖eps‖_1 / 2, is
    bounded by (E X)^(2 - 1/p) / (E X^2)^(1 - 1/p), which is Hoelder's
    inequality between the moments 1/p, 1 and 2.
  - `l2`, exact and for any p: E ‖eps‖_2 = sigma sqrt(2) Gamma(n^2 / 2) /
    Gamma((n^2 - 1) / 2), the mean Euclidean distance; linear in sigma.

  Args:
    n: pixels on a side, a power of two of at least 2.
    sigma: standard deviation of the noise, at least 0; a number or an array.
    p: order, a Python number of at least 1.

  Returns:
    `paper`, `tree`, `dyadic`, `spectral` (upper bounds), `lower` (lower bound)
    and `l2`, each of the shape of `sigma`.

  Raises:
    ValueError: if `n` is not a power of two or below 2, `sigma` negative or
      `p` below 1.
    TypeError: if `n` is no integer or `p` no number.

  References:
    Lager, Mordant and Moscovich, ICML 2026, arXiv 2510.01015 (`paper`);
    Ajtai, Komlós and Tusnády, "On optimal matchings", 1984 (the rate).
  """
  levels = _checked_levels(n)
  pairs.check_order(p)
  _check_not_negative("sigma", sigma)
  paper = _paper(n) if p == 1 else _lifted(_paper(n), p)
  if p == 2:
    paper = math.sqrt(4 * n / math.sqrt(math.pi))
  dyadic = math.sqrt(3) / (2 * math.sqrt(math.pi)) * n * levels
  spectral = n * math.sqrt(2 * grid.inverse_laplacian(n).sum())
  scale = sigma ** (1 / p)
  return {
    "paper": paper * scale,
    "tree": _tree(n, p) * scale,
    "dyadic": _lifted(dyadic, p) * scale,
    "spectral": _lifted(spectral, p) * scale,
    "lower": _lower(n, p) * scale,
    "l2": _euclidean(n) * sigma,
  }


def pair_bound(w1_clean: Any, n: int, sigma: Any, p: float) -> Any:
  """The paper's bound on E W_p^± of two images with noise of their own.

    E W_p^±(mu + eps, nu + eps') <= d^(1 - 1/p) W_1(mu, nu)^(1/p)
                                    + d (C_n sigma)^(1/p)

  with C_n = (4 n log2 n + 2 n) / sqrt(pi) and d = sqrt(2) / 2, on the torus.

  Args:
    w1_clean: W_1(mu, nu), at least 0; a number or an array.
    n: pixels on a side, a power of two of at least 2.
    sigma: standard deviation of the noise, at least 0; a number or an array.
    p: order, a Python number of at least 1.

  Returns:
    The bound, of the shape that `w1_clean` and `sigma` broadcast to.

  Raises:
    ValueError: if `n` is not a power of two or below 2, `w1_clean` or `sigma`
      is negative or `p` is below 1.
    TypeError: if `n` is no integer or `p` no number.

  References:
    Lager, Mordant and Moscovich, ICML 2026, arXiv 2510.01015.
  """
  levels = _checked_levels(n)
  pairs.check_order(p)
  _check_not_negative("w1_clean", w1_clean)
  _check_not_negative("sigma", sigma)
  constant = (4 * n * levels + 2 * n) / math.sqrt(math.pi)
  clean = _DIAMETER ** (1 - 1 / p) * w1_clean ** (1 / p)
  return clean + _DIAMETER * (constant * sigma) ** (1 / p)


def _paper(n: int) -> float:
  """The paper's constant at p = 1."""
  return (2 * n * math.log2(n) + n / 2) / math.sqrt(math.pi)


def _lifted(bound: float, p: float) -> float:
  """A bound on W_1 as a bound on W_p, as c^p <= d^(p-1) c."""
  return (_DIAMETER ** (p - 1) * bound) ** (1 / p)


def _tree(n: int, p: float) -> float:
  diameters = grid.cell_diameters(n, torus=True) ** p
  level = np.arange(1, len(diameters))
  spread = n * 2.0**level * np.sqrt(2 / np.pi * (1 - 0.25**level))
  cost = np.sum((diameters[:-1] - diameters[1:]) * spread) / 2
  return float(cost ** (1 / p))


def _lower(n: int, p: float) -> float:
  pixels = n**2
  variance = 1 - 1 / pixels
  # Centring correlates any two pixels by r; E|x y| of two normal values then is
  # 2/pi (sqrt(1 - r^2) + r asin r) times their variance.
  r = -1 / (pixels - 1)
  product = 2 / math.pi * (math.sqrt(1 - r**2) + r * math.asin(r))
  first = pixels * math.sqrt(2 / math.pi * variance) / 2
  second = pixels * variance * (1 + (pixels - 1) * product) / 4
  return first ** (2 - 1 / p) * second ** (1 / p - 1) / n


def _euclidean(n: int) -> float:
  halves = scipy.special.gammaln([n**2 / 2, (n**2 - 1) / 2])
  return math.sqrt(2) * math.exp(halves[0] - halves[1])


def _checked_levels(n: int) -> int:
  levels = grid.checked_levels(n)
  if levels == 0:
    raise ValueError(f"n must be at least 2, got {n}")
  return levels


def _check_not_negative(name: str, value) -> None:
  checks.check_range(name, value, low=0.0, high=math.inf, open_high=True)
