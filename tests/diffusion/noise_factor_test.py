"""Noise seen through a table: its covariance, and its gradient's mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import noise_factor as module

noise_factor = module.noise_factor


def table_of(vocab_size, size, seed=0):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=(vocab_size, size)), jnp.float32)


@pytest.mark.parametrize("shape", [(8, 1), (40, 7), (300, 32)])
def test_square_of_the_factor_is_the_covariance(shape):
  table = table_of(*shape)
  factor = np.asarray(noise_factor(table), np.float64)
  exact = np.asarray(table, np.float64)
  gram = exact.T @ exact
  np.testing.assert_allclose(
    factor.T @ factor, gram, atol=1.5e-6 * np.trace(gram)
  )
  np.testing.assert_array_equal(factor, np.triu(factor))


def test_gradient_equals_the_conditional_mean_in_float64():
  table = table_of(60, 5)
  cotangent = table_of(5, 5, seed=1)
  _, vjp = jax.vjp(noise_factor, table)
  exact = np.asarray(table, np.float64)
  factor = np.linalg.cholesky(exact.T @ exact).T
  expected = exact @ np.linalg.inv(factor) @ np.asarray(cotangent, np.float64)
  np.testing.assert_allclose(vjp(cotangent)[0], expected, rtol=1e-4, atol=1e-5)


def test_gradient_is_that_of_noise_over_the_vocabulary_on_average():
  vocab_size, size, count = 24, 3, 200_000
  table = table_of(vocab_size, size)
  weight = table_of(size, 1, seed=2)

  def f(y):  # not symmetric, so that no term vanishes on average
    return jnp.sum(jnp.exp(0.05 * (y @ weight)))

  def through_factor(table, key):
    n = jax.random.normal(key, (count, size))
    return f(n @ noise_factor(table)) / count

  def over_vocabulary(table, key):
    eps = jax.random.normal(key, (count, vocab_size))
    return f(eps @ table) / count

  keys = jax.random.split(jax.random.key(0), 2)
  got = jax.jit(jax.grad(through_factor))(table, keys[0])
  plain = jax.jit(jax.grad(over_vocabulary))(table, keys[1])
  # E exp(a y w) = exp(a^2 |E w|^2 / 2), whose gradient is known.
  exact = np.asarray(table, np.float64)
  image = exact @ np.asarray(weight, np.float64)
  a = 0.05
  expected = (
    a**2 * image @ np.asarray(weight).T * np.exp(a**2 * np.sum(image**2) / 2)
  )
  scale = np.abs(expected).max()
  # Monte-Carlo error of 200,000 draws, four standard errors of the plain one.
  assert np.abs(np.asarray(got) - expected).max() < 0.05 * scale
  assert np.abs(np.asarray(got) - expected).max() <= (
    np.abs(np.asarray(plain) - expected).max()
  )


def test_quadratic_has_the_exact_gradient():
  # Of |y|^2 / 2 on average, E itself: n^T n is the identity on average.
  table = table_of(50, 6)

  def half_square(table):
    factor = noise_factor(table)
    return 0.5 * jnp.sum(jnp.square(jnp.eye(6) @ factor))

  np.testing.assert_allclose(
    jax.grad(half_square)(table), table, rtol=1e-4, atol=1e-5
  )


def nearly_alike(vocab_size, size, spread):
  """Rows of length 1 that differ little."""
  rng = np.random.default_rng(0)
  rows = rng.normal(size=size) / np.sqrt(size)
  rows = rows + spread * rng.normal(size=(vocab_size, size))
  return jnp.asarray(rows / np.linalg.norm(rows, axis=1)[:, None], jnp.float32)


@pytest.mark.parametrize(
  "table",
  [
    table_of(40, 4).at[:, 2].set(0.0),
    jnp.zeros((300, 8)),
    table_of(1000, 1) * table_of(1, 64),
    nearly_alike(300, 64, 1e-3),
    nearly_alike(300, 64, 0.0),
    nearly_alike(600, 128, 2e-3),
  ],
)
def test_table_of_any_rank_has_a_factor(table):
  value, vjp = jax.vjp(noise_factor, table)
  assert np.isfinite(value).all()
  size = table.shape[1]
  assert np.isfinite(vjp(jnp.ones((size, size)))[0]).all()


def test_mesh_changes_nothing():
  # Rows that no number of devices divides.
  table = table_of(101, 8)
  mesh = jax.make_mesh(
    (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )

  def total(table):
    return jnp.sum(jnp.sin(noise_factor(table)))

  alone = jax.jit(jax.value_and_grad(total))(table)
  with jax.set_mesh(mesh):
    together = jax.jit(jax.value_and_grad(total))(table)
  for a, b in zip(together, alone, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
