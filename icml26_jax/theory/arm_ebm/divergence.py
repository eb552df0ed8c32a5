"""How far one model is from another, exactly and in the worst case."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from icml26_jax.theory.arm_ebm import tables


def visit_probabilities(
  q: Sequence[jax.Array], *, eos: bool
) -> list[jax.Array]:
  """Probabilities that a sequence of an autoregressive model passes (s, y).

  They are the gradient of `log_partition` by the rewards of the same model.

  Args:
    q: T float tables, see `logits_to_rewards`.
    eos: whether there is an end token.

  Returns:
    Tables of these shapes; the rows of `visits[t]` sum to the probability of
    passing the state.

  Raises:
    TypeError: see `logits_to_rewards`.
    ValueError: see `logits_to_rewards`.
  """
  return _visits(tables.check("q", q, eos=eos))


def exact_kl(
  q: Sequence[jax.Array], q2: Sequence[jax.Array], *, eos: bool
) -> jax.Array:
  """Kullback-Leibler divergence KL(p_q || p_q2) of the laws of sequences.

  The sum over states of the probability of passing times the divergence of the
  next token, `sum_(s, y) visits(s, y) (log pi_q - log pi_q2)(y|s)`.

  Args:
    q: T float tables, see `logits_to_rewards`.
    q2: tables of the same shapes.
    eos: whether there is an end token.

  Returns:
    `[]` float in nats; inf if q2 forbids a sequence that q does not.

  Raises:
    TypeError: see `logits_to_rewards`.
    ValueError: see `logits_to_rewards`; also if sizes differ, or a logit leads
      into a state from which no sequence can finish, so that there is no law.
  """
  first, second = tables.check_pair(("q", "q2"), q, q2, eos=eos)
  tables.check_law("q", first)
  tables.check_law("q2", second)
  total = jnp.zeros((), first.steps[0].dtype)
  for visits, one, other in zip(
    _visits(first), first.steps, second.steps, strict=True
  ):
    is_passed = visits > 0
    log_one = jnp.where(is_passed, tables.log_policy(one), 0.0)
    log_other = jnp.where(is_passed, tables.log_policy(other), 0.0)
    total += jnp.sum(visits * (log_one - log_other))
  return total


def kl_bounds(
  q: Sequence[jax.Array], q_star: Sequence[jax.Array], *, eos: bool
) -> dict[str, jax.Array]:
  """Upper bounds of the divergence of two models, whichever way round.

  With eps the largest `|q - q_star|` of an entry that can be reached, and osc
  the largest `max_y - min_y` of `q - q_star` in a state that can be reached,

      KL <= n 2 eps        the paper's bound,
      KL <= n eps^2 / 2    from Hoeffding's lemma at each step,
      KL <= n osc^2 / 8    the same; a shift of all logits of a state is free,

  n being the number of steps with a choice: T, or T - 1 with EOS, which is
  forced at the last step.

  Args:
    q: T float tables, see `logits_to_rewards`.
    q_star: tables of the same shapes.
    eos: whether there is an end token.

  Returns:
    `[]` floats in nats: "linear" and "quadratic", by eps; "min", the smaller
    of these two; and "osc". All are inf if one model forbids what the other
    can reach.

  Raises:
    TypeError: see `logits_to_rewards`.
    ValueError: see `exact_kl`.

  References:
    Blondel et al., arXiv 2512.15605, the bound on the divergence ("linear").
    Hoeffding, "Probability inequalities for sums of bounded random variables",
    1963, lemma 1: log E exp(X - E X) <= osc(X)^2 / 8.
  """
  first, second = tables.check_pair(("q", "q_star"), q, q_star, eos=eos)
  tables.check_law("q", first)
  tables.check_law("q_star", second)
  dtype = jnp.result_type(first.steps[0], second.steps[0])
  eps = osc = jnp.zeros((), dtype)
  reached = jnp.ones(1, jnp.bool_)
  for one, other in zip(first.steps, second.steps, strict=True):
    is_allowed = (one > -jnp.inf) | (other > -jnp.inf)
    counts = is_allowed & reached[:, None]
    # -inf - -inf is never computed.
    gap = jnp.where(counts, one, 0.0) - jnp.where(counts, other, 0.0)
    eps = jnp.maximum(eps, jnp.max(jnp.abs(gap)))
    high = jnp.max(jnp.where(counts, gap, -jnp.inf), axis=1)
    low = jnp.min(jnp.where(counts, gap, jnp.inf), axis=1)
    spread = jnp.where(jnp.any(counts, axis=1), high, 0.0) - jnp.where(
      jnp.any(counts, axis=1), low, 0.0
    )
    # One entry of +-inf alone in its state has no spread of its own.
    spread = jnp.where(jnp.any(jnp.isinf(gap), axis=1), jnp.inf, spread)
    osc = jnp.maximum(osc, jnp.max(spread))
    reached = counts[:, : first.vocab_size].reshape(-1)
  num_choices = len(first.steps) - int(eos)
  linear, quadratic = num_choices * 2 * eps, num_choices * eps**2 / 2
  return {
    "linear": linear,
    "quadratic": quadratic,
    "osc": num_choices * osc**2 / 8,
    "min": jnp.minimum(linear, quadratic),
  }


def _visits(found: tables.Tables) -> list[jax.Array]:
  mass = jnp.ones(1, found.steps[0].dtype)
  visits = []
  for step in found.steps:
    visits.append(mass[:, None] * jnp.exp(tables.log_policy(step)))
    mass = visits[-1][:, : found.vocab_size].reshape(-1)
  return visits
