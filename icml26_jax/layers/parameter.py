"""Parameters with logical axis names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax


def parameter(
  module: nn.Module,
  name: str,
  shape: Sequence[int],
  axes: Sequence[str | None],
  init: Callable[..., jax.Array],
) -> jax.Array:
  """Declares a float32 parameter of a module.

  Args:
    module: the module, inside its compact method.
    name: name of the parameter.
    shape: its shape.
    axes: logical name of each dimension, which `training.sharding` maps to
      axes of the mesh; None for one that is never cut.
    init: `(key, shape) -> array`, how it starts.

  Returns:
    Its value.

  Raises:
    ValueError: if there is not one name a dimension.
  """
  if len(axes) != len(shape):
    raise ValueError(
      f"parameter {name} of shape {tuple(shape)} needs {len(shape)} axis names,"
      f" got {tuple(axes)}"
    )
  boxed = nn.with_logical_partitioning(init, tuple(axes))
  value: jax.Array = module.param(name, boxed, tuple(shape))  # type: ignore[assignment]
  return value
