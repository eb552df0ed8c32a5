"""Where parameters and batches live: one table of logical axis rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import math
from typing import Any

import flax.linen as nn
import jax
import numpy as np

MeshAxes = str | tuple[str, ...] | None
Rules = tuple[tuple[str, MeshAxes], ...]

# An axis with two rules takes the first whose mesh axes divide its size: a
# vocabulary of 50,257 cannot be cut, and stays whole on every device.
DEFAULT_RULES: Rules = (
  ("batch", ("data", "fsdp")),
  ("layers", None),
  ("vocab", "model"),
  ("vocab", None),
  ("embed", "fsdp"),
  ("heads", "model"),
  ("head_dim", None),
  ("mlp", "model"),
  ("conditioning", None),
)


def partition_spec(
  axes: Sequence[str | None],
  rules: Rules,
  mesh: jax.sharding.Mesh,
  *,
  shape: Sequence[int] | None = None,
  name: str = "array",
) -> jax.P:
  """How one array is cut over the mesh.

  Each dimension takes the first rule of its logical axis whose mesh axes are
  not yet used by an earlier dimension and divide its size.

  Args:
    axes: logical axis of each dimension; None for one that is never cut.
    rules: pairs of a logical axis and the mesh axis or axes it is cut along,
      or None for whole.
    mesh: the mesh.
    shape: size of each dimension; None leaves divisibility unchecked.
    name: how the array is called, for messages.

  Returns:
    The partition specification.

  Raises:
    ValueError: if an axis has no rule, a rule names an unknown mesh axis, or
      none of an axis's rules fits.
  """
  check_rules(rules, mesh)
  if shape is not None and len(shape) != len(axes):
    raise ValueError(
      f"{name} has shape {tuple(shape)} but logical axes {tuple(axes)}"
    )
  used: set[str] = set()
  parts: list[MeshAxes] = []
  for i, axis in enumerate(axes):
    if axis is None:
      parts.append(None)
      continue
    choices = [target for logical, target in rules if logical == axis]
    if not choices:
      known = ", ".join(dict.fromkeys(logical for logical, _ in rules))
      raise ValueError(
        f"{name}: logical axis {axis!r} has no rule; rules exist for {known}"
      )
    problems = []
    for target in choices:
      problem = _misfit(target, used, mesh, None if shape is None else shape[i])
      if problem is None:
        break
      problems.append(problem)
    else:
      raise ValueError(
        f"{name}: dimension {i} ({axis}"
        f"{'' if shape is None else f', size {shape[i]}'}) {problems[-1]};"
        " change the mesh, or the rules"
      )
    used.update(_names(target))
    parts.append(target)
  return jax.P(*parts)


def param_shardings(
  mesh: jax.sharding.Mesh, axes_tree: Any, rules: Rules, shapes: Any = None
) -> Any:
  """Shardings of a tree of parameters.

  Args:
    mesh: the mesh.
    axes_tree: tree of tuples of logical axis names.
    rules: see `partition_spec`.
    shapes: the same tree of arrays or `jax.ShapeDtypeStruct`; None leaves
      divisibility unchecked.

  Returns:
    The tree of `NamedSharding`.

  Raises:
    ValueError: naming the parameter and the dimension that does not fit, or
      if the trees differ.
  """
  is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
  if shapes is not None:
    wanted: Any = jax.tree.structure(axes_tree, is_leaf=is_axes)
    found: Any = jax.tree.structure(shapes)
    if found != wanted:
      raise ValueError(
        f"parameters {found} and logical axes {wanted} must be one tree"
      )

  def one(path, axes, leaf=None):
    spec = partition_spec(
      axes,
      rules,
      mesh,
      shape=None if leaf is None else leaf.shape,
      name=f"parameter {jax.tree_util.keystr(path, simple=True, separator='.')}",
    )
    return jax.NamedSharding(mesh, spec)

  trees = (axes_tree,) if shapes is None else (axes_tree, shapes)
  return jax.tree.map_with_path(one, *trees, is_leaf=is_axes)


@contextlib.contextmanager
def scope(mesh: jax.sharding.Mesh, rules: Rules) -> Iterator[None]:
  """Lets models see the mesh and what logical axes are cut along.

  Under it, while a program is traced, a model's own constraints hold, and
  kernels, which no compiler can cut, are cut along the rules' axes.

  Args:
    mesh: the mesh.
    rules: logical axis rules.
  """
  check_rules(rules, mesh)
  with (
    jax.sharding.use_abstract_mesh(mesh.abstract_mesh),
    nn.logical_axis_rules(rules),
  ):
    yield


def replicated(mesh: jax.sharding.Mesh) -> jax.NamedSharding:
  """A whole copy on every device."""
  return jax.NamedSharding(mesh, jax.P())


def batch_sharding(
  mesh: jax.sharding.Mesh, rules: Rules, *, leading: int = 0
) -> jax.NamedSharding:
  """Rows of a batch over the devices, for arrays of any rank.

  Args:
    mesh: the mesh.
    rules: the rule of "batch" is used.
    leading: number of dimensions before the rows, which are not cut.
  """
  spec = partition_spec(("batch",), rules, mesh)
  return jax.NamedSharding(mesh, jax.P(*(None,) * leading, *spec))


def check_batch(
  mesh: jax.sharding.Mesh, rules: Rules, batch_size: int, accumulation: int = 1
) -> None:
  """Raises ValueError unless every device gets whole, equal micro-batches.

  Args:
    mesh: the mesh.
    rules: the rule of "batch" is used.
    batch_size: rows of the global batch.
    accumulation: micro-batches a step.
  """
  if accumulation < 1:
    raise ValueError(f"accumulation must be at least 1, got {accumulation}")
  names = _names(partition_spec(("batch",), rules, mesh)[0])
  shards = math.prod(mesh.shape[axis] for axis in names)
  if batch_size < 1 or batch_size % (shards * accumulation):
    along = " x ".join(f"{axis}={mesh.shape[axis]}" for axis in names)
    raise ValueError(
      f"batch_size {batch_size} must be a multiple of {shards * accumulation}:"
      f" {shards} shards along {along or 'no axis'}, times accumulation"
      f" {accumulation}"
    )


def process_rows(
  sharding: jax.NamedSharding, batch_size: int
) -> tuple[int, int]:
  """Which part of the global batch this process must supply.

  Processes that share rows, because the model is cut across them, supply the
  same part.

  Args:
    sharding: sharding of the rows.
    batch_size: rows of the global batch, divisible as `check_batch` says.

  Returns:
    `(index, count)`: the batch is cut into `count` equal parts of consecutive
    rows, and this process supplies the one numbered `index`.

  Raises:
    ValueError: if the rows of this process are not one such part.
  """
  rows = np.zeros(batch_size, bool)
  for index in sharding.addressable_devices_indices_map((batch_size,)).values():
    rows[index] = True
  where = np.flatnonzero(rows)
  start, size = int(where[0]), len(where)
  if where[-1] - start + 1 != size or batch_size % size or start % size:
    raise ValueError(
      f"rows of process {jax.process_index()} are not one equal part of the"
      f" batch of {batch_size}; put the processes along the mesh's first axis"
    )
  return start // size, batch_size // size


def check_rules(rules: Rules, mesh: jax.sharding.Mesh) -> None:
  """Raises ValueError if a rule names an axis that the mesh does not have."""
  for logical, target in rules:
    for axis in _names(target):
      if axis not in mesh.shape:
        raise ValueError(
          f"rule ({logical!r}, {target!r}) names mesh axis {axis!r}; the mesh"
          f" has {', '.join(mesh.shape)}"
        )


def _names(target: MeshAxes) -> tuple[str, ...]:
  if target is None:
    return ()
  return (target,) if isinstance(target, str) else tuple(target)


def _misfit(
  target: MeshAxes, used: set[str], mesh: jax.sharding.Mesh, size: int | None
) -> str | None:
  """Why a rule cannot be used, or None if it can."""
  names = _names(target)
  for axis in names:
    if axis in used:
      return f"cannot be cut along mesh axis {axis} twice"
  count = math.prod(mesh.shape[axis] for axis in names)
  if size is not None and size % count:
    return f"is not divisible by {count} ({' x '.join(names)} of the mesh)"
  return None
