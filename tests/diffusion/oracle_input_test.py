"""What the oracle reads from a latent, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import oracle
from icml26_jax.diffusion import process as process_lib

UNIFORM = np.full(3, 1 / 3, np.float32), np.full((3, 3), 1 / 3, np.float32)


def test_evidence_of_each_kind_of_position():
  latent = process_lib.Latent(
    tokens=jnp.array([[1, 0]], jnp.int32),
    revealed=jnp.array([[True, False]]),
    sigma=jnp.array([0.5]),
    values=jnp.array([[[9.0, 9.0, 9.0], [0.25, 1.0, -0.5]]]),
  )
  np.testing.assert_allclose(
    oracle.evidence(latent, 3),
    [[[0.0, 1.0, 0.0], np.exp(np.array([-0.75, 0.0, -1.5]) / 0.25)]],
    rtol=1e-6,
  )
  masked = process_lib.Latent(latent.tokens, latent.revealed)
  np.testing.assert_array_equal(
    oracle.evidence(masked, 3), [[[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]]
  )


@pytest.mark.parametrize("sigma", [1e-30, 1e-3, 1e6, 1e30])
def test_evidence_neither_overflows_nor_loses_its_top(sigma):
  values = jnp.array([[[0.0, 1.0, 0.5]]])
  latent = process_lib.Latent(
    tokens=jnp.zeros((1, 1), jnp.int32),
    revealed=jnp.zeros((1, 1), bool),
    sigma=jnp.array([sigma]),
    values=values,
  )
  with jax.debug_nans(True):
    got = np.asarray(oracle.evidence(latent, 3))
  assert np.max(got) == 1.0
  assert np.all(got >= 0.0)
  np.testing.assert_array_equal(got, (sigma > 1.0) | (values == 1.0))


def test_chain_that_is_none_is_an_error():
  half = np.full(2, 0.5, np.float32)
  good = np.full((2, 2), 0.5, np.float32)
  for make in (oracle.markov_denoiser, oracle.denoise_fn):
    with pytest.raises(ValueError, match=r"shapes \[V\] and \[V, V\]"):
      make(half, good[:1])
    with pytest.raises(ValueError, match="transition must sum to 1"):
      make(half, 0.9 * good)
    with pytest.raises(ValueError, match="initial must sum to 1"):
      make(0.9 * half, good)
    with pytest.raises(ValueError, match="transition must be in"):
      make(half, np.float32([[1.5, -0.5], [0.5, 0.5]]))
    with pytest.raises(ValueError, match="initial must be in"):
      make(np.float32([np.nan, 1.0]), good)


def test_evidence_that_is_none_is_an_error():
  denoise = oracle.markov_denoiser(*UNIFORM)
  for shape in ((1, 2, 4), (2, 3)):
    with pytest.raises(ValueError, match=r"shape \[B, L, 3\]"):
      denoise(jnp.ones(shape))
  for value in (-1.0, np.nan, np.inf):
    with pytest.raises(ValueError, match="evidence must be in"):
      denoise(jnp.full((1, 2, 3), value))


def test_latent_the_oracle_cannot_read_is_an_error():
  fields = (jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2), bool))
  sigma, values = jnp.ones(1), jnp.zeros((1, 2, 3))
  for bad, message in (
    (
      process_lib.Latent(*fields, sigma, values[..., :2]),
      r"latent.values must have shape \(1, 2, 3\)",
    ),
    (
      process_lib.Latent(*fields, None, values),
      "latent.sigma must be given",
    ),
    (
      process_lib.Latent(*fields, 0.0 * sigma, values),
      "latent.sigma must be in",
    ),
    (
      process_lib.Latent(*fields, sigma, None, embedded=values),
      "latent.embedded must be None",
    ),
  ):
    with pytest.raises(ValueError, match=message):
      oracle.evidence(bad, 3)
