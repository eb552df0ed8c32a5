"""CANDI backwards: one reverse step, its start, and whole samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import (
  candi,
  categorical,
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


def chain_of(seed=0):
  rng = np.random.default_rng(seed)
  pi = rng.dirichlet(np.ones(VOCAB))
  transition = rng.dirichlet(np.ones(VOCAB), VOCAB)
  return jnp.asarray(pi, jnp.float32), jnp.asarray(transition, jnp.float32)


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


def network(latent, t):
  return latent.values / latent.sigma[:, None, None] + t[:, None, None]


def test_sample_is_the_shared_sampler_with_this_process():
  prompt = jnp.tile(jnp.arange(LENGTH)[None] % VOCAB, (2, 1))
  mask = jnp.arange(LENGTH)[None] < jnp.array([[0], [3]])
  times = sampling.time_grid(4)
  arguments = (network, (2, LENGTH), times)
  prompts = {"prompt": prompt, "prompt_mask": mask}
  options = {"update": "release", "x0_mode": "mean"}

  def by_card(key):
    return candi.sample(
      key,
      *arguments,
      vocab_size=VOCAB,
      sigma_fn=schedules.rank_linear_sigma,
      **options,
      **prompts,
    )

  def by_process(key):
    process = candi.process(VOCAB, **options)
    return sampling.sample(key, process, *arguments, **prompts)

  # Programs that take seconds to optimise and milliseconds to run.
  fast = {"xla_backend_optimization_level": 0}
  tokens, stats = jax.jit(by_card, compiler_options=fast)(jax.random.key(0))
  expected, expected_stats = jax.jit(by_process, compiler_options=fast)(
    jax.random.key(0)
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
