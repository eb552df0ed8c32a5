import jax
import numpy as np
import optax
import pytest

from icml26_jax.training import sharding
from icml26_jax.training import state as state_lib


def test_state_is_the_same_on_every_mesh(make_trainer):
  # Reference: one device. The same draws and no arithmetic across devices, so
  # exactly equal.
  one = make_trainer({}, with_ema=True).state
  for shape in ({"data": 8}, {"fsdp": 4, "model": 2}):
    other = make_trainer(shape, with_ema=True).state
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
      if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
      np.testing.assert_array_equal(a, b)


def test_no_device_holds_a_whole_cut_parameter(make_trainer, toy):
  large = toy._replace(vocab=64, width=64, hidden=256)
  trainer = make_trainer({"fsdp": 4, "model": 2}, model=large, with_ema=True)
  for tree in (trainer.state.params, trainer.state.ema_params):
    for shard in tree["up"].addressable_shards:
      assert shard.data.shape == (1, large.width // 4, large.hidden // 2)
  create = jax.jit(
    lambda key: state_lib.create(
      key, large.init, trainer.optimizer, with_ema=True
    ),
    out_shardings=trainer.shardings,
  )
  memory = create.lower(jax.random.key(0)).compile().memory_analysis()
  # On each device: parameters, average and two moments, of which every matrix
  # is cut in two at least. Temporaries stay below one whole copy.
  whole = 4 * sum(leaf.size for leaf in jax.tree.leaves(trainer.state.params))
  assert memory.output_size_in_bytes < 4 * 0.5 * whole
  assert memory.temp_size_in_bytes < whole


def test_optimizer_state_lies_as_its_parameters(make_trainer):
  optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
  trainer = make_trainer({"fsdp": 4, "model": 2}, optimizer=optimizer)
  adam = trainer.state.opt_state[1][0]
  for moment in (adam.mu, adam.nu):
    for name, leaf in moment.items():
      assert leaf.sharding == trainer.state.params[name].sharding
  assert adam.count.sharding.is_fully_replicated


def test_abstract_state_describes_the_real_one(make_trainer):
  trainer = make_trainer({"data": 2, "model": 4}, with_ema=True)
  described = jax.tree.leaves(trainer.abstract)
  for leaf, real in zip(described, jax.tree.leaves(trainer.state), strict=True):
    assert (leaf.shape, leaf.dtype) == (real.shape, real.dtype)
    assert leaf.sharding.is_equivalent_to(real.sharding, leaf.ndim)


def test_average_starts_at_the_parameters_and_is_what_is_sampled_with(
  make_trainer,
):
  state = make_trainer({}, with_ema=True).state
  np.testing.assert_array_equal(state.ema_params["up"], state.params["up"])
  assert state.ema_params["up"] is not state.params["up"]
  assert state.sampling_params is state.ema_params
  plain = make_trainer({}).state
  assert plain.ema_params is None
  assert plain.sampling_params is plain.params


def test_parameter_that_does_not_fit_the_mesh_is_named(make_trainer, toy):
  with pytest.raises(ValueError, match=r"parameter table: .*embed, size 6"):
    state_lib.abstract(
      toy._replace(width=6).init,
      optax.adam(1.0),
      make_trainer({"fsdp": 4}).mesh,
      sharding.DEFAULT_RULES,
      toy.logical_axes,
      with_ema=False,
    )
