"""Likelihood of held-out text under trained networks.

`mdlm_bound` bounds that of a masked diffusion, `ar_nll` computes that of an
autoregressive network. Both may be put under `jit`, and run the network on
batches of rows one after the other, so that memory does not grow with the
text.
"""

from __future__ import annotations

from collections.abc import Callable
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
  denoise_fn: process_lib.DenoiseFn,
  tokens: jax.Array,
  *,
  mask: jax.Array | None = None,
  eps: float = 1e-3,
  num_draws: int = 16,
  num_replicates: int = 2,
  batch_size: int = 64,
  num_characters: float | None = None,
) -> Bound:
  """Monte-Carlo estimate of the continuous-time bound of masked diffusion.

  The bound of a row of n tokens is an integral over the hidden share h of
  (1 / h) E sum_hidden -log p. Drawn as it stands it has no finite variance:
  few positions are hidden at small h, and count 1 / h. So the number k of
  hidden positions is drawn instead, uniformly in 1 to n, which leaves

    E_k (n / k) E_S sum_{i in S} -log p(x_i | the rest),  |S| = k,

  and h, for networks that look at the time, from its law given k. Each
  replicate draws k once in each of `num_draws` equal strata, for every row
  anew; the spread between replicates gives the standard error.

  The integral runs up to h = 1, so that this is a bound also for networks
  trained with a share of at most 1 - eps; those see time 1 beyond it.

  Args:
    key: typed key. A row's draws depend on the key and its number only.
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]` of a masked diffusion.
      There is no such bound from networks that see noisy tokens.
    tokens: `[N, L]` int, held-out text.
    mask: `[N, L]` bool, True where a token belongs to the text. Elsewhere it
      stays hidden, so that the bound is that of the rest alone.
    eps: of the schedule alpha(t) = 1 - (1 - eps) t that the network knows.
    num_draws: strata, at least 1.
    num_replicates: independent repetitions, at least 2. The network runs
      `num_draws * num_replicates` times on each row.
    batch_size: rows at a time.
    num_characters: characters that the counted tokens stand for; None if each
      is one character.

  Returns:
    The bound; 0 if no token counts.

  Raises:
    ValueError: if a token is outside the vocabulary, a number is outside its
      range, or shapes disagree.
    TypeError: if the mask is not bool.

  References:
    Sahoo et al., "Simple and Effective Masked Diffusion Language Models",
    NeurIPS 2024, eq. (10); Ou et al., "Your Absorbing Discrete Diffusion
    Secretly Models the Conditional Distributions of Clean Data", ICLR 2025,
    for the form with k.
  """
  mask = _checked_mask(tokens, mask)
  checks.check_range("eps", eps, low=0.0, high=1.0, open_high=True)
  checks.check_range("num_draws", num_draws, low=1)
  checks.check_range("num_replicates", num_replicates, low=2)
  if num_characters is not None:
    checks.check_range("num_characters", num_characters, low=0.0, open_low=True)
  row_keys = process_lib.row_keys(key, tokens.shape[0])
  num_tokens = jnp.sum(mask, axis=1, dtype=jnp.int32)

  def run(keys, tokens, mask, count):
    def draw(_, index):
      stratum = jnp.mod(index, num_draws)
      latent, hidden, t = _hide(
        process_lib.fold_rows(keys, index),
        tokens,
        mask,
        count,
        stratum / num_draws,
        1 / num_draws,
      )
      logits = denoise_fn(latent, jnp.minimum(t / (1.0 - eps), 1.0))
      nll = jnp.sum(objective.token_nll(logits, tokens, hidden), axis=1)
      share = jnp.sum(hidden, axis=1) / jnp.maximum(count, 1)
      return None, nll / jnp.where(share > 0, share, 1.0)

    draws = jnp.arange(num_replicates * num_draws)
    _, losses = jax.lax.scan(draw, None, draws)
    losses = losses.reshape(num_replicates, num_draws, -1)
    return jnp.mean(losses, axis=1).T  # [B, R]

  tokens = jnp.where(mask, tokens, 0).astype(jnp.int32)
  _check_vocabulary(denoise_fn, tokens)
  estimates = _in_batches(run, (row_keys, tokens, mask, num_tokens), batch_size)
  nats = jnp.mean(estimates, axis=1)
  variance = jnp.var(estimates, axis=1, ddof=1) / num_replicates
  total = jnp.sum(num_tokens).astype(jnp.float32)
  characters = total if num_characters is None else num_characters
  # 1 where nothing counts: 0 nats over 0 characters are 0 bits.
  scale = math.log(2.0) * jnp.where(total > 0, characters, 1.0)
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
    mask: `[N, L]` bool, True where a token counts; None for all. One that does
      not count is read by those after it all the same, so that a text can be
      judged given its beginning; what is no token of the vocabulary there,
      such as padding, is read as token 0.
    batch_size: rows at a time.

  Returns:
    Its likelihood in nats.

  Raises:
    ValueError: if `batch_size` is below 1, shapes disagree, or a token that
      counts is outside the vocabulary.
    TypeError: if the mask is not bool or tokens are not integers.
  """
  mask = _checked_mask(tokens, mask)
  vocab_size = jax.eval_shape(
    apply_fn, jax.ShapeDtypeStruct(tokens.shape, jnp.int32)
  ).shape[-1]
  checks.check_tokens("tokens", tokens, vocab_size, mask)
  counted = mask[:, 1:]

  def run(tokens, counted):
    logits = apply_fn(tokens)[:, :-1]
    return jnp.sum(objective.token_nll(logits, tokens[:, 1:], counted), axis=1)

  is_token = mask | ((tokens >= 0) & (tokens < vocab_size))
  tokens = jnp.where(is_token, tokens, 0).astype(jnp.int32)
  nats = _in_batches(run, (tokens, counted), batch_size)
  num_tokens = jnp.sum(counted, axis=1, dtype=jnp.int32)
  total = jnp.maximum(jnp.sum(num_tokens), 1)
  return Likelihood(jnp.sum(nats) / total, nats, num_tokens)


def _hide(keys, tokens, mask, count, low, width):
  """Hides k of the `count` tokens of each row, k / count from an interval.

  Returns:
    The latent, the hidden positions `[B, L]` that count, and the hidden share
    `[B]`, drawn from its law given k.
  """
  keys = jax.vmap(jax.random.split)(keys)
  shift = jax.vmap(jax.random.uniform)(keys[:, 0])
  number = 1 + jnp.floor((low + width * shift) * count).astype(jnp.int32)
  number = jnp.minimum(number, count)
  scores = jax.vmap(lambda key: jax.random.uniform(key, tokens.shape[1:]))(
    keys[:, 1]
  )
  # The k-th smallest of n uniform numbers has the law of h given k, which is
  # Beta(k, n - k + 1), and says nothing about which positions are the k.
  scores = jnp.where(mask, scores, jnp.inf)
  rank = jnp.argsort(jnp.argsort(scores, axis=1), axis=1)
  hidden = rank < number[:, None]
  share = jnp.max(scores, axis=1, where=hidden, initial=0.0)
  revealed = mask & ~hidden
  latent = process_lib.Latent(jnp.where(revealed, tokens, 0), revealed)
  return latent, hidden, share


def _check_vocabulary(denoise_fn, tokens) -> None:
  """Raises if a token is not in the vocabulary that is predicted."""
  latent = process_lib.Latent(tokens, jnp.ones(tokens.shape, jnp.bool_))
  times = jnp.ones(tokens.shape[0], jnp.float32)
  logits = jax.eval_shape(denoise_fn, latent, times)
  checks.check_tokens("tokens", tokens, logits.shape[-1])


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
