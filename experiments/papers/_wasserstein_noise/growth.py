"""Part (a): how fast distances grow with the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from icml26_jax.data import images
from icml26_jax.evaluation import intervals
from icml26_jax.report import claims, progress
from icml26_jax.theory import wasserstein_noise

# The name of the Euclidean distance beside W_p.
EUCLIDEAN = "L2"


class Curves(NamedTuple):
  """Distances of one noisy image to itself without noise.

  Attributes:
    sigmas: `[S]` standard deviations of the noise.
    distance: `[trials, S]` W_p^±.
    euclidean: `[trials, S]`.
    ratios: name of a bound to the largest `[S]` ratio of the smaller to the
      larger side of it, over the trials.
  """

  sigmas: np.ndarray
  distance: np.ndarray
  euclidean: np.ndarray
  ratios: dict[str, np.ndarray]


# (image, p) to its curves.
Growth = Mapping[tuple[str, int], Curves]


def run(
  key: jax.Array,
  *,
  names: Sequence[str],
  orders: Sequence[int],
  sigmas: np.ndarray,
  trials: int,
  size: int,
) -> Growth:
  """Measures mu + eps against mu; a trial's draw serves every sigma and order.

  Args:
    key: typed key.
    names: pictures.
    orders: orders p.
    sigmas: `[S]` standard deviations.
    trials: draws of the noise for each picture.
    size: pixels on a side.

  Returns:
    The curves.
  """
  found = {}
  total = len(names) * len(orders) * trials
  with progress.bar("growth", total=total, unit="curves") as bar:
    for index, name in enumerate(names):
      mu = images.as_mass(images.load(name, size))
      keys = jax.random.split(jax.random.fold_in(key, index), trials)
      for p in orders:
        sweeps = []
        for trial in jax.random.clone(keys):
          sweeps.append(
            wasserstein_noise.noise_sweep(
              trial, mu, mu, sigmas, 1, p, noisy="first"
            )
          )
          bar.advance()
        found[name, p] = Curves(
          sigmas=sigmas,
          distance=np.stack([sweep["distance"] for sweep in sweeps]),
          euclidean=np.stack([sweep["l2"] for sweep in sweeps]),
          ratios={
            ratio.removesuffix("_ratio"): np.max(
              [sweep[ratio] for sweep in sweeps], axis=0
            )
            for ratio in sweeps[0]
            if ratio.endswith("_ratio")
          },
        )
  return found


def slopes(
  growth: Growth, smallest: float
) -> dict[tuple[str, str], np.ndarray]:
  """Exponents of growth in sigma.

  Args:
    growth: the curves.
    smallest: sigmas from here on are fitted.

  Returns:
    (image, distance) to the exponent of each trial, `[trials]`.
  """
  found = {}
  for (name, p), curves in growth.items():
    top = curves.sigmas >= smallest
    for metric, values in (
      (EUCLIDEAN, curves.euclidean),
      (f"W_{p}", curves.distance),
    ):
      found[name, metric] = np.array(
        [
          wasserstein_noise.fit_exponent(curves.sigmas[top], row[top])
          for row in values
        ]
      )
  return found


def slope_checks(
  found: Mapping[tuple[str, str], np.ndarray], radius: float
) -> list[claims.Check]:
  """Whether each exponent is that of the theory, 1 or 1 / p."""
  return [
    claims.within(
      f"slope of {metric}, {name}",
      estimate(values),
      expected_slope(metric),
      radius,
    )
    for (name, metric), values in found.items()
  ]


def expected_slope(metric: str) -> float:
  """Exponent of a distance by its name."""
  return 1.0 if metric == EUCLIDEAN else 1 / int(metric.removeprefix("W_"))


def estimate(values: np.ndarray) -> claims.Estimate:
  """Mean of independent values with its 95% interval, if there are two."""
  if len(values) < 2:
    return claims.Estimate(float(np.mean(values)))
  return claims.Estimate(*map(float, intervals.t_interval(values)))


def sample_checks(growth: Growth) -> list[claims.Check]:
  """Whether every single distance lies within its bounds."""
  largest: dict[str, float] = {}
  for curves in growth.values():
    for bound, ratios in curves.ratios.items():
      largest[bound] = max(largest.get(bound, 0.0), float(ratios.max()))
  return [
    claims.below(
      "lower bound / distance" if bound == "lower" else f"distance / {bound}",
      claims.Estimate(value, value, value),
      1.0,
    )
    for bound, value in largest.items()
  ]


def mean_checks(
  growth: Growth, standard_errors: float, size: int
) -> list[claims.Check]:
  """Whether every mean lies within every expected bound.

  Args:
    growth: the curves.
    standard_errors: allowance for the mean of a few draws.
    size: pixels on a side.

  Returns:
    One condition a bound, on the tightest case of all images and sigmas.
  """
  largest: dict[str, float] = {}
  for (_, p), curves in growth.items():
    trials = len(curves.distance)
    mean = curves.distance.mean(axis=0)
    error = curves.distance.std(axis=0, ddof=1) / np.sqrt(trials)
    bounds = wasserstein_noise.expected_bounds(size, curves.sigmas, p)
    del bounds["l2"]
    lower = bounds.pop("lower")
    ratios = {
      f"mean W_{p} / {bound}": (mean - standard_errors * error) / value
      for bound, value in bounds.items()
    }
    ratios[f"lower bound / mean W_{p}"] = lower / (
      mean + standard_errors * error
    )
    for name, values in ratios.items():
      largest[name] = max(largest.get(name, 0.0), float(values.max()))
  return [
    claims.below(name, claims.Estimate(value, value, value), 1.0)
    for name, value in largest.items()
  ]
