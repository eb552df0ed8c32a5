"""A token that may be proposed at once but is committed last.

Masked models like to predict the end of the sequence early and with
confidence, and once it stands in the text the rest is decoded around it. Here
positions that propose it wait until every hidden position of their row
proposes it.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import confidence
from icml26_jax.diffusion import process as process_lib


def commit_last(
  policy: process_lib.UnmaskingPolicy, token: int
) -> process_lib.UnmaskingPolicy:
  """Holds back positions whose best token is `token`, as long as others exist.

  The policy sees the positions held back as if they were revealed, so its
  budget goes to the others. A token it writes itself is replaced by the
  network's best where it would be `token` too early. If tokens are drawn, let
  `withhold(token)` be the first transform of the chain: then none is drawn
  early either. The last step commits whatever is left.

  Args:
    policy: any policy.
    token: the token to hold back, for instance the end of the sequence.

  Returns:
    The policy; it looks at predictions.

  Raises:
    ValueError: if the token is negative; outside the vocabulary, when it is
      first used.
  """
  checks.check_range("token", token, low=0)

  def select(log_probs, state, step):
    proposed, early = _early(log_probs, step.latent.revealed, token)
    waits = jnp.any(early, axis=1, keepdims=True) & ~early
    latent = dataclasses.replace(
      step.latent, revealed=step.latent.revealed | waits
    )
    selection, state = policy.select(
      log_probs if policy.uses_predictions else None,
      state,
      dataclasses.replace(step, latent=latent),
    )
    written = selection.tokens
    if written is not None:
      written = jnp.where(early & (written == token), proposed, written)
    commit = selection.commit & ~latent.revealed
    return process_lib.Selection(commit, written), state

  return process_lib.UnmaskingPolicy(policy.init, select, True)


def withhold(token: int) -> process_lib.LogitTransform:
  """Forbids `token` where `commit_last` lets a position be committed early.

  Args:
    token: the token to hold back.

  Returns:
    A transform without memory. Positions whose best token is `token`, and rows
    in which all hidden positions propose it, are unchanged. It must stand
    first in a chain, where it sees the predictions that the policy sees.

  Raises:
    ValueError: if the token is negative; outside the vocabulary, when it is
      first used.
  """
  checks.check_range("token", token, low=0)

  def update(logits, state, step):
    _, early = _early(logits, step.latent.revealed, token)
    here = jnp.arange(logits.shape[-1])[None, None] == token
    return jnp.where(early[..., None] & here, -jnp.inf, logits), state

  return process_lib.LogitTransform(lambda tokens: (), update)


def _early(
  log_probs: jax.Array, revealed: jax.Array, token: int
) -> tuple[jax.Array, jax.Array]:
  """Best token of each position; hidden positions where it is another."""
  checks.check_range(
    "token", token, low=0, high=log_probs.shape[-1], open_high=True
  )
  proposed = confidence.best_token(log_probs)
  return proposed, ~revealed & (proposed != token)
