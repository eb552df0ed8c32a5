import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion import transforms


@pytest.fixture
def latent():
  """Two hidden positions and a revealed one in the middle."""
  return process_lib.Latent(
    jnp.full((4, 3), 2, jnp.int32),
    jnp.tile(jnp.array([False, True, False]), (4, 1)),
  )


@pytest.fixture
def log_probs(latent):
  rng = np.random.default_rng(0)
  logits = rng.normal(scale=2, size=(4, 3, 6)).astype(np.float32)
  return np.asarray(
    process_lib.carry_over(jnp.asarray(logits), latent.tokens, latent.revealed)
  )


def _apply(transform, log_probs):
  state = transform.init(jnp.zeros(log_probs.shape[:2], jnp.int32))
  edited, state = jax.jit(lambda x: transform.update(x, state, None))(log_probs)
  return np.asarray(edited)


def _numpy_temperature(probs, value):
  powered = probs ** (1 / value)
  return powered / powered.sum()


def _numpy_top_k(probs, k):
  kept = np.zeros_like(probs)
  for token in np.argsort(-probs)[:k]:
    kept[token] = probs[token]
  return kept / kept.sum()


def _numpy_top_p(probs, p):
  kept, mass = np.zeros_like(probs), 0.0
  for token in np.argsort(-probs):
    if mass >= p:
      break
    kept[token] = probs[token]
    mass += probs[token]
  return kept / kept.sum()


def _numpy_min_p(probs, p):
  kept = np.where(probs >= p * probs.max(), probs, 0.0)
  return kept / kept.sum()


@pytest.mark.parametrize(
  ("make", "oracle", "value"),
  [
    (transforms.temperature, _numpy_temperature, 0.5),
    (transforms.temperature, _numpy_temperature, 3.0),
    (transforms.top_k, _numpy_top_k, 1),
    (transforms.top_k, _numpy_top_k, 3),
    (transforms.top_k, _numpy_top_k, 99),
    (transforms.top_p, _numpy_top_p, 0.01),
    (transforms.top_p, _numpy_top_p, 0.6),
    (transforms.top_p, _numpy_top_p, 0.95),
    (transforms.min_p, _numpy_min_p, 0.05),
    (transforms.min_p, _numpy_min_p, 0.5),
    (transforms.min_p, _numpy_min_p, 1.0),
  ],
)
def test_equals_float64_numpy(log_probs, make, oracle, value):
  got = np.exp(_apply(make(value), log_probs))
  for index in np.ndindex(log_probs.shape[:2]):
    probs = np.exp(log_probs[index].astype(np.float64))
    expected = oracle(probs / probs.sum(), value)
    np.testing.assert_allclose(got[index], expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize(
  "transform",
  [
    transforms.temperature(1.0),
    transforms.top_k(6),
    transforms.top_p(1.0),
    transforms.min_p(0.0),
  ],
)
def test_limiting_value_changes_nothing(log_probs, transform):
  edited = _apply(transform, log_probs)
  np.testing.assert_allclose(np.exp(edited), np.exp(log_probs), atol=1e-6)


@pytest.mark.parametrize(
  "transform",
  [
    transforms.temperature(0.1),
    transforms.top_k(2),
    transforms.top_p(0.5),
    transforms.min_p(0.5),
  ],
)
def test_revealed_token_stays_certain(log_probs, transform):
  edited = _apply(transform, log_probs)[:, 1]
  expected = np.where(np.arange(6) == 2, 0.0, -math.inf)
  np.testing.assert_array_equal(edited, np.tile(expected, (4, 1)))


@pytest.mark.parametrize(
  "transform",
  [transforms.top_k(2), transforms.top_p(0.4), transforms.min_p(1.0)],
)
def test_equally_probable_tokens_all_stay(transform):
  log_probs = jnp.full((1, 1, 4), -math.log(4.0))
  np.testing.assert_allclose(
    np.exp(_apply(transform, log_probs)), np.full((1, 1, 4), 0.25), rtol=1e-6
  )


@pytest.mark.parametrize("vocab_size", [2, 40, 1000])
def test_kept_tokens_are_those_of_a_sort(vocab_size):
  rng = np.random.default_rng(vocab_size)
  logits = rng.normal(size=(1, 50, vocab_size), scale=4).astype(np.float32)
  logits[0, 0] = -np.inf
  logits[0, 0, 1] = 0.0
  log_probs = np.asarray(jax.nn.log_softmax(logits, axis=-1))
  for k in (1, 2, 30):
    kept = _apply(transforms.top_k(k), log_probs)[0] > -np.inf
    least = -np.sort(-log_probs[0])[:, min(k, vocab_size) - 1, None]
    expected = (log_probs[0] >= least) & (log_probs[0] > -np.inf)
    np.testing.assert_array_equal(kept, expected)
  for p in (1e-6, 0.3, 0.9):
    kept = _apply(transforms.top_p(p), log_probs)[0] > -np.inf
    mass = -np.sort(-np.exp(log_probs[0].astype(np.float64)))
    need = (
      np.cumsum(mass, axis=1) - mass < p * mass.sum(1, keepdims=True)
    ).sum(1)
    np.testing.assert_array_equal(kept.sum(axis=1), need)


def test_transforms_chain_from_left_to_right(latent, log_probs):
  both = process_lib.chain(transforms.temperature(0.5), transforms.top_p(0.6))
  state = both.init(jnp.zeros(log_probs.shape[:2], jnp.int32))
  keys = process_lib.row_keys(jax.random.key(0), 4)
  step = process_lib.Step(keys, latent, 0, 1.0, 0.5, False)
  got, _ = both.update(jnp.asarray(log_probs), state, step)
  expected = _apply(
    transforms.top_p(0.6), _apply(transforms.temperature(0.5), log_probs)
  )
  np.testing.assert_allclose(np.exp(got), np.exp(expected), atol=1e-6)


@pytest.mark.parametrize(
  ("make", "value", "message"),
  [
    (transforms.temperature, 0.0, "temperature must be in"),
    (transforms.temperature, math.inf, "temperature must be in"),
    (transforms.temperature, math.nan, "temperature must be in"),
    (transforms.top_k, 0, "k must be"),
    (transforms.top_p, 0.0, "p must be in"),
    (transforms.top_p, 1.1, "p must be in"),
    (transforms.min_p, -0.1, "p must be in"),
    (transforms.min_p, 1.1, "p must be in"),
    (transforms.min_p, math.nan, "p must be in"),
  ],
)
def test_bad_value_is_refused(make, value, message):
  with pytest.raises(ValueError, match=message):
    make(value)
