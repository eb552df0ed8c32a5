"""Transport with an entropy term, in JAX, rounded to a plan that fits."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.theory.wasserstein_noise import grid

# The entropy is lowered by this factor an iteration: starting at once with
# little of it takes far more iterations.
_DECAY = 0.9


class _Ground(NamedTuple):
  """What the iteration asks of a cost C, which is symmetric.

  Attributes:
    smooth: `(log_v, epsilon)` to log sum_j exp(-C_ij / epsilon) v_j.
    smooth_cost: the same with C_ij before the exponential.
    between: `(x, y)` to sum_ij x_i C_ij y_j.
  """

  smooth: Callable[[jax.Array, jax.Array], jax.Array]
  smooth_cost: Callable[[jax.Array, jax.Array], jax.Array]
  between: Callable[[jax.Array, jax.Array], jax.Array]


@functools.partial(jax.jit, static_argnames=("p", "torus", "max_iterations"))
def transport_cost(
  source: jax.Array,
  target: jax.Array,
  p: float,
  *,
  epsilon: float | jax.Array,
  torus: bool = True,
  tolerance: float = 1e-4,
  max_iterations: int = 2000,
) -> jax.Array:
  """Cost sum P c^p of a nearly best plan, without the entropy term.

  Sinkhorn's iteration in the log domain, from much entropy to little. The last
  plan is rounded to the given masses, so that the cost is never below the
  least one, however few iterations were made. At p = 2 the two axes are
  smoothed one after the other, O(n^3) an iteration instead of O(n^4).

  Args:
    source: `[n, n]` float, non-negative.
    target: `[n, n]` float, non-negative, of the same mass to rounding.
    p: power of the distance, at least 1.
    epsilon: weight of the entropy, in units of the largest c^p.
    torus: which distance; see `grid.torus_cost`.
    tolerance: share of the mass that may be misplaced before rounding.
    max_iterations: bound on the iterations.

  Returns:
    `[]` float, in units of mass; 0 if there is no mass. Values only: a loop of
    open length has no reverse-mode gradient.

  References:
    Cuturi, "Sinkhorn distances", NeurIPS 2013; Altschuler, Weed and Rigollet,
    "Near-linear time approximation algorithms for optimal transport via
    Sinkhorn iteration", NeurIPS 2017, algorithm 2 (rounding).
  """
  n = source.shape[0]
  largest = float(grid.distance_table(n, torus=torus).max() ** p) or 1.0
  ground = _ground(n, p, largest, torus, source.dtype)
  epsilon = jnp.asarray(epsilon, source.dtype)
  # Of masses that differ by rounding, what both have is moved.
  mass = jnp.minimum(jnp.sum(source), jnp.sum(target))
  a = source / jnp.where(mass > 0, jnp.sum(source), 1)
  b = target / jnp.where(mass > 0, jnp.sum(target), 1)
  log_a, log_b = _log(a), _log(b)

  def unfinished(state):
    step, _, _, misplaced = state
    return (step < max_iterations) & (misplaced > tolerance)

  def update(state):
    step, f, g, _ = state
    # Potentials are in units of the cost, so that they keep their meaning as
    # epsilon falls.
    now = jnp.maximum(epsilon, _DECAY**step)
    new_f = now * (log_a - ground.smooth(g / now, now))
    # The plan of the step before has row sums a exp((f - new_f) / epsilon).
    drift = jnp.where(a > 0, f - new_f, 0) / now
    misplaced = jnp.sum(a * jnp.abs(jnp.expm1(drift)))
    settled = _DECAY ** (step - 1) <= epsilon
    new_g = now * (log_b - ground.smooth(new_f / now, now))
    return step + 1, new_f, new_g, jnp.where(settled, misplaced, jnp.inf)

  start = (
    jnp.asarray(0.0, a.dtype),
    jnp.where(a > 0, 0, -jnp.inf).astype(a.dtype),
    jnp.where(b > 0, 0, -jnp.inf).astype(a.dtype),
    jnp.asarray(jnp.inf, a.dtype),
  )
  step, f, g, _ = jax.lax.while_loop(unfinished, update, start)
  last = jnp.maximum(epsilon, _DECAY ** (step - 1))
  return mass * largest * _rounded_cost(ground, f / last, g / last, a, b, last)


def _rounded_cost(ground, log_u, log_v, a, b, epsilon):
  """Cost of the plan u K v, rounded to row sums `a` and column sums `b`."""

  def shrunk(log_u, log_v, wanted):
    # Rows that hold too much are scaled down.
    held = log_u + ground.smooth(log_v, epsilon)
    excess = jnp.where(wanted > 0, held - _log(wanted), 0)
    return log_u - jnp.maximum(excess, 0)

  log_u = shrunk(log_u, log_v, a)
  log_v = shrunk(log_v, log_u, b)
  # What is missing is placed without regard to the cost. Clipped, as
  # rounding errors may put a row above its sum.
  missing_a = a - jnp.exp(log_u + ground.smooth(log_v, epsilon))
  missing_b = b - jnp.exp(log_v + ground.smooth(log_u, epsilon))
  missing_a, missing_b = missing_a.clip(min=0), missing_b.clip(min=0)
  total = (jnp.sum(missing_a) + jnp.sum(missing_b)) / 2
  placed = ground.between(missing_a, missing_b)
  kept = jnp.sum(jnp.exp(log_u + ground.smooth_cost(log_v, epsilon)))
  return kept + placed / jnp.where(total > 0, total, 1)


def _log(x: jax.Array) -> jax.Array:
  """Logarithm with -inf at zero, without dividing by zero on the way."""
  return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)


def _ground(
  n: int, p: float, largest: float, torus: bool, dtype: jnp.dtype
) -> _Ground:
  """The cost c^p / largest between the pixels of an image."""
  if p == 2:
    apart = np.abs(np.arange(n)[:, None] - np.arange(n))
    axis = grid.axis_distances(n, torus=torus)[apart] ** 2 / largest
    return _separable(jnp.asarray(axis, dtype))
  cost = grid.torus_cost(n, torus=torus).astype(dtype)
  return _dense(cost**p / largest)


def _dense(cost: jax.Array) -> _Ground:
  """Any cost between all pixels, `[n * n, n * n]`."""

  def apply(log_v, log_kernel):
    smoothed = jax.nn.logsumexp(log_kernel + log_v.reshape(1, -1), axis=1)
    return smoothed.reshape(log_v.shape)

  return _Ground(
    smooth=lambda log_v, epsilon: apply(log_v, -cost / epsilon),
    smooth_cost=lambda log_v, epsilon: apply(
      log_v, _log(cost) - cost / epsilon
    ),
    between=lambda x, y: x.reshape(-1) @ cost @ y.reshape(-1),
  )


def _separable(cost: jax.Array) -> _Ground:
  """The sum of one cost `[n, n]` along the rows and along the columns."""

  def along(log_v, log_kernel):
    return jax.nn.logsumexp(log_kernel[:, :, None] + log_v[None, :, :], axis=1)

  def both(log_v, first, second):
    return along(along(log_v, first).T, second).T

  def smooth(log_v, epsilon):
    kernel = -cost / epsilon
    return both(log_v, kernel, kernel)

  def smooth_cost(log_v, epsilon):
    kernel = -cost / epsilon
    weighted = _log(cost) + kernel
    return jnp.logaddexp(
      both(log_v, weighted, kernel), both(log_v, kernel, weighted)
    )

  def between(x, y):
    return sum(
      jnp.sum(x, axis=axis) @ cost @ jnp.sum(y, axis=axis) for axis in (0, 1)
    )

  return _Ground(smooth, smooth_cost, between)
