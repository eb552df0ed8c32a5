"""Exact denoisers against enumeration of every sequence in float64."""

import itertools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from icml26_jax.diffusion import oracle
from icml26_jax.diffusion import process as process_lib

EPS = 2.0**-23
SHAPES = ((2, 1), (2, 10), (3, 6), (8, 4), (64, 2))  # V, L; V^L <= 4096


@jax.jit
def traced_denoiser(initial, transition, evidence):
  return oracle.markov_denoiser(initial, transition)(evidence)


def random_chain(vocab_size, seed, *, zeros=False):
  """A chain in float32; with zeros, a third of its transitions is forbidden."""
  rng = np.random.default_rng(seed)
  transition = rng.dirichlet(np.ones(vocab_size), vocab_size) + 1e-3
  if zeros:
    transition *= rng.random(transition.shape) > 1 / 3
    transition += np.eye(vocab_size)
  transition /= transition.sum(axis=1, keepdims=True)
  initial = rng.dirichlet(np.ones(vocab_size)) + 1e-3
  initial /= initial.sum()
  return np.float32(initial), np.float32(transition)


def enumerated(initial, transition, log_evidence):
  """Log-posteriors `[B, L, V]` by summing over all V^L sequences."""
  vocab_size = len(initial)
  batch_size, length, _ = log_evidence.shape
  with np.errstate(divide="ignore"):
    log_pi, log_p = np.log(np.float64(initial)), np.log(np.float64(transition))
  sequences = np.array(
    list(itertools.product(range(vocab_size), repeat=length))
  )
  prior = log_pi[sequences[:, 0]]
  for i in range(1, length):
    prior = prior + log_p[sequences[:, i - 1], sequences[:, i]]
  log_posteriors = np.empty(log_evidence.shape)
  for b in range(batch_size):
    joint = prior + log_evidence[b][np.arange(length), sequences].sum(axis=1)
    for i in range(length):
      by_token = [
        scipy.special.logsumexp(joint[sequences[:, i] == k])
        for k in range(vocab_size)
      ]
      log_posteriors[b, i] = by_token - scipy.special.logsumexp(by_token)
  return log_posteriors


def noisy_latent(shape, seed, sigma, *, revealed=0.3):
  """Latent of random tokens, a share of them revealed."""
  batch_size, length, vocab_size = shape
  rng = np.random.default_rng(seed)
  tokens = rng.integers(vocab_size, size=(batch_size, length))
  values = np.eye(vocab_size)[tokens] + sigma * rng.standard_normal(shape)
  return process_lib.Latent(
    tokens=jnp.asarray(tokens, jnp.int32),
    revealed=jnp.asarray(rng.random((batch_size, length)) < revealed),
    sigma=jnp.full(batch_size, sigma, jnp.float32),
    values=jnp.asarray(values, jnp.float32),
  )


def log_evidence_of(latent):
  """Evidence of a noisy latent in float64, not shifted."""
  hidden = (
    np.float64(latent.values) / np.float64(latent.sigma)[:, None, None] ** 2
  )
  one_hot = np.eye(hidden.shape[-1])[np.asarray(latent.tokens)]
  with np.errstate(divide="ignore"):
    return np.where(
      np.asarray(latent.revealed)[..., None], np.log(one_hot), hidden
    )


def assert_log_close(got, expected, length, vocab_size):
  """Equal to float32 rounding.

  Each of 2 L steps rounds a sum of V products; a logarithm rounds
  relatively, at any size, and so does the exponent of the evidence.
  """
  expected = np.asarray(expected)
  finite = np.isfinite(expected)
  np.testing.assert_array_equal(np.isfinite(got), finite)
  np.testing.assert_allclose(
    np.asarray(got)[finite],
    expected[finite],
    atol=2 * length * (vocab_size + 8) * EPS / 2,
    rtol=8 * EPS,
  )


@pytest.mark.parametrize("zeros", [False, True], ids=["positive", "zeros"])
@pytest.mark.parametrize(("vocab_size", "length"), SHAPES)
def test_denoiser_equals_enumeration(vocab_size, length, zeros):
  initial, transition = random_chain(vocab_size, seed=0, zeros=zeros)
  rng = np.random.default_rng(1)
  evidence = rng.random((3, length, vocab_size)).astype(np.float32) + 1e-3
  evidence[1] = 1.0
  got = jax.jit(oracle.markov_denoiser(initial, transition))(evidence)
  expected = np.exp(
    enumerated(initial, transition, np.log(np.float64(evidence)))
  )
  assert got.dtype == jnp.float32
  tolerance = 2 * length * (vocab_size + 8) * EPS / 2
  np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-30)


