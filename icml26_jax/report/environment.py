"""What a result was computed with."""

from __future__ import annotations

from importlib import metadata
import os
import platform

_PACKAGES = ("icml26_jax", "jax", "jaxlib", "flax", "optax", "numpy")


def describe() -> dict[str, str | int]:
  """Versions, device and cores, for a report.

  Returns:
    `python` and one version a package; `device`, the kind of the first JAX
    device; `devices`, how many of them this process sees; `cores`, how many
    processor cores it may use. No name of the machine or its user.
  """
  # Starting JAX's backend takes a second: not before somebody asks.
  import jax

  versions: dict[str, str | int] = {"python": platform.python_version()}
  for package in _PACKAGES:
    versions[package] = metadata.version(package)
  return {
    **versions,
    "device": jax.devices()[0].device_kind,
    "devices": jax.local_device_count(),
    "cores": _cores(),
  }


def _cores() -> int:
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
