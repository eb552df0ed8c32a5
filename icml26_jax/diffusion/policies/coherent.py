"""Coherent contextual decoding: commit what is sure and stays so.

References:
  Chen, Liu, Tao et al., "Beyond Confidence: Adaptive and Coherent Decoding for
  Diffusion Language Models", ICML 2026, arXiv 2512.02044.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import confidence, contexts, ranking
from icml26_jax.diffusion import process as process_lib


def select_ccd(
  buffer: contexts.HistoryBuffer,
  masked: jax.Array,
  b_min: int,
  b_max: int,
  tau: float,
) -> tuple[jax.Array, jax.Array]:
  """Chooses positions by predictions averaged over the last steps.

  Candidates are the hidden positions that were listed as sure in every stored
  step. Of these the `b = clip(#{i : H(mean p_i) <= tau}, b_min, b_max)` of
  least entropy are committed, with the best token of the mean. Fewer than
  `b_min` candidates are filled up by the current predictions alone.

  Args:
    buffer: the predictions, those of this step included.
    masked: `[B, L]` bool, the hidden positions.
    b_min: least number of positions a step, at least 1; all hidden ones if
      there are fewer.
    b_max: greatest number, at least `b_min`.
    tau: entropy in nats up to which a candidate counts as consistent.

  Returns:
    `[B, L]` bool, the positions to commit, and `[B, L]` int32, the token of
    each position.

  Raises:
    ValueError: if the budgets are out of order or `tau` is NaN.

  References:
    arXiv 2512.02044, section 4; the threshold is our reading of its
    "consistency metric".
  """
  _check_budget(b_min, b_max, tau)
  mean, current = contexts.marginal(buffer), contexts.latest(buffer)
  spread = contexts.entropy(mean)
  listed = buffer.listed | ~contexts.used(buffer)[..., None]
  candidates = masked & jnp.all(listed, axis=1)
  consistent = jnp.sum(candidates & (spread <= tau), axis=1)
  budget = jnp.clip(consistent, min=b_min, max=b_max)[:, None]
  chosen = candidates & (ranking.ranks(-spread, candidates) < budget)
  # Only rows with fewer than b_min candidates have anything to fill.
  missing = budget - jnp.sum(chosen, axis=1, keepdims=True)
  others = masked & ~chosen
  fill = ranking.best(-contexts.entropy(current), others, missing[:, 0])
  tokens = confidence.best_token(
    jnp.where(candidates[..., None], mean, current)
  )
  return chosen | fill, tokens


def ccd(
  vocab_size: int,
  *,
  window: int = 4,
  b_min: int = 1,
  b_max: int = 1,
  tau: float = 0.1,
  v_top: int | None = None,
  stored_tokens: int | None = None,
  greedy: bool = True,
) -> process_lib.UnmaskingPolicy:
  """Coherent contextual decoding with a uniform or an adaptive budget.

  `b_min = b_max` commits so many positions a step (uniform); a greater `b_max`
  lets templates and padding go fast and reasoning slowly (adaptive). With
  `window=1` and a uniform budget it is `neg_entropy`.

  Args:
    vocab_size: number of tokens V.
    window: number of steps d that are averaged, the current one included.
    b_min: least number of positions a step, at least 1.
    b_max: greatest number, at least `b_min`.
    tau: entropy in nats up to which a position counts as consistent. It plays
      no part in a uniform budget.
    v_top: positions that are listed as sure at each step, at least `b_max`;
      None for `(d + 1) b_max`, since earlier lists have lost what has been
      committed in between. Near `b_max` hardly a position stays listed, and
      the rule falls back on the current predictions.
    stored_tokens: most probable tokens kept of each prediction; None for all.
    greedy: commit the best token of the average. False to draw tokens from the
      transformed predictions, for a chain with `contexts.coherent_contexts`.

  Returns:
    The policy; its memory is a `contexts.HistoryBuffer`.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    arXiv 2512.02044: CCD (uniform) and CCD-DS (adaptive).
  """
  _check_budget(b_min, b_max, tau)
  contexts.init_buffer(0, window, 0, vocab_size, stored_tokens=stored_tokens)
  if v_top is None:
    v_top = (window + 1) * b_max
  checks.check_range("v_top", v_top, low=b_max)

  def init(tokens):
    return contexts.init_buffer(
      tokens.shape[0],
      window,
      tokens.shape[1],
      vocab_size,
      stored_tokens=stored_tokens,
    )

  def select(log_probs, state, step):
    masked = ~step.latent.revealed
    state = contexts.push(state, jnp.exp(log_probs), masked, v_top=v_top)
    commit, tokens = select_ccd(state, masked, b_min, b_max, tau)
    return process_lib.Selection(commit, tokens if greedy else None), state

  return process_lib.UnmaskingPolicy(init, select, True)


def _check_budget(b_min: int, b_max: int, tau: float) -> None:
  checks.check_range("b_min", b_min, low=1)
  checks.check_range("b_max", b_max, low=b_min)
  checks.check_range("tau", tau)
