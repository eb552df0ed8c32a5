"""Spaces of noisy vectors and the two reverse updates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import gaussian
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 3, 4, 5


def vectors(seed=0):
  rng = np.random.default_rng(seed)
  y, x0, g = rng.normal(size=(3, BATCH, LENGTH, VOCAB))
  sigma = rng.uniform(0.5, 2.0, BATCH)
  next_sigma = sigma * rng.uniform(0.5, 1.0, BATCH)
  return tuple(np.float32(x) for x in (y, x0, g, sigma, next_sigma))


def in_float64(update, y, x0, g, sigma, next_sigma):
  y, x0, g, sigma, next_sigma = (
    np.float64(x) for x in (y, x0, g, sigma, next_sigma)
  )
  out = np.zeros_like(y)
  for b in range(len(y)):
    difference = sigma[b] - next_sigma[b]
    if update == "pf_ode":
      # Euler for dy / dsigma = -sigma * score.
      score = (x0[b] - y[b]) / sigma[b] ** 2 + g[b]
      out[b] = y[b] + difference * sigma[b] * score
    else:
      score = (x0[b] - y[b]) / next_sigma[b] ** 2 + g[b]
      out[b] = y[b] + difference * score
  return out


@pytest.mark.parametrize("name", ["pf_ode", "release"])
@pytest.mark.parametrize("guided", [False, True])
def test_update_equals_its_score_form_in_float64(name, guided):
  y, x0, g, sigma, next_sigma = vectors()
  g = g if guided else np.zeros_like(g)
  update = gaussian.UPDATES[name]
  got = update(y, x0, sigma, next_sigma, g if guided else None)
  expected = in_float64(name, y, x0, g, sigma, next_sigma)
  # A few roundings of numbers of size at most 20.
  np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


def test_release_step_size_scales_the_step():
  y, x0, g, sigma, next_sigma = vectors()
  whole = gaussian.release_update(y, x0, sigma, next_sigma, g)
  half = gaussian.release_update(y, x0, sigma, next_sigma, g, step_size=0.5)
  np.testing.assert_allclose(half - y, 0.5 * (whole - y), rtol=0, atol=2e-5)
  still = gaussian.release_update(y, x0, sigma, next_sigma, g, step_size=0.0)
  np.testing.assert_allclose(still, y, rtol=0, atol=1e-6)


def test_pf_ode_composes_exactly_while_x0_is_constant():
  y, x0, _, sigma, middle = vectors()
  last = middle * np.float32(0.3)
  at_once = gaussian.pf_ode_update(y, x0, sigma, last)
  in_two = gaussian.pf_ode_update(
    gaussian.pf_ode_update(y, x0, sigma, middle), x0, middle, last
  )
  np.testing.assert_allclose(at_once, in_two, rtol=0, atol=2e-6)


def test_pf_ode_keeps_the_noise_and_ends_at_x0():
  # Along the exact flow (y - x0) / sigma stays what it is.
  _, x0, eps, sigma, next_sigma = vectors()
  y = x0 + sigma[:, None, None] * eps
  got = gaussian.pf_ode_update(y, x0, sigma, next_sigma)
  np.testing.assert_allclose(
    got, x0 + next_sigma[:, None, None] * eps, rtol=0, atol=2e-6
  )
  np.testing.assert_array_equal(
    gaussian.pf_ode_update(y, x0, sigma, np.zeros_like(sigma)), x0
  )


@pytest.mark.parametrize("name", ["pf_ode", "release"])
def test_update_between_equal_noise_levels_stays(name):
  y, x0, g, sigma, _ = vectors()
  got = gaussian.UPDATES[name](y, x0, sigma, sigma, g)
  np.testing.assert_allclose(got, y, rtol=0, atol=1e-6)


def table_of(vocab_size, size, seed=0):
  table = np.random.default_rng(seed).normal(size=(vocab_size, size))
  table /= np.linalg.norm(table, axis=1, keepdims=True)
  # Correlated columns, so that the covariance is not close to diagonal.
  table[:, 1:] += 0.5 * table[:, :-1]
  return jnp.asarray(table, jnp.float32)


# Drawn explicitly, and through the Cholesky factor.
shapes = pytest.mark.parametrize(
  ("vocab_size", "size"), [(3, 4), (12, 4), (40, 4)]
)


@shapes
def test_embedded_noise_has_the_law_of_noise_over_the_vocabulary(
  vocab_size, size
):
  table = table_of(vocab_size, size)
  space = gaussian.embedding_space(table)
  keys = process_lib.row_keys(jax.random.key(1), 64)
  noise = np.asarray(space.noise(keys, 2000), np.float64).reshape(-1, size)
  n = len(noise)
  exact = np.float64(table).T @ np.float64(table)
  mean_error = np.sqrt(np.diag(exact) / n)
  assert np.all(np.abs(noise.mean(0)) < 4.5 * mean_error)
  covariance = noise.T @ noise / n
  error = np.sqrt((np.outer(np.diag(exact), np.diag(exact)) + exact**2) / n)
  assert np.all(np.abs(covariance - exact) < 4.5 * error)
  # The explicit noise passes the same test with the same figures.
  keys = process_lib.row_keys(jax.random.key(2), 64)
  explicit = gaussian.one_hot_space(vocab_size).noise(keys, 2000)
  explicit = np.asarray(jnp.matmul(explicit, table), np.float64)
  explicit = explicit.reshape(-1, size)
  assert np.all(np.abs(explicit.T @ explicit / n - exact) < 4.5 * error)
  # Gaussian: the fourth moment is three times the squared variance.
  kurtosis = np.mean(noise**4, 0) / np.diag(exact) ** 2
  assert np.all(np.abs(kurtosis - 3) < 4.5 * np.sqrt(96 / n))


@shapes
def test_rows_and_positions_have_independent_noise(vocab_size, size):
  space = gaussian.embedding_space(table_of(vocab_size, size))
  keys = process_lib.row_keys(jax.random.key(1), 400)
  noise = np.asarray(space.noise(keys, 6), np.float64)
  # Few numbers in use: each row from its own key, whatever the batch.
  again = space.noise(process_lib.row_keys(jax.random.key(1), 3), 6)
  np.testing.assert_allclose(again, noise[:3], rtol=0, atol=1e-5)
  correlation = np.corrcoef(noise[..., 0].T)
  off_diagonal = correlation[~np.eye(6, dtype=bool)]
  assert np.abs(off_diagonal).max() < 4.5 / np.sqrt(400)


@shapes
def test_ascend_is_the_step_over_one_hots_seen_through_the_table(
  vocab_size, size
):
  table = table_of(vocab_size, size)
  rng = np.random.default_rng(0)
  y = jnp.asarray(rng.normal(size=(BATCH, LENGTH, vocab_size)), jnp.float32)
  space = gaussian.embedding_space(table)

  def of_embedded(h):
    return jnp.sum(jnp.sin(h) * jnp.cos(jnp.roll(h, 1, axis=1)))

  over_one_hots = jax.grad(lambda y: of_embedded(space.from_one_hots(y)))(y)
  expected = space.from_one_hots(over_one_hots)
  got = space.ascend(jax.grad(of_embedded)(space.from_one_hots(y)))
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@shapes
def test_clean_vectors_are_rows_of_the_table(vocab_size, size):
  table = table_of(vocab_size, size)
  tokens = jnp.arange(6).reshape(2, 3) % vocab_size
  space = gaussian.embedding_space(table)
  assert space.field == "embedded"
  np.testing.assert_array_equal(space.clean(tokens), table[np.asarray(tokens)])
  one_hots = gaussian.one_hot_space(vocab_size)
  assert one_hots.field == "values"
  np.testing.assert_array_equal(
    one_hots.clean(tokens), np.eye(vocab_size)[np.asarray(tokens)]
  )


def test_table_with_a_column_of_zeros_has_finite_noise_and_gradients():
  table = table_of(40, 4).at[:, 2].set(0.0)

  def total(table):
    keys = process_lib.row_keys(jax.random.key(0), 2)
    return jnp.sum(gaussian.embedding_space(table).noise(keys, 3) ** 2)

  value, gradient = jax.value_and_grad(total)(table)
  assert np.isfinite(value)
  assert np.all(np.isfinite(gradient))


def test_table_that_is_no_float_matrix_is_an_error():
  with pytest.raises(ValueError, match=r"must be \[V, D\], got shape \(3,\)"):
    gaussian.embedding_space(jnp.ones(3))
  with pytest.raises(TypeError, match="embedding must be float, got int32"):
    gaussian.embedding_space(jnp.ones((3, 2), jnp.int32))
