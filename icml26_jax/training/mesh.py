"""Device meshes of training and sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import math

import jax

# Rows of the batch are cut along "data" and "fsdp", parameters along "fsdp"
# and "model". Devices next to each other in "model" talk most.
AXES = ("data", "fsdp", "model")


def make_mesh(
  shape: Mapping[str, int], *, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
  """A mesh with axes "data", "fsdp" and "model".

  Args:
    shape: devices along each axis. An axis left out has one; one axis may be
      -1, which means all devices that the others leave.
    devices: devices to use, such as those of a TPU slice to compile for; None
      for all devices of all processes. A single process uses the first of
      them if the mesh is smaller.

  Returns:
    The mesh, with automatic sharding propagation along every axis.

  Raises:
    ValueError: if an axis is unknown or its size is not allowed, if the mesh
      is larger than the devices, or if several processes leave devices out.
  """
  given = jax.devices() if devices is None else list(devices)
  sizes = _sizes(shape, len(given))
  wanted = math.prod(sizes)
  text = " x ".join(f"{a}={n}" for a, n in zip(AXES, sizes, strict=True))
  if wanted > len(given):
    raise ValueError(
      f"mesh {text} needs {wanted} devices, found {len(given)}"
      f" ({given[0].platform})"
    )
  processes = len({device.process_index for device in given})
  if processes > 1 and wanted < len(given):
    raise ValueError(
      f"mesh {text} uses {wanted} of {len(given)} devices; with {processes}"
      " processes it must use all of them"
    )
  return jax.make_mesh(
    sizes,
    AXES,
    axis_types=(jax.sharding.AxisType.Auto,) * len(AXES),
    devices=given[:wanted],
  )


def _sizes(shape: Mapping[str, int], num_devices: int) -> tuple[int, ...]:
  """Devices along each of `AXES`, with -1 filled in."""
  unknown = sorted(set(shape) - set(AXES))
  if unknown:
    raise ValueError(
      f"mesh axis {unknown[0]!r} is unknown; valid: {', '.join(AXES)}"
    )
  sizes = {axis: shape.get(axis, 1) for axis in AXES}
  for axis, size in sizes.items():
    if isinstance(size, bool) or not isinstance(size, int):
      raise ValueError(f"mesh axis {axis} must be an integer, got {size!r}")
    if size < 1 and size != -1:
      raise ValueError(
        f"mesh axis {axis} must be at least 1, or -1 for all devices left,"
        f" got {size}"
      )
  open_axes = [axis for axis, size in sizes.items() if size == -1]
  if len(open_axes) > 1:
    raise ValueError(
      f"only one mesh axis may be -1, got {' and '.join(open_axes)}"
    )
  if open_axes:
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if num_devices % fixed:
      raise ValueError(
        f"mesh axis {open_axes[0]}=-1: {num_devices} devices cannot be divided"
        f" by the {fixed} of the other axes"
      )
    sizes[open_axes[0]] = num_devices // fixed
  return tuple(sizes.values())
