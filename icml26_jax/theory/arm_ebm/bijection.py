"""The map between rewards of steps and logits of next tokens."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from icml26_jax.theory.arm_ebm import tables


def rewards_to_logits(r: Sequence[jax.Array], *, eos: bool) -> list[jax.Array]:
  """Logits of the autoregressive model that an energy-based one is.

  Backwards in length, `q(s, EOS) = r(s, EOS)` and `q(s, y) = r(s, y) +
  V_q(s + y)`, or `q = r` at the last step without EOS. Then `p_q(y|x) =
  exp(sum_t r(s_t, y_t)) / Z(x)` and `log Z(x) = V_q(x)`. Costs a pass over all
  states.

  Args:
    r: T float tables, `r[t]` of shape `[V**t, V]`, or `[V**t, V + 1]` with EOS
      last; -inf forbids a token.
    eos: whether there is an end token.

  Returns:
    q, tables of these shapes; -inf into a state from which no sequence can
    finish.

  Raises:
    TypeError: if a table is not of floats.
    ValueError: if there is no table, a size is wrong, a value is NaN or +inf,
      or every finished sequence is forbidden.

  References:
    Blondel et al., arXiv 2512.15605, Proposition 3.2 and section 3.3.
  """
  found = tables.check("r", r, eos=eos)
  logits = [found.steps[-1]]
  for t in reversed(range(len(found.steps) - 1)):
    values = found.children(t, tables.log_sum_exp(logits[-1]))
    reward = found.steps[t]
    ordinary = reward[:, : found.vocab_size] + values
    ends = reward[:, found.vocab_size :]
    logits.append(jnp.concatenate([ordinary, ends], axis=1))
  return logits[::-1]


def logits_to_rewards(q: Sequence[jax.Array], *, eos: bool) -> list[jax.Array]:
  """Rewards of the energy-based model that an autoregressive one is.

  The inverse of `rewards_to_logits`: `r(s, EOS) = q(s, EOS)` and `r(s, y) =
  q(s, y) - V_q(s + y)`. Each reward needs the logits of two states only.

  Args:
    q: T float tables, see `rewards_to_logits`.
    eos: whether there is an end token.

  Returns:
    r, tables of these shapes; -inf into a state where nothing is allowed,
    whatever the reward was that led there.

  Raises:
    TypeError: see `rewards_to_logits`.
    ValueError: see `rewards_to_logits`.

  References:
    Blondel et al., arXiv 2512.15605, Proposition 3.2.
  """
  found = tables.check("q", q, eos=eos)
  rewards = []
  for t, logits in enumerate(found.steps[:-1]):
    values = found.children(t, tables.log_sum_exp(found.steps[t + 1]))
    ordinary = tables.minus_values(logits[:, : found.vocab_size], values)
    ends = logits[:, found.vocab_size :]
    rewards.append(jnp.concatenate([ordinary, ends], axis=1))
  return [*rewards, found.steps[-1]]


def log_partition(r: Sequence[jax.Array], *, eos: bool) -> jax.Array:
  """Log of the sum of exp(score) over all sequences, `A(x) = V_q(x)`.

  Its gradient by `r(s, y)` is the probability of passing (s, y).

  Args:
    r: T float tables, see `rewards_to_logits`.
    eos: whether there is an end token.

  Returns:
    `[]` float, in nats.

  Raises:
    TypeError: see `rewards_to_logits`.
    ValueError: see `rewards_to_logits`.

  References:
    Blondel et al., arXiv 2512.15605, Proposition 3.2.
  """
  return tables.log_sum_exp(rewards_to_logits(r, eos=eos)[0])[0]
