"""The released decoder of coherent contextual decoding, as it is.

It stands in for averaged predictions by a discrete test: a position goes early
if it was listed as sure at the step before and its best token is still the
same.

References:
  Chen, Liu, Tao et al., arXiv 2512.02044; code `tonyckc/CCD-DLM-code` (the
  decoder for Dream).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import confidence, ranking
from icml26_jax.diffusion import process as process_lib

# Steps t = 0..4 commit by confidence alone; the list is one long up to t = 3.
_WARM_UP = 5
_LAST_SHORT_LIST = 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AgreementState:
  """What a row remembers of its steps.

  Attributes:
    listed: `[B, L]` bool, the list of the step before.
    tokens: `[B, L]` int32, the best tokens of the step before.
    size: `[B]` int32, length of that list.
    steps: `[B]` int32, steps taken.
    total: `[B]` int32, positions hidden at the first step.
  """

  listed: jax.Array
  tokens: jax.Array
  size: jax.Array
  steps: jax.Array
  total: jax.Array


def agreement(
  *,
  tokens_per_step: int = 1,
  expand: int = 4,
  dynamic: bool = True,
  greedy: bool = True,
) -> process_lib.UnmaskingPolicy:
  """Commits positions listed before whose best token has not changed.

  The list of a step holds its n least entropic positions that stay hidden: n
  is 1 for steps t <= 3 and then grows by one a step up to `u (1 + expand)`,
  where u is `tokens_per_step`; it is 2 once at most a tenth of the positions is
  hidden. The first five steps and the last commit the u least entropic
  positions. Any other step does too, if none of these is on the list of the
  step before; otherwise it takes the n least entropic positions and keeps
  those on that list with the same best token: at least u of them are
  committed, all (`dynamic`) or the first u; fewer, and the step commits the u
  least entropic positions.

  Unlike the release it takes batches, and `sampling.sample` commits what is
  left at the last step.

  Args:
    tokens_per_step: the budget u, at least 1; the release takes
      `floor(N / steps)` for N hidden positions.
    expand: how far the list may outgrow the budget, at least 0.
    dynamic: commit all positions that agree, not only u of them.
    greedy: commit the best tokens; False to draw them from the transformed
      predictions.

  Returns:
    The policy; its memory is an `AgreementState`.

  Raises:
    ValueError: if an argument is outside its range.
  """
  checks.check_range("tokens_per_step", tokens_per_step, low=1)
  checks.check_range("expand", expand, low=0)

  def init(tokens):
    rows = tokens.shape[:1]
    zeros = jnp.zeros(rows, jnp.int32)
    return AgreementState(
      listed=jnp.zeros(tokens.shape, bool),
      tokens=jnp.zeros(tokens.shape, jnp.int32),
      size=zeros,
      steps=zeros,
      total=zeros,
    )

  def select(log_probs, state, step):
    hidden = ~step.latent.revealed
    count = jnp.sum(hidden, axis=1, dtype=jnp.int32)
    total = jnp.where(state.steps == 0, count, state.total)
    size = jnp.minimum(state.size + 1, tokens_per_step * (1 + expand))
    size = jnp.where(state.steps <= _LAST_SHORT_LIST, 1, size)
    size = jnp.where(10 * count <= total, 2, size)

    score = -confidence.entropy(log_probs)
    rank = ranking.ranks(score, hidden)
    tokens = confidence.best_token(log_probs)
    surest = hidden & (rank < tokens_per_step)
    agrees = hidden & (rank < size[:, None])
    agrees &= state.listed & (tokens == state.tokens)
    early = agrees if dynamic else ranking.best(score, agrees, tokens_per_step)
    by_confidence = (
      (state.steps < _WARM_UP)
      | step.is_last
      | ~jnp.any(surest & state.listed, axis=1)
      | (jnp.sum(agrees, axis=1) < tokens_per_step)
    )
    commit = jnp.where(by_confidence[:, None], surest, early)
    state = AgreementState(
      listed=ranking.best(score, hidden & ~commit, size),
      tokens=tokens,
      size=size,
      steps=state.steps + 1,
      total=total,
    )
    return process_lib.Selection(commit, tokens if greedy else None), state

  return process_lib.UnmaskingPolicy(init, select, True)
