"""Energies of neighbouring tokens, by transfer matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.theory.arm_ebm import tables


def markov_rewards_to_logits(
  unary: jax.Array, pairwise: jax.Array
) -> jax.Array:
  """Logits of sequences of T tokens that are scored by neighbours.

  The score is `sum_t unary[t, y_t] + sum_t pairwise[t, y_t, y_(t+1)]`, so that
  a logit depends on the last token only, and the map from rewards to logits
  costs T V^2 in place of V^T.

  Args:
    unary: `[T, V]` float, T and V at least 1; -inf forbids a token.
    pairwise: `[T - 1, V, V]` float; -inf forbids a pair.

  Returns:
    `[T, V, V]` float, `q[t, a, y]` with a the token at t - 1; at the first
    step the same for every a.

  Raises:
    TypeError: if an array is not of floats.
    ValueError: if a shape is wrong, a value is NaN or +inf, or every sequence
      is forbidden.

  References:
    Blondel et al., arXiv 2512.15605, Proposition 3.2, of a reward that depends
    on two tokens.
  """
  logits, _ = _backward(unary, pairwise)
  return logits


def markov_log_partition(unary: jax.Array, pairwise: jax.Array) -> jax.Array:
  """Log of the sum of exp(score) over all sequences of T tokens.

  Args:
    unary: `[T, V]` float, see `markov_rewards_to_logits`.
    pairwise: `[T - 1, V, V]` float.

  Returns:
    `[]` float, in nats.

  Raises:
    TypeError: see `markov_rewards_to_logits`.
    ValueError: see `markov_rewards_to_logits`.
  """
  _, log_partition = _backward(unary, pairwise)
  return log_partition


def _backward(unary, pairwise):
  unary, pairwise = jnp.asarray(unary), jnp.asarray(pairwise)
  for name, array in (("unary", unary), ("pairwise", pairwise)):
    if not jnp.issubdtype(array.dtype, jnp.floating):
      raise TypeError(f"{name} must be floats, got {array.dtype}")
    tables.check_scores(name, array)
  if unary.ndim != 2 or 0 in unary.shape:
    raise ValueError(
      f"unary must have shape [T, V], T and V at least 1, got {unary.shape}"
    )
  num_steps, vocab_size = unary.shape
  shape = (num_steps - 1, vocab_size, vocab_size)
  if pairwise.shape != shape:
    raise ValueError(
      f"pairwise must have shape {shape} for unary {unary.shape}, got"
      f" {pairwise.shape}"
    )
  dtype = jnp.result_type(unary, pairwise)
  unary, pairwise = unary.astype(dtype), pairwise.astype(dtype)

  def step(values, rewards):
    single, pair = rewards
    logits = pair + (single + values)[None]
    return tables.log_sum_exp(logits), logits

  values, later = jax.lax.scan(
    step, jnp.zeros(vocab_size, dtype), (unary[1:], pairwise), reverse=True
  )
  first = unary[0] + values
  log_partition = tables.log_sum_exp(first)
  if checks.is_concrete(log_partition) and log_partition == -jnp.inf:
    raise ValueError(
      "unary and pairwise have empty support: no sequence has a finite score"
    )
  first = jnp.broadcast_to(first[None, None], (1, vocab_size, vocab_size))
  return jnp.concatenate([first, later]), log_partition
