"""Number of independent conservation laws of a small network.

A function of D parameters is a law for all data and losses if its gradient is
orthogonal to every field `theta -> d_theta f(x, theta)^T w`, hence to their
Lie brackets too. Where these span a space of dimension r there are D - r
independent laws nearby.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.theory.conservation import rate

# Fields shorter than this part of the longest, and singular values below this
# part of the largest, are rounding.
TOLERANCE = 1e-9

_MAX_ENTRIES = 10**8


def lie_rank(
  field_fn: Callable[[jax.Array], jax.Array],
  theta: jax.Array,
  depth: int = 1,
) -> int:
  """Dimension spanned by vector fields and their brackets at a point.

  Brackets `[X, Y] = (dY) X - (dX) Y` of a field with a bracket of the depth
  before. Everything is computed in float64; every vector is normalised, those
  shorter than `TOLERANCE` times the longest are dropped, and singular values
  above `TOLERANCE` times the largest are counted. Deeper brackets can only
  raise the rank; where one more depth leaves it, it is final at a generic
  point.

  Args:
    field_fn: from `[D]` to the M fields there, `[M, D]`; twice differentiable
      for depth 2 and so on.
    theta: `[D]` float, a point without special structure (random).
    depth: how often to bracket, at least 0.

  Returns:
    The dimension, at most D.

  Raises:
    TypeError: if theta is not floating, or the fields do not come in float64
      from a float64 theta.
    ValueError: if shapes or the depth are wrong, there are too many brackets,
      or a field is not finite.

  References:
    Marcotte, Gribonval and Peyré, "Abide by the Law and Follow the Flow",
    NeurIPS 2023.
  """
  rate.check_floating("theta", theta)
  checks.check_range("depth", depth, low=0)
  if np.ndim(theta) != 1:
    raise ValueError(f"theta must have shape [D], got {np.shape(theta)}")
  with jax.enable_x64(True):
    point = jnp.asarray(np.asarray(theta, np.float64))
    shape = jax.eval_shape(field_fn, point)
    if len(shape.shape) != 2 or shape.shape[1] != len(point):
      raise ValueError(
        f"field_fn must return [M, {len(point)}], got {shape.shape}"
      )
    if shape.dtype != jnp.float64:
      raise TypeError(f"field_fn must return float64, got {shape.dtype}")
    if shape.shape[0] ** (depth + 1) * len(point) > _MAX_ENTRIES:
      raise ValueError(
        f"depth {depth} brackets of {shape.shape[0]} fields in {len(point)}"
        f" parameters are more than {_MAX_ENTRIES} numbers: give field_fn"
        " fewer inputs"
      )
    levels = [field_fn]
    for _ in range(depth):
      levels.append(_brackets(field_fn, levels[-1]))
    vectors = np.concatenate([np.asarray(jax.jit(f)(point)) for f in levels])
  if not np.all(np.isfinite(vectors)):
    raise ValueError("field_fn must return finite fields, got NaN or inf")
  lengths = np.linalg.norm(vectors, axis=1)
  kept = lengths > TOLERANCE * lengths.max(initial=0.0)
  if not kept.any():
    return 0
  directions = vectors[kept] / lengths[kept, None]
  # The small Gram matrix would halve the digits; QR keeps them.
  triangle = np.linalg.qr(directions, mode="r")
  values = np.linalg.svd(triangle, compute_uv=False)
  return int(np.sum(values > TOLERANCE * values[0]))


def num_laws(
  apply: Callable[[Any, Any], jax.Array],
  params: Any,
  inputs: Any,
  *,
  depth: int = 1,
) -> int:
  """Number of independent laws of a network near some parameters.

  Args:
    apply: `apply(params, inputs)`, a float array of outputs.
    params: pytree of float arrays, random; sixty parameters take seconds.
    inputs: random inputs, so many that more would not raise the rank; with
      fewer the number is that for these data only.
    depth: see `lie_rank`.

  Returns:
    D minus the rank: 0 if only constants are conserved.

  Raises:
    TypeError: see `lie_rank`.
    ValueError: see `lie_rank`.
  """
  rate.check_floating("params", params)
  with jax.enable_x64(True):
    theta, unravel = ravel_pytree(
      jax.tree.map(lambda p: jnp.asarray(np.asarray(p, np.float64)), params)
    )
    inputs = jax.tree.map(_widen, inputs)

    def fields(theta):
      return jax.jacrev(lambda t: apply(unravel(t), inputs).reshape(-1))(theta)

    return len(theta) - lie_rank(fields, theta, depth)


def _brackets(fields, others):
  """All brackets of the first fields with the second, `[M N, D]`."""

  def at(theta):
    first, second = fields(theta), others(theta)

    def along(function):
      return jax.vmap(lambda v: jax.jvp(function, (theta,), (v,))[1])

    # [M, N, D]
    bracket = along(others)(first) - jnp.swapaxes(along(fields)(second), 0, 1)
    return bracket.reshape(-1, len(theta))

  return at


def _widen(x):
  x = np.asarray(x)
  if np.issubdtype(x.dtype, np.floating):
    x = x.astype(np.float64)
  return jnp.asarray(x)
