"""Scores of confidence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import confidence


def test_scores_equal_float64():
  p = np.random.default_rng(0).dirichlet(np.ones(6), size=(4, 5))
  p[0, 0] = np.eye(6)[2]
  p[1, 1] = 1 / 6
  with np.errstate(divide="ignore"):
    logs = np.log(p)
  log_probs = jnp.asarray(logs, jnp.float32)
  ordered = np.sort(p, axis=-1)
  np.testing.assert_allclose(
    confidence.top_log_prob(log_probs), np.log(ordered[..., -1]), atol=1e-6
  )
  np.testing.assert_allclose(
    confidence.margin(log_probs),
    ordered[..., -1] - ordered[..., -2] - 1,
    atol=1e-6,
  )
  entropy = -np.sum(p * np.where(p > 0, logs, 0.0), axis=-1)
  np.testing.assert_allclose(confidence.entropy(log_probs), entropy, atol=1e-6)
  assert confidence.entropy(log_probs)[0, 0] == 0
  assert confidence.margin(log_probs)[0, 0] == 0


def test_near_certain_positions_do_not_tie():
  # Probabilities 1 - 1e-9 and 1 - 2e-9 are both 1 in float32.
  rest = jnp.array([1e-9, 2e-9])
  log_probs = jnp.stack([-rest, jnp.log(rest)], axis=-1)
  for score in (confidence.top_log_prob, confidence.margin):
    assert score(log_probs)[0] > score(log_probs)[1]
  assert confidence.entropy(log_probs)[0] < confidence.entropy(log_probs)[1]


@pytest.mark.parametrize(
  "score", [confidence.top_log_prob, confidence.margin, confidence.entropy]
)
def test_one_token_and_finite_gradients(score):
  assert score(jnp.zeros((2, 3, 1))).tolist() == [[0.0] * 3] * 2
  for log_probs in (
    jnp.zeros((1, 1, 1)),
    jnp.array([[[0.0, -jnp.inf, -jnp.inf]]]),
    jnp.full((1, 2, 4), -jnp.log(4.0)),
  ):
    gradient = jax.grad(lambda x: jnp.sum(score(x)))(log_probs)
    assert np.all(np.isfinite(gradient))


def test_best_token_is_the_first_of_the_most_probable():
  rng = np.random.default_rng(1)
  p = rng.integers(0, 3, (20, 7)).astype(np.float32)
  np.testing.assert_array_equal(confidence.best_token(p), p.argmax(axis=-1))
  assert confidence.best_token(jnp.full((2, 3), -jnp.inf)).tolist() == [0, 0]
  assert confidence.best_token(jnp.array([0.0, jnp.nan])) == 1
  assert confidence.best_token(p).dtype == jnp.int32
