"""A linear map whose parameters carry logical axis names."""

from __future__ import annotations

import flax.linen as nn
import jax

from icml26_jax.layers import parameter


def matmul(
  x: jax.Array, kernel: jax.Array, *, output_first: bool = False
) -> jax.Array:
  """`x @ kernel` over the last axis of `x`, in its dtype.

  The product and its gradients are of matrices, not of stacks of them: on a CPU
  XLA otherwise copies activations transposed for the gradient of the weights.

  Args:
    x: `[..., D]` float.
    kernel: `[D, F]` float, or `[F, D]`.
    output_first: whether the kernel is `[F, D]`.

  Returns:
    `[..., F]` in the dtype of `x`.
  """
  rows = x.reshape(-1, x.shape[-1])
  y = jax.lax.dot_general(
    rows, kernel.astype(x.dtype), (((1,), (int(output_first),)), ((), ()))
  )
  return y.reshape(*x.shape[:-1], y.shape[-1])


class Linear(nn.Module):
  """`x W (+ b)` over the last axis.

  Parameters are float32; the product runs in the dtype of `x`.

  Attributes:
    features: size of the output.
    axes: logical names of the input and of the output axis.
    output_first: whether the kernel is stored `[features, D]`. On a CPU the
      gradient of the weights is then twice as fast if D is the larger.
    use_bias: whether to add a bias, 0 at the start.
    zero_init: whether the weights start at 0, rather than normal with variance
      1 / D.
  """

  features: int
  axes: tuple[str | None, str | None]
  output_first: bool = False
  use_bias: bool = False
  zero_init: bool = False

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[..., D]` to `[..., features]`."""
    axes, shape, in_axis = self.axes, (x.shape[-1], self.features), 0
    if self.output_first:
      axes, shape, in_axis = axes[::-1], shape[::-1], 1
    init = (
      nn.initializers.zeros
      if self.zero_init
      else nn.initializers.lecun_normal(in_axis=in_axis, out_axis=1 - in_axis)
    )
    kernel = parameter.parameter(self, "kernel", shape, axes, init)
    y = matmul(x, kernel, output_first=self.output_first)
    if self.use_bias:
      bias = parameter.parameter(
        self, "bias", (self.features,), self.axes[1:], nn.initializers.zeros
      )
      y = y + bias.astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))
    return y
