"""Logistic regression against closed forms and Newton's method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.evaluation import linear_probe


def _newton(features, labels, l2):
  """The minimum by Newton's method in float64."""
  x = np.column_stack([features, np.ones(len(features))]).astype(np.float64)
  penalty = np.append(np.full(features.shape[1], l2), 0.0)
  parameters = np.zeros(x.shape[1])
  for _ in range(50):
    p = 1.0 / (1.0 + np.exp(-x @ parameters))
    gradient = x.T @ (p - labels) / len(x) + penalty * parameters
    hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x) + np.diag(penalty)
    parameters -= np.linalg.solve(hessian, gradient)
  return parameters


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("l2", [1e-3, 1.0])
def test_equals_newtons_method(seed, l2):
  rng = np.random.default_rng(seed)
  features = rng.poisson(2.0, (200, 5))
  labels = features @ rng.normal(size=5) + rng.logistic(size=200) > 0
  probe = linear_probe.fit(features, labels, l2=l2)
  expected = _newton(features, labels, l2)
  got = np.append(probe.weights, probe.bias)
  # The search stops at a gradient of about 1e-8, and the curvature is at least
  # l2 = 1e-3: 1e-5 at most.
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_useless_features_give_the_log_odds_of_the_classes():
  labels = np.arange(10) < 3
  probe = linear_probe.fit(np.ones((10, 1)), labels, l2=1.0)
  np.testing.assert_allclose(probe.bias, np.log(3 / 7), rtol=1e-5)
  np.testing.assert_allclose(probe.weights, 0.0, atol=1e-6)


def test_classifier_of_one_hots_agrees_with_counts():
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 5, (7, 11))
  probe = linear_probe.LinearProbe(
    jnp.asarray(rng.normal(size=5), jnp.float32), jnp.float32(0.3)
  )
  counts = np.stack([np.bincount(row, minlength=5) for row in tokens])
  odds = linear_probe.log_odds(probe, counts)
  one_hots = jax.nn.one_hot(tokens, 5)
  got = jax.jit(linear_probe.log_prob_fn(probe))(one_hots)
  np.testing.assert_allclose(got, -np.log1p(np.exp(-odds)), rtol=1e-5)


def test_gradient_is_the_weights_times_the_doubt():
  weights = jnp.array([1.0, -2.0, 0.5])
  probe = linear_probe.LinearProbe(weights, jnp.float32(0.1))
  one_hots = jnp.full((2, 4, 3), 1 / 3)
  log_prob = linear_probe.log_prob_fn(probe)
  gradient = jax.grad(lambda x: jnp.sum(log_prob(x)))(one_hots)
  doubt = 1.0 - jnp.exp(log_prob(one_hots))
  expected = jnp.broadcast_to(
    doubt[:, None, None] * weights[None, None], gradient.shape
  )
  np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.parametrize(
  ("features", "labels", "l2", "error", "message"),
  [
    (np.ones(3), np.ones(3, bool), 1.0, ValueError, "must be"),
    (np.ones((3, 1)), np.ones(2, bool), 1.0, ValueError, "must be"),
    (np.ones((3, 1)), np.ones(3, bool), 1.0, ValueError, "both classes"),
    (np.ones((3, 1)), np.arange(3), 1.0, TypeError, "labels must be bool"),
    (np.ones((3, 1)), np.arange(3) > 0, 0.0, ValueError, "l2 must be"),
    (
      np.array([[1.0], [np.nan], [2.0]]),
      np.arange(3) > 0,
      1.0,
      ValueError,
      "features must be finite",
    ),
  ],
)
def test_wrong_arguments_are_rejected(features, labels, l2, error, message):
  with pytest.raises(error, match=message):
    linear_probe.fit(features, labels, l2=l2)
