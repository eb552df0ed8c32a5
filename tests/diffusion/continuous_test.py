"""The pure-continuous baseline."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, continuous, sampling, schedules
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 3, 4, 5


def row_keys(seed, batch_size=BATCH):
  return process_lib.row_keys(jax.random.key(seed), batch_size)


def test_nothing_is_revealed_and_noise_follows_the_schedule():
  process = continuous.process(VOCAB)
  length = 20_000
  x0 = jnp.asarray(
    np.random.default_rng(0).integers(0, VOCAB, (2, length)), jnp.int32
  )
  t = jnp.array([0.3, 1.0])
  latent = process.corrupt(row_keys(0, 2), x0, t)
  assert not np.asarray(latent.revealed).any()
  assert not np.asarray(latent.tokens).any()
  sigma = np.asarray(schedules.rank_linear_sigma(t), np.float64)
  np.testing.assert_allclose(latent.sigma, sigma, rtol=1e-6)
  noise = np.asarray(latent.values, np.float64) - np.eye(VOCAB)[np.asarray(x0)]
  deviation = noise.std(axis=(1, 2))
  # The relative error of a deviation from n numbers is 1 / sqrt(2 n).
  np.testing.assert_allclose(
    deviation, sigma, rtol=4.5 / np.sqrt(2 * length * VOCAB)
  )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_loss_is_the_cross_entropy_of_every_token(dtype):
  rng = np.random.default_rng(1)
  logits = jnp.asarray(rng.normal(size=(BATCH, LENGTH, VOCAB)), dtype)
  x0 = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  mask = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.7)
  x = np.asarray(logits, np.float64)
  log_probs = x - np.log(np.exp(x).sum(-1, keepdims=True))
  nll = -np.take_along_axis(log_probs, np.asarray(x0)[..., None], -1)[..., 0]
  np.testing.assert_allclose(continuous.loss(logits, x0), nll.sum(1), rtol=2e-6)
  np.testing.assert_allclose(
    continuous.loss(logits, x0, mask=mask), (nll * mask).sum(1), rtol=2e-6
  )
  # The process weighs no time, and a token given in place costs nothing.
  revealed = jnp.arange(LENGTH)[None] < jnp.array([0, 1, LENGTH])[:, None]
  latent = process_lib.Latent(jnp.where(revealed, x0, 0), revealed)
  got = continuous.process(VOCAB).loss(
    logits, x0, latent, jnp.array([0.1, 0.5, 1.0]), mask
  )
  counted = np.asarray(mask) & ~np.asarray(revealed)
  np.testing.assert_allclose(got, (nll * counted).sum(1), rtol=2e-6)


@pytest.mark.parametrize("update", ["pf_ode", "release"])
@pytest.mark.parametrize("x0_mode", ["draw", "mean"])
def test_reverse_step_is_that_of_the_hybrid_without_reveals(update, x0_mode):
  rng = np.random.default_rng(2)
  logits, values = jnp.asarray(
    rng.normal(size=(2, BATCH, LENGTH, VOCAB)), jnp.float32
  )
  hidden = jnp.zeros((BATCH, LENGTH), bool)
  latent = process_lib.Latent(
    jnp.zeros((BATCH, LENGTH), jnp.int32), hidden, jnp.full(BATCH, 0.8), values
  )
  arguments = (latent, logits, None, jnp.float32(0.7), jnp.float32(0.4))
  selection = process_lib.Selection(hidden)
  got = continuous.process(VOCAB, update=update, x0_mode=x0_mode).reverse(
    row_keys(0), *arguments, selection
  )
  expected = candi.process(VOCAB, update=update, x0_mode=x0_mode).reverse(
    row_keys(0), *arguments, selection
  )
  np.testing.assert_array_equal(got.values, expected.values)
  np.testing.assert_array_equal(got.revealed, hidden)


def test_sampler_reveals_only_at_the_end():
  prompt = jnp.full((2, LENGTH), 3)
  mask = jnp.arange(LENGTH)[None] < jnp.array([[0], [2]])

  def network(latent, t):
    return latent.values / latent.sigma[:, None, None] + t[:, None, None]

  tokens, stats = sampling.sample(
    jax.random.key(0),
    continuous.process(VOCAB),
    network,
    (2, LENGTH),
    sampling.time_grid(3),
    prompt=prompt,
    prompt_mask=mask,
  )
  np.testing.assert_array_equal(stats.committed, [[0, 0, 4], [0, 0, 2]])
  np.testing.assert_array_equal(stats.nfe, [3, 3])
  np.testing.assert_array_equal(tokens[1, :2], [3, 3])


def test_policy_commits_nothing():
  policy = continuous.at_the_end()
  step = process_lib.Step(
    row_keys(0),
    process_lib.Latent(
      jnp.zeros((BATCH, LENGTH), jnp.int32), jnp.zeros((BATCH, LENGTH), bool)
    ),
    *map(jnp.float32, (0, 0.5, 0.25, 0)),
  )
  selection, state = policy.select(None, (), step)
  assert not np.asarray(selection.commit).any()
  assert state == ()
  assert not policy.uses_predictions


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"vocab_size": 0}, "vocab_size must be in"),
    ({"r_max": 0.6}, "r_max must be in"),
    ({"eps": 2.0}, "eps must be in"),
    ({"update": "x"}, "update must be one of"),
    ({"x0_mode": "x"}, "x0_mode must be one of"),
  ],
)
def test_bad_arguments(change, message):
  with pytest.raises(ValueError, match=message):
    continuous.process(**{"vocab_size": VOCAB, **change})
