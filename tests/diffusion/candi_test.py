"""CANDI forwards: the corrupted latents, the loss, bad arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, mdlm, oracle, schedules
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 4, 6, 5


def row_keys(seed, batch_size=BATCH):
  return process_lib.row_keys(jax.random.key(seed), batch_size)


def example(seed=0):
  rng = np.random.default_rng(seed)
  x0 = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  revealed = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.4)
  logits = jnp.asarray(rng.normal(size=(BATCH, LENGTH, VOCAB)), jnp.float32)
  return logits, x0, revealed


def test_corrupted_one_hots_have_the_law_of_the_kernel():
  rows, length = 4, 20_000
  x0 = jnp.asarray(
    np.random.default_rng(0).integers(0, 3, (rows, length)), jnp.int32
  )
  alpha, sigma = np.array([0.1, 0.5, 0.9, 0.3]), np.array([0.3, 1, 2, 50.0])
  xt, revealed = candi.corrupt(jax.random.key(0), x0, alpha, sigma, 3)
  assert xt.dtype == jnp.float32
  one_hot = np.eye(3)[np.asarray(x0)]
  noise = np.asarray(xt, np.float64) - one_hot
  revealed = np.asarray(revealed)
  for b in range(rows):
    rate = revealed[b].mean()
    error = np.sqrt(alpha[b] * (1 - alpha[b]) / length)
    assert abs(rate - alpha[b]) < 4.5 * error
    np.testing.assert_array_equal(noise[b][revealed[b]], 0.0)
    hidden = noise[b][~revealed[b]] / sigma[b]
    n = len(hidden)
    assert np.all(np.abs(hidden.mean(0)) < 4.5 / np.sqrt(n))
    covariance = hidden.T @ hidden / n
    assert np.all(
      np.abs(covariance - np.eye(3)) < 4.5 * np.sqrt((1 + np.eye(3)) / n)
    )


def test_corrupt_gives_the_batch_what_its_rows_give():
  _, x0, _ = example()
  alpha, sigma = np.linspace(0.2, 0.8, BATCH), np.linspace(0.5, 2, BATCH)
  xt, revealed = candi.corrupt(row_keys(0), x0, alpha, sigma, VOCAB)
  for b in range(BATCH):
    row = slice(b, b + 1)
    one, one_revealed = candi.corrupt(
      row_keys(0)[row], x0[row], alpha[row], sigma[row], VOCAB
    )
    np.testing.assert_array_equal(one, xt[row])
    np.testing.assert_array_equal(one_revealed, revealed[row])


@pytest.mark.parametrize(
  ("change", "error", "message"),
  [
    ({"vocab_size": 1}, ValueError, "vocab_size must be in"),
    ({"sigma": 0.0}, ValueError, r"sigma must be in \(0, inf\), got 0"),
    ({"sigma": -1.0}, ValueError, "sigma must be in"),
    ({"sigma": np.array([1, 1, np.nan, 1])}, ValueError, "got nan"),
    ({"sigma": np.inf}, ValueError, "sigma must be in"),
    ({"sigma": np.ones(BATCH + 1)}, ValueError, "sigma must be one number"),
    ({"alpha": 1.5}, ValueError, r"alpha must be in \[0, 1\]"),
    ({"alpha": np.ones((BATCH, 1))}, ValueError, "alpha must be one number"),
    ({"x0": np.full((BATCH, LENGTH), VOCAB)}, ValueError, "got 5"),
    ({"x0": np.full((BATCH, LENGTH), -1)}, ValueError, "got -1"),
    ({"x0": np.zeros((BATCH, LENGTH))}, TypeError, "x0 must be integers"),
    ({"key": 0}, TypeError, "key must be a typed key"),
  ],
)
def test_bad_arguments_of_corrupt(change, error, message):
  arguments = {
    "key": jax.random.key(0),
    "x0": np.zeros((BATCH, LENGTH), int),
    "alpha": 0.5,
    "sigma": 1.0,
    "vocab_size": VOCAB,
  }
  with pytest.raises(error, match=message):
    candi.corrupt(**{**arguments, **change})


def chain_of(seed=0):
  rng = np.random.default_rng(seed)
  pi = rng.dirichlet(np.ones(VOCAB))
  transition = rng.dirichlet(np.ones(VOCAB), VOCAB)
  return jnp.asarray(pi, jnp.float32), jnp.asarray(transition, jnp.float32)


def oracle_losses(sigma):
  """Exact denoiser's loss at one noise level, and with masks alone."""
  _, x0, _ = example()
  denoise = oracle.denoise_fn(*chain_of())
  alpha = jnp.full(BATCH, 0.4)
  xt, revealed = candi.corrupt(jax.random.key(0), x0, alpha, sigma, VOCAB)
  assert 0 < np.asarray(revealed).sum() < revealed.size
  tokens = jnp.where(revealed, x0, 0)
  noisy = process_lib.Latent(tokens, revealed, jnp.full(BATCH, sigma), xt)
  masked = process_lib.Latent(tokens, revealed)
  t = jnp.full(BATCH, 0.6)
  hybrid = candi.loss(denoise(noisy, t), x0, revealed, alpha, -1.0)
  return hybrid, mdlm.loss(denoise(masked, t), x0, revealed, alpha, -1.0)


def test_loss_under_infinite_noise_is_that_of_masked_diffusion():
  hybrid, masked = oracle_losses(1e6)
  np.testing.assert_allclose(hybrid, masked, rtol=1e-5)
  # The error falls as 1 / sigma.
  errors = [
    np.abs(np.subtract(*oracle_losses(sigma))).max() for sigma in (1e2, 1e3)
  ]
  np.testing.assert_allclose(errors[0] / errors[1], 10, rtol=0.3)


