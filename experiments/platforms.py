"""Which devices JAX should look for."""

from __future__ import annotations

from collections.abc import MutableMapping
import importlib.metadata
import importlib.util
import os
import pathlib
import sys

_PCI = pathlib.Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"


def skip_absent_tpu(
  environment: MutableMapping[str, str] = os.environ,
  pci: pathlib.Path = _PCI,
) -> None:
  """Keeps JAX from starting a TPU runtime where there is no TPU.

  The TPU compiler is installed for ahead-of-time compilation too. On a machine
  without a TPU its runtime asks the network for one, and writes pages of
  errors, before JAX goes on with the CPU. Call it before JAX is asked for
  anything.

  Args:
    environment: JAX_PLATFORMS is set here, unless the user has set it, there
      may be a TPU or another accelerator's plugin is installed.
    pci: folder that lists the machine's PCI devices.
  """
  if "JAX_PLATFORMS" in environment:
    return
  if importlib.util.find_spec("libtpu") is None:
    return
  if not pci.is_dir() or any(
    file.read_text().strip() == _GOOGLE for file in pci.glob("*/vendor")
  ):
    return
  if (
    importlib.metadata.entry_points(group="jax_plugins")
    or importlib.util.find_spec("jax_plugins") is not None
  ):
    return
  environment["JAX_PLATFORMS"] = "cpu"
  if "jax" in sys.modules:
    # It has looked at the environment already, but not at devices.
    sys.modules["jax"].config.update("jax_platforms", "cpu")
