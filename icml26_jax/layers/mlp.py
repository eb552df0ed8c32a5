"""The position-wise network of a transformer block."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

from icml26_jax.layers import linear, remat


class Mlp(nn.Module):
  """Two linear maps with a GELU (tanh form) between them.

  Attributes:
    d_ff: width between the maps.

  References:
    Hendrycks, Gimpel, "Gaussian Error Linear Units", 2016, section 2.
  """

  d_ff: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[..., D]` to `[..., D]`."""
    hidden = linear.Linear(self.d_ff, ("embed", "mlp"), name="up")(x)
    hidden = nn.gelu(checkpoint_name(hidden, remat.MLP_HIDDEN))
    y = linear.Linear(
      x.shape[-1], ("mlp", "embed"), output_first=True, name="down"
    )(hidden)
    return checkpoint_name(y, remat.MLP_OUT)
