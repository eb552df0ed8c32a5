"""The input vectors of a hybrid model's network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, network_input

BATCH, LENGTH, VOCAB = 4, 6, 5


def test_network_input_equals_float64():
  rng = np.random.default_rng(1)
  params = network_input.InputParams(
    *(jnp.asarray(rng.normal(size=s), jnp.float32) for s in [(VOCAB, 3), (3,)])
  )
  revealed = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.4)
  xt = rng.normal(size=(BATCH, LENGTH, VOCAB)).astype(np.float32)
  sigma = np.array([0.3, 1.0, 2.0, 5.0], np.float32)
  got = network_input.embed_input(params, xt, revealed, sigma)
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
  params = network_input.InputParams(jnp.eye(VOCAB), jnp.arange(1.0, VOCAB + 1))
  xt = jnp.ones((1, 2, VOCAB))
  hidden = jnp.zeros((1, 2), bool)
  only_special = network_input.embed_input(params, xt, hidden, 1.0, mix=1.0)
  unit = np.arange(1, VOCAB + 1) / np.sqrt(55)
  np.testing.assert_allclose(only_special[0, 0], unit, rtol=1e-6)
  only_noise = network_input.embed_input(
    params, xt, hidden, np.sqrt(3.0), mix=0.0
  )
  np.testing.assert_allclose(only_noise, 0.5, rtol=1e-6)


def test_network_input_of_zero_vectors_has_finite_gradients():
  params = network_input.InputParams(jnp.zeros((VOCAB, 3)), jnp.zeros(3))
  gradient = jax.grad(
    lambda p: jnp.sum(
      network_input.embed_input(
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
    "params": network_input.InputParams(jnp.eye(VOCAB), jnp.ones(VOCAB)),
    "xt": jnp.ones((1, 2, VOCAB)),
    "revealed": jnp.zeros((1, 2), bool),
    "sigma": 1.0,
  }
  with pytest.raises(ValueError, match=message):
    network_input.embed_input(**{**arguments, **change})


def test_candi_offers_the_same_functions():
  assert candi.embed_input is network_input.embed_input
  assert candi.InputParams is network_input.InputParams
