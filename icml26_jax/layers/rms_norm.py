"""Root-mean-square normalisation."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax.layers import parameter

EPSILON = 1e-6


def rms_normalise(x: jax.Array, *, epsilon: float = EPSILON) -> jax.Array:
  """Vectors divided by their root mean square, `x / sqrt(mean(x^2) + epsilon)`.

  Args:
    x: `[..., D]` float.
    epsilon: added to the mean square, so that a zero vector stays zero.

  Returns:
    `[..., D]` in the dtype of `x`; computed in float32 or better.

  References:
    Zhang, Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
    eq. (4).
  """
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
  return (wide * jax.lax.rsqrt(mean_square + epsilon)).astype(x.dtype)


class RMSNorm(nn.Module):
  """`rms_normalise` and a learnt scale per channel, 1 at the start.

  Attributes:
    axis: logical name of the channel axis.
  """

  axis: str = "embed"

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Normalises `[..., D]`."""
    scale = parameter.parameter(
      self, "scale", x.shape[-1:], (self.axis,), nn.initializers.ones
    )
    scale = scale.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    return rms_normalise(x) * scale
