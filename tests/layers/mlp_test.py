"""The position-wise network."""

import math

import flax.linen as nn
import jax
import numpy as np

from icml26_jax.layers import mlp


def test_equals_numpy():
  module = mlp.Mlp(12)
  x = jax.random.normal(jax.random.key(0), (2, 3, 4))
  params = nn.meta.unbox(module.init(jax.random.key(1), x))["params"]
  up = np.asarray(params["up"]["kernel"], np.float64)
  down = np.asarray(params["down"]["kernel"], np.float64)
  hidden = np.asarray(x, np.float64) @ up
  inner = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
  expected = (0.5 * hidden * (1 + np.tanh(inner))) @ down.T
  got = module.apply({"params": params}, x)
  np.testing.assert_allclose(got, expected, atol=2e-6)


def test_positions_do_not_mix():
  module = mlp.Mlp(8)
  x = jax.random.normal(jax.random.key(0), (2, 5, 4))
  params = module.init(jax.random.key(1), x)
  order = np.array([3, 1, 4, 0, 2])
  np.testing.assert_allclose(
    module.apply(params, x[:, order]),
    module.apply(params, x)[:, order],
    atol=1e-6,
  )
