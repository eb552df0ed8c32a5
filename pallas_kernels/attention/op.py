"""Attention of every position to every position, fast where it can be."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from pallas_kernels.attention import reference
from pallas_kernels.attention import tpu as kernel

IMPLEMENTATIONS = ("auto", "pallas", "reference", "xla")

MeshAxes = str | tuple[str, ...] | None


def attention(
  query: jax.Array,
  key: jax.Array,
  value: jax.Array,
  *,
  implementation: str = "auto",
  interpret: bool = False,
  rows: MeshAxes = None,
  heads: MeshAxes = None,
) -> jax.Array:
  """`softmax(q k^T / sqrt(K)) v` for every head, without any mask.

  Nothing of size T x T is kept for the backward pass, which computes the
  weights again. The compiler cannot cut a kernel over devices by itself: on a
  mesh, say along which axes the arrays are cut.

  Args:
    query: `[B, H, T, K]` float32 or bfloat16.
    key: `[B, H, T, K]`.
    value: `[B, H, T, K]`.
    implementation: "pallas" is the TPU kernel, for T a multiple of 128 up to
      8,192 and K 64, 128 or 256; "xla" the same in plain JAX; "auto" the
      kernel where the program runs on a TPU and the shapes allow it, else
      plain JAX; "reference" the formula, differentiated by JAX.
    interpret: True runs the kernel on the CPU, slowly; for tests.
    rows: axes of the mesh in context (`jax.set_mesh`) that B is cut along.
    heads: axes that H is cut along.

  Returns:
    `[B, H, T, K]` in the dtype of `query`.

  Raises:
    ValueError: if the shapes differ, the implementation is unknown, "pallas"
      does not support the shapes, or axes are named without a mesh.
    TypeError: if the dtypes differ or are neither float32 nor bfloat16.
  """
  _check(query, key, value, implementation)
  if implementation == "reference":
    run = reference.attention
  else:
    run = functools.partial(_attention, implementation, interpret)
  if rows is None and heads is None:
    return run(query, key, value)
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    raise ValueError(
      f"rows {rows!r} and heads {heads!r} need a mesh in context; use"
      " jax.set_mesh"
    )
  spec = jax.P(rows, heads)
  return jax.shard_map(run, in_specs=spec, out_specs=spec, check_vma=False)(
    query, key, value
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(implementation, interpret, query, key, value):
  return _choose(
    implementation,
    functools.partial(kernel.forward, interpret=interpret),
    reference.attention,
    query,
    key,
    value,
  )


def _forward(implementation, interpret, query, key, value):
  out = _attention(implementation, interpret, query, key, value)
  return out, (query, key, value)


def _backward(implementation, interpret, saved, gradient):
  return _choose(
    implementation,
    functools.partial(kernel.backward, interpret=interpret),
    _reference_backward,
    *saved,
    gradient,
  )


_attention.defvjp(_forward, _backward)


def _reference_backward(query, key, value, gradient):
  return jax.vjp(reference.attention, query, key, value)[1](gradient)


def _choose(implementation, fast, plain, *arguments):
  """Runs the kernel or plain JAX."""
  if implementation == "pallas":
    return fast(*arguments)
  if implementation == "xla" or not kernel.supports(*arguments[0].shape[2:]):
    return plain(*arguments)
  return jax.lax.platform_dependent(*arguments, tpu=fast, default=plain)


def _check(query, key, value, implementation):
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(
      f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got"
      f" {implementation!r}"
    )
  if query.ndim != 4 or not query.shape == key.shape == value.shape:
    raise ValueError(
      f"query {query.shape}, key {key.shape} and value {value.shape} must have"
      " one shape [B, H, T, K]"
    )
  dtypes = {query.dtype, key.dtype, value.dtype}
  if len(dtypes) > 1 or query.dtype not in (jnp.float32, jnp.bfloat16):
    raise TypeError(
      f"query {query.dtype}, key {key.dtype} and value {value.dtype} must all"
      " be float32 or all bfloat16"
    )
  length, width = query.shape[2:]
  if implementation == "pallas" and not kernel.supports(length, width):
    raise ValueError(
      "implementation 'pallas' takes T a multiple of 128 up to 8192 and K of"
      f" 64, 128 or 256, got T = {length}, K = {width}"
    )
