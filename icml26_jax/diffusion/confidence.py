"""How sure the network is of a position: scores to order positions by."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def top_log_prob(log_probs: jax.Array) -> jax.Array:
  """Log-probability of the best token.

  Args:
    log_probs: `[..., V]` float32 log-probabilities, -inf allowed.

  Returns:
    `[...]` float32 in nats, at most 0. Near certainty it separates what the
    probability itself, close to 1, would round to a tie.
  """
  return jnp.max(log_probs, axis=-1)


def entropy(log_probs: jax.Array) -> jax.Array:
  """Shannon entropy, with finite gradients at impossible tokens.

  Args:
    log_probs: `[..., V]` float32 log-probabilities, -inf allowed.

  Returns:
    `[...]` float32 in nats, in [0, ln V].
  """
  finite = jnp.where(log_probs == -jnp.inf, 0.0, log_probs)
  return -jnp.sum(jnp.exp(log_probs) * finite, axis=-1)


def margin(log_probs: jax.Array) -> jax.Array:
  """Probability of the best token minus that of the second best, minus 1.

  The 1 is taken off so that values close to a full margin stay apart.

  Args:
    log_probs: `[..., V]` float32 log-probabilities, -inf allowed.

  Returns:
    `[...]` float32 in [-1, 0]; 0 with a vocabulary of one token.
  """
  if log_probs.shape[-1] == 1:
    return jnp.expm1(log_probs[..., 0])
  best, second = jnp.moveaxis(jax.lax.top_k(log_probs, 2)[0], -1, 0)
  return jnp.expm1(best) - jnp.exp(second)


def best_token(scores: jax.Array) -> jax.Array:
  """The most probable token, the first of equals.

  Two plain reductions in place of `argmax`, which is not vectorised on a CPU.

  Args:
    scores: `[..., V]` float, probabilities or their logarithms.

  Returns:
    `[...]` int32 in [0, V); V - 1 where a score is NaN.
  """
  vocab_size = scores.shape[-1]
  top = jnp.max(scores, axis=-1, keepdims=True)
  ids = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
  return jnp.min(jnp.where(scores == top, ids, vocab_size - 1), axis=-1)
