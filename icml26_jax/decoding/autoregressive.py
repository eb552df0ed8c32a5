"""Decoding one token after the other, on the device from start to end."""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import categorical
from icml26_jax.diffusion import process as process_lib
from icml26_jax.models import kv_cache, prompts


class Generation(NamedTuple):
  """What was decoded.

  Attributes:
    tokens: `[B, N]` int32; `pad_token` after the end of a row.
    lengths: `[B]` int32, tokens of each row, its end token included.
    log_probs: `[B, N]` float32, log-probability of each token under the model
      at temperature 1, in nats; 0 after the end.
    cache: what the model has read: the prompts, and of each row every token
      but its last.
  """

  tokens: jax.Array
  lengths: jax.Array
  log_probs: jax.Array
  cache: Any


def generate(
  params: Any,
  tokens: jax.Array,
  mask: jax.Array | None = None,
  key: jax.Array | None = None,
  *,
  model: kv_cache.CachedModel,
  num_tokens: int,
  temperature: float = 0.0,
  end_tokens: Sequence[int] = (),
  pad_token: int = 0,
) -> Generation:
  """Continues prompts until an end token or `num_tokens`.

  One compiled call reads the prompts, a second one decodes in a loop that
  ends when every row has; the cache is updated in place.

  Args:
    params: parameters of the model.
    tokens: `[B, T]` int32 prompts.
    mask: `[B, T]` bool, False at padding; None for no padding.
    key: a typed key, or `[B]` keys, one a row; only for `temperature` above
      0. A batch then draws what its rows would draw one by one.
    model: the model, for instance from `llama.cached_model`.
    num_tokens: most tokens to decode a row, N.
    temperature: 0 takes the most probable token (the first of several);
      otherwise tokens are drawn from softmax(logits / temperature).
    end_tokens: tokens that end a row.
    pad_token: fills a row after its end.

  Returns:
    The tokens and their log-probabilities.

  Raises:
    TypeError: if tokens are not integers, the mask is not bool or the key is
      not a typed key.
    ValueError: if a prompt is empty, prompts and continuation do not fit into
      the cache, a token is outside the vocabulary, or `key` is missing at a
      temperature above 0.
  """
  mask = prompts.check(tokens, mask, model.vocab_size)
  checks.check_range("num_tokens", num_tokens, low=1)
  checks.check_range("temperature", temperature, low=0.0)
  ends = np.asarray(end_tokens, np.int32).reshape(-1)
  checks.check_tokens("end_tokens", ends, model.vocab_size)
  needed = tokens.shape[1] + num_tokens - 1
  if needed > model.num_slots:
    raise ValueError(
      f"prompts of {tokens.shape[1]} tokens and num_tokens {num_tokens} need"
      f" {needed} slots; the cache has {model.num_slots}"
    )
  keys = None
  if temperature > 0:
    if key is None:
      raise ValueError("key is needed at a temperature above 0")
    keys = process_lib.row_keys(key, tokens.shape[0])
  logits, cache = _read(params, tokens, mask, model=model)
  return _decode(
    params,
    logits,
    cache,
    keys,
    jnp.float32(temperature),
    ends,
    model=model,
    num_tokens=num_tokens,
    pad_token=pad_token,
  )


def most_probable(logits: jax.Array) -> jax.Array:
  """The first token with the largest logit.

  As `argmax`, but in two passes that a CPU runs on whole vectors, several
  times faster.

  Args:
    logits: `[..., V]` float.

  Returns:
    `[...]` int32; -1 where a logit is NaN.
  """
  size = logits.shape[-1]
  top = jnp.max(logits, axis=-1, keepdims=True)
  index = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  first = jnp.min(jnp.where(logits == top, index, size), axis=-1)
  return jnp.where(first == size, -1, first)


@functools.partial(jax.jit, static_argnames="model")
def _read(params, tokens, mask, *, model):
  return model.prefill(params, tokens, mask)


@functools.partial(
  jax.jit,
  static_argnames=("model", "num_tokens", "pad_token"),
  donate_argnames="cache",
)
def _decode(
  params,
  logits,
  cache,
  keys,
  temperature,
  ends,
  *,
  model,
  num_tokens,
  pad_token,
):
  """Decodes after the predictions `[B, V]` of the first token."""
  batch_size = logits.shape[0]

  def choose(logits, step):
    if keys is None:
      token = most_probable(logits)
    else:
      token = categorical.draw(
        process_lib.fold_rows(keys, step), (logits / temperature)[:, None]
      )[:, 0]
    chosen = jnp.take_along_axis(
      logits, jnp.maximum(token, 0)[:, None], axis=-1
    )[:, 0]
    return token, chosen - jax.nn.logsumexp(logits, axis=-1)

  def write(state, logits):
    step, tokens, log_probs, lengths, alive, cache = state
    token, log_prob = choose(logits, step)
    token = jnp.where(alive, token, pad_token)
    log_prob = jnp.where(alive, log_prob, 0.0)
    put = functools.partial(
      jax.lax.dynamic_update_slice_in_dim, start_index=step, axis=1
    )
    return (
      step + 1,
      put(tokens, token[:, None]),
      put(log_probs, log_prob[:, None]),
      lengths + alive,
      alive & ~jnp.any(token[:, None] == ends[None], axis=1),
      cache,
    )

  def advance(state):
    step, tokens, *_, alive, cache = state
    last = jax.lax.dynamic_slice_in_dim(tokens, step - 1, 1, axis=1)
    logits, cache = model.extend(params, cache, last, alive[:, None])
    return write((*state[:-1], cache), logits[:, 0])

  def going_on(state):
    step, *_, alive, _ = state
    return (step < num_tokens) & jnp.any(alive)

  state = (
    jnp.int32(0),
    jnp.full((batch_size, num_tokens), pad_token, jnp.int32),
    jnp.zeros((batch_size, num_tokens), jnp.float32),
    jnp.zeros((batch_size,), jnp.int32),
    jnp.ones((batch_size,), jnp.bool_),
    cache,
  )
  state = jax.lax.while_loop(going_on, advance, write(state, logits))
  _, tokens, log_probs, lengths, _, cache = state
  return Generation(tokens, lengths, log_probs, cache)
