"""Part (b): a little noise brings two images closer, at p > 1 only."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from icml26_jax.data import images
from icml26_jax.report import claims, progress
from icml26_jax.theory import wasserstein_noise

ORDERS = (1, 2, 3)
SIGMAS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2)
# Where the noise level of each order is chosen from.
CANDIDATES = {2: (5e-4, 1e-3, 2e-3), 3: (1e-3, 2e-3, 3e-3)}


class Ratio(NamedTuple):
  """A noisy distance as a share of the clean one.

  Attributes:
    mean: over the draws.
    error: its standard error.
  """

  mean: float
  error: float


class Shrinking(NamedTuple):
  """What noise does to the distances of two images.

  Attributes:
    clean: p to the distance without noise.
    curves: p to one ratio for each of `SIGMAS`, on the draws that the noise
      levels are chosen by.
    chosen: p to its noise level, for those of `CANDIDATES`.
    fresh: (p, sigma) to the ratio on fresh draws: each chosen order at its
      level, and order 1 at all chosen levels.
  """

  clean: dict[int, float]
  curves: dict[int, list[Ratio]]
  chosen: dict[int, float]
  fresh: dict[tuple[int, float], Ratio]


def run(
  key: jax.Array,
  *,
  names: tuple[str, str],
  choosing: int,
  fresh: int,
  size: int,
) -> Shrinking:
  """Chooses noise levels on some draws and measures on others.

  Args:
    key: typed key.
    names: the two pictures.
    choosing: draws that the levels are chosen by, at least 2.
    fresh: draws that the ratios are measured on, at least 2.
    size: pixels on a side.

  Returns:
    The ratios.
  """
  mu, nu = (images.as_mass(images.load(name, size)) for name in names)
  clean = {p: wasserstein_noise.signed_wasserstein(mu, nu, p) for p in ORDERS}
  choosing_key, fresh_key = jax.random.split(key)

  def ratios(key, sigmas, trials, p):
    sweep = wasserstein_noise.noise_sweep(
      jax.random.clone(key), mu, nu, sigmas, trials, p
    )
    return [
      Ratio(float(mean / clean[p]), float(error / clean[p]))
      for mean, error in zip(
        sweep["distance"], sweep["distance_error"], strict=True
      )
    ]

  curves, found = {}, {}
  total = len(ORDERS) + 2 * len(CANDIDATES)
  with progress.bar("shrinking", total=total, unit="curves") as bar:
    for p in ORDERS:
      curves[p] = ratios(choosing_key, SIGMAS, choosing, p)
      bar.advance()
    chosen = {
      p: min(
        candidates, key=lambda sigma, p=p: curves[p][SIGMAS.index(sigma)].mean
      )
      for p, candidates in CANDIDATES.items()
    }
    for p, sigma in chosen.items():
      for order in (p, 1):
        if (order, sigma) not in found:
          found[order, sigma] = ratios(fresh_key, [sigma], fresh, order)[0]
        bar.advance()
  return Shrinking(clean, curves, chosen, found)


def shrinking_checks(
  found: Shrinking, p: int, largest_mean: float, standard_errors: float
) -> list[claims.Check]:
  """Whether the distance of order p falls below its clean value.

  Args:
    found: the ratios.
    p: one of `CANDIDATES`.
    largest_mean: what the mean ratio must be below.
    standard_errors: reach of the interval that must be below 1.

  Returns:
    Two conditions.
  """
  sigma = found.chosen[p]
  ratio = found.fresh[p, sigma]
  name = f"W_{p} ratio at sigma = {sigma:g}"
  return [
    claims.below(name, estimate(ratio, standard_errors), 1.0),
    claims.below(
      f"mean {name}",
      claims.Estimate(ratio.mean, ratio.mean, ratio.mean),
      largest_mean,
    ),
  ]


def rising_checks(
  found: Shrinking, standard_errors: float
) -> list[claims.Check]:
  """Whether that of order 1 does not, within the error of its mean."""
  checks = []
  for (p, sigma), ratio in found.fresh.items():
    if p == 1:
      high = ratio.mean + standard_errors * ratio.error
      checks.append(
        claims.above(
          f"W_1 ratio plus {standard_errors:g} standard errors at"
          f" sigma = {sigma:g}",
          claims.Estimate(high, high, high),
          1.0,
        )
      )
  return checks


def pair_checks(
  found: Shrinking, standard_errors: float, size: int
) -> list[claims.Check]:
  """Whether every mean obeys the paper's bound for two noisy images."""
  largest = {}
  for p, ratios in found.curves.items():
    bounds = wasserstein_noise.pair_bound(
      found.clean[1], size, np.array(SIGMAS), p
    )
    values = [
      (ratio.mean - standard_errors * ratio.error) * found.clean[p] / bound
      for ratio, bound in zip(ratios, bounds, strict=True)
    ]
    largest[p] = float(max(values))
  return [
    claims.below(
      f"mean W_{p} of two noisy images / bound",
      claims.Estimate(value, value, value),
      1.0,
    )
    for p, value in largest.items()
  ]


def estimate(ratio: Ratio, standard_errors: float) -> claims.Estimate:
  """A ratio with its interval."""
  reach = standard_errors * ratio.error
  return claims.Estimate(ratio.mean, ratio.mean - reach, ratio.mean + reach)
