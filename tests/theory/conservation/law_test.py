import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import conservation
from icml26_jax.theory.conservation import law


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 0)])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_stable_norm_equals_numpy_in_float64(shape, scale):
  x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  x = x * np.float32(scale)
  expected = np.linalg.norm(np.float64(x), axis=-1)
  got = jax.jit(lambda x: law.stable_norm(x, axis=-1))(x)
  np.testing.assert_allclose(got, expected, rtol=8 * 2**-23, atol=0)


def test_stable_norm_of_zeros_and_nan():
  got = law.stable_norm(jnp.asarray([[0.0, 0], [1, jnp.nan]]), axis=1)
  np.testing.assert_array_equal(got, [0, np.nan])


def test_balances_of_one_column_by_hand():
  """3, 4 against 1, 2, 2: squares 25 and 9."""
  a, c = jnp.asarray([[3.0], [4]]), jnp.asarray([[1.0], [2], [2]])
  factors = [(1.0, a), (-2.0, c)]
  np.testing.assert_array_equal(law.norm_balance(factors), [25 - 18])
  np.testing.assert_array_equal(law.gram_balance(factors), [[25 - 18]])
  for made in (conservation.norm_law, conservation.gram_law):
    one = made(lambda p: [(1.0, p["a"]), (-2.0, p["c"])])
    params = {"a": a, "c": c}
    # The gradient is (2 a, -4 c); both are the support.
    slope, support = math.sqrt(4 * 25 + 16 * 9), math.sqrt(25 + 9)
    got = one.gradient_norm(params), one.support_norm(params)
    for value, expected in zip(got, (slope, support), strict=True):
      np.testing.assert_allclose(value.item(), expected, rtol=1e-6)


def test_combined_laws_have_a_dictionary_of_values():
  whole = conservation.combine(
    {
      "sum": conservation.sum_law(lambda p: p),
      "entry": conservation.entry_law(lambda p: p),
    }
  )
  x = jnp.asarray([[1.0, 2], [3, -4]])
  np.testing.assert_array_equal(whole(x)["sum"], [3, -1])
  np.testing.assert_array_equal(whole(x)["entry"], x)
  slopes = whole.gradient_norm(x)
  np.testing.assert_allclose(slopes["sum"], [2**0.5] * 2, rtol=1e-6)
  np.testing.assert_array_equal(slopes["entry"], np.ones((2, 2)))
  supports = whole.support_norm(x)
  np.testing.assert_allclose(supports["sum"], [5**0.5, 5], rtol=1e-6)
  np.testing.assert_array_equal(supports["entry"], jnp.abs(x))


@pytest.mark.parametrize("balance", [law.norm_balance, law.gram_balance])
def test_nothing_is_broadcast(balance):
  one = jnp.ones((3, 4))
  for other in (jnp.ones((3, 1)), jnp.ones((2, 3, 4)), jnp.ones(4)):
    with pytest.raises(ValueError, match=r"factor 0 has shape \(3, 4\)"):
      balance([(1.0, one), (-1.0, other)])
  with pytest.raises(ValueError, match="factors must hold"):
    balance([])
