"""Rotary positions: pairs of components turned by an angle in the position."""

from __future__ import annotations

import jax
import jax.numpy as jnp

BASE = 1e4


def tables(
  positions: jax.Array, head_dim: int, *, base: float = BASE
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of the angles `position * base^(-2 j / head_dim)`.

  Args:
    positions: `[T]` int32.
    head_dim: components of a head, even.
    base: the slowest pair turns by nearly `1 / base` a position.

  Returns:
    Two `[T, head_dim / 2]` float32.

  Raises:
    ValueError: if `head_dim` is odd.

  References:
    Su et al., "RoFormer", arXiv 2104.09864, eq. (15).
  """
  if head_dim % 2:
    raise ValueError(f"head_dim must be even, got {head_dim}")
  turn = base ** (-jnp.arange(0, head_dim, 2) / head_dim)
  angles = positions[:, None].astype(jnp.float32) * turn[None]
  return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cosine: jax.Array, sine: jax.Array) -> jax.Array:
  """Turns component j together with component j + head_dim / 2.

  Args:
    x: `[..., T, head_dim]` float.
    cosine: `[T, head_dim / 2]`.
    sine: `[T, head_dim / 2]`.

  Returns:
    Like `x`; computed in float32 or better.
  """
  first, second = jnp.split(x, 2, axis=-1)
  lead = tuple(range(x.ndim - 2))
  cosine, sine = jnp.expand_dims(cosine, lead), jnp.expand_dims(sine, lead)
  turned = (first * cosine - second * sine, first * sine + second * cosine)
  return jnp.concatenate(turned, axis=-1).astype(x.dtype)
