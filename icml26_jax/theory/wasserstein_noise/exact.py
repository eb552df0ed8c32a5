"""Exact transport on the host, by the network simplex of POT."""

from __future__ import annotations

import numpy as np

from icml26_jax.theory.wasserstein_noise import grid

# POT's own default, 1e5, is too few for images of 64 by 64 pixels.
_MAX_ITERATIONS = 10**8


def transport_cost(
  source: np.ndarray,
  target: np.ndarray,
  p: float,
  *,
  torus: bool = True,
  max_iterations: int = _MAX_ITERATIONS,
) -> float:
  """Least cost sum P c^p of moving one image of mass to another.

  Args:
    source: `[n, n]` float64, non-negative.
    target: `[n, n]` float64, non-negative, of the same mass to rounding.
    p: power of the distance, at least 1.
    torus: which distance; see `grid.torus_cost`.
    max_iterations: pivots of the simplex.

  Returns:
    The cost, in units of mass; 0.0 if there is no mass.

  Raises:
    RuntimeError: if the simplex found no best plan.
  """
  # POT takes seconds to import as it looks for every array library there is.
  from ot import lp

  # Of masses that differ by rounding, what both have is moved.
  mass = min(float(source.sum()), float(target.sum()))
  if mass == 0.0:
    return 0.0
  n = source.shape[0]
  rows, columns = np.nonzero(source), np.nonzero(target)
  table = grid.distance_table(n, torus=torus) ** p
  cost = table[
    np.abs(rows[0][:, None] - columns[0]),
    np.abs(rows[1][:, None] - columns[1]),
  ]
  _, log = lp.emd(
    source[rows] / source.sum(),
    target[columns] / target.sum(),
    cost,
    numItermax=max_iterations,
    log=True,
    check_marginals=False,
  )
  if log["warning"] is not None:
    raise RuntimeError(
      f"no best plan between {cost.shape[0]} and {cost.shape[1]} pixels within"
      f" {max_iterations} iterations: {log['warning']}"
    )
  return mass * float(log["cost"])
