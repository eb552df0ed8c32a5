"""Attention on a TPU: scores live in VMEM only, a block of queries at a time.

Queries, keys and values are read where the fused projection wrote them, turned
by their positions inside the kernel, and the context is written where the next
projection reads it: no array is transposed, and no turned one is stored. A
block of queries sees all keys at once, so its softmax needs no running
maximum. The backward pass computes the scores again; it needs neither the
output nor the softmax's normaliser.
"""

from __future__ import annotations

import functools

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

# A block's float32 scores are at most 4 MiB, which with the other arrays of the
# backward pass fits the VMEM asked for; a v5p core has 64 MiB.
_MAX_SCORES = 2**20
_VMEM_BYTES = 32 * 2**20
_MAX_LENGTH = 4096
_LANES = 128

_ROW_BY_ROW = (((1,), (1,)), ((), ()))  # a b^T
_PLAIN = (((1,), (0,)), ((), ()))  # a b
_COLUMN_BY_COLUMN = (((0,), (0,)), ((), ()))  # a^T b


def supports(length: int, head_dim: int) -> bool:
  """True if the kernels take sequences of this length and heads this wide."""
  return length % _LANES == 0 and length <= _MAX_LENGTH and head_dim == _LANES


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
  qkv: jax.Array,
  cosine: jax.Array,
  sine: jax.Array,
  *,
  num_heads: int,
  interpret: bool = False,
) -> jax.Array:
  """Attention; see `reference.attention`.

  Args:
    qkv: `[B, T, H 3 K]` float32 or bfloat16, T and K as `supports` says.
    cosine: `[T, K / 2]` float32.
    sine: `[T, K / 2]` float32.
    num_heads: H.
    interpret: True runs the kernel on the CPU, slowly.

  Returns:
    `[B, T, H K]`.
  """
  grid, fused, table, block = _layout(qkv, num_heads)
  batch, length, width = qkv.shape
  return pl.pallas_call(
    functools.partial(_forward_kernel, size=block.block_shape[1]),
    grid=grid,
    in_specs=[fused, table, table],
    out_specs=block,
    out_shape=jax.ShapeDtypeStruct((batch, length, width // 3), qkv.dtype),
    compiler_params=_params(),
    cost_estimate=_cost(qkv, num_heads, products=2, arrays=4),
    interpret=interpret,
    name="attention_forward",
  )(qkv, *_tables(cosine, sine))


def backward(
  qkv: jax.Array,
  cosine: jax.Array,
  sine: jax.Array,
  gradient: jax.Array,
  *,
  num_heads: int,
  interpret: bool = False,
) -> jax.Array:
  """Gradient of `qkv`, from that of the result.

  Args:
    qkv: as in `forward`.
    cosine: as in `forward`.
    sine: as in `forward`.
    gradient: `[B, T, H K]`, of the result.
    num_heads: H.
    interpret: True runs the kernel on the CPU, slowly.

  Returns:
    `[B, T, H 3 K]`.
  """
  grid, fused, table, block = _layout(qkv, num_heads)
  sums = pltpu.VMEM((qkv.shape[1], block.block_shape[2]), jnp.float32)
  return pl.pallas_call(
    functools.partial(_backward_kernel, size=block.block_shape[1]),
    grid=grid,
    in_specs=[fused, table, table, block],
    out_specs=fused,
    out_shape=jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
    scratch_shapes=[sums, sums],
    compiler_params=_params(),
    cost_estimate=_cost(qkv, num_heads, products=5, arrays=7),
    interpret=interpret,
    name="attention_backward",
  )(qkv, *_tables(cosine, sine), gradient)


def _forward_kernel(qkv, cosine, sine, out, *, size):
  rows = pl.ds(pl.program_id(2) * size, size)
  queries, keys, values = _inputs(qkv, cosine, sine, rows)
  weights, total = _weights(queries, keys)
  context = _dot(weights.astype(values.dtype), values, _PLAIN)
  out[0] = (context / total).astype(out.dtype)


def _backward_kernel(
  qkv, cosine, sine, gradient, d_qkv, key_sum, value_sum, *, size
):
  step = pl.program_id(2)

  @pl.when(step == 0)
  def _():
    key_sum[...] = jnp.zeros_like(key_sum)
    value_sum[...] = jnp.zeros_like(value_sum)

  rows = pl.ds(step * size, size)
  queries, keys, values = _inputs(qkv, cosine, sine, rows)
  grads = gradient[0]
  weights, total = _weights(queries, keys)
  weights = weights / total
  d_weights = _dot(grads, values, _ROW_BY_ROW)
  # The softmax's gradient; its mean is that of the output times the output.
  mean = jnp.sum(weights * d_weights, axis=1, keepdims=True)
  d_scores = (weights * (d_weights - mean)).astype(keys.dtype)
  scale = _scale(queries)
  width = keys.shape[1]

  d_query = _dot(d_scores, keys, _PLAIN) * scale
  # The transpose of a turn is the turn back.
  d_query = _turn(d_query, cosine[rows], -sine[rows])
  d_qkv[0, rows, :width] = d_query.astype(d_qkv.dtype)
  key_sum[...] += _dot(d_scores, queries, _COLUMN_BY_COLUMN)
  value_sum[...] += _dot(weights.astype(keys.dtype), grads, _COLUMN_BY_COLUMN)

  @pl.when(step == pl.num_programs(2) - 1)
  def _():
    d_key = _turn(key_sum[...] * scale, cosine[...], -sine[...])
    d_qkv[0, :, width : 2 * width] = d_key.astype(d_qkv.dtype)
    d_qkv[0, :, 2 * width :] = value_sum[...].astype(d_qkv.dtype)


def _inputs(qkv, cosine, sine, rows):
  """A block of turned queries, and all turned keys and values, of one head."""
  width = qkv.shape[2] // 3
  queries = _turn(qkv[0, rows, :width], cosine[rows], sine[rows])
  keys = _turn(qkv[0, :, width : 2 * width], cosine[...], sine[...])
  return (
    queries.astype(qkv.dtype),
    keys.astype(qkv.dtype),
    qkv[0, :, 2 * width :],
  )


def _turn(x, cosine, sine):
  """Turns the pairs (j, j + K / 2), in float32."""
  x = x.astype(jnp.float32)
  return x * cosine + pltpu.roll(x, x.shape[1] // 2, 1) * sine


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


def _tables(cosine, sine):
  """Factors of a component and of its partner, `[T, K]` each."""
  return (
    jnp.concatenate([cosine, cosine], axis=1),
    jnp.concatenate([-sine, sine], axis=1),
  )


def _layout(qkv, num_heads):
  """Grid, and specifications of a head, a table and a block of its context."""
  batch, length, width = qkv.shape
  head_dim = width // (3 * num_heads)
  size = block_size(length)
  fused = pl.BlockSpec((1, length, 3 * head_dim), lambda b, h, i: (b, 0, h))
  table = pl.BlockSpec((length, head_dim), lambda b, h, i: (0, 0))
  block = pl.BlockSpec((1, size, head_dim), lambda b, h, i: (b, i, h))
  return (batch, num_heads, length // size), fused, table, block


def _params():
  # Blocks of one head follow one another: gradients of keys are summed.
  return pltpu.CompilerParams(
    dimension_semantics=("parallel", "parallel", "arbitrary"),
    vmem_limit_bytes=_VMEM_BYTES,
  )


def _cost(qkv, num_heads, *, products, arrays):
  batch, length, width = qkv.shape
  return pl.CostEstimate(
    flops=2 * products * batch * length**2 * width // 3,
    transcendentals=batch * num_heads * length**2,
    bytes_accessed=arrays * (qkv.size // 3) * qkv.dtype.itemsize,
  )
