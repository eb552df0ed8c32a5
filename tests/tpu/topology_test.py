"""Names of slices, facts of chips, and what libtpu is told."""

import importlib.util
import itertools
import math
import os

import pytest

from tpu import chips, topology


@pytest.mark.parametrize("name", topology.names())
def test_name_gives_chip_and_shape(name):
  chip, shape = topology.parse(name)
  assert name == f"{chip.name}:{'x'.join(map(str, shape))}"
  assert len(shape) == (3 if chip.name == "v5p" else 2)


@pytest.mark.parametrize("name", ["v5e", "v5e:3x5", "v4:2x2x1", "16x16", ""])
def test_unknown_name_lists_the_valid_ones(name):
  with pytest.raises(ValueError, match=r"valid: v5e:2x2.*v5p.*v6e:16x16"):
    topology.parse(name)


@pytest.mark.parametrize(
  "name", ["v5e:2x2", "v5e:16x16", "v5p:2x2x1", "v5p:4x4x4", "v6e:4x8"]
)
def test_devices_sit_on_the_torus_once_each(tpu_slice, name):
  devices, torus = topology.describe(name)
  assert len(devices) == math.prod(torus.shape)
  assert {tuple(place) for place in torus.coords.tolist()} == {
    tuple(place) for place in itertools.product(*map(range, torus.shape))
  }


@pytest.mark.parametrize("chip", chips.CHIPS.values(), ids=lambda c: c.name)
def test_clock_times_arrays_reaches_the_peak(chip):
  # Products of the systolic arrays a cycle, two FLOPs each.
  arrays = {"v5e": 4 * 128**2, "v5p": 2 * 4 * 128**2, "v6e": 2 * 2 * 256**2}
  assert chip.clock_hz * 2 * arrays[chip.name] == pytest.approx(
    chip.peak_flops, rel=0.003
  )


def test_rings_close_only_on_whole_axes():
  assert chips.CHIPS["v5e"].is_wrapped(16)
  assert not chips.CHIPS["v5e"].is_wrapped(8)
  assert chips.CHIPS["v5p"].is_wrapped(4)
  assert chips.CHIPS["v5p"].is_wrapped(8)
  assert not chips.CHIPS["v5p"].is_wrapped(2)


def test_environment_keeps_what_is_set(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
  monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "true")
  monkeypatch.delenv("ALLOW_MULTIPLE_LIBTPU_LOAD", raising=False)
  topology.prepare_environment()
  assert os.environ["TPU_SKIP_MDS_QUERY"] == "true"
  assert os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"


def test_missing_libtpu_names_the_extra(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ModuleNotFoundError, match=r"icml26_jax\[test\]"):
    topology.prepare_environment()
