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
  qkv: jax.Array,
  cosine: jax.Array,
  sine: jax.Array,
  *,
  num_heads: int,
  implementation: str = "auto",
  interpret: bool = False,
  rows: MeshAxes = None,
  heads: MeshAxes = None,
) -> jax.Array:
  """`softmax(r(q) r(k)^T / sqrt(K)) v` for every head, without any mask.

  The pairs (j, j + K / 2) of queries and keys are turned by their position's
  angles first (r). Nothing of size T x T is kept for the backward pass, which
  computes the weights again. The compiler cannot cut a kernel over devices by
  itself: on a mesh, say along which axes the arrays are cut.

  Args:
    qkv: `[B, T, H 3 K]` float32 or bfloat16: for each head its query, key and
      value, as one fused projection gives them.
    cosine: `[T, K / 2]` float32, of each pair's angle at each position. It has
      no gradient, nor has `sine`.
    sine: `[T, K / 2]` float32.
    num_heads: number of heads H.
    implementation: "pallas" is the TPU kernel, for T a multiple of 128 up to
      4,096 and K = 128; "xla" the same in plain JAX; "auto" the kernel where
      the program runs on a TPU and the shapes allow it, else plain JAX;
      "reference" the formula, differentiated by JAX.
    interpret: True runs the kernel on the CPU, slowly; for tests.
    rows: axes of the mesh in context (`jax.set_mesh`) that B is cut along.
    heads: axes that H is cut along.

  Returns:
    `[B, T, H K]` in the dtype of `qkv`.

  Raises:
    ValueError: if the shapes disagree, the implementation is unknown, "pallas"
      does not support the shapes, or axes are named without a mesh.
    TypeError: if a dtype is not allowed.
  """
  _check(qkv, cosine, sine, num_heads, implementation)
  mesh = jax.sharding.get_abstract_mesh()
  is_cut = rows is not None or heads is not None
  if is_cut and mesh.empty:
    raise ValueError(
      f"rows {rows!r} and heads {heads!r} need a mesh in context; use"
      " jax.set_mesh"
    )
  head_dim = qkv.shape[2] // (3 * num_heads)

  def run(qkv, cosine, sine):
    count = qkv.shape[2] // (3 * head_dim)
    if implementation == "reference":
      return reference.attention(qkv, cosine, sine, num_heads=count)
    return _attention(count, implementation, interpret, qkv, cosine, sine)

  if not is_cut:
    return run(qkv, cosine, sine)
  spec = jax.P(rows, None, heads)
  return jax.shard_map(
    run, in_specs=(spec, jax.P(), jax.P()), out_specs=spec, check_vma=False
  )(qkv, cosine, sine)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attention(num_heads, implementation, interpret, qkv, cosine, sine):
  return _choose(
    implementation,
    functools.partial(kernel.forward, num_heads=num_heads, interpret=interpret),
    functools.partial(reference.attention, num_heads=num_heads),
    num_heads,
    (qkv, cosine, sine),
  )


def _forward(num_heads, implementation, interpret, *inputs):
  out = _attention(num_heads, implementation, interpret, *inputs)
  return out, inputs


def _backward(num_heads, implementation, interpret, inputs, gradient):
  def plain(qkv, cosine, sine, gradient):
    apply = functools.partial(
      reference.attention, cosine=cosine, sine=sine, num_heads=num_heads
    )
    return jax.vjp(apply, qkv)[1](gradient)[0]

  d_qkv = _choose(
    implementation,
    functools.partial(
      kernel.backward, num_heads=num_heads, interpret=interpret
    ),
    plain,
    num_heads,
    (*inputs, gradient),
  )
  _, cosine, sine = inputs
  return d_qkv, jnp.zeros_like(cosine), jnp.zeros_like(sine)


_attention.defvjp(_forward, _backward)


def _choose(implementation, fast, plain, num_heads, arguments):
  """Runs the kernel or plain JAX."""
  if implementation == "pallas":
    return fast(*arguments)
  _, length, width = arguments[0].shape
  supported = kernel.supports(length, width // (3 * num_heads))
  if implementation == "xla" or not supported:
    return plain(*arguments)
  return jax.lax.platform_dependent(*arguments, tpu=fast, default=plain)


def _check(qkv, cosine, sine, num_heads, implementation):
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(
      f"implementation must be one of {', '.join(IMPLEMENTATIONS)}, got"
      f" {implementation!r}"
    )
  if qkv.ndim != 3 or num_heads < 1 or qkv.shape[2] % (6 * num_heads):
    raise ValueError(
      f"qkv must have shape [B, T, H 3 K] with H = {num_heads} and K even, got"
      f" {qkv.shape}"
    )
  length, head_dim = qkv.shape[1], qkv.shape[2] // (3 * num_heads)
  expected = (length, head_dim // 2)
  if not cosine.shape == sine.shape == expected:
    raise ValueError(
      f"cosine {cosine.shape} and sine {sine.shape} must have shape {expected}"
    )
  if qkv.dtype not in (jnp.float32, jnp.bfloat16):
    raise TypeError(f"qkv must be float32 or bfloat16, got {qkv.dtype}")
  if not cosine.dtype == sine.dtype == jnp.float32:
    raise TypeError(
      f"cosine and sine must be float32, got {cosine.dtype} and {sine.dtype}"
    )
  if implementation == "pallas" and not kernel.supports(length, head_dim):
    raise ValueError(
      "implementation 'pallas' takes T a multiple of 128 up to 4096 and"
      f" K = 128, got T = {length}, K = {head_dim}"
    )
