"""Causal transformer over tokens (interim: replaced by the models engineer)."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Config:
  vocab_size: int
  d_model: int = 128
  num_layers: int = 4
  num_heads: int = 4
  d_ff: int | None = None
  qk_norm: bool = False
  dtype: str = "float32"
  remat: str = "none"
  scan_layers: bool = True


def init(key: jax.Array, config: Config):
  d, n = config.d_model, config.num_layers
  keys = iter(jax.random.split(key, 6))

  def normal(*shape):
    return jax.random.normal(next(keys), shape) / math.sqrt(shape[-2])

  return {
    "embedding": normal(config.vocab_size, d),
    "qkv": normal(n, d, 3 * d),
    "out": normal(n, d, d),
    "up": normal(n, d, 4 * d),
    "down": normal(n, 4 * d, d),
    "head": normal(d, config.vocab_size),
  }


def logical_axes(config: Config):
  return {
    "embedding": ("vocab", "embed"),
    "qkv": ("layers", "embed", "heads"),
    "out": ("layers", "heads", "embed"),
    "up": ("layers", "embed", "mlp"),
    "down": ("layers", "mlp", "embed"),
    "head": ("embed", "vocab"),
  }


def apply(params, tokens, *, config: Config) -> jax.Array:
  def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)

  x = params["embedding"][tokens]
  shape = (*tokens.shape, config.num_heads, -1)
  for i in range(config.num_layers):
    qkv = jnp.split(norm(x) @ params["qkv"][i], 3, -1)
    att = jax.nn.dot_product_attention(
      *(z.reshape(shape) for z in qkv), is_causal=True
    )
    x = x + att.reshape(x.shape) @ params["out"][i]
    x = x + jax.nn.gelu(norm(x) @ params["up"][i]) @ params["down"][i]
  return norm(x) @ params["head"]


def num_params(config: Config) -> int:
  shapes = jax.eval_shape(lambda: init(jax.random.key(0), config))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
