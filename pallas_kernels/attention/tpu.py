"""Attention on a TPU: scores live in VMEM only, a block of queries at a time.

A block of queries sees all keys at once, so its softmax needs no running
maximum. The backward pass computes the scores again; it needs neither the
output nor the softmax's normaliser.
"""

from __future__ import annotations

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

# A block's float32 scores are at most 4 MiB, which with the other arrays of the
# backward pass fits the 16 MiB of VMEM that a kernel gets.
_MAX_SCORES = 2**20
_LANES = 128
_MAX_LENGTH = _MAX_SCORES // _LANES

_ROW_BY_ROW = (((1,), (1,)), ((), ()))  # a b^T
_PLAIN = (((1,), (0,)), ((), ()))  # a b
_COLUMN_BY_COLUMN = (((0,), (0,)), ((), ()))  # a^T b


def supports(length: int, head_dim: int) -> bool:
  """True if the kernels take sequences of this length and heads this wide."""
  return (
    length % _LANES == 0
    and length <= _MAX_LENGTH
    and head_dim in (64, _LANES, 2 * _LANES)
  )


def block_size(length: int) -> int:
  """Queries a block: as many as fit, a divisor of the length.

  Args:
    length: number of positions, which `supports` allows.

  Returns:
    A multiple of 128.
  """
  blocks = length // _LANES
  sizes = [n for n in range(1, blocks + 1) if blocks % n == 0]
  return _LANES * max(n for n in sizes if n * _LANES * length <= _MAX_SCORES)


def forward(
  query: jax.Array, key: jax.Array, value: jax.Array, *, interpret: bool = False
) -> jax.Array:
  """Attention; see `reference.attention`.

  Args:
    query: `[B, H, T, K]` float32 or bfloat16, T and K as `supports` says.
    key: `[B, H, T, K]`.
    value: `[B, H, T, K]`.
    interpret: True runs the kernel on the CPU, slowly.

  Returns:
    `[B, H, T, K]`.
  """
  grid, block, whole = _layout(query)
  return pl.pallas_call(
    _forward_kernel,
    grid=grid,
    in_specs=[block, whole, whole],
    out_specs=block,
    out_shape=jax.ShapeDtypeStruct(query.shape, query.dtype),
    compiler_params=_params(),
    cost_estimate=_cost(query, products=2, arrays=4),
    interpret=interpret,
    name="attention_forward",
  )(query, key, value)


def backward(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  gradient: jax.Array,
  *,
  interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Gradients of the arguments, from that of the result.

  Args:
    query: as in `forward`.
    key: as in `forward`.
    value: as in `forward`.
    gradient: `[B, H, T, K]`, of the result.
    interpret: True runs the kernel on the CPU, slowly.

  Returns:
    Gradients of query, key and value.
  """
  grid, block, whole = _layout(query)
  like = jax.ShapeDtypeStruct(query.shape, query.dtype)
  sums = pltpu.VMEM(query.shape[2:], jnp.float32)
  gradients = pl.pallas_call(
    _backward_kernel,
    grid=grid,
    in_specs=[block, whole, whole, block],
    out_specs=[block, whole, whole],
    out_shape=[like] * 3,
    scratch_shapes=[sums, sums],
    compiler_params=_params(),
    cost_estimate=_cost(query, products=5, arrays=7),
    interpret=interpret,
    name="attention_backward",
  )(query, key, value, gradient)
  return tuple(gradients)


def _forward_kernel(query, key, value, out):
  weights, total = _weights(query[0, 0], key[0, 0])
  values = value[0, 0]
  context = _dot(weights.astype(values.dtype), values, _PLAIN)
  out[0, 0] = (context / total).astype(out.dtype)


def _backward_kernel(
  query, key, value, gradient, d_query, d_key, d_value, key_sum, value_sum
):
  step = pl.program_id(2)

  @pl.when(step == 0)
  def _():
    key_sum[...] = jnp.zeros_like(key_sum)
    value_sum[...] = jnp.zeros_like(value_sum)

  queries, keys, grads = query[0, 0], key[0, 0], gradient[0, 0]
  weights, total = _weights(queries, keys)
  weights = weights / total
  d_weights = _dot(grads, value[0, 0], _ROW_BY_ROW)
  # The softmax's gradient; its mean is that of the output times the output.
  mean = jnp.sum(weights * d_weights, axis=1, keepdims=True)
  d_scores = (weights * (d_weights - mean)).astype(keys.dtype)
  scale = _scale(queries)
  d_query[0, 0] = (_dot(d_scores, keys, _PLAIN) * scale).astype(d_query.dtype)
  key_sum[...] += _dot(d_scores, queries, _COLUMN_BY_COLUMN)
  value_sum[...] += _dot(weights.astype(keys.dtype), grads, _COLUMN_BY_COLUMN)

  @pl.when(step == pl.num_programs(2) - 1)
  def _():
    d_key[0, 0] = (key_sum[...] * scale).astype(d_key.dtype)
    d_value[0, 0] = value_sum[...].astype(d_value.dtype)


def _weights(queries, keys):
  """Weights up to their sums over the keys, and these sums; both float32."""
  scores = _dot(queries, keys, _ROW_BY_ROW)
  top = jnp.max(scores, axis=1, keepdims=True)
  weights = jnp.exp((scores - top) * _scale(queries))
  return weights, jnp.sum(weights, axis=1, keepdims=True)


def _scale(queries):
  return queries.shape[-1] ** -0.5


def _dot(a, b, dimensions):
  # float32 operands are multiplied as such, not rounded to bfloat16.
  precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  return jax.lax.dot_general(
    a,
    b,
    dimensions,
    precision=precision,
    preferred_element_type=jnp.float32,
  )


def _layout(query):
  """Grid, and specifications of a block of queries and of all keys."""
  batch, heads, length, width = query.shape
  size = block_size(length)
  block = pl.BlockSpec((1, 1, size, width), lambda b, h, i: (b, h, i, 0))
  whole = pl.BlockSpec((1, 1, length, width), lambda b, h, i: (b, h, 0, 0))
  return (batch, heads, length // size), block, whole


def _params():
  # Blocks of one head follow one another: gradients of keys are summed.
  return pltpu.CompilerParams(
    dimension_semantics=("parallel", "parallel", "arbitrary")
  )


def _cost(query, *, products, arrays):
  batch, heads, length, width = query.shape
  scores = batch * heads * length**2
  return pl.CostEstimate(
    flops=2 * products * scores * width,
    transcendentals=scores,
    bytes_accessed=arrays * query.size * query.dtype.itemsize,
  )
