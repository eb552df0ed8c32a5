"""Bidirectional diffusion transformer over tokens (interim: replaced by the models engineer)."""

from __future__ import annotations

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion import schedules


@dataclasses.dataclass(frozen=True)
class Config:
  vocab_size: int
  d_model: int = 128
  num_layers: int = 4
  num_heads: int = 4
  d_ff: int | None = None
  time_conditioning: bool = True
  qk_norm: bool = False
  input_mix: float = 0.5
  alpha_eps: float = 1e-3
  dtype: str = "float32"
  remat: str = "none"
  scan_layers: bool = True


def _norm(x):
  x32 = x.astype(jnp.float32)
  r = jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)
  return (x32 * r).astype(x.dtype)


def _param(module, name, init, shape, axes):
  return module.param(name, nn.with_logical_partitioning(init, axes), shape)


class Block(nn.Module):
  config: Config

  @nn.compact
  def __call__(self, x, cond):
    c = self.config
    d, h = c.d_model, c.num_heads
    ff = c.d_ff or 4 * d
    lecun = nn.initializers.lecun_normal()
    dtype = jnp.dtype(c.dtype)
    if c.time_conditioning:
      mod_w = _param(self, "modulation", nn.initializers.zeros, (d, 6 * d), ("embed", "conditioning"))
      mod = (cond @ mod_w.astype(dtype))[:, None] + jnp.zeros((), dtype)
      s1, b1, g1, s2, b2, g2 = jnp.split(mod, 6, -1)
      g1, g2 = 1 + g1, 1 + g2
    else:
      s1 = b1 = s2 = b2 = jnp.zeros((1, 1, d), dtype)
      g1 = g2 = jnp.ones((1, 1, d), dtype)
    qkv_w = _param(self, "qkv", lecun, (d, 3 * d), ("embed", "heads"))
    out_w = _param(self, "out", lecun, (d, d), ("heads", "embed"))
    up_w = _param(self, "up", lecun, (d, ff), ("embed", "mlp"))
    down_w = _param(self, "down", lecun, (ff, d), ("mlp", "embed"))
    y = _norm(x) * (1 + s1) + b1
    q, k, v = jnp.split(y @ qkv_w.astype(dtype), 3, -1)
    shape = (*x.shape[:2], h, d // h)
    q, k, v = (z.reshape(shape) for z in (q, k, v))
    if c.qk_norm:
      q, k = _norm(q), _norm(k)
    half = d // h // 2
    angle = jnp.arange(x.shape[1])[:, None] * (1e4 ** (-jnp.arange(half) / half))[None]
    cos, sin = (f(angle)[None, :, None].astype(dtype) for f in (jnp.cos, jnp.sin))

    def rotate(z):
      a, b = z[..., :half], z[..., half:]
      return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    att = jax.nn.dot_product_attention(rotate(q), rotate(k), v)
    x = x + g1 * (att.reshape(x.shape) @ out_w.astype(dtype))
    y = _norm(x) * (1 + s2) + b2
    return x + g2 * (jax.nn.gelu(y @ up_w.astype(dtype)) @ down_w.astype(dtype)), None


class DiT(nn.Module):
  config: Config

  @nn.compact
  def __call__(self, latent, t):
    c = self.config
    d, dtype = c.d_model, jnp.dtype(c.dtype)
    normal = nn.initializers.normal(1.0)
    table = _param(self, "embedding", normal, (c.vocab_size, d), ("vocab", "embed"))
    special = _param(self, "special", normal, (d,), ("embed",))
    unit = table * jax.lax.rsqrt(jnp.sum(table**2, -1, keepdims=True))
    special = special * jax.lax.rsqrt(jnp.sum(special**2))
    clean = jnp.take(unit, latent.tokens, axis=0)
    hidden = special[None, None]
    if latent.sigma is not None:
      emb = latent.embedded if latent.values is None else latent.values @ unit
      scale = (1 - c.input_mix) / jnp.sqrt(1 + latent.sigma**2)
      hidden = c.input_mix * hidden + scale[:, None, None] * emb
    x = jnp.where(latent.revealed[..., None], clean, hidden).astype(dtype) * math.sqrt(d)
    cond = None
    if c.time_conditioning:
      level = -jnp.log(schedules.log_linear_alpha(t, eps=c.alpha_eps))
      freq = jnp.exp(-math.log(1e4) * jnp.arange(d // 2) / (d // 2))[None]
      angle = 10.0 * level[:, None] * freq
      feat = jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], -1)
      w = _param(self, "time", nn.initializers.lecun_normal(), (d, d), ("embed", "conditioning"))
      cond = nn.silu(feat @ w).astype(dtype)
    stack = nn.scan(
      Block,
      variable_axes={"params": 0},
      split_rngs={"params": True},
      in_axes=nn.broadcast,
      length=c.num_layers,
      metadata_params={nn.PARTITION_NAME: "layers"},
    )
    x, _ = stack(c, name="layers")(x, cond)
    w = _param(self, "unembedding", nn.initializers.lecun_normal(), (d, c.vocab_size), ("embed", "vocab"))
    return (_norm(x) @ w.astype(dtype)).astype(jnp.float32)


def _example(config):
  latent = process_lib.Latent(
    jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2), bool)
  )
  return latent, jnp.ones((1,))


def init(key: jax.Array, config: Config):
  return nn.meta.unbox(DiT(config).init(key, *_example(config)))["params"]


def logical_axes(config: Config):
  boxed = jax.eval_shape(lambda: DiT(config).init(jax.random.key(0), *_example(config)))
  specs = nn.get_partition_spec(boxed)["params"]
  return jax.tree.map(tuple, specs, is_leaf=lambda s: isinstance(s, jax.P))


def apply(params, latent, t, *, config: Config) -> jax.Array:
  return DiT(config).apply({"params": params}, latent, t)


def embedding_table(params) -> jax.Array:
  table = params["embedding"]
  return table * jax.lax.rsqrt(jnp.sum(table**2, -1, keepdims=True))


def num_params(config: Config) -> int:
  shapes = jax.eval_shape(lambda: init(jax.random.key(0), config))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))
