import types

import jax
import pytest

from icml26_jax.training import mesh as mesh_lib


def test_axes_are_always_the_same_three_and_left_out_ones_have_size_one():
  mesh = mesh_lib.make_mesh({"model": 4})
  assert dict(mesh.shape) == {"data": 1, "fsdp": 1, "model": 4}
  assert mesh.size == 4
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}


def test_minus_one_takes_the_devices_left():
  mesh = mesh_lib.make_mesh({"data": -1, "model": 2})
  assert mesh.shape["data"] == len(jax.devices()) // 2


def test_given_devices_are_used_in_order():
  devices = jax.devices()[4:]
  mesh = mesh_lib.make_mesh({"data": 2}, devices=devices)
  assert list(mesh.devices.flat) == devices[:2]


@pytest.mark.parametrize(
  ("shape", "message"),
  [
    ({"data": 4, "model": 4}, r"data=4 x fsdp=1 x model=4 needs 16 .* found 8"),
    ({"tensor": 2}, r"'tensor' is unknown; valid: data, fsdp, model"),
    ({"data": 0}, r"data must be at least 1"),
    ({"data": 2.0}, r"data must be an integer, got 2.0"),
    ({"data": True}, r"data must be an integer, got True"),
    ({"data": -1, "fsdp": -1}, r"only one mesh axis may be -1"),
    ({"data": -1, "model": 3}, r"8 devices cannot be divided by the 3"),
  ],
)
def test_bad_shape_is_refused(shape, message):
  with pytest.raises(ValueError, match=message):
    mesh_lib.make_mesh(shape)


def test_several_processes_must_use_all_devices():
  devices = [
    types.SimpleNamespace(process_index=i // 2, platform="tpu")
    for i in range(4)
  ]
  with pytest.raises(ValueError, match="uses 2 of 4 devices; with 2 processes"):
    mesh_lib.make_mesh({"data": 2}, devices=devices)