def test_loss_without_noise_is_zero():
  hybrid, masked = oracle_losses(0.02)
  np.testing.assert_allclose(hybrid, 0.0, atol=1e-6)
  assert np.asarray(masked).min() > 0.1


def test_loss_of_the_process_equals_float64():
  logits, x0, revealed = example()
  mask = jnp.arange(LENGTH)[None] < jnp.array([6, 4, 5, 6])[:, None]
  t = np.array([0.1, 0.4, 0.7, 1.0], np.float32)
  latent = process_lib.Latent(x0, revealed, jnp.ones(BATCH))
  got = candi.process(VOCAB).loss(logits, x0, latent, jnp.asarray(t), mask)
  x = np.asarray(logits, np.float64)
  log_probs = x - np.log(np.exp(x).sum(-1, keepdims=True))
  nll = -np.take_along_axis(log_probs, np.asarray(x0)[..., None], -1)[..., 0]
  counted = np.asarray(mask) & ~np.asarray(revealed)
  np.testing.assert_allclose(got, (nll * counted).sum(1) / t, rtol=2e-5)


# The last table has more than four rows a column: the other kind of noise.
tables = pytest.mark.parametrize("size", [7, 3, 1])


@tables
def test_embedded_latent_has_the_law_of_the_explicit_one(size):
  table = np.random.default_rng(3).normal(size=(VOCAB, size))
  process = candi.process(VOCAB, embedding=jnp.asarray(table, jnp.float32))
  length, token = 50_000, 2
  x0 = jnp.full((1, length), token)
  latent = process.corrupt(row_keys(0, 1), x0, jnp.full(1, 0.6))
  revealed = np.asarray(latent.revealed)[0]
  embedded = np.asarray(latent.embedded, np.float64)[0]
  np.testing.assert_allclose(
    embedded[revealed], np.tile(table[token], (revealed.sum(), 1)), rtol=1e-6
  )
  sigma = float(schedules.rank_linear_sigma(0.6))
  noise = (embedded[~revealed] - table[token]) / sigma
  exact = table.T @ table
  n = len(noise)
  assert np.all(np.abs(noise.mean(0)) < 4.5 * np.sqrt(np.diag(exact) / n))
  error = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / n)
  assert np.all(np.abs(noise.T @ noise / n - exact) < 4.5 * error)


@pytest.mark.parametrize("accidental", [False, True])
def test_reveal_rate_of_the_process(accidental):
  process = candi.process(VOCAB, accidental_reveal=accidental)
  x0 = jnp.zeros((1, 40_000), jnp.int32)
  latent = process.corrupt(row_keys(0, 1), x0, jnp.full(1, 0.7))
  alpha = 1 - 0.999 * 0.7
  rate = alpha + (1 - alpha) / (VOCAB + 1) if accidental else alpha
  got = np.asarray(latent.revealed).mean()
  assert abs(got - rate) < 4 * np.sqrt(rate * (1 - rate) / x0.size)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"vocab_size": 1}, "vocab_size must be in"),
    ({"eps": 1.0}, "eps must be in"),
    ({"r_min": 0.0}, "r_min must be in"),
    ({"r_min": float("nan")}, "r_min must be in"),
    ({"r_max": 0.5}, "r_max must be in"),
    ({"r_min": 0.3, "r_max": 0.2}, "r_max must be in"),
    ({"update": "euler"}, r"one of \['pf_ode', 'release'\], got 'euler'"),
    ({"x0_mode": "argmax"}, r"one of \('draw', 'mean'\), got 'argmax'"),
    ({"embedding": np.ones((VOCAB + 1, 3), np.float32)}, "must have 5 rows"),
    ({"embedding": np.ones(VOCAB, np.float32)}, r"must be \[V, D\]"),
    (
      {"embedding": np.ones((VOCAB, 3), np.float32), "x0_mode": "mean"},
      "x0_mode must be 'draw' with an embedding",
    ),
  ],
)
def test_bad_arguments_of_the_process(change, message):
  with pytest.raises(ValueError, match=message):
    candi.process(**{"vocab_size": VOCAB, **change})


def test_equal_ends_of_the_noise_schedule_are_allowed():
  process = candi.process(VOCAB, r_min=0.2, r_max=0.2)
  latent = process.prior(row_keys(0), *example()[1:], jnp.float32(0.5))
  assert np.all(np.isfinite(latent.values))


def test_tokens_outside_the_vocabulary_are_an_error():
  with pytest.raises(ValueError, match=r"x0 must be in \[0, 5\), got 7"):
    candi.process(VOCAB).corrupt(
      row_keys(0, 1), jnp.full((1, 2), 7), jnp.full(1, 0.5)
    )


def test_narrow_tokens_do_not_wrap_in_a_larger_vocabulary():
  tokens = jnp.full((1, 2), 5, jnp.uint8)
  xt, _ = candi.corrupt(jax.random.key(0), tokens, 1.0, 1.0, 300)
  np.testing.assert_array_equal(
    np.argwhere(np.asarray(xt[0])), [[0, 5], [1, 5]]
  )


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan])
def test_noise_level_that_is_not_positive_is_an_error(sigma):
  y = jnp.ones((1, 2, 3))
  one = jnp.ones(1)
  level = jnp.full(1, sigma)
  for update in (candi.pf_ode_update, candi.release_update):
    with pytest.raises(ValueError, match="sigma must be in"):
      update(y, y, level, one)
  with pytest.raises(ValueError, match="next_sigma must be in"):
    candi.release_update(y, y, one, level)
  params = candi.InputParams(jnp.eye(3), jnp.ones(3))
  with pytest.raises(ValueError, match="sigma must be in"):
    candi.embed_input(params, y, jnp.zeros((1, 2), bool), sigma)
