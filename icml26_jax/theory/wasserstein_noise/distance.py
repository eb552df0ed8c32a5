"""The signed Wasserstein distance of two images."""

from __future__ import annotations

import typing
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.theory.wasserstein_noise import exact, pairs, sinkhorn

Solver = Literal["exact", "sinkhorn"]

_EPSILON = 1e-2


def signed_wasserstein(
  a: jax.Array,
  b: jax.Array,
  p: float,
  *,
  solver: Solver = "exact",
  epsilon: float | None = None,
  torus: bool = True,
) -> float | jax.Array:
  """Signed Wasserstein distance of two images of equal total mass.

  W_p^±(a, b) = W_p(a_+ + b_-, b_+ + a_-), where W_p of two measures of common
  mass M is (min over plans P of sum P c^p)^(1/p), not divided by M. For
  non-negative images it is the usual distance. At p = 1 it depends on a - b
  only and is a metric; for p > 1 the triangle inequality fails, and scaling
  both images by t scales it by t^(1/p).

  Args:
    a: `[n, n]` real; pixels may be negative.
    b: `[n, n]` real with the sum of `a`.
    p: order, a Python number of at least 1.
    solver: "exact" runs POT's network simplex on the host in float64;
      "sinkhorn" runs in JAX under `jit` and `vmap`, and is never below the
      exact distance but for rounding.
    epsilon: weight of Sinkhorn's entropy in units of the largest c^p, positive;
      0.01 if None. Smaller is closer to the exact distance, and slower.
    torus: False for the plain distance; see `torus_cost`.

  Returns:
    The distance, in mass^(1/p) times sides of the image: a Python float if
    exact, otherwise `[]` float without a reverse-mode gradient. 0 if a = b.

  Raises:
    ValueError: if shapes are not one square shape, masses differ by more than
      1e-6 of the larger sum of absolute values, a pixel is not finite, `p` is
      below 1, `solver` is unknown, or `epsilon` is not in (0, inf) or is
      given to the exact solver.
    TypeError: if an image is complex, `p` no number, or the images are traced
      and the solver is exact.
    RuntimeError: if the network simplex found no best plan.

  References:
    Lager, Mordant and Moscovich, "Quantifying the noise sensitivity of the
    Wasserstein metric for images", ICML 2026, arXiv 2510.01015.
  """
  valid = typing.get_args(Solver)
  if solver not in valid:
    raise ValueError(checks.unknown("solver", solver, valid))
  pairs.check_order(p)
  pairs.check_pair(a, b)
  if solver == "exact":
    if epsilon is not None:
      raise ValueError(f"epsilon must be None if exact, got {epsilon}")
    if not checks.is_concrete(a, b):
      raise TypeError(
        "a and b must not be traced if exact: solver='sinkhorn' can be"
      )
    source, target = pairs.marginals(
      np.asarray(a, np.float64), np.asarray(b, np.float64), p
    )
    return exact.transport_cost(source, target, p, torus=torus) ** (1 / p)
  epsilon = _EPSILON if epsilon is None else epsilon
  checks.check_range(
    "epsilon",
    epsilon,
    low=0.0,
    high=float("inf"),
    open_low=True,
    open_high=True,
  )
  source, target = pairs.marginals(pairs.floating(a), pairs.floating(b), p)
  cost = sinkhorn.transport_cost(
    source, target, p, epsilon=epsilon, torus=torus
  )
  # Entropy spreads even what need not move.
  return jnp.where(jnp.all(source == target), 0, cost ** (1 / p))
