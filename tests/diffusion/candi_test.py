"""CANDI: forward kernel, network input, loss, reverse step, sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import (
  candi,
  categorical,
  mdlm,
  oracle,
  sampling,
  schedules,
)
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 4, 6, 5
T, S = 0.75, 0.5


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


def test_network_input_equals_float64():
  rng = np.random.default_rng(1)
  params = candi.InputParams(
    *(jnp.asarray(rng.normal(size=s), jnp.float32) for s in [(VOCAB, 3), (3,)])
  )
  _, _, revealed = example()
  xt = rng.normal(size=(BATCH, LENGTH, VOCAB)).astype(np.float32)
  sigma = np.array([0.3, 1.0, 2.0, 5.0], np.float32)
  got = candi.embed_input(params, xt, revealed, sigma)
  table = np.asarray(params.embedding, np.float64)
  table /= np.linalg.norm(table, axis=1, keepdims=True)
  unit = np.asarray(params.special, np.float64)
  unit /= np.linalg.norm(unit)
  for b, i in np.ndindex(BATCH, LENGTH):
    expected = table.T @ xt[b, i].astype(float)
    if not revealed[b, i]:
      expected = 0.5 * unit + 0.5 * expected / np.sqrt(1 + float(sigma[b]) ** 2)
    np.testing.assert_allclose(got[b, i], expected, rtol=0, atol=2e-6)


def test_network_input_at_the_ends_of_the_mix():
  params = candi.InputParams(jnp.eye(VOCAB), jnp.arange(1.0, VOCAB + 1))
  xt = jnp.ones((1, 2, VOCAB))
  hidden = jnp.zeros((1, 2), bool)
  only_special = candi.embed_input(params, xt, hidden, 1.0, mix=1.0)
  unit = np.arange(1, VOCAB + 1) / np.sqrt(55)
  np.testing.assert_allclose(only_special[0, 0], unit, rtol=1e-6)
  only_noise = candi.embed_input(params, xt, hidden, np.sqrt(3.0), mix=0.0)
  np.testing.assert_allclose(only_noise, 0.5, rtol=1e-6)


def test_network_input_of_zero_vectors_has_finite_gradients():
  params = candi.InputParams(jnp.zeros((VOCAB, 3)), jnp.zeros(3))
  gradient = jax.grad(
    lambda p: jnp.sum(
      candi.embed_input(
        p, jnp.ones((1, 2, VOCAB)), jnp.zeros((1, 2), bool), 1.0
      )
    )
  )(params)
  assert all(np.all(np.isfinite(leaf)) for leaf in gradient)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"mix": 1.5}, r"mix must be in \[0, 1\]"),
    ({"revealed": np.zeros((1, 3), bool)}, "same rows and positions"),
    ({"sigma": np.ones(2)}, "sigma must be one number or one a row"),
  ],
)
def test_bad_arguments_of_the_network_input(change, message):
  arguments = {
    "params": candi.InputParams(jnp.eye(VOCAB), jnp.ones(VOCAB)),
    "xt": jnp.ones((1, 2, VOCAB)),
    "revealed": jnp.zeros((1, 2), bool),
    "sigma": 1.0,
  }
  with pytest.raises(ValueError, match=message):
    candi.embed_input(**{**arguments, **change})


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


def noisy_latent(embedding=None):
  rng = np.random.default_rng(5)
  _, x0, revealed = example()
  sigma = jnp.full(BATCH, schedules.rank_linear_sigma(T))
  noise = sigma[:, None, None] * rng.normal(size=(BATCH, LENGTH, VOCAB))
  values = jax.nn.one_hot(x0, VOCAB) + jnp.where(
    revealed[..., None], 0.0, noise
  )
  tokens = jnp.where(revealed, x0, 0)
  if embedding is None:
    return process_lib.Latent(tokens, revealed, sigma, values)
  embedded = jnp.matmul(values, embedding)
  return process_lib.Latent(tokens, revealed, sigma, embedded=embedded)


def selection_of(own_tokens):
  rng = np.random.default_rng(6)
  commit = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.5)
  own = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  return process_lib.Selection(commit, own if own_tokens else None)


def reverse_in_float64(
  latent, logits, drawn, selection, update, mean, guidance
):
  """One reverse step from t = T to s = S, position by position."""
  sigma, next_sigma = (
    np.float64(schedules.rank_linear_sigma(time)) for time in (T, S)
  )
  values = np.asarray(latent.values, np.float64).copy()
  tokens = np.asarray(latent.tokens).copy()
  revealed = np.asarray(latent.revealed).copy()
  for b, i in np.ndindex(*tokens.shape):
    if revealed[b, i]:
      continue
    token = drawn[b, i]
    if selection.commit[b, i]:
      if selection.tokens is not None:
        token = selection.tokens[b, i]
      tokens[b, i], revealed[b, i] = token, True
      values[b, i] = np.eye(VOCAB)[token]
      continue
    x0_hat = np.eye(VOCAB)[token]
    if mean:
      x = np.asarray(logits[b, i], np.float64)
      x0_hat = np.exp(x) / np.exp(x).sum()
    score_sigma = sigma if update == "pf_ode" else next_sigma
    score = (x0_hat - values[b, i]) / score_sigma**2 + guidance[b, i]
    factor = sigma if update == "pf_ode" else 1.0
    values[b, i] += (sigma - next_sigma) * factor * score
  return tokens, revealed, next_sigma, values


@pytest.mark.parametrize("update", ["pf_ode", "release"])
@pytest.mark.parametrize("x0_mode", ["draw", "mean"])
@pytest.mark.parametrize("own_tokens", [False, True])
def test_reverse_step_equals_float64(update, x0_mode, own_tokens):
  logits, _, _ = example(2)
  latent, selection = noisy_latent(), selection_of(own_tokens)
  rng = np.random.default_rng(7)
  guidance = rng.normal(size=logits.shape).astype(np.float32)
  process = candi.process(VOCAB, update=update, x0_mode=x0_mode)
  after = process.reverse(
    row_keys(8),
    latent,
    logits,
    guidance,
    jnp.float32(T),
    jnp.float32(S),
    selection,
  )
  drawn = np.asarray(categorical.draw(row_keys(8), logits))
  tokens, revealed, sigma, values = reverse_in_float64(
    latent, logits, drawn, selection, update, x0_mode == "mean", guidance
  )
  np.testing.assert_array_equal(after.revealed, revealed)
  np.testing.assert_array_equal(after.tokens, np.where(revealed, tokens, 0))
  np.testing.assert_allclose(after.sigma, np.full(BATCH, sigma), rtol=1e-6)
  np.testing.assert_allclose(after.values, values, rtol=0, atol=3e-6)
  # What is known is exactly a one-hot.
  np.testing.assert_array_equal(
    np.asarray(after.values)[revealed], np.eye(VOCAB)[tokens[revealed]]
  )


# The last table has more than four rows a column: the other kind of noise.
tables = pytest.mark.parametrize("size", [7, 3, 1])


@tables
@pytest.mark.parametrize("update", ["pf_ode", "release"])
def test_reverse_step_in_an_embedding_space_is_the_same_step(size, update):
  table = jnp.asarray(
    np.random.default_rng(9).normal(size=(VOCAB, size)), jnp.float32
  )
  logits, _, _ = example(2)
  selection = selection_of(False)
  times = jnp.float32(T), jnp.float32(S)
  after = candi.process(VOCAB, update=update, embedding=table).reverse(
    row_keys(8), noisy_latent(table), logits, None, *times, selection
  )
  expected = candi.process(VOCAB, update=update).reverse(
    row_keys(8), noisy_latent(), logits, None, *times, selection
  )
  assert after.values is None
  np.testing.assert_array_equal(after.tokens, expected.tokens)
  np.testing.assert_array_equal(after.revealed, expected.revealed)
  np.testing.assert_allclose(
    after.embedded, np.asarray(expected.values) @ np.asarray(table), atol=1e-5
  )


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


@pytest.mark.parametrize("embedded", [False, True])
def test_prior_is_noise_around_zero_and_shows_the_prompt(embedded):
  table = jnp.asarray(np.random.default_rng(3).normal(size=(VOCAB, 3)))
  table = table.astype(jnp.float32)
  process = candi.process(VOCAB, embedding=table if embedded else None)
  length = 20_000
  tokens = jnp.arange(length)[None] % VOCAB
  revealed = jnp.arange(length)[None] < 10
  latent = process.prior(row_keys(0, 1), tokens, revealed, jnp.float32(0.9))
  sigma = float(schedules.rank_linear_sigma(0.9))
  np.testing.assert_allclose(latent.sigma, [sigma], rtol=1e-6)
  np.testing.assert_array_equal(latent.tokens[0, :10], tokens[0, :10])
  np.testing.assert_array_equal(latent.tokens[0, 10:], 0)
  noisy = np.asarray(latent.embedded if embedded else latent.values)[0]
  clean = np.asarray(table if embedded else np.eye(VOCAB))
  np.testing.assert_array_equal(noisy[:10], clean[np.asarray(tokens)[0, :10]])
  exact = sigma**2 * clean.T @ clean if embedded else sigma**2 * np.eye(VOCAB)
  n = length - 10
  error = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / n)
  assert np.all(np.abs(noisy[10:].mean(0)) < 4.5 * np.sqrt(np.diag(exact) / n))
  assert np.all(np.abs(noisy[10:].T @ noisy[10:] / n - exact) < 4.5 * error)


@pytest.mark.parametrize("accidental", [False, True])
def test_reveal_rate_of_the_process(accidental):
  process = candi.process(VOCAB, accidental_reveal=accidental)
  x0 = jnp.zeros((1, 40_000), jnp.int32)
  latent = process.corrupt(row_keys(0, 1), x0, jnp.full(1, 0.7))
  alpha = 1 - 0.999 * 0.7
  rate = alpha + (1 - alpha) / (VOCAB + 1) if accidental else alpha
  got = np.asarray(latent.revealed).mean()
  assert abs(got - rate) < 4 * np.sqrt(rate * (1 - rate) / x0.size)


@pytest.mark.parametrize(("update", "seen"), [("pf_ode", T), ("release", S)])
def test_noise_level_that_the_network_sees(update, seen):
  latents = []

  def network(latent, t):
    latents.append((latent, t))
    return jnp.zeros((BATCH, LENGTH, VOCAB))

  candi.process(VOCAB, update=update).evaluate(
    network, noisy_latent(), jnp.float32(T), jnp.float32(S)
  )
  ((latent, t),) = latents
  sigma = float(schedules.rank_linear_sigma(seen))
  np.testing.assert_allclose(latent.sigma, np.full(BATCH, sigma), rtol=1e-6)
  np.testing.assert_array_equal(t, np.full(BATCH, T, np.float32))


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


def network(latent, t):
  return latent.values / latent.sigma[:, None, None] + t[:, None, None]


def test_sample_is_the_shared_sampler_with_this_process():
  prompt = jnp.tile(jnp.arange(LENGTH)[None] % VOCAB, (2, 1))
  mask = jnp.arange(LENGTH)[None] < jnp.array([[0], [3]])
  times = sampling.time_grid(4)
  tokens, stats = candi.sample(
    jax.random.key(0),
    network,
    (2, LENGTH),
    times,
    vocab_size=VOCAB,
    sigma_fn=schedules.rank_linear_sigma,
    prompt=prompt,
    prompt_mask=mask,
  )
  expected, expected_stats = sampling.sample(
    jax.random.key(0),
    candi.process(VOCAB),
    network,
    (2, LENGTH),
    times,
    prompt=prompt,
    prompt_mask=mask,
  )
  np.testing.assert_array_equal(tokens, expected)
  np.testing.assert_array_equal(stats.nfe, expected_stats.nfe)
  np.testing.assert_array_equal(tokens[1, :3], prompt[1, :3])


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"sigma_fn": lambda t: t}, r"sigma must be in \(0, inf\), got 0"),
    ({"sigma_fn": lambda t: t - 2}, "sigma must be in"),
    ({"ts": np.array([0.0, 1.0])}, "times must strictly decrease"),
    ({"ts": np.array([1.0, 0.5, 0.5])}, "times must strictly decrease"),
    ({"eps": -1.0}, "eps must be in"),
    ({"vocab_size": 1}, "vocab_size must be in"),
    ({"update": "heun"}, "update must be one of"),
  ],
)
def test_bad_arguments_of_sample(change, message):
  arguments = {
    "key": jax.random.key(0),
    "denoise_fn": network,
    "shape": (2, LENGTH),
    "ts": np.array([1.0, 0.5, 0.0]),
    "vocab_size": VOCAB,
    "sigma_fn": lambda t: 0.1 + t,
  }
  with pytest.raises(ValueError, match=message):
    candi.sample(**{**arguments, **change})


def test_oracle_samples_keep_the_marginal_of_a_stationary_chain():
  # One exact step draws each position from its posterior given pure noise;
  # with many steps the joint law must come back: bigrams of the chain.
  _, transition = chain_of(1)
  values, vectors = np.linalg.eig(np.asarray(transition, np.float64).T)
  pi = np.real(vectors[:, np.argmax(np.real(values))])
  pi /= pi.sum()
  batch, length = 400, 24
  tokens, _ = jax.jit(
    lambda key: sampling.sample(
      key,
      candi.process(VOCAB, r_min=0.05, r_max=0.45),
      oracle.denoise_fn(jnp.asarray(pi, jnp.float32), transition),
      (batch, length),
      sampling.time_grid(96),
    )
  )(jax.random.key(0))
  tokens = np.asarray(tokens)
  counts = np.zeros((VOCAB, VOCAB))
  np.add.at(counts, (tokens[:, :-1], tokens[:, 1:]), 1)
  bigram = counts / counts.sum()
  exact = pi[:, None] * np.asarray(transition, np.float64)
  kl = np.sum(bigram * np.log(bigram / exact))
  # 24 free parameters and 9200 bigrams: chance alone gives 0.0013. Drawing
  # positions independently would give the mutual information of neighbours.
  independent = np.sum(exact * np.log(exact / np.outer(pi, pi)))
  assert independent > 0.2
  assert kl < 0.01