@pytest.mark.parametrize("sigma", [0.02, 0.3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize(("vocab_size", "length"), [(3, 6), (8, 4)])
def test_denoise_fn_equals_enumeration_at_any_noise(vocab_size, length, sigma):
  initial, transition = random_chain(vocab_size, seed=2)
  latent = noisy_latent((4, length, vocab_size), seed=3, sigma=sigma)
  got = jax.jit(oracle.denoise_fn(initial, transition))(latent, jnp.ones(4))
  expected = enumerated(initial, transition, log_evidence_of(latent))
  assert_log_close(got, expected, length, vocab_size)


@pytest.mark.parametrize("sigma", [0.02, 0.5])
def test_denoise_fn_equals_enumeration_where_transitions_are_forbidden(sigma):
  # The noise is so small that the likeliest tokens are exp(-2500) apart, and
  # what they say contradicts the chain: only log space keeps the second best.
  vocab_size, length = 4, 5
  transition = np.float32(np.roll(np.eye(4), 1, axis=1) * 0.75)
  transition += np.float32(np.eye(4) * 0.25)
  initial = np.float32([0.5, 0.5, 0.0, 0.0])
  latent = noisy_latent((6, length, vocab_size), seed=4, sigma=sigma)
  latent = process_lib.Latent(
    tokens=latent.tokens,
    revealed=jnp.zeros((6, length), bool),
    sigma=latent.sigma,
    values=latent.values,
  )
  expected = enumerated(initial, transition, log_evidence_of(latent))
  is_best = np.argmax(latent.values, -1) == np.argmax(expected, -1)
  assert not np.all(is_best)
  got = jax.jit(oracle.denoise_fn(initial, transition))(latent, jnp.ones(6))
  finite = np.isfinite(expected)
  np.testing.assert_array_equal(np.isfinite(got), finite)
  # Differences of numbers as large as the whole sequence's log-evidence.
  scale = length * np.max(np.ptp(np.asarray(latent.values), -1)) / sigma**2
  np.testing.assert_allclose(
    np.asarray(got)[finite], expected[finite], atol=4 * EPS * scale, rtol=1e-5
  )


@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0, 1e6])
def test_rank_one_chain_gives_the_closed_form_of_independent_tokens(sigma):
  prior = np.float32([0.5, 0.25, 0.125, 0.0625, 0.0625])
  latent = noisy_latent((3, 7, 5), seed=5, sigma=sigma, revealed=0.0)
  denoise = oracle.denoise_fn(prior, np.tile(prior, (5, 1)))
  expected = scipy.special.log_softmax(
    np.log(np.float64(prior)) + np.float64(latent.values) / sigma**2, axis=-1
  )
  got = denoise(latent, jnp.ones(3))
  assert_log_close(got, expected, length=1, vocab_size=5)


def test_nothing_seen_gives_the_marginals_of_the_chain():
  initial, transition = random_chain(5, seed=6)
  latent = process_lib.Latent(
    tokens=jnp.zeros((2, 9), jnp.int32), revealed=jnp.zeros((2, 9), bool)
  )
  got = oracle.denoise_fn(initial, transition)(latent, jnp.ones(2))
  marginal = np.float64(initial)
  for i in range(9):
    np.testing.assert_allclose(
      np.exp(got[:, i]), np.tile(marginal, (2, 1)), rtol=9 * 13 * EPS
    )
    marginal = marginal @ np.float64(transition)


@pytest.mark.parametrize("zeros", [False, True])
def test_everything_revealed_is_certain(zeros):
  initial, transition = random_chain(4, seed=7, zeros=zeros)
  tokens = jnp.tile(jnp.array([2, 2, 2]), (2, 1))
  latent = process_lib.Latent(tokens=tokens, revealed=jnp.ones((2, 3), bool))
  got = oracle.denoise_fn(initial, transition)(latent, jnp.zeros(2))
  one_hot = jnp.arange(4)[None, None] == tokens[..., None]
  np.testing.assert_allclose(np.exp(got), one_hot, atol=4 * EPS)
  assert np.all(np.isneginf(np.asarray(got)[~np.asarray(one_hot)]))


