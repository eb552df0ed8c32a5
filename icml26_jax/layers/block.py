"""One transformer block, with or without a condition."""

from __future__ import annotations

import flax.linen as nn
import jax

from icml26_jax.layers import mlp, modulation, rms_norm, self_attention


class Block(nn.Module):
  """Attention, then the position-wise network, each added to its input.

  With a condition, the normalised inputs are scaled and shifted by it and what
  is added is gated by it; without one, normalisation has learnt scales.

  Attributes:
    num_heads: number of heads.
    d_ff: width inside the position-wise network.
    qk_norm: whether queries and keys are normalised.
    is_causal: whether a position sees itself and earlier ones only.
    use_kernel: see `self_attention.SelfAttention`.
  """

  num_heads: int
  d_ff: int
  qk_norm: bool = False
  is_causal: bool = False
  use_kernel: bool = False

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    condition: jax.Array | None = None,
    mask: jax.Array | None = None,
  ) -> jax.Array:
    """Runs the block.

    Args:
      x: `[B, T, D]`.
      condition: `[B, C]`; None for none.
      mask: `[B, T]` bool, positions that may be looked at; None for all.

    Returns:
      `[B, T, D]`.
    """
    attend = self_attention.SelfAttention(
      self.num_heads,
      self.qk_norm,
      self.is_causal,
      self.use_kernel,
      name="attention",
    )
    transform = mlp.Mlp(self.d_ff, name="mlp")
    if condition is None:
      x = x + attend(rms_norm.RMSNorm(name="attention_norm")(x), mask)
      return x + transform(rms_norm.RMSNorm(name="mlp_norm")(x))
    shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = modulation.Modulation(
      x.shape[-1], 6, name="modulation"
    )(condition)
    y = modulation.modulate(rms_norm.rms_normalise(x), shift_1, scale_1)
    x = x + (1 + gate_1[:, None, :]) * attend(y, mask)
    y = modulation.modulate(rms_norm.rms_normalise(x), shift_2, scale_2)
    return x + (1 + gate_2[:, None, :]) * transform(y)
