"""Conserved quantities with the norms that make their rates comparable.

Nearly all laws of modern layers say that weighted squared norms balance: with
matrices `M_j` whose columns belong to the hidden units,

  h = sum_j w_j M_j^T M_j

or its diagonal. The gradient of such an entry is known in closed form, and so
are the parameters that it depends on, its support.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

# A weight and a matrix [..., n, h] whose columns belong to the h units.
Factor = tuple[float, jax.Array]


@dataclasses.dataclass(frozen=True)
class Law:
  """A quantity that is claimed to be conserved; call it like a function.

  Attributes:
    value: from parameters to a pytree of arrays, one entry a component.
    gradient_norm: from parameters to the Euclidean norm of the gradient of
      every component, a pytree like the value.
    support_norm: from a gradient of the loss to the norm of its restriction
      to the parameters on which each component depends, likewise.
  """

  value: Callable[[Any], Any]
  gradient_norm: Callable[[Any], Any]
  support_norm: Callable[[Any], Any]

  def __call__(self, params: Any) -> Any:
    return self.value(params)


def norm_balance(factors: Sequence[Factor]) -> jax.Array:
  """Weighted sum of squared column norms, `sum_j w_j ||M_j[:, i]||^2`.

  Args:
    factors: weights and matrices `[..., n_j, h]`.

  Returns:
    `[..., h]`, at least float32.

  Raises:
    ValueError: if there is no factor, or they differ in more than n.
  """
  _check(factors)
  return _total(
    weight * jnp.sum(jnp.square(_wide(matrix)), axis=-2)
    for weight, matrix in factors
  )


def gram_balance(factors: Sequence[Factor]) -> jax.Array:
  """Weighted sum of Gram matrices, `sum_j w_j M_j^T M_j`.

  Args:
    factors: weights and matrices `[..., n_j, h]`.

  Returns:
    `[..., h, h]`, symmetric, at least float32.

  Raises:
    ValueError: see `norm_balance`.
  """
  _check(factors)
  return _total(
    weight
    * jnp.einsum(
      "...na,...nb->...ab",
      _wide(matrix),
      _wide(matrix),
      precision=jax.lax.Precision.HIGHEST,
    )
    for weight, matrix in factors
  )


def norm_law(factors: Callable[[Any], Sequence[Factor]]) -> Law:
  """The law that `norm_balance` of some parameters is conserved.

  The gradient of component i has the norm `2 sqrt(sum_j w_j^2 ||M_j[:, i]||^2)`
  and the support of all columns i.

  Args:
    factors: picks weights and matrices out of the parameters. The matrices
      must be linear in the parameters, and no parameter may occur twice in
      one column.

  Returns:
    A law with components `[..., h]`.
  """
  return Law(
    value=lambda params: norm_balance(factors(params)),
    gradient_norm=lambda params: 2 * _column_norm(factors(params)),
    support_norm=lambda grads: _column_norm(_unweighted(factors(grads))),
  )


def gram_law(factors: Callable[[Any], Sequence[Factor]]) -> Law:
  """The law that every entry of `gram_balance` is conserved.

  Off the diagonal the gradient of entry (a, b) holds columns b and a of every
  matrix, times their weight; on the diagonal it is twice column a.

  Args:
    factors: see `norm_law`.

  Returns:
    A law with components `[..., h, h]`.
  """
  return Law(
    value=lambda params: gram_balance(factors(params)),
    gradient_norm=lambda params: _pair_norm(_column_norm(factors(params)), 2),
    support_norm=lambda grads: _pair_norm(
      _column_norm(_unweighted(factors(grads))), 1
    ),
  )


def sum_law(matrix: Callable[[Any], jax.Array]) -> Law:
  """The law that row sums are conserved, a linear one.

  Args:
    matrix: picks `[..., d, K]` out of the parameters, linear in them.

  Returns:
    A law with components `[..., d]`, each the sum of K parameters.
  """

  def gradient_norm(params):
    value = matrix(params)
    return jnp.full(
      value.shape[:-1], math.sqrt(value.shape[-1]), _wide(value).dtype
    )

  return Law(
    value=lambda params: jnp.sum(_wide(matrix(params)), axis=-1),
    gradient_norm=gradient_norm,
    support_norm=lambda grads: stable_norm(matrix(grads), axis=-1),
  )


def entry_law(array: Callable[[Any], jax.Array]) -> Law:
  """The law that parameters do not move at all.

  Args:
    array: picks an array out of the parameters, linear in them.

  Returns:
    A law with one component an entry.
  """
  return Law(
    value=lambda params: _wide(array(params)),
    gradient_norm=lambda params: jnp.ones_like(_wide(array(params))),
    support_norm=lambda grads: jnp.abs(_wide(array(grads))),
  )


def combine(laws: Mapping[str, Law]) -> Law:
  """Several laws of the same parameters as one, with a dictionary as value."""
  laws = dict(laws)

  def every(part, argument):
    return {name: getattr(law, part)(argument) for name, law in laws.items()}

  return Law(
    *(functools.partial(every, field.name) for field in dataclasses.fields(Law))
  )


def stable_norm(x: jax.Array, *, axis: int) -> jax.Array:
  """Euclidean norm along an axis, without underflow of the squares.

  Gradients of nearly dead units are so small that their squares are 0 in
  float32 although their rate is not.

  Args:
    x: `[..., n, ...]`.
    axis: where n is.

  Returns:
    `x` without that axis, at least float32; 0 for zeros, NaN for a NaN.
  """
  x = _wide(x)
  largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True, initial=0)
  scale = jnp.where(largest == 0, jnp.ones_like(largest), largest)
  norm = jnp.sqrt(jnp.sum(jnp.square(x / scale), axis=axis))
  return norm * jnp.squeeze(scale, axis)


def _check(factors):
  """Nothing may be broadcast: that would count a parameter twice."""
  if not factors:
    raise ValueError("factors must hold at least one matrix, got none")
  first = jnp.shape(factors[0][1])
  for i, (_, matrix) in enumerate(factors):
    shape = jnp.shape(matrix)
    if len(shape) < 2 or (shape[:-2], shape[-1]) != (first[:-2], first[-1]):
      raise ValueError(
        "factors must be matrices that differ in the axis before the last"
        f" only; factor 0 has shape {first}, factor {i} has {shape}"
      )


def _column_norm(factors):
  _check(factors)
  norms = [
    abs(weight) * stable_norm(matrix, axis=-2) for weight, matrix in factors
  ]
  return stable_norm(jnp.stack(norms), axis=0)


def _pair_norm(norm, diagonal):
  """Norms of two columns together; on the diagonal `diagonal` times one."""
  rows, columns = jnp.broadcast_arrays(norm[..., :, None], norm[..., None, :])
  both = stable_norm(jnp.stack([rows, columns]), axis=0)
  same = jnp.broadcast_to(jnp.eye(norm.shape[-1], dtype=jnp.bool_), both.shape)
  return jnp.where(same, diagonal * rows, both)


def _unweighted(factors):
  return [(1.0, matrix) for _, matrix in factors]


def _total(terms):
  return functools.reduce(jnp.add, terms)


def _wide(x):
  x = jnp.asarray(x)
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
