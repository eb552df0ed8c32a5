"""Multi-head self-attention with rotary positions."""

from __future__ import annotations

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp
import numpy as np

from icml26_jax.layers import (
  attention,
  linear,
  parameter,
  remat,
  rms_norm,
  rotary,
)
from pallas_kernels import attention as attention_kernel


class SelfAttention(nn.Module):
  """Queries, keys and values from one fused product; heads before positions.

  Attributes:
    num_heads: number of heads H.
    qk_norm: whether queries and keys are normalised, with learnt scales, before
      they are turned by their positions.
    is_causal: whether a position sees itself and earlier ones only.
    use_kernel: whether to use `pallas_kernels.attention` where there is no
      mask; not with `qk_norm` or `is_causal`. Within a mesh in context it is
      cut along the axes of the logical names "batch" and "heads".
    rope_base: base of the rotary frequencies.

  References:
    Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters",
    ICML 2023, section 2 (normalised queries and keys).
  """

  num_heads: int
  qk_norm: bool = False
  is_causal: bool = False
  use_kernel: bool = False
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
    batch, length, width = x.shape
    heads, head_dim = self.num_heads, width // self.num_heads
    # Heads first among the outputs: cutting them over devices then leaves the
    # fused product in one piece.
    fused = parameter.parameter(
      self,
      "qkv",
      (width, heads, 3, head_dim),
      ("embed", "heads", None, "head_dim"),
      nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2, 3)),
    )
    out = parameter.parameter(
      self,
      "out",
      (heads, head_dim, width),
      ("heads", "head_dim", "embed"),
      nn.initializers.lecun_normal(in_axis=(0, 1), out_axis=2),
    )
    qkv = linear.matmul(x, fused.reshape(width, -1))
    turn = rotary.frequencies(head_dim, base=self.rope_base)
    # Constants of the program: computed there, they would be computed again
    # for every head and row that they are multiplied with.
    angle = np.arange(length)[:, None] * turn
    tables = [f(angle).astype(np.float32) for f in (np.cos, np.sin)]
    if self.use_kernel and mask is None:
      # None outside of a set of rules.
      axes = nn.logical_to_mesh_axes(("batch", "heads"))
      rows, cut_heads = axes or (None, None)
      context = attention_kernel.attention(
        checkpoint_name(qkv, remat.QKV),
        *map(jnp.asarray, tables),
        num_heads=heads,
        rows=rows,
        heads=cut_heads,
      )
      context = checkpoint_name(context, remat.CONTEXT)
      y = linear.matmul(context, out.reshape(width, width))
      return checkpoint_name(y, remat.ATTENTION_OUT)

    qkv = qkv.reshape(batch, length, heads, 3, head_dim)
    # Splitting, unlike indexing, has a gradient that only concatenates.
    query, key, value = (
      jnp.swapaxes(z[:, :, :, 0], 1, 2) for z in jnp.split(qkv, 3, axis=3)
    )
    cosine, sine = (jnp.asarray(table[None, None]) for table in tables)

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
    context = jnp.swapaxes(context, 1, 2).reshape(batch, length, width)
    y = linear.matmul(context, out.reshape(width, width))
    return checkpoint_name(y, remat.ATTENTION_OUT)
