"""Gradient flow in discrete steps, and how far it drifts from a law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.theory.conservation import law as law_lib
from icml26_jax.theory.conservation import rate

METHODS = ("euler", "rk4", "midpoint")

# A contraction by 0.8 an iteration is at the rounding of float64 before that.
_MAX_ITERATIONS = 200


def simulate(
  loss: Callable[[Any], jax.Array],
  params: Any,
  law: rate.AnyLaw,
  *,
  method: str,
  tau: jax.Array | float,
  steps: int,
) -> tuple[Any, Any]:
  """Follows `d theta / dt = -grad L` and records the drift of a law.

  `euler` is gradient descent and lets a quadratic law drift by `O(tau)` at a
  fixed time; `rk4` is the classical Runge-Kutta method, `O(tau^4)`; `midpoint`
  is the implicit midpoint rule, which keeps every quadratic law to rounding.
  All keep linear laws. The midpoint is solved by fixed-point iteration, which
  converges where `tau` times the curvature is below 2.

  Args:
    loss: function of the parameters, a scalar.
    params: pytree of float arrays.
    law: function of the parameters.
    method: one of `METHODS`.
    tau: step size above 0, or one for each step, `[steps]`.
    steps: number of steps, at least 1.

  Returns:
    How far the law is from where it was after each step, a pytree like the
    law with a first axis `[steps]`; and the last parameters. Both are NaN from
    the step on whose midpoint could not be solved.

  Raises:
    TypeError: if a parameter is not floating.
    ValueError: if `tau` or `steps` is outside its range, or the method is not
      a gradient flow: laws of gradient flow say nothing of other optimisers.

  References:
    Tran et al., "Conservation Laws for Modern Neural Architectures", ICML
    2026, section 6; Hairer, Lubich and Wanner, "Geometric Numerical
    Integration", theorem IV.2.2.
  """
  if method not in METHODS:
    raise ValueError(
      f"method must be one of {', '.join(METHODS)}, got {method!r}:"
      " conservation laws hold for Euclidean gradient flow only; momentum,"
      " Adam and other preconditioned updates break them"
    )
  checks.check_range("steps", steps, low=1)
  checks.check_range("tau", tau, low=0.0, open_low=True)
  if jnp.shape(tau) not in ((), (steps,)):
    raise ValueError(
      f"tau must be a number or have shape ({steps},), got {jnp.shape(tau)}"
    )
  rate.check_floating("params", params)
  params = jax.tree.map(jnp.asarray, params)
  start = law(params)
  rates = jnp.broadcast_to(jnp.asarray(tau, _dtype(params)), (steps,))
  advance = {"euler": _euler, "rk4": _rk4, "midpoint": _midpoint}[method]
  grad = jax.grad(loss)

  def step(params, tau):
    params = advance(grad, params, tau)
    return params, jax.tree.map(jnp.subtract, law(params), start)

  params, drift = jax.lax.scan(step, params, rates)
  return drift, params


def euler_drift(law: rate.AnyLaw, grads: Any, tau: jax.Array | float) -> Any:
  """Change of a quadratic law over steps of gradient descent, exactly.

  `sum_t tau_t^2 q(g_t)` where q is the quadratic part of the law, that is the
  law itself for a form such as `||A_i||^2 - ||C_i||^2`: along `theta - tau g`
  the term linear in tau vanishes. A linear law has no quadratic part and
  drifts by 0.

  Args:
    law: function of the parameters, a polynomial of degree two at most.
    grads: gradients of the loss at each step, a pytree like the parameters
      with a first axis `[steps]`.
    tau: step size, or one for each step, `[steps]`.

  Returns:
    A pytree like the law.

  Raises:
    TypeError: if a gradient is not floating.
    ValueError: if `tau` is not above 0 or does not have that shape, or there
      is no gradient.

  References:
    Tran et al., section 6.
  """
  rate.check_floating("grads", grads)
  checks.check_range("tau", tau, low=0.0, open_low=True)
  leaves = jax.tree.leaves(grads)
  if not leaves:
    raise ValueError("grads must hold at least one array")
  steps = jnp.shape(leaves[0])[0]
  if jnp.shape(tau) not in ((), (steps,)):
    raise ValueError(
      f"tau must be a number or have shape ({steps},), got {jnp.shape(tau)}"
    )
  rates = jnp.broadcast_to(jnp.asarray(tau, _dtype(grads)), (steps,))

  def quadratic(grad):
    def along(s):
      return law(jax.tree.map(lambda g: s * g, grad))

    def slope(s):
      return jax.jvp(along, (s,), (jnp.ones_like(s),))[1]

    zero = jnp.zeros((), _dtype(grad))
    return jax.jvp(slope, (zero,), (jnp.ones_like(zero),))[1]

  def change(total, inputs):
    grad, tau = inputs
    return jax.tree.map(
      lambda t, q: t + tau**2 / 2 * q, total, quadratic(grad)
    ), None

  shapes = jax.eval_shape(quadratic, jax.tree.map(lambda g: g[0], grads))
  total = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  return jax.lax.scan(change, total, (grads, rates))[0]


def relative_drift(h0: Any, hk: Any, *, law_axes: int = 1) -> jax.Array:
  """The paper's measure of a block: mean of `||h_k - h_0|| / ||h_0||`.

  Args:
    h0: values of the laws at the start, a pytree of float arrays.
    hk: values later, of the same structure and shapes.
    law_axes: how many of the first axes of each array count laws; the rest
      are components of one law. 1 for `[h]` laws of hidden units, 2 for
      `[heads, dk, dk]` would count rows.

  Returns:
    `[]`, the mean over all laws; inf if one is 0 at the start and moves.

  Raises:
    TypeError: if a value is not floating.
    ValueError: if structures or shapes differ, or a value has fewer axes.

  References:
    Tran et al., eq. (10).
  """
  rate.check_floating("h0", h0)
  rate.check_floating("hk", hk)
  structures: list[Any] = [jax.tree.structure(h) for h in (h0, hk)]
  if structures[0] != structures[1]:
    raise ValueError(
      f"h0 {structures[0]} and hk {structures[1]} must have one structure"
    )

  def ratios(before, after):
    if before.shape != after.shape:
      raise ValueError(
        f"h0 {before.shape} and hk {after.shape} must have one shape"
      )
    if before.ndim < law_axes:
      raise ValueError(
        f"law_axes must be at most {before.ndim} for {before.shape}, got"
        f" {law_axes}"
      )

    def norm(x):
      count = int(np.prod(x.shape[:law_axes]))
      return law_lib.stable_norm(x.reshape(count, -1), axis=1)

    moved, size = norm(after - before), norm(before)
    return moved / jnp.where(moved == 0, jnp.ones_like(size), size)

  parts = jax.tree.leaves(jax.tree.map(ratios, h0, hk))
  return jnp.mean(jnp.concatenate(parts))


def drift_order(drifts: jax.Array, taus: jax.Array) -> jax.Array:
  """Power of the step size with which a drift grows.

  The least-squares slope of `log ||drift||` in `log tau`.

  Args:
    drifts: `[n, ...]`, drift at each step size; the norm is taken over all
      axes but the first.
    taus: `[n]` step sizes above 0, at least two different ones.

  Returns:
    `[]`; NaN for a zero drift under `jit`, where it cannot be refused.

  Raises:
    ValueError: if lengths differ, there are fewer than two different step
      sizes, or a drift is 0.
  """
  drifts, taus = jnp.asarray(drifts), jnp.asarray(taus)
  if taus.ndim != 1 or drifts.shape[:1] != taus.shape:
    raise ValueError(
      f"drifts {drifts.shape} must have one row for each of taus {taus.shape}"
    )
  checks.check_range("taus", taus, low=0.0, open_low=True)
  if len(taus) < 2 or (
    checks.is_concrete(taus) and len(np.unique(np.asarray(taus))) < 2
  ):
    raise ValueError(f"taus must hold two different step sizes, got {taus}")
  sizes = law_lib.stable_norm(drifts.reshape(len(taus), -1), axis=1)
  checks.check_range("norm of drifts", sizes, low=0.0, open_low=True)
  x, y = jnp.log(taus), jnp.log(sizes)
  x, y = x - jnp.mean(x), y - jnp.mean(y)
  return jnp.sum(x * y) / jnp.sum(x * x)


def _move(params, slope, tau):
  return jax.tree.map(lambda p, g: p - tau.astype(p.dtype) * g, params, slope)


def _euler(grad, params, tau):
  return _move(params, grad(params), tau)


def _rk4(grad, params, tau):
  first = grad(params)
  second = grad(_move(params, first, tau / 2))
  third = grad(_move(params, second, tau / 2))
  fourth = grad(_move(params, third, tau))
  slope = jax.tree.map(
    lambda a, b, c, d: (a + 2 * b + 2 * c + d) / 6,
    first,
    second,
    third,
    fourth,
  )
  return _move(params, slope, tau)


def _midpoint(grad, params, tau):
  """Solves `m = theta - tau / 2 grad L(m)`, then moves by the slope at m."""

  def distance(a, b):
    """Largest difference, in roundings of the largest parameter."""
    gaps = [
      jnp.max(jnp.abs(x - y), initial=0)
      / (jnp.finfo(x.dtype).eps * (1 + jnp.max(jnp.abs(x), initial=0)))
      for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    return jnp.max(jnp.stack(gaps))

  def unsolved(state):
    _, gap, count = state
    return (gap > 4) & (count < _MAX_ITERATIONS)

  def improve(state):
    middle, _, count = state
    better = _move(params, grad(middle), tau / 2)
    return better, distance(middle, better), count + 1

  far = jnp.full((), jnp.inf, _dtype(params))
  middle, gap, _ = jax.lax.while_loop(unsolved, improve, (params, far, 0))
  end = _move(params, grad(middle), tau)
  return jax.tree.map(lambda p: jnp.where(gap <= 4, p, jnp.nan), end)


def _dtype(tree):
  return jnp.result_type(*jax.tree.leaves(tree))
