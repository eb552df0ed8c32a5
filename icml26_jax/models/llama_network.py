"""What a model of the Llama family computes, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from icml26_jax.layers import few_rows, remat, rotary
from icml26_jax.models import kv_cache, llama_config

TAPS = ("hidden_states", "attention")


def layers(
  params: Any,
  tokens: jax.Array,
  mask: jax.Array,
  cache: kv_cache.KVCache | None,
  config: llama_config.Config,
  taps: Sequence[str] = (),
  *,
  return_new: bool = False,
) -> tuple[jax.Array, tuple[jax.Array, ...], dict[str, jax.Array]]:
  """Runs all layers.

  Args:
    params: parameters.
    tokens: `[B, T]` int32.
    mask: `[B, T]` bool, False at padding.
    cache: the tokens before, or None.
    config: shape of the model.
    taps: which of `TAPS` to keep.
    return_new: whether to return the new keys and values.

  Returns:
    The residual stream `[B, T, D]`; keys and values of the tokens, `[L, B, K,
    T, head_dim]` each, if asked for; and a dictionary of the taps.

  Raises:
    ValueError: if a tap is unknown.
  """
  unknown = sorted(set(taps) - set(TAPS))
  if unknown:
    raise ValueError(
      f"taps must be among {', '.join(TAPS)}, got {unknown[0]!r}"
    )
  dtype = jnp.dtype(config.dtype)
  positions = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1
  if cache is not None:
    positions = positions + cache.next_position[:, None]
  turn = rotary.frequencies(
    config.head_dim, base=config.rope_base, divisors=config.rope_divisors
  )
  # [B, T, 1, head_dim / 2]
  angles = rotary.angles(positions[:, :, None], turn, dtype=_wide(dtype))
  length = tokens.shape[1]
  causal = jnp.tril(jnp.ones((length, length), jnp.bool_))
  visible = causal[None] & mask[:, None, :]  # [B, T, T]
  if cache is not None:
    slots = jnp.broadcast_to(
      cache.valid[:, None, :], (*tokens.shape, cache.num_slots)
    )
    visible = jnp.concatenate([slots, visible], axis=-1)  # [B, T, S + T]

  def layer(x, inputs):
    weights, old = inputs
    attended, new, probabilities = _attend(
      _norm(x, weights["attention_norm"], config),
      weights,
      angles,
      visible,
      old,
      config,
    )
    x = x + attended
    x = x + _swiglu(_norm(x, weights["mlp_norm"], config), weights, config)
    kept = {}
    if "hidden_states" in taps:
      kept["hidden_states"] = x
    if "attention" in taps:
      kept["attention"] = _slots(probabilities, mask, cache)
    return x, (new if return_new else (), kept)

  policy = remat.policy_fn(config.remat)
  if policy is not None:
    layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
  # A token outside the vocabulary becomes NaN, not the nearest token.
  x = (
    jnp.asarray(params["embedding"])
    .at[jnp.where(mask, tokens, 0)]
    .get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
  ).astype(dtype)
  old = None if cache is None else (cache.keys, cache.values)
  embedded = x
  x, (new, tapped) = jax.lax.scan(layer, x, (params["layers"], old))
  if "hidden_states" in taps:
    tapped["hidden_states"] = jnp.concatenate(
      [embedded[None], tapped["hidden_states"]]
    )
  return x, new, tapped


def _attend(x, weights, angles, visible, old, config):
  """Attention of one layer.

  Returns:
    `[B, T, D]`, the new keys and values `[B, K, T, head_dim]`, and the
    probabilities `[B, K, H / K, T, S + T]` over slots and new tokens.
  """
  cosine, sine = angles
  rotate = functools.partial(
    rotary.rotate, cosine=cosine, sine=sine, pairing=config.rope_pairing
  )
  query, key, value = (
    _project(x, weights, name, config, bias=config.qkv_bias)
    for name in ("query", "key", "value")
  )  # [B, T, heads, head_dim]
  query, key = rotate(query), rotate(key)
  groups = config.num_heads // config.num_kv_heads
  batch_size, length = x.shape[:2]
  query = query.reshape(
    batch_size, length, config.num_kv_heads, groups, config.head_dim
  )
  query = jnp.moveaxis(query, 1, 3)  # [B, K, H / K, T, head_dim]
  key, value = jnp.swapaxes(key, 1, 2), jnp.swapaxes(value, 1, 2)
  wide = _wide(query.dtype)
  product = functools.partial(
    jnp.einsum,
    precision=_precision(config),
    preferred_element_type=wide,
  )
  keys = [key] if old is None else [old[0], key]
  values = [value] if old is None else [old[1], value]
  scores = jnp.concatenate(
    [product("bkgtd,bksd->bkgts", query, part) for part in keys], axis=-1
  )
  scores = scores / math.sqrt(config.head_dim)
  # Finite, so that a row of padding that sees nothing stays finite.
  hidden = jnp.finfo(wide).min
  scores = jnp.where(visible[:, None, None], scores, hidden)
  probabilities = jax.nn.softmax(scores, axis=-1)
  attended = 0.0
  start = 0
  for part in values:
    end = start + part.shape[2]
    weight = probabilities[..., start:end].astype(part.dtype)
    attended = attended + product("bkgts,bksd->bkgtd", weight, part)
    start = end
  attended = jnp.moveaxis(attended, 3, 1).astype(x.dtype)
  attended = attended.reshape(
    batch_size, length, config.num_heads, config.head_dim
  )
  out = _project(attended, weights, "output", config, bias=config.output_bias)
  return out, (key, value), probabilities


def _swiglu(x, weights, config):
  gate = _project(x, weights, "gate", config)
  up = _project(x, weights, "up", config)
  return _project(jax.nn.silu(gate) * up, weights, "down", config)


def _project(x, weights, name, config, bias=False):
  """Product with a matrix `[out..., in...]`, plus its bias."""
  out = few_rows.contract(
    x,
    weights[name].astype(x.dtype),
    num_inputs=llama_config.num_inputs(name),
    precision=_precision(config),
  )
  if bias:
    offset = weights[f"{name}_bias"].astype(x.dtype)
    out = out + jnp.expand_dims(offset, (0, 1))
  return out


def _norm(x, gain, config):
  """Root-mean-square normalisation."""
  wide = x.astype(_wide(x.dtype))
  scale = jax.lax.rsqrt(
    jnp.mean(wide * wide, axis=-1, keepdims=True) + config.norm_eps
  )
  gain = jnp.expand_dims(gain.astype(wide.dtype), tuple(range(x.ndim - 1)))
  return (wide * scale * gain).astype(x.dtype)


def head(params: Any, x: jax.Array, config: llama_config.Config) -> jax.Array:
  """Logits `[..., V]` of residual streams `[..., D]`."""
  x = _norm(x, params["final_norm"], config)
  table = params["embedding" if config.tie_embeddings else "head"]
  logits = few_rows.contract(
    x,
    table.astype(x.dtype),
    num_inputs=1,
    precision=_precision(config),
    preferred_element_type=_wide(x.dtype),
  )
  return logits.astype(jnp.float32) if config.dtype != "float64" else logits


def _slots(probabilities, mask, cache):
  """Attention over the slots of the cache, new tokens in theirs."""
  shape = probabilities.shape  # [B, K, H / K, T, S + T]
  merged = probabilities.reshape(shape[0], -1, *shape[3:])
  if cache is not None:
    slots, new = jnp.split(merged, [cache.num_slots], axis=-1)
    merged = jax.lax.dynamic_update_slice_in_dim(
      slots, new, cache.next_slot, axis=-1
    )
  return jnp.where(mask[:, None, :, None], merged, 0.0)


def _wide(dtype):
  return jnp.promote_types(dtype, jnp.float32)


def _precision(config):
  # The default multiplies float32 in bfloat16 on a TPU.
  return None if config.dtype == "bfloat16" else jax.lax.Precision.HIGHEST
