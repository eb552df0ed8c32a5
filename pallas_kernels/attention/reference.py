"""The oracle: rotary attention as the formulas say."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def attention(
  qkv: jax.Array, cosine: jax.Array, sine: jax.Array, *, num_heads: int
) -> jax.Array:
  """`softmax(r(q) r(k)^T / sqrt(K)) v`, r turning pairs by their position.

  Scores and softmax are float32 or better, whatever the inputs.

  Args:
    qkv: `[B, T, H 3 K]` float: for each head its query, key and value.
    cosine: `[T, K / 2]` float32, of each pair's angle.
    sine: `[T, K / 2]`.
    num_heads: H.

  Returns:
    `[B, T, H K]` in the dtype of `qkv`.
  """
  batch, length, width = qkv.shape
  head_dim = width // (3 * num_heads)
  parts = qkv.reshape(batch, length, num_heads, 3, head_dim)
  query, key, value = (parts[:, :, :, i] for i in range(3))
  query, key = (rotate(z, cosine, sine) for z in (query, key))
  wide = jnp.promote_types(qkv.dtype, jnp.float32)
  scores = jnp.einsum(
    "bthk,bshk->bhts", query, key, preferred_element_type=wide
  )
  weights = jax.nn.softmax(scores * head_dim**-0.5, axis=-1)
  context = jnp.einsum("bhts,bshk->bthk", weights.astype(value.dtype), value)
  return context.reshape(batch, length, -1)


def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
  """Turns the pairs (j, j + K / 2) of `[B, T, H, K]` by `[T, K / 2]` angles."""
  first, second = jnp.split(x, 2, axis=-1)
  cosine, sine = (z[None, :, None, :] for z in (cosine, sine))
  turned = (first * cosine - second * sine, first * sine + second * cosine)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
