"""From the tensors of a file to the parameter tree of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.models import llama, llama_config

DTYPES = ("float32", "bfloat16")


def assemble(
  config: llama.Config,
  names: Mapping[tuple[str, ...], str],
  read: Callable[[str], np.ndarray],
  present: Collection[str],
  *,
  ignored: Collection[str] = (),
  dtype: str = "float32",
) -> llama.Params:
  """Builds the tree of `llama.init` out of named tensors.

  Args:
    config: shape of the model.
    names: tensor name of every parameter by its path in the tree; `{layer}`
      in a name stands for the number of the layer.
    read: a tensor by name, of any float type, in the order `[out, in]`.
    present: names of all tensors of the file.
    ignored: names that need not be used.
    dtype: type of the parameters, one of `DTYPES`.

  Returns:
    The parameters.

  Raises:
    ValueError: if a tensor is missing, left over or of the wrong shape, or
      the dtype is unknown.
  """
  check_dtype(dtype)
  shapes = jax.eval_shape(
    functools.partial(llama.init, config=config), jax.random.key(0)
  )
  unused = set(present) - set(ignored)

  def take(name, shape, stored):
    if name not in present:
      raise ValueError(f"tensor {name} is missing")
    unused.discard(name)
    value = read(name)
    if value.shape != stored:
      raise ValueError(
        f"tensor {name} has shape {value.shape}, expected {stored}"
      )
    return value.reshape(shape).astype(dtype)

  def build(path, leaf):
    key = tuple(entry.key for entry in path)
    name = names[key]
    if key[0] != "layers":
      return jnp.asarray(take(name, leaf.shape, leaf.shape))
    shape = leaf.shape[1:]
    stored = _stored(key[-1], shape)
    layers = (
      take(name.format(layer=i), shape, stored)
      for i in range(config.num_layers)
    )
    return jnp.asarray(np.stack(list(layers)))

  params = jax.tree.map_with_path(build, shapes)
  if unused:
    raise ValueError(
      f"{len(unused)} tensors have no place in the model, the first is"
      f" {min(unused)}"
    )
  return params


def check_dtype(dtype: str) -> None:
  """Raises ValueError unless `dtype` is one of `DTYPES`."""
  if dtype not in DTYPES:
    raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def _stored(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
  """Shape in a file, where heads and their components are one axis."""
  if "norm" in name or name.endswith("_bias"):
    return (math.prod(shape),)
  cut = len(shape) - llama_config.num_inputs(name)
  return math.prod(shape[:cut]), math.prod(shape[cut:])
