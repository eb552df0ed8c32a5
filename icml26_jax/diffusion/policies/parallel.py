"""As many positions a step as the network is sure of."""

from __future__ import annotations

import math

import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import confidence, ranking
from icml26_jax.diffusion import process as process_lib


def threshold(value: float = 0.9) -> process_lib.UnmaskingPolicy:
  """Commits every position whose best token is probable enough.

  The surest hidden position of a row is always committed, so that decoding
  never stands still.

  Args:
    value: least probability of the best token, in (0, 1].

  Returns:
    The policy, without memory.

  Raises:
    ValueError: if the value is outside its range.

  References:
    Wu et al., "Fast-dLLM: Training-free Acceleration of Diffusion LLM by
    Enabling KV Cache and Parallel Decoding", arXiv 2505.22618, section 3.3.
  """
  checks.check_range("threshold", value, low=0.0, high=1.0, open_low=True)
  least = math.log(value)

  def select(log_probs, state, step):
    hidden = ~step.latent.revealed
    score = confidence.top_log_prob(log_probs)
    commit = hidden & (score >= least) | ranking.best(score, hidden, 1)
    return process_lib.Selection(commit), state

  return process_lib.UnmaskingPolicy(lambda tokens: (), select, True)


def factor(value: float = 1.0) -> process_lib.UnmaskingPolicy:
  """Commits the largest n for which the n-th surest position allows n.

  With the best-token probabilities of a row in falling order, c_1 >= c_2 >=
  ..., n is the largest number with `(n + 1) (1 - c_n) < value`, and at least
  1: the more positions are committed together, the surer each must be, as the
  bound under which parallel and sequential greedy decoding agree asks for.

  Args:
    value: the factor, positive; more commits more.

  Returns:
    The policy, without memory.

  Raises:
    ValueError: if the value is not positive and finite.

  References:
    Wu et al., arXiv 2505.22618, section 3.3 and theorem 1.
  """
  checks.check_range(
    "factor", value, low=0.0, high=math.inf, open_low=True, open_high=True
  )

  def select(log_probs, state, step):
    hidden = ~step.latent.revealed
    score = confidence.top_log_prob(log_probs)
    rank = ranking.ranks(score, hidden)
    # Both factors grow with the rank, so the allowed ranks come first.
    allowed = (rank + 2) * -jnp.expm1(score) < value
    return process_lib.Selection(hidden & (allowed | (rank == 0))), state

  return process_lib.UnmaskingPolicy(lambda tokens: (), select, True)
