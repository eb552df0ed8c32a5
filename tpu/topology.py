"""TPU slices to compile for on a machine that has none.

The TPU compiler comes with libtpu and needs no TPU. It does ask a metadata
server and take a machine-wide lock, unless told otherwise before it loads.
"""

from __future__ import annotations

import importlib.util
import math
import os
from typing import Any

import numpy as np

from tpu import chips, interconnect

# Slices that can be rented, by chip.
TOPOLOGIES = {
  "v5e": ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
  "v5p": (
    "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8",
    "8x8x16", "8x16x16",
  ),
  "v6e": ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
}  # fmt: skip


def names() -> list[str]:
  """Topologies that can be compiled for, e.g. "v5e:16x16"."""
  return [
    f"{chip}:{shape}" for chip in TOPOLOGIES for shape in TOPOLOGIES[chip]
  ]


def parse(name: str) -> tuple[chips.Chip, tuple[int, ...]]:
  """Chip and shape of a topology's name.

  Args:
    name: such as "v5e:16x16".

  Returns:
    The chip, and chips along each axis of the torus.

  Raises:
    ValueError: listing the valid names, if it is not one of them.
  """
  chip, _, shape = name.partition(":")
  if shape not in TOPOLOGIES.get(chip, ()):
    raise ValueError(f"unknown topology {name!r}; valid: {', '.join(names())}")
  return chips.CHIPS[chip], tuple(int(size) for size in shape.split("x"))


def prepare_environment() -> None:
  """Sets what JAX and libtpu read when they load; call it before either.

  Variables that are set already keep their values.

  Raises:
    ModuleNotFoundError: naming the extra to install, if libtpu is missing.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise ModuleNotFoundError(
      "compiling for TPU needs libtpu, which is not installed; "
      "pip install 'icml26_jax[test]' (Linux x86-64 only)"
    )
  settings = {
    # Tracing happens on the CPU; no TPU is looked for.
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Otherwise a second process that compiles aborts on a lock file.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
  }
  for key, value in settings.items():
    os.environ.setdefault(key, value)


def describe(name: str) -> tuple[list[Any], interconnect.Torus]:
  """Devices of a slice and where they sit.

  Args:
    name: the topology; `prepare_environment` was called before.

  Returns:
    The devices, none of which can run anything, and the torus whose
    coordinates are in the order of the devices.

  Raises:
    ValueError: if the name is unknown.
  """
  chip, shape = parse(name)
  os.environ.setdefault(
    "TPU_ACCELERATOR_TYPE",
    f"{chip.accelerator}-{math.prod(shape) * chip.cores_per_chip}",
  )
  from jax.experimental import topologies  # JAX reads the environment

  description = topologies.get_topology_desc(platform="tpu", topology_name=name)
  devices = list(description.devices)
  return devices, torus(chip, shape, devices)


def torus(
  chip: chips.Chip, shape: tuple[int, ...], devices: list[Any]
) -> interconnect.Torus:
  """Where devices sit, in the order in which a program numbers them.

  Args:
    chip: the kind of chip.
    shape: chips along each axis.
    devices: a mesh's devices, flattened.

  Returns:
    The torus.
  """
  coords = np.array([device.coords for device in devices])[:, : len(shape)]
  return interconnect.Torus(chip, shape, coords)
