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
from icml26_jax.layers import few_rows, rotary_pairing
from icml26_jax.models import kv_cache

Params = dict[str, Any]

TAPS = ("hidden_states", "attention")
_DTYPES = ("float32", "bfloat16", "float64")
_REMAT = ("none", "full", "dots")


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape of a model.

  Attributes:
    vocab_size: number of tokens V.
    d_model: width of the residual stream D.
    num_layers: L.
    num_heads: heads of the queries H, a multiple of `num_kv_heads`.
    num_kv_heads: heads of the keys and values K.
    head_dim: components of a head, even.
    d_ff: width of the SwiGLU F.
    rope_base: base of the rotary frequencies.
    rope_pairing: which components the weights pair, `interleaved` or `half`.
    rope_divisors: slow-down of each pair, see `rotary_pairing.frequencies`.
    norm_eps: added to the mean square by the normalisation.
    max_length: positions the model was trained for; more are refused.
    tie_embeddings: True if the embedding table is also the output matrix.
    qkv_bias: True if queries, keys and values have a bias.
    output_bias: True if the output of the attention has a bias.
    dtype: type to compute in. float32 means float32 on every platform;
      normalisation, softmax and logits are never narrower.
    remat: what the backward pass computes again: `none`, `full` (all of a
      layer) or `dots` (all but matrix products).
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_base: float = 10_000.0
  rope_pairing: str = "half"
  rope_divisors: tuple[float, ...] | None = None
  norm_eps: float = 1e-5
  max_length: int = 2048
  tie_embeddings: bool = True
  qkv_bias: bool = False
  output_bias: bool = False
  dtype: str = "float32"
  remat: str = "none"

  def __post_init__(self):
    for name in (
      "vocab_size",
      "d_model",
      "num_layers",
      "num_heads",
      "num_kv_heads",
      "d_ff",
      "max_length",
    ):
      checks.check_range(name, getattr(self, name), low=1)
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads {self.num_heads} must be a multiple of num_kv_heads"
        f" {self.num_kv_heads}"
      )
    rotary_pairing.check_pairing("rope_pairing", self.rope_pairing)
    rotary_pairing.frequencies(
      self.head_dim, base=self.rope_base, divisors=self.rope_divisors
    )
    checks.check_range("norm_eps", self.norm_eps, low=0.0, open_low=True)
    for name, allowed in (("dtype", _DTYPES), ("remat", _REMAT)):
      if getattr(self, name) not in allowed:
        raise ValueError(
          f"{name} must be one of {', '.join(allowed)}, got"
          f" {getattr(self, name)!r}"
        )


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
  params = {}
  for i, (path, (shape, axes)) in enumerate(_shapes(config).items()):
    name = path[-1]
    if "norm" in name:
      value = jnp.ones(shape, jnp.float32)
    elif name.endswith("_bias"):
      value = jnp.zeros(shape, jnp.float32)
    else:
      fan_in = math.prod(shape[len(shape) - _num_inputs(name) :])
      value = jax.random.normal(jax.random.fold_in(key, i), shape)
      value = value.astype(jnp.float32) / math.sqrt(fan_in)
    _put(params, path, value)
  return params


def logical_axes(config: Config) -> Params:
  """Logical axis names of every array, in the tree of `init`."""
  axes: Params = {}
  for path, (_, names) in _shapes(config).items():
    _put(axes, path, names)
  return axes


def num_params(config: Config) -> int:
  """Number of parameters; a tied matrix counts once."""
  return sum(math.prod(shape) for shape, _ in _shapes(config).values())


def check_params(params: Params, config: Config) -> None:
  """Raises ValueError naming the first array that does not fit the config."""
  wanted: Params = {}
  for path, (shape, _) in _shapes(config).items():
    _put(wanted, path, jax.ShapeDtypeStruct(shape, jnp.float32))
  if jax.tree.structure(params) != jax.tree.structure(wanted):
    raise ValueError(
      f"params must be the tree {jax.tree.structure(wanted)}, got"
      f" {jax.tree.structure(params)}"
    )

  def check(path, value, expected):
    if value.shape != expected.shape:
      name = jax.tree_util.keystr(path, simple=True, separator=".")
      raise ValueError(
        f"params: {name} must have shape {expected.shape}, got {value.shape}"
      )

  jax.tree.map_with_path(check, params, wanted)


