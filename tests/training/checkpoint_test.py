import contextlib
import dataclasses
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from icml26_jax.training import checkpoint, sharding
from icml26_jax.training import step as step_lib


def _at(state, step):
  """The state as if `step` updates had been made."""
  return dataclasses.replace(
    state,
    step=jax.device_put(jnp.int32(step), state.step.sharding),
    params=jax.tree.map(lambda leaf: leaf + step, state.params),
  )


def _assert_same(a, b):
  for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
      left, right = jax.random.key_data(left), jax.random.key_data(right)
    np.testing.assert_array_equal(left, right)


@pytest.fixture
def saved(tmp_path, make_trainer):
  """A trainer and a directory with whole checkpoints of steps 1 and 2."""
  trainer = make_trainer({"data": 2, "model": 2}, with_ema=True)
  with checkpoint.Checkpointer(tmp_path) as checkpoints:
    for step in (1, 2):
      checkpoints.save(_at(trainer.state, step), {"position": step})
  return trainer, tmp_path


def _restore(trainer, workdir):
  lines = []
  with checkpoint.Checkpointer(workdir, notify=lines.append) as checkpoints:
    restored = checkpoints.restore(trainer.abstract)
  return restored, lines


def test_state_comes_back_bit_for_bit_where_it_lay(saved):
  trainer, workdir = saved
  (state, host), lines = _restore(trainer, workdir)
  _assert_same(state, _at(trainer.state, 2))
  for leaf, want in zip(
    jax.tree.leaves(state), jax.tree.leaves(trainer.abstract), strict=True
  ):
    assert leaf.sharding.is_equivalent_to(want.sharding, leaf.ndim)
  assert host == {"position": 2}
  assert lines == []


def test_state_comes_back_into_another_mesh(saved, make_trainer):
  _, workdir = saved
  other = make_trainer({"fsdp": 4, "model": 2}, with_ema=True, seed=1)
  (state, _), _ = _restore(other, workdir)
  _assert_same(state, _at(saved[0].state, 2))
  assert state.params["up"].sharding == other.state.params["up"].sharding


def test_no_checkpoint_is_no_state(tmp_path, make_trainer):
  restored, _ = _restore(make_trainer({}), tmp_path)
  assert restored is None


def test_only_the_newest_are_kept(tmp_path, make_trainer):
  trainer = make_trainer({})
  with checkpoint.Checkpointer(tmp_path, keep=2) as checkpoints:
    for step in (1, 5, 9):
      checkpoints.save(_at(trainer.state, step), {})
    checkpoints.wait()
    assert checkpoints.latest_step == 9
  folder = tmp_path / checkpoint.FOLDER
  assert sorted(path.name for path in folder.iterdir()) == ["5", "9"]


def test_relative_directory_works(tmp_path, make_trainer, monkeypatch):
  monkeypatch.chdir(tmp_path)
  trainer = make_trainer({})
  with checkpoint.Checkpointer("run") as checkpoints:
    checkpoints.save(trainer.state, {})
  assert _restore(trainer, "run")[0] is not None


def test_state_may_be_donated_while_it_is_being_saved(
  tmp_path, make_trainer, toy
):
  large = toy._replace(width=256, hidden=1024)
  trainer = make_trainer({}, model=large)
  step = step_lib.make_train_step(
    large.loss,
    trainer.optimizer,
    trainer.mesh,
    sharding.DEFAULT_RULES,
    state_shardings=trainer.shardings,
  )
  state = trainer.state
  before = [np.array(leaf) for leaf in jax.tree.leaves(state.params)]
  with checkpoint.Checkpointer(tmp_path) as checkpoints:
    checkpoints.save(state, {})
    for n in range(3):
      state, _ = step(state, large.batch(n))
  # The checksums are those of the state before the steps, too.
  (restored, _), lines = _restore(trainer, tmp_path)
  assert lines == []
  for left, right in zip(jax.tree.leaves(restored.params), before, strict=True):
    np.testing.assert_array_equal(left, right)


def _files(step_folder):
  return sorted(path for path in step_folder.rglob("*") if path.is_file())


def _array_file(step_folder):
  """The file with most of the arrays' values."""
  paths = [path for path in _files(step_folder) if path.parent.name == "d"]
  return max(paths, key=lambda path: path.stat().st_size)


def _truncate(step_folder):
  path = _array_file(step_folder)
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _empty_all(step_folder):
  for path in _files(step_folder):
    path.write_bytes(b"")


def _drop_a_part(step_folder):
  shutil.rmtree(step_folder / "params")


def _drop_host_values(step_folder):
  shutil.rmtree(step_folder / "host")


def _flip_a_bit(step_folder):
  path = _array_file(step_folder)
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize(
  "damage",
  [_truncate, _empty_all, _drop_a_part, _drop_host_values, _flip_a_bit],
)
def test_damaged_checkpoint_is_skipped_for_the_last_whole_one(saved, damage):
  trainer, workdir = saved
  folder = workdir / checkpoint.FOLDER
  damage(folder / "2")
  (state, host), lines = _restore(trainer, workdir)
  _assert_same(state, _at(trainer.state, 1))
  assert host == {"position": 1}
  assert len(lines) == 1
  assert "checkpoint of step 2 in" in lines[0]
  assert lines[0].endswith("skipped for that of step 1")
  # It is out of the way, so that step 2 can be saved again.
  assert (workdir / checkpoint.DAMAGED_FOLDER / "2").is_dir()
  with checkpoint.Checkpointer(workdir) as checkpoints:
    checkpoints.restore(trainer.abstract)
    checkpoints.save(_at(state, 2), {"position": 2})
  (_, host), lines = _restore(trainer, workdir)
  assert (host, lines) == ({"position": 2}, [])