def test_token_between_two_revealed_ones_weighs_both_transitions():
  initial, transition = random_chain(6, seed=8)
  latent = process_lib.Latent(
    tokens=jnp.array([[1, 0, 4]], jnp.int32),
    revealed=jnp.array([[True, False, True]]),
  )
  got = oracle.denoise_fn(initial, transition)(latent, jnp.ones(1))
  expected = np.float64(transition[1] * transition[:, 4])
  np.testing.assert_allclose(
    np.exp(got[0, 1]), expected / expected.sum(), rtol=3 * 14 * EPS
  )


@pytest.mark.parametrize("sigma", [1e-10, 1e-3])
def test_log_posteriors_stay_finite_without_noise_to_speak_of(sigma):
  initial, transition = random_chain(5, seed=9)
  latent = noisy_latent((2, 6, 5), seed=10, sigma=sigma, revealed=0.0)
  got = oracle.denoise_fn(initial, transition)(latent, jnp.zeros(2))
  assert np.all(np.isfinite(got))
  np.testing.assert_array_equal(np.argmax(got, axis=-1), latent.tokens)


def test_impossible_row_is_nan_and_leaves_the_others_alone():
  transition = np.float32([[0.0, 1.0], [1.0, 0.0]])
  initial = np.float32([0.5, 0.5])
  revealed = jnp.ones((3, 2), bool).at[2].set(False)
  latent = process_lib.Latent(
    tokens=jnp.array([[0, 0], [0, 1], [0, 0]], jnp.int32), revealed=revealed
  )
  got = oracle.denoise_fn(initial, transition)(latent, jnp.ones(3))
  assert np.all(np.isnan(got[0]))
  np.testing.assert_allclose(np.exp(got[1]), np.eye(2), atol=1e-6)
  np.testing.assert_allclose(np.exp(got[2]), 0.5, atol=1e-6)


@pytest.mark.parametrize("zeros", [False, True])
def test_position_without_any_likely_token_makes_its_row_nan(zeros):
  initial, transition = random_chain(3, seed=11, zeros=zeros)
  evidence = jnp.ones((2, 4, 3)).at[0, 2].set(0.0)
  got = oracle.markov_denoiser(initial, transition)(evidence)
  assert np.all(np.isnan(got[0]))
  assert np.all(np.isfinite(got[1]))


@pytest.mark.parametrize("zeros", [False, True])
def test_scale_of_a_position_does_not_matter(zeros):
  initial, transition = random_chain(4, seed=12, zeros=zeros)
  rng = np.random.default_rng(13)
  evidence = rng.random((2, 5, 4)).astype(np.float32)
  factors = np.float32([1.0, 1e-30, 1e30, 3.0, 1e-6])[None, :, None]
  denoise = oracle.markov_denoiser(initial, transition)
  # In log space the factor itself, up to 69 nats, is rounded.
  np.testing.assert_allclose(
    denoise(evidence * factors), denoise(evidence), rtol=5 * 70 * EPS
  )


def test_traced_chain_gives_what_a_known_one_gives():
  initial, transition = random_chain(7, seed=14)
  evidence = np.random.default_rng(15).random((2, 9, 7)).astype(np.float32)
  known = oracle.markov_denoiser(initial, transition)(evidence)
  traced = traced_denoiser(initial, transition, evidence)
  np.testing.assert_allclose(traced, known, rtol=2 * 9 * 15 * EPS)


@hypothesis.given(seed=st.integers(0, 10_000), zeros=st.booleans())
def test_any_traced_chain_equals_enumeration(seed, zeros):
  initial, transition = random_chain(4, seed=seed, zeros=zeros)
  rng = np.random.default_rng(seed + 1)
  evidence = rng.random((2, 3, 4)).astype(np.float32) + 1e-3
  got = traced_denoiser(initial, transition, evidence)
  np.testing.assert_allclose(np.sum(got, -1), 1.0, atol=8 * EPS)
  expected = enumerated(initial, transition, np.log(np.float64(evidence)))
  np.testing.assert_allclose(
    got, np.exp(expected), rtol=2 * 3 * 12 * EPS, atol=1e-30
  )