def with_pairing(
  params: Params, config: Config, pairing: str
) -> tuple[Params, Config]:
  """The same model with queries and keys stored for another pairing.

  Args:
    params: parameters.
    config: their shape.
    pairing: one of `rotary_pairing.PAIRINGS`.

  Returns:
    Parameters and config with equal predictions.

  Raises:
    ValueError: if the pairing is unknown.
  """
  move = functools.partial(
    rotary_pairing.reorder, source=config.rope_pairing, target=pairing
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
    tokens: `[B, T]` int32.
    mask: `[B, T]` bool, False at padding, which may be left, right or
      between; None for no padding.
    config: shape of the model.

  Returns:
    `[B, T, V]` float32. Under `jit`, where tokens cannot be looked at, one
    outside the vocabulary makes its row NaN from there on.

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
  mask = _check_prompt(tokens, mask, config)
  x, _, tapped = _layers(params, tokens, mask, None, config, taps)
  return Output(_head(params, x, config), **tapped)


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
  mask = _check_prompt(tokens, mask, config)
  batch_size, length = tokens.shape
  if length > num_slots:
    raise ValueError(
      f"a prompt of {length} tokens does not fit into a cache of num_slots"
      f" {num_slots}"
    )
  cache = init_cache(config, batch_size=batch_size, num_slots=num_slots)
  x, new, tapped = _layers(
    params, tokens, mask, None, config, taps, return_new=True
  )
  cache = kv_cache.append(cache, *new, mask)
  last = length - 1 - jnp.argmax(mask[:, ::-1], axis=1)
  x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
  return Output(_head(params, x, config), **tapped), cache


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
  mask = _check_tokens(tokens, mask, config)
  kv_cache.check_room(cache, tokens.shape[1])
  x, new, tapped = _layers(
    params, tokens, mask, cache, config, taps, return_new=True
  )
  return (
    Output(_head(params, x, config), **tapped),
    kv_cache.append(cache, *new, mask),
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


def _layers(params, tokens, mask, cache, config, taps, return_new=False):
  """Residual stream, new keys and values, and taps of all layers."""
  unknown = sorted(set(taps) - set(TAPS))
  if unknown:
    raise ValueError(
      f"taps must be among {', '.join(TAPS)}, got {unknown[0]!r}"
    )
  dtype = jnp.dtype(config.dtype)
  first = 0 if cache is None else cache.next_position[:, None]
  positions = jnp.cumsum(mask, axis=1, dtype=jnp.int32) - 1 + first
  turn = rotary_pairing.frequencies(
    config.head_dim, base=config.rope_base, divisors=config.rope_divisors
  )
  # [B, T, 1, head_dim / 2]
  angles = rotary_pairing.angles(positions[:, :, None], turn, dtype=_wide(dtype))
  length = tokens.shape[1]
  causal = jnp.tril(jnp.ones((length, length), jnp.bool_))
  visible = causal[None] & mask[:, None, :]  # [B, T, T]
  if cache is not None:
    old = jnp.broadcast_to(
      cache.valid[:, None, :], (*tokens.shape, cache.num_slots)
    )
    visible = jnp.concatenate([old, visible], axis=-1)  # [B, T, S + T]

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
    return x, (new if return_new else None, kept)

  if config.remat != "none":
    policy = (
      jax.checkpoint_policies.dots_saveable if config.remat == "dots" else None
    )
    layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
  table = params["embedding"].astype(dtype)
  x = table.at[tokens].get(
    mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
  )
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
    rotary_pairing.rotate, cosine=cosine, sine=sine, pairing=config.rope_pairing
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
    num_inputs=_num_inputs(name),
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


def _head(params, x, config):
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


def _check_tokens(tokens, mask, config):
  """The mask, after tokens and mask were looked at."""
  if tokens.ndim != 2 or not tokens.shape[0] or not tokens.shape[1]:
    raise ValueError(
      "tokens must have shape [B, T] with at least one row and one token, got"
      f" {tokens.shape}"
    )
  if mask is None:
    mask = jnp.ones(tokens.shape, jnp.bool_)
  if mask.dtype != jnp.bool_:
    raise TypeError(f"mask must be bool, got {mask.dtype}")
  if mask.shape != tokens.shape:
    raise ValueError(
      f"mask {mask.shape} and tokens {tokens.shape} must have one shape"
    )
  # Under jit this checks the type only.
  checks.check_tokens("tokens", tokens, config.vocab_size)
  return mask


def _check_prompt(tokens, mask, config):
  mask = _check_tokens(tokens, mask, config)
  if tokens.shape[1] > config.max_length:
    raise ValueError(
      f"{tokens.shape[1]} tokens are more than the max_length"
      f" {config.max_length} of the model"
    )
  if checks.is_concrete(mask):
    empty = jnp.flatnonzero(~jnp.any(mask, axis=1))
    if empty.size:
      raise ValueError(
        f"row {int(empty[0])} of tokens is an empty prompt: its mask has no"
        " True"
      )
  return mask


def _num_inputs(name: str) -> int:
  """How many of a matrix's last axes are inputs."""
  return 2 if name == "output" else 1


def _shapes(config: Config) -> dict[tuple[str, ...], tuple[tuple, tuple]]:
  """Shape and logical axes of every array, by path."""
  c = config
  d, h, k, n, f = c.d_model, c.num_heads, c.num_kv_heads, c.head_dim, c.d_ff
  heads = ("heads", "head_dim")
  layers = {
    "attention_norm": ((d,), ("embed",)),
    "query": ((h, n, d), (*heads, "embed")),
    "key": ((k, n, d), (*heads, "embed")),
    "value": ((k, n, d), (*heads, "embed")),
    "output": ((d, h, n), ("embed", *heads)),
    "mlp_norm": ((d,), ("embed",)),
    "gate": ((f, d), ("mlp", "embed")),
    "up": ((f, d), ("mlp", "embed")),
    "down": ((d, f), ("embed", "mlp")),
  }
  if c.qkv_bias:
    layers["query_bias"] = ((h, n), heads)
    layers["key_bias"] = ((k, n), heads)
    layers["value_bias"] = ((k, n), heads)
  if c.output_bias:
    layers["output_bias"] = ((d,), ("embed",))
  table = ((c.vocab_size, d), ("vocab", "embed"))
  shapes = {("embedding",): table, ("final_norm",): ((d,), ("embed",))}
  if not c.tie_embeddings:
    shapes[("head",)] = table
  for name, (shape, axes) in layers.items():
    shapes[("layers", name)] = ((c.num_layers, *shape), ("layers", *axes))
  return shapes


def _put(tree: Params, path: tuple[str, ...], value) -> None:
  for name in path[:-1]:
    tree = tree.setdefault(name, {})
  tree[path[-1]] = value