def test_no_whole_checkpoint_among_several_is_an_error(saved):
  trainer, workdir = saved
  for step in ("1", "2"):
    _truncate(workdir / checkpoint.FOLDER / step)
  with pytest.raises(
    ValueError, match=r"none of the checkpoints .* step 2: .*; step 1: "
  ):
    _restore(trainer, workdir)
  # Nothing was moved or removed.
  assert (workdir / checkpoint.FOLDER / "2").is_dir()


def test_unfinished_checkpoint_is_cleaned_up(saved):
  trainer, workdir = saved
  folder = workdir / checkpoint.FOLDER
  (folder / "3.orbax-checkpoint-tmp" / "params").mkdir(parents=True)
  (_, host), lines = _restore(trainer, workdir)
  assert (host, lines) == ({"position": 2}, [])
  assert sorted(path.name for path in folder.iterdir()) == ["1", "2"]


@contextlib.contextmanager
def _largest_file(size):
  """Makes writing beyond `size` bytes of a file fail."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_failed_save_keeps_the_earlier_checkpoint(tmp_path, make_trainer, toy):
  trainer = make_trainer({}, model=toy._replace(width=256, hidden=1024))
  folder = tmp_path / checkpoint.FOLDER
  checkpoints = checkpoint.Checkpointer(tmp_path, keep=1)
  checkpoints.save(_at(trainer.state, 2), {"position": 2})
  checkpoints.wait()
  with _largest_file(200_000):
    checkpoints.save(_at(trainer.state, 3), {})
    with pytest.raises(
      OSError,
      match=r"cannot save the checkpoint of step 3 in .*: File too large;"
      r" the last whole one is of step 2",
    ):
      checkpoints.wait()
  checkpoints.close()
  assert [path.name for path in folder.iterdir()] == ["2"]
  (_, host), lines = _restore(trainer, tmp_path)
  assert (host, lines) == ({"position": 2}, [])


def test_full_disk_is_told_in_one_line(tmp_path, make_trainer, monkeypatch):
  def save(self, step, **kwargs):
    (self.directory / f"{step}.orbax-checkpoint-tmp").mkdir()
    raise ValueError(
      "RESOURCE_EXHAUSTED: Error writing: Failed to write 9 bytes: No space"
      " left on device [os_error_code='28']\n[more]"
    )

  monkeypatch.setattr(ocp.CheckpointManager, "save", save)
  checkpoints = checkpoint.Checkpointer(tmp_path)
  with pytest.raises(OSError, match="step 0") as caught:
    checkpoints.save(make_trainer({}).state, {})
  checkpoints.close()
  folder = tmp_path / checkpoint.FOLDER
  assert str(caught.value) == (
    f"cannot save the checkpoint of step 0 in {folder}: No space left on"
    " device; there is no earlier one"
  )
  assert list(folder.iterdir()) == []


@pytest.mark.parametrize("with_ema", [True, False])
def test_parameters_can_be_read_alone(saved, with_ema):
  trainer, workdir = saved
  params, step = checkpoint.restore_params(
    workdir, trainer.abstract.params, with_ema=with_ema
  )
  state = _at(trainer.state, 2)
  _assert_same(params, state.ema_params if with_ema else state.params)
  assert step == 2


def test_parameters_of_an_earlier_step_can_be_read(saved):
  trainer, workdir = saved
  params, step = checkpoint.restore_params(
    workdir, trainer.abstract.params, with_ema=False, step=1
  )
  _assert_same(params, _at(trainer.state, 1).params)
  assert step == 1
  with pytest.raises(ValueError, match=r"of step 7 in .*; there are 1, 2"):
    checkpoint.restore_params(
      workdir, trainer.abstract.params, with_ema=False, step=7
    )


def test_reading_parameters_skips_but_does_not_move_damaged_ones(saved):
  trainer, workdir = saved
  _drop_a_part(workdir / checkpoint.FOLDER / "2")
  lines = []
  _, step = checkpoint.restore_params(
    workdir,
    trainer.abstract.params,
    with_ema=False,
    notify=lines.append,
  )
  assert step == 1
  assert len(lines) == 1
  assert (workdir / checkpoint.FOLDER / "2").is_dir()


def test_parameters_of_a_directory_without_checkpoints_are_refused(
  tmp_path, make_trainer
):
  with pytest.raises(ValueError, match="there is no checkpoint in"):
    checkpoint.restore_params(
      tmp_path, make_trainer({}).abstract.params, with_ema=False
    )
  assert list(tmp_path.iterdir()) == []


def test_keeping_nothing_is_refused(tmp_path):
  with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
    checkpoint.Checkpointer(tmp_path, keep=0)
