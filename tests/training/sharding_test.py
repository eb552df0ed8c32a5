import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.training import mesh as mesh_lib
from icml26_jax.training import sharding

RULES = sharding.DEFAULT_RULES


@pytest.fixture
def mesh():
  return mesh_lib.make_mesh({"data": 2, "fsdp": 2, "model": 2})


def test_each_dimension_follows_its_rule(mesh):
  spec = sharding.partition_spec(("layers", "embed", "mlp", None), RULES, mesh)
  assert spec == jax.P(None, "fsdp", "model", None)


def test_first_rule_that_divides_wins(mesh):
  for size, expected in ((28, "model"), (27, None)):
    spec = sharding.partition_spec(
      ("vocab", "embed"), RULES, mesh, shape=(size, 8)
    )
    assert spec == jax.P(expected, "fsdp")


def test_mesh_axis_is_not_used_twice(mesh):
  rules = (("a", "model"), ("b", "model"), ("b", "fsdp"))
  spec = sharding.partition_spec(("a", "b"), rules, mesh)
  assert spec == jax.P("model", "fsdp")


@pytest.mark.parametrize(
  ("axes", "shape", "rules", "message"),
  [
    (("embed",), (7,), RULES, r"w: dimension 0 \(embed, size 7\) is not div"),
    (("color",), (8,), RULES, r"'color' has no rule; rules exist for batch,"),
    (("heads", "heads"), (2, 2), RULES, r"along mesh axis model twice"),
    (("embed",), (8, 8), RULES, r"shape \(8, 8\) but logical axes \('embed',"),
    (("a",), (8,), (("a", "tensor"),), r"names mesh axis 'tensor'; the mesh"),
  ],
)
def test_bad_layout_is_refused(mesh, axes, shape, rules, message):
  with pytest.raises(ValueError, match=message):
    sharding.partition_spec(axes, rules, mesh, shape=shape, name="w")


def test_tree_of_shardings_names_the_parameter_that_does_not_fit(mesh, toy):
  shapes = jax.eval_shape(toy.init, jax.random.key(0))
  tree = sharding.param_shardings(mesh, toy.logical_axes, RULES, shapes)
  assert tree["up"].spec == jax.P(None, "fsdp", "model")
  shapes["up"] = jax.ShapeDtypeStruct((1, 8, 15), jnp.float32)
  with pytest.raises(ValueError, match=r"parameter up: dimension 2 \(mlp"):
    sharding.param_shardings(mesh, toy.logical_axes, RULES, shapes)
  del shapes["up"]
  with pytest.raises(ValueError, match="must be one tree"):
    sharding.param_shardings(mesh, toy.logical_axes, RULES, shapes)


def test_shapes_may_be_left_out(mesh, toy):
  tree = sharding.param_shardings(mesh, toy.logical_axes, RULES)
  assert tree["out"].spec == jax.P("model", None)


def test_batch_rows_lie_over_data_and_fsdp(mesh):
  rows = sharding.batch_sharding(mesh, RULES)
  assert rows.shard_shape((8, 3)) == (2, 3)
  stacked = sharding.batch_sharding(mesh, RULES, leading=1)
  assert stacked.shard_shape((5, 8, 3)) == (5, 2, 3)
  assert sharding.replicated(mesh).shard_shape((8, 3)) == (8, 3)


@pytest.mark.parametrize(
  ("batch_size", "accumulation", "message"),
  [
    (6, 1, r"6 must be a multiple of 4: 4 shards along data=2 x fsdp=2"),
    (8, 4, r"8 must be a multiple of 16: .* times accumulation 4"),
    (0, 1, r"batch_size 0 must be a multiple"),
    (8, 0, r"accumulation must be at least 1, got 0"),
  ],
)
def test_batch_that_cannot_be_cut_is_refused(
  mesh, batch_size, accumulation, message
):
  sharding.check_batch(mesh, RULES, 16, 4)
  with pytest.raises(ValueError, match=message):
    sharding.check_batch(mesh, RULES, batch_size, accumulation)


def test_single_process_supplies_the_whole_batch(mesh):
  rows = sharding.batch_sharding(mesh, RULES)
  assert sharding.process_rows(rows, 16) == (0, 1)


class _Rows:
  """A sharding of which this process sees only some devices."""

  def __init__(self, *slices):
    self._slices = slices

  def addressable_devices_indices_map(self, shape):
    del shape
    return dict(enumerate((part,) for part in self._slices))


def test_process_supplies_the_rows_its_devices_hold():
  rows = _Rows(slice(8, 12), slice(12, 16), slice(8, 12))
  assert sharding.process_rows(rows, 16) == (1, 2)


def test_scattered_rows_are_refused():
  with pytest.raises(ValueError, match="not one equal part of the batch of 16"):
    sharding.process_rows(_Rows(slice(0, 4), slice(8, 12)), 16)


def test_rows_agree_with_where_jax_puts_them(mesh):
  rows = sharding.batch_sharding(mesh, RULES)
  batch = jax.device_put(np.arange(8), rows)
  for shard in batch.addressable_shards:
    assert shard.data.tolist() == list(range(8))[shard.index[0]]
