"""Which positions to commit: by the network's confidence."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax.diffusion import process as process_lib


def most_confident() -> process_lib.UnmaskingPolicy:
  """Commits the positions whose best token is most probable.

  In a step from time t to s a row commits `ceil(H (t - s) / t)` of its H
  hidden positions, so that evenly spaced times commit evenly. Of equally
  probable positions the first are committed. This is a decoding rule: it does
  not sample from the process, and few steps with it yield text of less
  variety.

  Returns:
    The policy, without memory.

  References:
    Chang et al., "MaskGIT: Masked Generative Image Transformer", CVPR 2022,
    section 3.2.
  """

  def select(log_probs, state, step):
    hidden = ~step.latent.revealed
    count = jnp.sum(hidden, axis=1)
    share = (step.time - step.next_time) / step.time
    # The small number keeps 1/3 of 3 at 1 in float32.
    wanted = jnp.ceil(count * share - 1e-4)
    best = jnp.where(hidden, jnp.max(log_probs, axis=-1), -jnp.inf)
    order = jnp.argsort(-best, axis=1, stable=True)
    rank = jnp.argsort(order, axis=1)
    return process_lib.Selection(hidden & (rank < wanted[:, None])), state

  return process_lib.UnmaskingPolicy(
    init=lambda tokens: (), select=select, uses_predictions=True
  )


def random_order() -> process_lib.UnmaskingPolicy:
  """Commits as many positions as `most_confident`, chosen at random.

  Returns:
    The policy, without memory.
  """

  def select(log_probs, state, step):
    del log_probs
    length = step.latent.revealed.shape[1]
    scores = jax.vmap(lambda key: jax.random.uniform(key, (length, 1)))(
      step.keys
    )
    return most_confident().select(jnp.log1p(scores), state, step)

  return process_lib.UnmaskingPolicy(
    init=lambda tokens: (), select=select, uses_predictions=False
  )
