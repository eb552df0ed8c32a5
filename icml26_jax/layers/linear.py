"""A linear map whose parameters carry logical axis names."""

from __future__ import annotations

import flax.linen as nn
from flax.typing import Initializer
import jax
import jax.numpy as jnp

INITIALIZER = nn.initializers.lecun_normal()


class Linear(nn.Module):
  """`x W (+ b)` over the last axis.

  Parameters are float32; the product runs in the dtype of `x`.

  Attributes:
    features: size of the output.
    axes: logical names of the input and of the output axis.
    use_bias: whether to add a bias, 0 at the start.
    kernel_init: how the weights start.
  """

  features: int
  axes: tuple[str | None, str | None]
  use_bias: bool = False
  kernel_init: Initializer = INITIALIZER

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[..., D]` to `[..., features]`."""
    kernel = self.param(
      "kernel",
      nn.with_logical_partitioning(self.kernel_init, self.axes),
      (x.shape[-1], self.features),
    )
    y = jnp.dot(x, kernel.astype(x.dtype))
    if self.use_bias:
      bias = self.param(
        "bias",
        nn.with_logical_partitioning(nn.initializers.zeros, self.axes[1:]),
        (self.features,),
      )
      y = y + bias.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    return y
