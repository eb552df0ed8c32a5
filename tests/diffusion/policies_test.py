import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import mdlm, policies, sampling
from icml26_jax.diffusion import process as process_lib


def _step(revealed, t, s, seed=0):
  revealed = jnp.asarray(revealed)
  latent = process_lib.Latent(jnp.zeros(revealed.shape, jnp.int32), revealed)
  keys = process_lib.row_keys(jax.random.key(seed), revealed.shape[0])
  return process_lib.Step(
    keys, latent, 0, jnp.float32(t), jnp.float32(s), jnp.bool_(False)
  )


def _commit(policy, log_probs, step):
  selection, state = jax.jit(policy.select)(
    log_probs if policy.uses_predictions else None,
    policy.init(step.latent.tokens),
    step,
  )
  assert selection.tokens is None
  assert state == ()
  return np.asarray(selection.commit)


@pytest.mark.parametrize(
  ("t", "s"), [(1.0, 0.75), (0.75, 0.5), (0.3, 0.2), (0.5, 0.0)]
)
def test_most_confident_equals_sorting(t, s):
  rng = np.random.default_rng(0)
  log_probs = np.log(rng.dirichlet(np.ones(5), size=(6, 9))).astype(np.float32)
  revealed = rng.random((6, 9)) < 0.4
  got = _commit(policies.most_confident(), log_probs, _step(revealed, t, s))
  for row in range(6):
    hidden = np.flatnonzero(~revealed[row])
    count = math.ceil(round(len(hidden) * (t - s) / t, 6))
    best = sorted(hidden, key=lambda i: -log_probs[row, i].max())[:count]
    assert sorted(best) == np.flatnonzero(got[row]).tolist()


def test_first_of_equally_confident_positions_are_committed():
  log_probs = jnp.full((1, 4, 2), math.log(0.5))
  step = _step([[True, False, False, False]], 1.0, 0.5)
  got = _commit(policies.most_confident(), log_probs, step)
  assert got.tolist() == [[False, True, True, False]]


@pytest.mark.parametrize(
  "make", [policies.most_confident, policies.random_order]
)
def test_nothing_hidden_commits_nothing(make):
  step = _step(np.ones((2, 3), bool), 0.5, 0.0)
  assert not _commit(make(), jnp.zeros((2, 3, 4)), step).any()


def test_random_order_commits_every_position_at_the_same_rate():
  step = _step(np.zeros((4000, 4), bool), 1.0, 0.75)
  got = _commit(policies.random_order(), None, step)
  np.testing.assert_array_equal(got.sum(axis=1), 1)
  # Four standard errors of a rate of 1/4 over 4,000 rows.
  error = math.sqrt(0.25 * 0.75 / 4000)
  np.testing.assert_allclose(got.mean(axis=0), 0.25, atol=4 * error)


@pytest.mark.parametrize(
  "make", [policies.most_confident, policies.random_order]
)
def test_even_times_commit_evenly(make):
  process = mdlm.process(3)
  logits = jnp.log(jnp.array([0.2, 0.3, 0.5]))
  _, stats = sampling.sample(
    jax.random.key(0),
    process,
    lambda latent, t: jnp.broadcast_to(logits, (*latent.tokens.shape, 3)),
    (2, 12),
    sampling.time_grid(4),
    policy=make(),
  )
  assert stats.committed.tolist() == [[3, 3, 3, 3]] * 2
