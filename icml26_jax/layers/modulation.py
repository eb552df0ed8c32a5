"""Adaptive normalisation: shifts, scales and gates from a condition."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax.layers import linear


def modulate(x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
  """`x (1 + scale) + shift`, the same for every position of a row.

  Args:
    x: `[B, T, D]` float.
    shift: `[B, D]`.
    scale: `[B, D]`.

  Returns:
    `[B, T, D]`.
  """
  return x * (1 + scale[:, None, :]) + shift[:, None, :]


class Modulation(nn.Module):
  """Vectors for `modulate` and gates, linear in the condition.

  All are 0 at the start, so that conditioning begins as no change.

  Attributes:
    features: size D of each vector.
    count: number of vectors.

  References:
    Peebles, Xie, "Scalable Diffusion Models with Transformers", ICCV 2023,
    section 3.2 (adaLN; there the gates themselves start at 0, here their
    difference from 1 does).
  """

  features: int
  count: int

  @nn.compact
  def __call__(self, condition: jax.Array) -> tuple[jax.Array, ...]:
    """Maps a `[B, C]` condition to `count` vectors `[B, features]`."""
    vectors = linear.Linear(
      self.count * self.features,
      ("conditioning", "embed"),
      use_bias=True,
      zero_init=True,
      name="linear",
    )(condition)
    return tuple(jnp.split(vectors, self.count, axis=-1))
