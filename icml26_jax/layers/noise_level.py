"""Embedding of a noise level, for conditioning."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax.layers import linear

# Radians per nat of the fastest and of the slowest wave: levels run from about
# 1e-3 to 7 nats.
_FASTEST = 10.0
_SLOWEST = 0.01


def waves(level: jax.Array, features: int) -> jax.Array:
  """Sines and cosines of a level at geometrically spaced frequencies.

  Args:
    level: `[B]` float, in nats.
    features: number of features F, even, at least 4.

  Returns:
    `[B, F]` float32: cosines, then sines.

  Raises:
    ValueError: if `features` is odd or below 4.
  """
  if features < 4 or features % 2:
    raise ValueError(f"features must be even and at least 4, got {features}")
  half = features // 2
  exponent = jnp.arange(half, dtype=jnp.float32) / (half - 1)
  frequency = _FASTEST * (_SLOWEST / _FASTEST) ** exponent
  angle = level.astype(jnp.float32)[:, None] * frequency[None, :]
  return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


class NoiseLevel(nn.Module):
  """Two linear maps with SiLU after each, on the level's waves.

  Attributes:
    features: size of the embedding.
    num_waves: features of the level that the maps see.
  """

  features: int
  num_waves: int = 256

  @nn.compact
  def __call__(self, level: jax.Array) -> jax.Array:
    """Embeds `[B]` levels in nats as `[B, features]` float32."""
    x = waves(level, self.num_waves)
    for name, axis in (("hidden", None), ("out", "conditioning")):
      x = linear.Linear(
        self.features, (axis, "conditioning"), use_bias=True, name=name
      )(x)
      x = nn.silu(x)
    return x
