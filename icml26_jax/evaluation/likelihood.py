"""Likelihood of held-out text under trained networks.

`mdlm_bound` bounds that of a masked diffusion, `ar_nll` computes that of an
autoregressive network. Both may be put under `jit`, and run the network on
batches of rows one after the other, so that memory does not grow with the
text.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import objective
from icml26_jax.diffusion import process as process_lib


class Bound(NamedTuple):
  """An upper bound of a negative log-likelihood, estimated.

  Attributes:
    bits_per_character: `[]` float32.
    standard_error: `[]` float32, of `bits_per_character`: the error of the
      estimate for this text, not its spread between texts.
    nats: `[N]` float32, the bound of each row.
    num_tokens: `[N]` int32, tokens of each row that count.
  """

  bits_per_character: jax.Array
  standard_error: jax.Array
  nats: jax.Array
  num_tokens: jax.Array


class Likelihood(NamedTuple):
  """A negative log-likelihood.

  Attributes:
    nats_per_token: `[]` float32, mean over the tokens that count; 0 if none.
    nats: `[N]` float32, sum over each row.
    num_tokens: `[N]` int32, tokens of each row that count.
  """

  nats_per_token: jax.Array
  nats: jax.Array
  num_tokens: jax.Array


def mdlm_bound(
  key: jax.Array,
  process: process_lib.Process,
  denoise_fn: process_lib.DenoiseFn,
  tokens: jax.Array,
  *,
  mask: jax.Array | None = None,
  num_times: int = 16,
  num_replicates: int = 2,
  batch_size: int = 64,
  num_characters: float | None = None,
) -> Bound:
  """Monte-Carlo estimate of the continuous-time bound of masked diffusion.

  The mean over times t in (0, 1] of the process's loss. Each replicate draws
  one time in each of `num_times` equal strata, for every row anew, and the
  spread between replicates gives the standard error.

  With the usual schedule, whose share of hidden positions ends at 1 - eps, the
  value is up to eps of itself below the bound.

  Args:
    key: typed key. A row's draws depend on the key and its number only.
    process: masked diffusion (`mdlm.process`). The loss of a process that
      shows noisy tokens to the network is no bound, and is refused.
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]`.
    tokens: `[N, L]` int, held-out text.
    mask: `[N, L]` bool, True where a token belongs to the text. Elsewhere it
      stays hidden, so that the bound is that of the rest alone.
    num_times: strata, at least 1.
    num_replicates: independent repetitions, at least 2. The network runs
      `num_times * num_replicates` times on each row.
    batch_size: rows at a time.
    num_characters: characters that the counted tokens stand for; None if each
      is one character.

  Returns:
    The bound; 0 if no token counts.

  Raises:
    ValueError: if the process does not only mask, a number is outside its
      range, or shapes disagree.
    TypeError: if the mask is not bool.

  References:
    Sahoo et al., "Simple and Effective Masked Diffusion Language Models",
    NeurIPS 2024, eq. (10).
  """
  mask = _checked_mask(tokens, mask)
  checks.check_range("num_times", num_times, low=1)
  checks.check_range("num_replicates", num_replicates, low=2)
  if num_characters is not None:
    checks.check_range("num_characters", num_characters, low=0.0, open_low=True)
  checks.check_tokens("tokens", tokens, process.vocab_size, mask)
  row_keys = process_lib.row_keys(key, tokens.shape[0])

  def run(keys, tokens, mask):
    def draw(_, index):
      time_keys = process_lib.fold_rows(keys, 2 * index)
      noise_keys = process_lib.fold_rows(keys, 2 * index + 1)
      shift = jax.vmap(jax.random.uniform)(time_keys)
      t = 1.0 - (jnp.mod(index, num_times) + shift) / num_times
      latent = process.corrupt(noise_keys, tokens, t)
      if latent.sigma is not None:
        raise ValueError(
          "process must only mask: a loss on noisy tokens is no bound"
        )
      latent = dataclasses.replace(
        latent,
        tokens=jnp.where(mask, latent.tokens, 0),
        revealed=latent.revealed & mask,
      )
      logits = denoise_fn(latent, t)
      return None, process.loss(logits, tokens, latent, t, mask)

    draws = jnp.arange(num_replicates * num_times)
    _, losses = jax.lax.scan(draw, None, draws)
    losses = losses.reshape(num_replicates, num_times, -1)
    return jnp.mean(losses, axis=1).T  # [B, R]

  tokens = jnp.where(mask, tokens, 0).astype(jnp.int32)
  estimates = _in_batches(run, (row_keys, tokens, mask), batch_size)
  nats = jnp.mean(estimates, axis=1)
  variance = jnp.var(estimates, axis=1, ddof=1) / num_replicates
  num_tokens = jnp.sum(mask, axis=1, dtype=jnp.int32)
  total = jnp.sum(num_tokens).astype(jnp.float32)
  characters = total if num_characters is None else num_characters
  scale = math.log(2.0) * jnp.maximum(characters, 1e-30)
  return Bound(
    bits_per_character=jnp.sum(nats) / scale,
    standard_error=jnp.sqrt(jnp.sum(variance)) / scale,
    nats=nats,
    num_tokens=num_tokens,
  )


def ar_nll(
  apply_fn: Callable[[jax.Array], jax.Array],
  tokens: jax.Array,
  *,
  mask: jax.Array | None = None,
  batch_size: int = 64,
) -> Likelihood:
  """Negative log-likelihood under an autoregressive network.

  The first token of a row is only read, never predicted.

  Args:
    apply_fn: `tokens [B, L] int32 -> logits [B, L, V]`, those at position i
      predicting the token at i + 1.
    tokens: `[N, L]` int, held-out text.
    mask: `[N, L]` bool, True where a token counts; None for all.
    batch_size: rows at a time.

  Returns:
    Its likelihood in nats.

  Raises:
    ValueError: if `batch_size` is below 1 or shapes disagree.
    TypeError: if the mask is not bool.
  """
  mask = _checked_mask(tokens, mask)
  counted = mask[:, 1:]

  def run(tokens, counted):
    logits = apply_fn(tokens)[:, :-1]
    return jnp.sum(objective.token_nll(logits, tokens[:, 1:], counted), axis=1)

  tokens = jnp.where(mask, tokens, 0).astype(jnp.int32)
  nats = _in_batches(run, (tokens, counted), batch_size)
  num_tokens = jnp.sum(counted, axis=1, dtype=jnp.int32)
  total = jnp.maximum(jnp.sum(num_tokens), 1)
  return Likelihood(jnp.sum(nats) / total, nats, num_tokens)


def _checked_mask(tokens, mask) -> jax.Array:
  """The mask, of the shape of `[N, L]` tokens."""
  if tokens.ndim != 2:
    raise ValueError(f"tokens must be [N, L], got shape {tokens.shape}")
  if mask is None:
    return jnp.ones(tokens.shape, jnp.bool_)
  if mask.shape != tokens.shape:
    raise ValueError(
      f"tokens {tokens.shape} and mask {mask.shape} must have one shape"
    )
  if mask.dtype != jnp.bool_:
    raise TypeError(f"mask must be bool, got {mask.dtype}")
  return jnp.asarray(mask)


def _in_batches(run, rows, batch_size: int) -> jax.Array:
  """`run(*rows)`, on `batch_size` rows at a time."""
  checks.check_range("batch_size", batch_size, low=1)
  size = rows[0].shape[0]
  if size == 0:
    raise ValueError("tokens must have at least one row, got none")
  batch_size = min(batch_size, size)
  # The last batch is filled up with row 0 again, and those results are left.
  index = jnp.arange(-(-size // batch_size) * batch_size)
  index = jnp.where(index < size, index, 0).reshape(-1, batch_size)
  results = jax.lax.map(
    lambda chosen: run(*(values[chosen] for values in rows)), index
  )
  return results.reshape(-1, *results.shape[2:])[:size]
