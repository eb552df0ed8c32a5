"""Causal language models of the Llama family, with a cache for decoding.

Pre-normalised blocks of grouped-query attention with rotary positions and of
a SwiGLU, as in Llama, Mistral, Qwen2 and SmolLM2. Everything is a pure
function of a tree of arrays; matrices are stored `[out, in]`, as files hold
them, and the layers are stacked along the first axis and scanned.

References:
  Touvron et al., "LLaMA", arXiv 2302.13971; Ainslie et al., "GQA", arXiv
  2305.13245; Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.layers import rotary
from icml26_jax.models import kv_cache, llama_config, llama_network, prompts

Config = llama_config.Config
Params = dict[str, Any]

TAPS = llama_network.TAPS


class Output(NamedTuple):
  """What a model says of a batch.

  Attributes:
    logits: `[B, T, V]` float32 (`[B, V]` from `prefill`), predictions of the
      token after each one.
    hidden_states: `[L + 1, B, T, D]`, the residual stream before the first
      layer and after each one, or None unless tapped.
    attention: `[L, B, H, T, S]` float32, how much each token looks at each of
      the T tokens (of the S slots, with a cache), or None unless tapped.

  Where the mask is False logits and hidden states carry no information, and
  the attention is 0.
  """

  logits: jax.Array
  hidden_states: jax.Array | None = None
  attention: jax.Array | None = None


def init(key: jax.Array, config: Config) -> Params:
  """Random parameters: matrices of variance 1 / (inputs), gains of 1.

  Args:
    key: a typed key.
    config: the shape.

  Returns:
    The tree of float32 arrays that `logical_axes` describes.
  """
  params: Params = {}
  shapes = llama_config.parameters(config)
  for i, (path, (shape, _)) in enumerate(shapes.items()):
    name = path[-1]
    if "norm" in name:
      value = jnp.ones(shape, jnp.float32)
    elif name.endswith("_bias"):
      value = jnp.zeros(shape, jnp.float32)
    else:
      fan_in = math.prod(shape[len(shape) - llama_config.num_inputs(name) :])
      value = jax.random.normal(jax.random.fold_in(key, i), shape)
      value = value.astype(jnp.float32) / math.sqrt(fan_in)
    _put(params, path, value)
  return params


def logical_axes(config: Config) -> Params:
  """Logical axis names of every array, in the tree of `init`."""
  axes: Params = {}
  for path, (_, names) in llama_config.parameters(config).items():
    _put(axes, path, names)
  return axes


def num_params(config: Config) -> int:
  """Number of parameters; a tied matrix counts once."""
  return sum(
    math.prod(shape) for shape, _ in llama_config.parameters(config).values()
  )


def check_params(params: Params, config: Config) -> None:
  """Raises ValueError naming the first array that does not fit the config."""
  wanted = {
    ".".join(path): shape
    for path, (shape, _) in llama_config.parameters(config).items()
  }
  found = {
    jax.tree_util.keystr(path, simple=True, separator="."): value.shape
    for path, value in jax.tree.leaves_with_path(params)
  }
  for name in sorted(wanted.keys() | found.keys()):
    if name not in found:
      raise ValueError(f"params lacks {name}")
    if name not in wanted:
      raise ValueError(f"params has {name}, which the config has not")
    if found[name] != wanted[name]:
      raise ValueError(
        f"params: {name} must have shape {wanted[name]}, got {found[name]}"
      )


def with_pairing(
  params: Params, config: Config, pairing: str
) -> tuple[Params, Config]:
  """The same model with queries and keys stored for another pairing.

  Args:
    params: parameters.
    config: their shape.
    pairing: one of `rotary.PAIRINGS`.

  Returns:
    Parameters and config with equal predictions.

  Raises:
    ValueError: if the pairing is unknown.
  """
  move = functools.partial(
    rotary.reorder, source=config.rope_pairing, target=pairing
  )
  layers = dict(params["layers"])
  for name in ("query", "key"):
    # [L, heads, head_dim, D]
    moved = move(jnp.swapaxes(layers[name], -1, -2))
    layers[name] = jnp.swapaxes(moved, -1, -2)
    if config.qkv_bias:
      layers[f"{name}_bias"] = move(layers[f"{name}_bias"])
  changed = dataclasses.replace(config, rope_pairing=pairing)
  return {**params, "layers": layers}, changed


def apply(
  params: Params,
  tokens: jax.Array,
  mask: jax.Array | None = None,
  *,
  config: Config,
) -> jax.Array:
  """Logits of the next token after every token.

  Args:
    params: parameters.
    tokens: `[B, T]` int32; what they are at padding does not matter.
    mask: `[B, T]` bool, False at padding, which may be left, right or
      between; None for no padding.
    config: shape of the model.

  Returns:
    `[B, T, V]` float32. Under `jit`, where tokens cannot be looked at, one
    outside the vocabulary makes its row NaN.

  Raises:
    TypeError: if tokens are not integers or the mask is not bool.
    ValueError: if shapes differ, a row has no token, a token is outside the
      vocabulary or T is above `max_length`.
  """
  return forward(params, tokens, mask, config=config).logits


def forward(
  params: Params,
  tokens: jax.Array,
  mask: jax.Array | None = None,
  *,
  config: Config,
  taps: Sequence[str] = (),
) -> Output:
  """`apply` that also shows what is inside.

  Args:
    params: parameters.
    tokens: `[B, T]` int32.
    mask: `[B, T]` bool, see `apply`.
    config: shape of the model.
    taps: which of `TAPS` to return.

  Returns:
    Logits and the taps.

  Raises:
    TypeError: see `apply`.
    ValueError: see `apply`; also if a tap is unknown.
  """
  mask = _check_prompts(tokens, mask, config)
  x, _, tapped = llama_network.layers(params, tokens, mask, None, config, taps)
  return Output(llama_network.head(params, x, config), **tapped)


def prefill(
  params: Params,
  tokens: jax.Array,
  mask: jax.Array | None = None,
  *,
  config: Config,
  num_slots: int,
  taps: Sequence[str] = (),
) -> tuple[Output, kv_cache.KVCache]:
  """Reads prompts into a new cache.

  Args:
    params: parameters.
    tokens: `[B, T]` int32.
    mask: `[B, T]` bool, see `apply`.
    config: shape of the model.
    num_slots: slots of the cache, at least T.
    taps: which of `TAPS` to return.

  Returns:
    Logits `[B, V]` after the last token of each row, with the taps; and the
    cache, T slots of which are used.

  Raises:
    TypeError: see `apply`.
    ValueError: see `forward`; also if the prompt is longer than the cache or
      the cache longer than `max_length`.
  """
  mask = _check_prompts(tokens, mask, config)
  batch_size, length = tokens.shape
  if length > num_slots:
    raise ValueError(
      f"a prompt of {length} tokens does not fit into a cache of num_slots"
      f" {num_slots}"
    )
  cache = init_cache(config, batch_size=batch_size, num_slots=num_slots)
  x, new, tapped = llama_network.layers(
    params, tokens, mask, None, config, taps, return_new=True
  )
  cache = kv_cache.append(cache, new[0], new[1], mask)
  last = length - 1 - jnp.argmax(mask[:, ::-1], axis=1)
  x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
  return Output(llama_network.head(params, x, config), **tapped), cache


def extend(
  params: Params,
  cache: kv_cache.KVCache,
  tokens: jax.Array,
  mask: jax.Array | None = None,
  *,
  config: Config,
  taps: Sequence[str] = (),
) -> tuple[Output, kv_cache.KVCache]:
  """Reads more tokens after those in a cache.

  Args:
    params: parameters.
    cache: what was read before; give it away (`jit(donate_argnames=)`) to
      write in place.
    tokens: `[B, T]` int32.
    mask: `[B, T]` bool; a row without any True reads nothing.
    config: shape of the model.
    taps: which of `TAPS` to return.

  Returns:
    Logits `[B, T, V]` after every token, with the taps; and the cache, T more
    slots of which are used.

  Raises:
    TypeError: see `apply`.
    ValueError: see `forward`; also if the tokens do not fit into the cache.
      Under `jit` see `kv_cache.append`.
  """
  mask = prompts.check(tokens, mask, config.vocab_size, allow_empty=True)
  kv_cache.check_room(cache, tokens.shape[1])
  x, new, tapped = llama_network.layers(
    params, tokens, mask, cache, config, taps, return_new=True
  )
  return (
    Output(llama_network.head(params, x, config), **tapped),
    kv_cache.append(cache, new[0], new[1], mask),
  )


def init_cache(
  config: Config, *, batch_size: int, num_slots: int
) -> kv_cache.KVCache:
  """An empty cache.

  Args:
    config: shape of the model.
    batch_size: rows B.
    num_slots: slots, at most `config.max_length`.

  Raises:
    ValueError: if a size is outside its range.
  """
  checks.check_range("num_slots", num_slots, low=1, high=config.max_length)
  return kv_cache.init(
    num_layers=config.num_layers,
    batch_size=batch_size,
    num_heads=config.num_kv_heads,
    num_slots=num_slots,
    head_dim=config.head_dim,
    dtype=config.dtype,
  )


@functools.cache
def cached_model(config: Config, *, num_slots: int) -> kv_cache.CachedModel:
  """The model as `decoding` wants it; equal arguments give one object.

  Args:
    config: shape of the model.
    num_slots: slots of a cache, at most `config.max_length`.

  Raises:
    ValueError: if `num_slots` is outside its range.
  """
  checks.check_range("num_slots", num_slots, low=1, high=config.max_length)

  def read(params, tokens, mask):
    output, cache = prefill(
      params, tokens, mask, config=config, num_slots=num_slots
    )
    return output.logits, cache

  def read_more(params, cache, tokens, mask):
    output, cache = extend(params, cache, tokens, mask, config=config)
    return output.logits, cache

  return kv_cache.CachedModel(read, read_more, config.vocab_size, num_slots)


def _check_prompts(tokens, mask, config):
  mask = prompts.check(tokens, mask, config.vocab_size)
  if tokens.shape[1] > config.max_length:
    raise ValueError(
      f"{tokens.shape[1]} tokens are more than the max_length"
      f" {config.max_length} of the model"
    )
  return mask


def _put(tree: Params, path: tuple[str, ...], value) -> None:
  for name in path[:-1]:
    tree = tree.setdefault(name, {})
  tree[path[-1]] = value
