"""Markov chains: closed forms, counts by hand, laws of the samples."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from icml26_jax.evaluation import markov

sample = jax.jit(markov.sample, static_argnums=2)


def two_state(to_one, to_zero):
  return np.array([[1.0 - to_one, to_one], [to_zero, 1.0 - to_zero]])


def random_chain(vocab_size, seed):
  rng = np.random.default_rng(seed)
  transition = rng.dirichlet(np.full(vocab_size, 0.5), vocab_size)
  return markov.MarkovChain(
    jnp.asarray(markov.stationary(transition), jnp.float32),
    jnp.asarray(transition, jnp.float32),
  )


def test_fit_equals_counts_by_hand():
  chain = markov.fit(np.array([0, 1, 1, 0, 1, 2, 0]), 3, smoothing=0.0)
  expected = np.array([[0, 2, 0], [1, 1, 1], [1, 0, 0]], float)
  expected /= expected.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(chain.transition, expected, rtol=1e-6)
  # pi P = pi by hand: pi_1 = pi_0 + pi_1 / 3 and pi_2 = pi_1 / 3.
  np.testing.assert_allclose(chain.initial, np.array([2, 3, 1]) / 6, rtol=1e-6)
  assert chain.initial.dtype == chain.transition.dtype == jnp.float32


def test_fit_does_not_count_pairs_across_rows():
  chain = markov.fit(np.array([[0, 1], [0, 1]]), 2, smoothing=0.5)
  expected = [[0.5 / 3.0, 2.5 / 3.0], [0.5, 0.5]]
  np.testing.assert_allclose(chain.transition, expected, rtol=1e-6)


def test_fit_recovers_the_chain_that_wrote_the_text():
  chain = random_chain(5, seed=0)
  text = sample(jax.random.key(1), chain, (256, 256))
  fitted = markov.fit(text, 5, smoothing=0.0)
  visits = np.float64(chain.initial)[:, None] * text.size
  p = np.float64(chain.transition)
  standard_error = np.sqrt(p * (1.0 - p) / visits)
  assert np.all(np.abs(fitted.transition - p) < 4.5 * standard_error + 1e-6)


@hypothesis.given(to_one=st.floats(1e-6, 1.0), to_zero=st.floats(1e-6, 1.0))
def test_stationary_of_two_states_is_the_closed_form(to_one, to_zero):
  expected = np.array([to_zero, to_one]) / (to_one + to_zero)
  got = markov.stationary(two_state(to_one, to_zero))
  np.testing.assert_allclose(got, expected, atol=1e-9)


def test_stationary_of_periodic_and_transient_chains():
  cycle = np.roll(np.eye(4), 1, axis=1)
  np.testing.assert_allclose(markov.stationary(cycle), 0.25, atol=1e-12)
  absorbing = np.array([[0.5, 0.5], [0.0, 1.0]])
  np.testing.assert_allclose(
    markov.stationary(absorbing), [0.0, 1.0], atol=1e-12
  )
  np.testing.assert_array_equal(markov.stationary(np.ones((1, 1))), [1.0])


def test_stationary_of_a_float32_matrix_is_a_fixed_point():
  chain = random_chain(27, seed=2)
  pi = markov.stationary(chain.transition)
  np.testing.assert_allclose(pi @ np.float64(chain.transition), pi, atol=1e-6)
  np.testing.assert_allclose(pi.sum(), 1.0, rtol=1e-12)


def test_chain_in_parts_has_no_single_stationary_distribution():
  with pytest.raises(ValueError, match="parts that do not communicate"):
    markov.stationary(np.eye(3))


def test_entropy_rate_of_known_chains():
  uniform = markov.MarkovChain(jnp.full(8, 0.125), jnp.full((8, 8), 0.125))
  np.testing.assert_allclose(markov.entropy_rate(uniform), np.log(8.0))
  cycle = markov.MarkovChain(
    jnp.full(4, 0.25), jnp.asarray(np.roll(np.eye(4), 1, axis=1))
  )
  assert markov.entropy_rate(cycle) == 0.0
  chain = markov.MarkovChain(
    jnp.array([1.0, 0.0]), jnp.asarray(two_state(0.25, 0.5))
  )
  by_row = scipy.stats.entropy([0.75, 0.25]), scipy.stats.entropy([0.5, 0.5])
  expected = np.array([2.0, 1.0]) / 3.0 @ np.array(by_row)
  np.testing.assert_allclose(markov.entropy_rate(chain), expected, rtol=1e-12)


def test_samples_follow_the_start_and_the_transitions():
  chain = random_chain(4, seed=3)._replace(
    initial=jnp.array([0.1, 0.2, 0.3, 0.4])
  )
  tokens = np.asarray(sample(jax.random.key(4), chain, (4096, 6)))
  assert tokens.shape == (4096, 6)
  assert tokens.dtype == np.int32
  first = np.bincount(tokens[:, 0], minlength=4)
  expected = np.array([0.1, 0.2, 0.3, 0.4]) * 4096
  assert scipy.stats.chisquare(first, expected).pvalue > 1e-3
  for token in range(4):
    successors = tokens[:, 1:][tokens[:, :-1] == token]
    counts = np.bincount(successors, minlength=4)
    p = np.float64(chain.transition[token])
    result = scipy.stats.chisquare(counts, p / p.sum() * counts.sum())
    assert result.pvalue > 1e-3


def test_deterministic_chain_gives_its_cycle():
  chain = markov.MarkovChain(
    jnp.array([0.0, 0.0, 1.0]), jnp.asarray(np.roll(np.eye(3), 1, axis=1))
  )
  tokens = markov.sample(jax.random.key(0), chain, (2, 5))
  np.testing.assert_array_equal(tokens, [[2, 0, 1, 2, 0]] * 2)
  np.testing.assert_array_equal(markov.nll(chain, tokens), 0.0)


def test_row_of_samples_depends_on_its_own_key_only():
  chain = random_chain(5, seed=5)

  def row_keys():
    return jax.random.split(jax.random.key(6), 3)

  together = sample(row_keys(), chain, (3, 8))
  for b in range(3):
    alone = sample(row_keys()[b : b + 1], chain, (1, 8))
    np.testing.assert_array_equal(together[b], alone[0])


def test_jitted_sample_equals_eager_and_traces_once():
  traces = []

  @jax.jit
  def traced(key, chain):
    traces.append(1)
    return markov.sample(key, chain, (2, 8))

  chain = random_chain(5, seed=5)
  eager = markov.sample(jax.random.key(7), chain, (2, 8))
  np.testing.assert_array_equal(traced(jax.random.key(7), chain), eager)
  traced(jax.random.key(8), random_chain(5, seed=6))
  assert len(traces) == 1


@pytest.mark.parametrize("length", [1, 2, 17])
def test_nll_equals_float64_numpy(length):
  chain = random_chain(6, seed=8)
  tokens = np.random.default_rng(9).integers(6, size=(5, length))
  pi, p = np.float64(chain.initial), np.float64(chain.transition)
  expected = -np.log(pi[tokens[:, 0]])
  for i in range(1, length):
    expected -= np.log(p[tokens[:, i - 1], tokens[:, i]])
  got = jax.jit(lambda tokens: markov.nll(chain, tokens))(jnp.asarray(tokens))
  # A sum of L terms of up to 20 nats.
  np.testing.assert_allclose(got, expected / length, rtol=length * 2.0**-23)


def test_nll_of_samples_tends_to_the_entropy_rate():
  chain = random_chain(5, seed=10)
  tokens = sample(jax.random.key(11), chain, (256, 256))
  nll = np.asarray(markov.nll(chain, tokens))
  # The start costs its own entropy once instead of a step's.
  start = scipy.stats.entropy(np.float64(chain.initial))
  rate = markov.entropy_rate(chain)
  expected = rate + (start - rate) / 256
  error = nll.mean() - expected
  assert abs(error) < 4 * nll.std() / np.sqrt(len(nll))


def test_nll_of_an_impossible_sequence_is_infinite():
  chain = markov.MarkovChain(jnp.array([1.0, 0.0]), jnp.eye(2))
  nll = markov.nll(chain, jnp.array([[0, 0], [0, 1], [1, 1]]))
  np.testing.assert_array_equal(nll, [0.0, np.inf, np.inf])


def test_fit_rejects_bad_input():
  tokens = np.array([0, 1, 0])
  with pytest.raises(ValueError, match=r"tokens must be in \[0, 2\), got 2"):
    markov.fit(np.array([0, 2]), 2, smoothing=1.0)
  with pytest.raises(TypeError, match="tokens must be integers"):
    markov.fit(np.array([0.0, 1.0]), 2, smoothing=1.0)
  for short in (np.zeros(1, int), np.zeros((3, 1), int), np.zeros((0, 4), int)):
    with pytest.raises(ValueError, match="two tokens or more"):
      markov.fit(short, 2, smoothing=1.0)
  for smoothing in (-0.1, np.nan, np.inf):
    with pytest.raises(ValueError, match="smoothing must be in"):
      markov.fit(tokens, 2, smoothing=smoothing)
  with pytest.raises(ValueError, match="token 2 has no successor"):
    markov.fit(tokens, 3, smoothing=0.0)
  with pytest.raises(ValueError, match="vocab_size must be in"):
    markov.fit(tokens, 0, smoothing=1.0)


def test_chain_that_is_none_is_an_error():
  half = jnp.full(2, 0.5)
  good = jnp.full((2, 2), 0.5)
  tokens = jnp.zeros((1, 2), jnp.int32)
  for chain, message in (
    (markov.MarkovChain(half, jnp.full((2, 3), 1 / 3)), r"shape \[V, V\]"),
    (markov.MarkovChain(jnp.full(3, 1 / 3), good), r"shape \(2,\)"),
    (markov.MarkovChain(half, good * 0.9), "transition must sum to 1"),
    (markov.MarkovChain(half * 0.9, good), "initial must sum to 1"),
    (
      markov.MarkovChain(jnp.array([1.5, -0.5]), good),
      "initial must be in",
    ),
  ):
    with pytest.raises(ValueError, match=message):
      markov.nll(chain, tokens)
    with pytest.raises(ValueError, match=message):
      markov.sample(jax.random.key(0), chain, (1, 2))
  with pytest.raises(ValueError, match="transition must sum to 1"):
    markov.stationary(good * 0.9)


def test_nll_rejects_bad_tokens():
  chain = markov.MarkovChain(jnp.full(2, 0.5), jnp.full((2, 2), 0.5))
  with pytest.raises(ValueError, match=r"tokens must be in \[0, 2\), got -1"):
    markov.nll(chain, jnp.array([[0, -1]]))
  with pytest.raises(TypeError, match="tokens must be integers"):
    markov.nll(chain, jnp.zeros((1, 2)))
  for shape in ((3,), (1, 0), (1, 2, 3)):
    with pytest.raises(ValueError, match=r"tokens must have shape \[B, L\]"):
      markov.nll(chain, jnp.zeros(shape, jnp.int32))
