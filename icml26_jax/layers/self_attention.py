"""Multi-head self-attention with rotary positions."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from icml26_jax.layers import attention, remat, rms_norm, rotary


class SelfAttention(nn.Module):
  """Queries, keys and values from one fused product; heads before positions.

  Attributes:
    num_heads: number of heads H.
    qk_norm: whether queries and keys are normalised, with learnt scales, before
      they are turned by their positions.
    is_causal: whether a position sees itself and earlier ones only.
    rope_base: base of the rotary frequencies.

  References:
    Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters",
    ICML 2023, section 2 (normalised queries and keys).
  """

  num_heads: int
  qk_norm: bool = False
  is_causal: bool = False
  rope_base: float = 10_000.0

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Attends.

    Args:
      x: `[B, T, D]`, D divisible by the number of heads.
      mask: `[B, T]` bool, positions that may be looked at; None for all.

    Returns:
      `[B, T, D]`.
    """
    _, length, width = x.shape
    heads, head_dim = self.num_heads, width // self.num_heads
    fused = self.param(
      "qkv",
      nn.with_logical_partitioning(
        nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2, 3)),
        ("embed", None, "heads", "head_dim"),
      ),
      (width, 3, heads, head_dim),
    )
    out = self.param(
      "out",
      nn.with_logical_partitioning(
        nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=2),
        ("heads", "head_dim", "embed"),
      ),
      (heads, head_dim, width),
    )
    qkv = jnp.einsum("btd,dchk->cbhtk", x, fused.astype(x.dtype))
    # Splitting, unlike indexing, has a gradient that only concatenates.
    query, key, value = (z[0] for z in jnp.split(qkv, 3, axis=0))
    turn = rotary.frequencies(head_dim, base=self.rope_base)
    cosine, sine = rotary.angles(jnp.arange(length)[None, None], turn)

    def position(z, name):
      if self.qk_norm:
        z = checkpoint_name(z, remat.QKV)
        z = rms_norm.RMSNorm("head_dim", name=name)(z)
      z = rotary.rotate(z, cosine, sine, pairing="half")
      return z if self.qk_norm else checkpoint_name(z, remat.QKV)

    context = attention.attention(
      position(query, "query_norm"),
      position(key, "key_norm"),
      checkpoint_name(value, remat.QKV),
      mask=mask,
      is_causal=self.is_causal,
    )
    context = checkpoint_name(context, remat.CONTEXT)
    y = jnp.einsum("bhtk,hkd->btd", context, out.astype(x.dtype))
    return checkpoint_name(y, remat.ATTENTION_OUT)
