"""Masked diffusion of tokens: the continuous-time bound and its sampler.

A position is either revealed, with its true token, or hidden. There is no mask
symbol in the vocabulary: which positions are hidden is an input of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import categorical, objective, schedules
from icml26_jax.diffusion import process as process_lib


def corrupt(
  key: jax.Array, x0: jax.Array, alpha: jax.Array | float
) -> jax.Array:
  """Draws which positions stay revealed.

  Args:
    key: a typed key, or `[B]` of them, one a row.
    x0: `[B, L]` int tokens; only their shape matters.
    alpha: `[B]` or `[]` float, share of revealed positions, in [0, 1].

  Returns:
    `[B, L]` bool, each True with probability `alpha`, independently.

  Raises:
    ValueError: if alpha is not one number a row, or known to lie outside
      [0, 1].
  """
  checks.check_range("alpha", alpha, low=0.0, high=1.0)
  batch_size, length = x0.shape
  alpha = process_lib.row_values("alpha", alpha, batch_size)
  return _bernoulli(process_lib.row_keys(key, batch_size), alpha, length)


def reveal_probability(
  alpha: jax.Array | float, next_alpha: jax.Array | float
) -> jax.Array:
  """Probability that a hidden position is committed between two times.

  `(next_alpha - alpha) / (1 - alpha)`.

  Args:
    alpha: any shape, share of revealed positions before, in [0, 1].
    next_alpha: the same after, in [alpha, 1].

  Returns:
    float32 probabilities; 1 at alpha = 1, where nothing is hidden.

  Raises:
    ValueError: if a concrete share is outside [0, 1].

  References:
    Sahoo et al., "Simple and Effective Masked Diffusion Language Models",
    NeurIPS 2024, eq. (7).
  """
  checks.check_range("alpha", alpha, low=0.0, high=1.0)
  checks.check_range("next_alpha", next_alpha, low=0.0, high=1.0)
  alpha = jnp.asarray(alpha, jnp.float32)
  hidden = 1.0 - alpha
  # Written so that NaN stays NaN.
  is_none = hidden <= 0
  return jnp.where(
    is_none,
    1.0,
    (jnp.asarray(next_alpha, jnp.float32) - alpha)
    / jnp.where(is_none, 1.0, hidden),
  )


def ancestral_policy(
  alpha_fn: Callable[[jax.Array], jax.Array],
) -> process_lib.UnmaskingPolicy:
  """Commits each hidden position with its probability under the process.

  Args:
    alpha_fn: share of revealed positions at a time.

  Returns:
    A policy without memory that does not look at predictions.
  """

  def select(log_probs, state, step):
    del log_probs
    batch_size, length = step.latent.tokens.shape
    probability = reveal_probability(
      alpha_fn(step.time), alpha_fn(step.next_time)
    )
    commit = _bernoulli(
      step.keys, jnp.broadcast_to(probability, (batch_size,)), length
    )
    return process_lib.Selection(commit & ~step.latent.revealed), state

  return process_lib.UnmaskingPolicy(lambda tokens: (), select, False)


def loss(
  logits: jax.Array,
  x0: jax.Array,
  revealed: jax.Array,
  alpha: jax.Array | float,
  alpha_derivative: jax.Array | float,
  *,
  mask: jax.Array | None = None,
) -> jax.Array:
  """Weighted cross-entropy of hidden tokens, one sum a row.

  `-alpha' / (1 - alpha) sum_i -log p(x0_i)` over hidden positions i. Its mean
  over t uniform in (0, 1) and over the reveals is an upper bound of the
  negative log-likelihood of a masked diffusion (exact if the network gives the
  exact conditionals and alpha runs from 0 to 1).

  Args:
    logits: `[B, L, V]` any float.
    x0: `[B, L]` int tokens.
    revealed: `[B, L]` bool; revealed positions cost nothing.
    alpha: `[B]` or `[]` float, share of revealed positions at the row's time.
    alpha_derivative: `[B]` or `[]` float, its derivative in time, at most 0.
    mask: `[B, L]` bool, positions that count; None for all. What the logits
      hold elsewhere does not matter.

  Returns:
    `[B]` float32 in nats; 0 where nothing is hidden, at alpha = 1 too.

  Raises:
    ValueError: if shapes disagree, a concrete token is outside [0, V), a
      concrete share outside [0, 1] or its derivative above 0.

  References:
    Sahoo et al., "Simple and Effective Masked Diffusion Language Models",
    NeurIPS 2024, eq. (10).
  """
  batch_size = x0.shape[0]
  checks.check_range("alpha", alpha, low=0.0, high=1.0)
  checks.check_range("alpha_derivative", alpha_derivative, high=0.0)
  alpha = process_lib.row_values("alpha", alpha, batch_size)
  alpha_derivative = process_lib.row_values(
    "alpha_derivative", alpha_derivative, batch_size
  )
  if revealed.shape != x0.shape:
    raise ValueError(
      f"revealed {revealed.shape} and x0 {x0.shape} must have one shape"
    )
  if mask is not None and mask.shape != x0.shape:
    raise ValueError(f"mask {mask.shape} and x0 {x0.shape} must have one shape")
  counted = ~revealed if mask is None else ~revealed & mask
  nll = jnp.sum(objective.token_nll(logits, x0, counted), axis=1)
  hidden = 1.0 - alpha
  # Written so that NaN stays NaN: training stops at a loss that is not finite.
  is_none = hidden <= 0
  weight = jnp.where(
    is_none, 0.0, -alpha_derivative / jnp.where(is_none, 1.0, hidden)
  )
  return weight * nll


def process(vocab_size: int, *, eps: float = 1e-3) -> process_lib.Process:
  """Masked diffusion with the log-linear schedule `alpha = 1 - (1 - eps) t`.

  Its sampler draws the positions to commit before it calls the network, and
  leaves the call out if there are none: over N equal steps from 1 to 0, a row
  of L tokens needs `N (1 - (1 - 1/N)^L)` calls on average.

  Args:
    vocab_size: number of tokens V, at least 2.
    eps: share of positions still revealed at time 1, in [0, 1).

  Returns:
    The process; its latents hold tokens and reveals only.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    Sahoo et al., "Simple and Effective Masked Diffusion Language Models",
    NeurIPS 2024.
  """
  checks.check_range("vocab_size", vocab_size, low=2)
  checks.check_range("eps", eps, low=0.0, high=1.0, open_high=True)

  def alpha_fn(t):
    return schedules.log_linear_alpha(t, eps=eps)

  def corrupt_tokens(keys, x0, t):
    checks.check_tokens("x0", x0, vocab_size)
    revealed = corrupt(keys, x0, alpha_fn(t))
    return process_lib.Latent(_visible(x0, revealed), revealed)

  def prior(keys, tokens, revealed, t):
    del keys, t
    return process_lib.Latent(_visible(tokens, revealed), revealed)

  def evaluate(denoise_fn, latent, t, s):
    del s
    return denoise_fn(latent, jnp.full(latent.tokens.shape[:1], t)), None

  def reverse(keys, latent, logits, extra, t, s, selection):
    del extra, t, s
    chosen = selection.tokens
    if chosen is None:
      chosen = categorical.draw(keys, logits)
    commit = selection.commit & ~latent.revealed
    tokens = jnp.where(commit, chosen, latent.tokens)
    return process_lib.Latent(tokens, latent.revealed | commit)

  def process_loss(logits, x0, latent, t, mask):
    return loss(
      logits,
      x0,
      latent.revealed,
      alpha_fn(t),
      schedules.log_linear_alpha_derivative(t, eps=eps),
      mask=mask,
    )

  return process_lib.Process(
    vocab_size=vocab_size,
    corrupt=corrupt_tokens,
    prior=prior,
    evaluate=evaluate,
    reverse=reverse,
    loss=process_loss,
    ancestral=ancestral_policy(alpha_fn),
    is_stationary=True,
  )


def _bernoulli(
  keys: jax.Array, probability: jax.Array, length: int
) -> jax.Array:
  """`[B, length]` bool, each row True with its probability, from its key."""
  uniform = jax.vmap(lambda key: jax.random.uniform(key, (length,)))(keys)
  return uniform < probability[:, None]


def _visible(tokens: jax.Array, revealed: jax.Array) -> jax.Array:
  """Tokens with 0 where they are hidden."""
  return jnp.where(revealed, tokens, 0).astype(jnp.int32)
