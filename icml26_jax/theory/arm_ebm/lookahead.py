"""How much of a logit is about the future."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.theory.arm_ebm import bijection, tables

# Variances below this, relative to the mean square, are rounding in float64.
_ROUNDING = 1e-20


def lookahead_share(
  r: Sequence[jax.Array], q: Sequence[jax.Array], *, eos: bool
) -> jax.Array:
  """Squared correlation of logits with the values of what follows.

  Over all (s, y) that have a continuation, with equal weights, of `q(s, y)`
  and `V_q(s + y)`, both less their mean over the tokens of a state: 0 if the
  future says nothing of which token is next, 1 if it says all.

  Args:
    r: T float tables, see `rewards_to_logits`.
    q: the tables `rewards_to_logits(r)`.
    eos: whether there is an end token.

  Returns:
    `[]` float in [0, 1]; 0 if logits or values do not vary within states, or
    T is 1.

  Raises:
    TypeError: see `rewards_to_logits`.
    ValueError: see `rewards_to_logits`; also if sizes differ or q is not made
      of r.
  """
  rewards, logits = tables.check_pair(("r", "q"), r, q, eos=eos)
  _check_partners(rewards, logits, eos)
  dtype = logits.steps[0].dtype
  zero = jnp.zeros((), dtype)
  products = q_squares = v_squares = q_total = v_total = count = zero
  for t in range(len(logits.steps) - 1):
    here = logits.steps[t][:, : logits.vocab_size]
    ahead = logits.children(t, tables.log_sum_exp(logits.steps[t + 1]))
    counts = (here > -jnp.inf) & (ahead > -jnp.inf)
    here, ahead = jnp.where(counts, here, 0.0), jnp.where(counts, ahead, 0.0)
    q_total += jnp.sum(here**2)
    v_total += jnp.sum(ahead**2)
    count += jnp.sum(counts)
    here, ahead = _centred(here, counts), _centred(ahead, counts)
    products += jnp.sum(here * ahead)
    q_squares += jnp.sum(here**2)
    v_squares += jnp.sum(ahead**2)
  rounding = max(_ROUNDING, (64 * float(jnp.finfo(dtype).eps)) ** 2)
  varies = (q_squares > rounding * (count + q_total)) & (
    v_squares > rounding * (count + v_total)
  )
  scale = jnp.where(varies, q_squares * v_squares, 1.0)
  return jnp.where(varies, jnp.minimum(products**2 / scale, 1.0), 0.0)


def _centred(values, counts):
  """`[S, V]` values less their mean over what counts in a state."""
  number = jnp.maximum(jnp.sum(counts, axis=1, keepdims=True), 1)
  means = jnp.sum(values, axis=1, keepdims=True) / number
  return jnp.where(counts, values - means, 0.0)


def _check_partners(rewards, logits, eos):
  """Raises ValueError unless known logits are those of known rewards."""
  made = bijection.rewards_to_logits(rewards.steps, eos=eos)
  for t, (expected, found) in enumerate(zip(made, logits.steps, strict=True)):
    if not checks.is_concrete(expected, found):
      return
    eps = float(jnp.finfo(found.dtype).eps)
    finite = jnp.where(jnp.isfinite(expected), jnp.abs(expected), 0.0)
    # A logit is a sum of T rewards, each rounded.
    tolerance = 64 * len(made) * eps * (1.0 + float(jnp.max(finite)))
    same = (expected == found) | (jnp.abs(expected - found) <= tolerance)
    if not bool(jnp.all(same)):
      raise ValueError(
        f"q must be rewards_to_logits(r), but q[{t}] differs from it by up to"
        f" {float(jnp.max(jnp.where(same, 0.0, jnp.abs(expected - found)))):g}"
      )
