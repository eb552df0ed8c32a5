"""Programs compiled for a TPU slice of four chips, without one."""

import importlib.util

import jax
import numpy as np
import pytest

from tpu import hlo, interconnect, topology


class Slice:
  """Four chips to compile for."""

  def __init__(self):
    topology.prepare_environment()
    devices, self.torus = topology.describe("v5e:2x2")
    self.mesh = jax.sharding.Mesh(
      np.array(devices).reshape(2, 2), ("data", "model")
    )
    self.torus = topology.torus(
      self.torus.chip, self.torus.shape, list(self.mesh.devices.flat)
    )

  def compile(self, function, *shapes, specs=None, out=None) -> hlo.Module:
    """Compiles `function` of float32 arrays (or of the given structs)."""
    specs = specs or [jax.P()] * len(shapes)
    arguments = []
    for shape, spec in zip(shapes, specs, strict=True):
      if isinstance(shape, tuple):
        shape = jax.ShapeDtypeStruct(shape, np.float32)
      arguments.append(
        jax.ShapeDtypeStruct(
          shape.shape,
          shape.dtype,
          sharding=jax.NamedSharding(self.mesh, spec),
        )
      )
    where = None if out is None else jax.NamedSharding(self.mesh, out)
    lowered = jax.jit(function, out_shardings=where).lower(*arguments)
    return hlo.parse(lowered.compile().as_text())


@pytest.fixture(scope="session")
def tpu_slice() -> Slice:
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed: pip install 'icml26_jax[test]'")
  return Slice()


@pytest.fixture
def torus() -> interconnect.Torus:
  """A whole v5e pod, devices numbered row by row."""
  chip, shape = topology.parse("v5e:16x16")
  rows, columns = np.divmod(np.arange(256), 16)
  return interconnect.Torus(chip, shape, np.stack([columns, rows], axis=1))
