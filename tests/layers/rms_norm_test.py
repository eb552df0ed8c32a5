"""Root-mean-square normalisation."""

import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest

from icml26_jax.layers import rms_norm


@pytest.mark.parametrize("shape", [(1,), (5,), (2, 3, 8)])
def test_equals_numpy(shape):
  x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  wide = x.astype(np.float64)
  expected = wide / np.sqrt(np.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
  got = rms_norm.rms_normalise(jnp.asarray(x))
  np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_result_has_unit_mean_square():
  x = 1e3 * jax.random.normal(jax.random.key(0), (4, 32))
  y = rms_norm.rms_normalise(x)
  np.testing.assert_allclose(jnp.mean(y**2, axis=-1), np.ones(4), rtol=1e-6)


def test_zero_stays_zero_with_finite_gradient():
  x = jnp.zeros((2, 4))
  np.testing.assert_array_equal(rms_norm.rms_normalise(x), x)
  grad = jax.grad(lambda x: jnp.sum(rms_norm.rms_normalise(x)))(x)
  assert np.isfinite(grad).all()


def test_bfloat16_is_normalised_in_float32():
  x = jax.random.normal(jax.random.key(0), (4, 512)).astype(jnp.bfloat16)
  got = rms_norm.rms_normalise(x)
  assert got.dtype == jnp.bfloat16
  expected = rms_norm.rms_normalise(x.astype(jnp.float32))
  # One rounding to bfloat16, at the end.
  np.testing.assert_array_equal(got, expected.astype(jnp.bfloat16))


def test_gradients():
  x = jax.random.normal(jax.random.key(0), (3, 5))
  check_grads(rms_norm.rms_normalise, (x,), order=2, modes=("fwd", "rev"))


def test_module_multiplies_by_its_scale():
  module = rms_norm.RMSNorm("head_dim")
  x = jax.random.normal(jax.random.key(0), (2, 3, 4))
  boxed = module.init(jax.random.key(1), x)
  scale = boxed["params"]["scale"]
  assert scale.names == ("head_dim",)
  np.testing.assert_array_equal(scale.unbox(), np.ones(4))
  new = jnp.arange(4.0)
  np.testing.assert_allclose(
    module.apply({"params": {"scale": new}}, x),
    rms_norm.rms_normalise(x) * new[None, None],
    rtol=1e-6,
  )
