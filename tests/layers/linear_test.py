"""Linear maps with named axes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import linear


@pytest.mark.parametrize("output_first", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_matmul_equals_numpy(shape, output_first):
  rng = np.random.default_rng(0)
  x = rng.normal(size=shape).astype(np.float32)
  kernel = rng.normal(size=(4, 6)).astype(np.float32)
  stored = kernel.T if output_first else kernel
  got = linear.matmul(
    jnp.asarray(x), jnp.asarray(stored), output_first=output_first
  )
  expected = x.astype(np.float64) @ kernel.astype(np.float64)
  np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("output_first", [False, True])
def test_gradients_are_those_of_the_product(output_first):
  x, g = (
    jax.random.normal(key, (2, 3, width))
    for key, width in zip(
      jax.random.split(jax.random.key(0)), (4, 6), strict=True
    )
  )
  kernel = jax.random.normal(jax.random.key(1), (4, 6))
  stored = kernel.T if output_first else kernel
  _, pullback = jax.vjp(
    lambda x, w: linear.matmul(x, w, output_first=output_first), x, stored
  )
  dx, dw = pullback(g)
  np.testing.assert_allclose(dx, np.matmul(g, kernel.T), atol=1e-5)
  expected = np.einsum("btd,btf->df", x, g)
  np.testing.assert_allclose(dw.T if output_first else dw, expected, atol=1e-5)


def test_parameters_are_float32_with_named_axes():
  module = linear.Linear(6, ("embed", "mlp"), output_first=True, use_bias=True)
  boxed = module.init(jax.random.key(0), jnp.zeros((2, 4), jnp.bfloat16))
  kernel, bias = boxed["params"]["kernel"], boxed["params"]["bias"]
  assert (kernel.names, kernel.unbox().shape) == (("mlp", "embed"), (6, 4))
  assert (bias.names, bias.unbox().shape) == (("mlp",), (6,))
  assert kernel.unbox().dtype == bias.unbox().dtype == jnp.float32
  y = module.apply(nn.meta.unbox(boxed), jnp.zeros((2, 4), jnp.bfloat16))
  assert y.dtype == jnp.bfloat16


def test_bias_is_added():
  module = linear.Linear(2, (None, None), use_bias=True)
  params = {"kernel": jnp.eye(2), "bias": jnp.array([1.0, -1.0])}
  x = jnp.ones((3, 1, 2))
  got = module.apply({"params": params}, x)
  np.testing.assert_array_equal(got, np.tile([[[2.0, 0.0]]], (3, 1, 1)))


@pytest.mark.parametrize("output_first", [False, True])
def test_start_keeps_the_variance(output_first):
  x = jax.random.normal(jax.random.key(0), (64, 256))
  module = linear.Linear(512, (None, None), output_first=output_first)
  y, _ = module.init_with_output(jax.random.key(1), x)
  # 131,072 weights: the variance is known to about 1 %.
  assert abs(float(jnp.var(y)) - 1.0) < 0.05


def test_zero_start():
  module = linear.Linear(3, (None, None), zero_init=True)
  params = nn.meta.unbox(module.init(jax.random.key(0), jnp.ones((1, 2))))
  np.testing.assert_array_equal(params["params"]["kernel"], np.zeros((2, 3)))
