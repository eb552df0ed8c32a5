"""Pure Gaussian diffusion of one-hots: the continuous baseline of CANDI."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax.diffusion import candi, objective
from icml26_jax.diffusion import process as process_lib


def loss(
  logits: jax.Array,
  x0: jax.Array,
  *,
  mask: jax.Array | None = None,
) -> jax.Array:
  """Cross-entropy of every token, without weight, one sum a row.

  Args:
    logits: `[B, L, V]` any float.
    x0: `[B, L]` int tokens.
    mask: `[B, L]` bool, positions that count; None for all.

  Returns:
    `[B]` float32 in nats. It is no bound of the likelihood.

  Raises:
    ValueError: if shapes disagree or a concrete token is outside [0, V).
  """
  counted = jnp.ones(x0.shape, bool) if mask is None else mask
  return jnp.sum(objective.token_nll(logits, x0, counted), axis=1)


def at_the_end() -> process_lib.UnmaskingPolicy:
  """The policy that commits nothing before the last step."""

  def select(log_probs, state, step):
    del log_probs
    return process_lib.Selection(jnp.zeros_like(step.latent.revealed)), state

  return process_lib.UnmaskingPolicy(lambda tokens: (), select, False)


def process(
  vocab_size: int,
  *,
  eps: float = 1e-3,
  r_min: float = 0.01,
  r_max: float = 0.25,
  update: str = "pf_ode",
  x0_mode: str = "draw",
  guidance: candi.ClassifierGuidance | None = None,
  embedding: jax.Array | None = None,
) -> process_lib.Process:
  """CANDI's Gaussian channel alone: no position is ever revealed by chance.

  Training hides every position and sampling commits all of them at its last
  step; a prompt stays in place.

  Args:
    vocab_size: number of tokens V, at least 2.
    eps: as in `candi.process`; here it only enters the noise schedule.
    r_min: rank degradation of the noise at time 0, in (0, 1/2).
    r_max: rank degradation where everything would be hidden, in [r_min, 1/2).
    update: how vectors move, "pf_ode" or "release".
    x0_mode: what they move towards, "draw" or "mean".
    guidance: classifier to follow while sampling; None for none.
    embedding: `[V, D]` float table of the network; None for one-hots.

  Returns:
    The process.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    Pynadath et al., "CANDI: Hybrid Discrete-Continuous Diffusion Models",
    ICML 2026, arXiv 2510.22510 (one-hot diffusion baseline).
  """
  schedule = candi.rank_linear_schedule(eps=eps, r_min=r_min, r_max=r_max)
  hybrid = candi.from_schedule(
    vocab_size,
    # Nothing is ever revealed.
    schedule._replace(alpha=jnp.zeros_like, alpha_derivative=jnp.zeros_like),
    update=update,
    x0_mode=x0_mode,
    guidance=guidance,
    embedding=embedding,
  )

  def process_loss(logits, x0, latent, t, mask):
    del t
    return loss(logits, x0, mask=mask & ~latent.revealed)

  return hybrid._replace(loss=process_loss, ancestral=at_the_end())
