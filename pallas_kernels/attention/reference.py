"""The oracle: attention as the formula says."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
  """`softmax(q k^T / sqrt(K)) v`, scores and softmax in float32 or better.

  Args:
    query: `[B, H, T, K]` float.
    key: `[B, H, T, K]`.
    value: `[B, H, T, K]`.

  Returns:
    `[B, H, T, K]` in the dtype of `query`.
  """
  wide = jnp.promote_types(query.dtype, jnp.float32)
  scores = jnp.einsum(
    "bhtk,bhsk->bhts", query, key, preferred_element_type=wide
  )
  weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-1)
  return jnp.einsum("bhts,bhsk->bhtk", weights.astype(value.dtype), value)
