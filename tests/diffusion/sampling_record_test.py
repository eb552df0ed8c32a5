"""What a sampler records of memories, step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import mdlm, policies, sampling
from icml26_jax.diffusion import process as process_lib


def counting():
  """A transform that counts a row's calls."""
  return process_lib.LogitTransform(
    lambda tokens: jnp.zeros(tokens.shape[0], jnp.int32),
    lambda logits, state, step: (logits, state + 1),
  )


def flat(latent, t):
  del t
  return jnp.zeros((*latent.tokens.shape, 3))


@pytest.mark.parametrize("jitted", [False, True])
def test_memories_are_recorded_after_each_step(jitted):
  # Rows of 1, 2 and 4 hidden positions, one committed a call.
  mask = jnp.arange(4)[None] >= jnp.array([[1], [2], [4]])

  def run(key):
    return sampling.sample(
      key,
      mdlm.process(3),
      flat,
      mask.shape,
      sampling.time_grid(5),
      transform=process_lib.chain(counting()),
      policy=policies.agreement(),
      prompt=jnp.zeros(mask.shape, jnp.int32),
      prompt_mask=mask,
      record=lambda transform, policy: {
        "calls": transform[0],
        "steps": policy.steps,
      },
    )

  _, stats = (jax.jit(run) if jitted else run)(jax.random.key(0))
  # A row that is done keeps its memory.
  expected = [[1, 1, 1], [1, 2, 2], [1, 2, 3], [1, 2, 4], [1, 2, 4]]
  np.testing.assert_array_equal(stats.record["calls"], expected)
  np.testing.assert_array_equal(stats.record["steps"], expected)
  np.testing.assert_array_equal(stats.nfe, expected[-1])


def test_nothing_is_recorded_unasked():
  _, stats = sampling.sample(
    jax.random.key(0), mdlm.process(3), flat, (1, 2), sampling.time_grid(1)
  )
  assert stats.record is None
