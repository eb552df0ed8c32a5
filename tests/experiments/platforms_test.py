"""The TPU runtime is started only where there may be a TPU."""

import importlib.metadata
import importlib.util

import pytest

from experiments import platforms


@pytest.fixture
def machine(tmp_path, monkeypatch):
  """Makes a machine with some PCI devices and packages."""

  def make(vendors, packages=("libtpu",), plugins=()):
    for i, vendor in enumerate(vendors):
      folder = tmp_path / f"0000:00:{i:02x}.0"
      folder.mkdir()
      (folder / "vendor").write_text(f"{vendor}\n")
    monkeypatch.setattr(
      importlib.util,
      "find_spec",
      lambda name: object() if name in packages else None,
    )
    monkeypatch.setattr(
      importlib.metadata, "entry_points", lambda group: list(plugins)
    )
    return tmp_path

  return make


def test_compiler_without_a_tpu_means_the_cpu(machine):
  environment = {}
  platforms.skip_absent_tpu(environment, machine(["0x8086", "0x1af4"]))
  assert environment == {"JAX_PLATFORMS": "cpu"}


@pytest.mark.parametrize(
  ("vendors", "packages", "plugins", "environment"),
  [
    (["0x8086", "0x1ae0"], ("libtpu",), (), {}),
    (["0x8086"], (), (), {}),
    (["0x8086"], ("libtpu",), ("cuda13",), {}),
    (["0x8086"], ("libtpu", "jax_plugins"), (), {}),
    (["0x8086"], ("libtpu",), (), {"JAX_PLATFORMS": "tpu"}),
  ],
)
def test_anything_else_is_left_to_jax(
  machine, vendors, packages, plugins, environment
):
  before = dict(environment)
  platforms.skip_absent_tpu(environment, machine(vendors, packages, plugins))
  assert environment == before


def test_machine_without_a_list_of_devices_is_left_to_jax(machine, tmp_path):
  machine([])
  environment = {}
  platforms.skip_absent_tpu(environment, tmp_path / "missing")
  assert environment == {}