def test_gradient_of_independent_posteriors_is_the_closed_form():
  prior = np.float32([0.5, 0.25, 0.25])
  latent = noisy_latent((1, 2, 3), seed=16, sigma=0.7, revealed=0.0)
  denoise = oracle.denoise_fn(prior, np.tile(prior, (3, 1)))

  def log_posterior(values):
    seen = process_lib.Latent(
      latent.tokens, latent.revealed, latent.sigma, values
    )
    return denoise(seen, jnp.ones(1))[0, 1, 2]

  got = jax.jit(jax.grad(log_posterior))(latent.values)
  p = scipy.special.softmax(
    np.log(np.float64(prior)) + np.float64(latent.values[0, 1]) / 0.7**2
  )
  np.testing.assert_allclose(got[0, 1], (np.eye(3)[2] - p) / 0.7**2, atol=1e-5)
  np.testing.assert_allclose(got[0, 0], 0.0, atol=1e-6)


@pytest.mark.parametrize("sigma", [1e-3, 0.5, 1e4])
@pytest.mark.parametrize("zeros", [False, True])
def test_gradients_are_finite_wherever_the_function_is(zeros, sigma):
  initial, transition = random_chain(4, seed=17, zeros=zeros)
  latent = noisy_latent((2, 5, 4), seed=18, sigma=sigma)
  latent = process_lib.Latent(
    # One token all along is possible under both chains.
    tokens=jnp.full((2, 5), 3, jnp.int32),
    revealed=latent.revealed,
    sigma=latent.sigma,
    values=latent.values,
  )
  denoise = oracle.denoise_fn(initial, transition)

  def mean_posterior(values):
    seen = process_lib.Latent(
      latent.tokens, latent.revealed, latent.sigma, values
    )
    log_posteriors = denoise(seen, jnp.ones(2))
    return jnp.mean(jnp.exp(log_posteriors) * jnp.arange(4.0)[None, None])

  with jax.debug_nans(True):
    gradient = jax.jit(jax.grad(mean_posterior))(latent.values)
  assert np.all(np.isfinite(gradient))
  hidden = ~np.asarray(latent.revealed)
  np.testing.assert_array_equal(np.asarray(gradient)[~hidden], 0.0)
  if sigma == 0.5:
    assert np.all(np.any(np.asarray(gradient)[hidden] != 0.0, axis=-1))


def test_gradient_in_the_evidence_is_finite_at_zero():
  for zeros in (False, True):
    initial, transition = random_chain(3, seed=19, zeros=zeros)
    denoise = oracle.markov_denoiser(initial, transition)
    evidence = jnp.ones((1, 3, 3)).at[0, 1].set(jnp.array([0.0, 1.0, 0.0]))
    with jax.debug_nans(True):
      gradient = jax.grad(lambda e: denoise(e)[0, 0, 0])(evidence)  # noqa: B023
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("zeros", [False, True])
def test_jit_equals_eager_and_traces_once(zeros):
  initial, transition = random_chain(4, seed=20, zeros=zeros)
  denoise = oracle.denoise_fn(initial, transition)
  traces = []

  @jax.jit
  def traced(latent, t):
    traces.append(t.shape)
    return denoise(latent, t)

  latent = noisy_latent((2, 5, 4), seed=21, sigma=0.5, revealed=0.0)
  eager = denoise(latent, jnp.ones(2))
  first = traced(latent, jnp.ones(2))
  np.testing.assert_allclose(first, eager, rtol=1e-5, atol=1e-6)
  traced(noisy_latent((2, 5, 4), 22, 0.7, revealed=0.0), jnp.zeros(2))
  assert len(traces) == 1
  # One row alone gives what it gives in the batch.
  alone = denoise(jax.tree.map(lambda x: x[1:], latent), jnp.ones(1))
  np.testing.assert_allclose(alone[0], eager[1], rtol=1e-5, atol=1e-6)


def test_bfloat16_evidence_is_computed_in_float32():
  initial, transition = random_chain(4, seed=23)
  denoise = oracle.markov_denoiser(initial, transition)
  evidence = jnp.full((1, 3, 4), 0.5, jnp.bfloat16)
  got = denoise(evidence)
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(got, denoise(evidence.astype(jnp.float32)))
