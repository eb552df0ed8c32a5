"""A given number of positions a step, the surest first."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import confidence, ranking
from icml26_jax.diffusion import process as process_lib


def top_prob(
  *, tokens_per_step: int | None = None
) -> process_lib.UnmaskingPolicy:
  """Commits the positions whose best token is most probable.

  Of equally probable positions the first are committed. This is a decoding
  rule: it does not sample from the process, and few steps with it yield text
  of less variety.

  Args:
    tokens_per_step: positions a row commits at a step. None for
      `ceil(H (t - s) / t)` of its H hidden positions in a step from time t to
      s, so that evenly spaced times commit evenly.

  Returns:
    The policy, without memory.

  Raises:
    ValueError: if `tokens_per_step` is below 1.

  References:
    Chang et al., "MaskGIT: Masked Generative Image Transformer", CVPR 2022,
    section 3.2; low-confidence remasking of LLaDA.
  """
  return _by_score(confidence.top_log_prob, tokens_per_step)


def neg_entropy(
  *, tokens_per_step: int | None = None
) -> process_lib.UnmaskingPolicy:
  """Commits the positions whose predictions have least entropy.

  Args:
    tokens_per_step: as in `top_prob`.

  Returns:
    The policy, without memory.

  Raises:
    ValueError: if `tokens_per_step` is below 1.

  References:
    The entropy rule of Dream, as given in arXiv 2512.02044, section 2.
  """
  return _by_score(lambda x: -confidence.entropy(x), tokens_per_step)


def margin(
  *, tokens_per_step: int | None = None
) -> process_lib.UnmaskingPolicy:
  """Commits the positions whose best token leads the second by most.

  Args:
    tokens_per_step: as in `top_prob`.

  Returns:
    The policy, without memory.

  Raises:
    ValueError: if `tokens_per_step` is below 1.

  References:
    Kim et al., "Train for the Worst, Plan for the Best: Understanding Token
    Ordering in Masked Diffusions", ICML 2025, section 4.
  """
  return _by_score(confidence.margin, tokens_per_step)


def random(
  *, tokens_per_step: int | None = None
) -> process_lib.UnmaskingPolicy:
  """Commits as many positions as `top_prob`, chosen at random.

  Args:
    tokens_per_step: as in `top_prob`.

  Returns:
    The policy, without memory; it does not look at predictions.

  Raises:
    ValueError: if `tokens_per_step` is below 1.
  """
  _check(tokens_per_step)

  def select(log_probs, state, step):
    del log_probs
    length = step.latent.revealed.shape[1]
    score = jax.vmap(lambda key: jax.random.uniform(key, (length,)))(step.keys)
    return _select(score, tokens_per_step, step), state

  return process_lib.UnmaskingPolicy(lambda tokens: (), select, False)


def _by_score(
  score_fn: Callable[[jax.Array], jax.Array], tokens_per_step: int | None
) -> process_lib.UnmaskingPolicy:
  """The policy that commits the highest scores."""
  _check(tokens_per_step)

  def select(log_probs, state, step):
    return _select(score_fn(log_probs), tokens_per_step, step), state

  return process_lib.UnmaskingPolicy(lambda tokens: (), select, True)


def _select(score, tokens_per_step, step):
  hidden = ~step.latent.revealed
  wanted = tokens_per_step
  if wanted is None:
    share = (step.time - step.next_time) / step.time
    # The small number keeps 1/3 of 3 at 1 in float32.
    wanted = jnp.ceil(jnp.sum(hidden, axis=1) * share - 1e-4)
  return process_lib.Selection(ranking.best(score, hidden, wanted))


def _check(tokens_per_step: int | None) -> None:
  if tokens_per_step is not None:
    checks.check_range("tokens_per_step", tokens_per_step, low=1)
