"""Parameters with logical axis names."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import parameter


class _Module(nn.Module):
  axes: tuple

  @nn.compact
  def __call__(self):
    return parameter.parameter(
      self, "table", (2, 3), self.axes, nn.initializers.ones
    )


def test_value_shape_and_names():
  module = _Module(("vocab", None))
  value, variables = module.init_with_output(jax.random.key(0))
  np.testing.assert_array_equal(value, np.ones((2, 3)))
  assert value.dtype == jnp.float32
  assert variables["params"]["table"].names == ("vocab", None)


def test_one_name_a_dimension():
  with pytest.raises(ValueError, match=r"table .* needs 2 axis names"):
    _Module(("vocab",)).init(jax.random.key(0))
