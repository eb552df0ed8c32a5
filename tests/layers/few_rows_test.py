import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import few_rows

ROWS = (1, 2, 8, 64, 65)


def pair(rows, out=(6, 2), inputs=(5,), seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(*rows, *inputs)).astype(np.float32)
  return x, rng.normal(size=(*out, *inputs)).astype(np.float32)


@pytest.mark.parametrize("rows", ROWS)
def test_equals_einsum(rows):
  x, weight = pair((rows,))
  got = jax.jit(few_rows.contract)(x, weight)
  expected = np.einsum("ri,abi->rab", np.float64(x), np.float64(weight))
  # Sums of five products, each rounded once.
  np.testing.assert_allclose(
    got, expected, atol=10 * 2**-24 * np.abs(expected).max()
  )


def test_several_axes_are_summed():
  x, weight = pair((2, 3), out=(4,), inputs=(5, 2))
  got = few_rows.contract(x, weight, num_inputs=2)
  expected = np.einsum("stij,aij->sta", np.float64(x), np.float64(weight))
  assert got.shape == (2, 3, 4)
  np.testing.assert_allclose(
    got, expected, atol=20 * 2**-24 * np.abs(expected).max()
  )


@pytest.mark.parametrize("rows", [1, 8, 65])
def test_gradient_is_that_of_einsum(rows):
  x, weight = pair((rows,))
  target = np.random.default_rng(1).normal(size=(rows, 6, 2))

  def loss(product, x, weight):
    return jnp.sum((product(x, weight) - jnp.asarray(target, x.dtype)) ** 2)

  einsum = functools.partial(jnp.einsum, "ri,abi->rab")
  got = jax.grad(functools.partial(loss, few_rows.contract), (0, 1))(x, weight)
  expected = jax.grad(functools.partial(loss, einsum), (0, 1))(x, weight)
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_rows_can_be_mapped():
  x, weight = pair((3, 8))
  got = jax.vmap(few_rows.contract, in_axes=(0, None))(x, weight)
  np.testing.assert_allclose(
    got, few_rows.contract(x, weight), rtol=1e-5, atol=1e-5
  )


def test_few_rows_stay_behind_a_barrier_on_the_cpu():
  x, weight = pair((8,))
  jaxpr = str(jax.make_jaxpr(few_rows.contract)(x, weight))
  assert "optimization_barrier" in jaxpr
  x, weight = pair((65,))
  jaxpr = str(jax.make_jaxpr(few_rows.contract)(x, weight))
  assert "optimization_barrier" not in jaxpr


def test_wider_result_can_be_asked_for():
  x, weight = (a.astype(jnp.bfloat16) for a in map(jnp.asarray, pair((8,))))
  assert few_rows.contract(x, weight).dtype == jnp.bfloat16
  wide = few_rows.contract(x, weight, preferred_element_type=jnp.float32)
  assert wide.dtype == jnp.float32


@pytest.mark.parametrize(
  ("shapes", "num_inputs"),
  [(((3, 5), (4, 6)), 1), (((3, 5), (4, 5)), 2), (((5,), (4, 5)), 0)],
)
def test_disagreeing_axes_are_named(shapes, num_inputs):
  x, weight = (jnp.ones(shape) for shape in shapes)
  with pytest.raises(ValueError, match="must agree in their last"):
    few_rows.contract(x, weight, num_inputs=num_inputs)
