import dataclasses

import jax
import numpy as np
import pytest

from icml26_jax.training import checkpoint, loop, metrics, trainer
from icml26_jax.training import recipe as recipe_lib


def _train(recipe, workdir, **options):
  lines = []
  result = trainer.train(recipe, workdir, notify=lines.append, **options)
  return result, lines


def _losses(workdir):
  records = metrics.read(workdir / metrics.FILE_NAME)
  return [record["loss"] for record in records if "loss" in record]


def _assert_same(a, b):
  for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(left, right)


@pytest.fixture
def ten_steps(make_recipe):
  return make_recipe(num_steps=10, log_every=1, checkpoint_every=0)


_REFERENCE = []


@pytest.fixture
def ten_losses(ten_steps, tmp_path):
  """Losses of ten steps on one device, one step a dispatch."""
  if not _REFERENCE:
    _train(ten_steps, tmp_path / "one")
    _REFERENCE.extend(_losses(tmp_path / "one"))
  return list(_REFERENCE)


def test_loss_falls_and_everything_is_written(make_recipe, tmp_path):
  recipe = make_recipe(num_steps=20, eval_every=10, eval_batches=2)
  result, lines = _train(recipe, tmp_path / "run")
  assert int(result.state.step) == 20
  assert not result.interrupted
  assert result.tokens_per_second > 0
  losses = _losses(tmp_path / "run")
  assert np.mean(losses[-2:]) < np.mean(losses[:2])
  assert result.scalars["loss"] == losses[-1]
  assert 0 < result.scalars["validation_loss"] < 5
  assert (
    "parameters on mesh data=1 x fsdp=1 x model=1, using 1 of 8" in lines[0]
  )
  assert "tokens to learn from" in lines[1]
  assert lines[2] == f"fresh start: no checkpoint in {tmp_path / 'run'}"
  saved = tmp_path / "run" / checkpoint.FOLDER
  assert sorted(int(path.name) for path in saved.iterdir()) == [12, 16, 20]
  # The average is what is sampled with, and it is not the last iterate.
  ema, last = result.state.sampling_params, result.state.params
  assert ema is result.state.ema_params
  assert any(
    np.any(a != b)
    for a, b in zip(jax.tree.leaves(ema), jax.tree.leaves(last), strict=True)
  )


def test_stopping_and_going_on_changes_no_bit(make_recipe, tmp_path):
  recipe = make_recipe(num_steps=8, log_every=2, checkpoint_every=4)
  whole, _ = _train(recipe, tmp_path / "whole")
  first, _ = _train(recipe, tmp_path / "cut", stop=4)
  assert int(first.state.step) == 4
  second, lines = _train(recipe, tmp_path / "cut")
  assert lines[2] == f"resumed from step 4 of {tmp_path / 'cut'}"
  for name in ("params", "ema_params", "opt_state"):
    _assert_same(getattr(second.state, name), getattr(whole.state, name))
  assert _losses(tmp_path / "cut") == _losses(tmp_path / "whole")


def test_finished_run_has_nothing_to_do(make_recipe, tmp_path):
  recipe = make_recipe(num_steps=2)
  done, _ = _train(recipe, tmp_path / "run")
  again, lines = _train(recipe, tmp_path / "run")
  assert lines[-1] == "nothing to do: already at step 2"
  assert again.scalars == {}
  _assert_same(again.state.params, done.state.params)


@pytest.mark.parametrize(
  "mesh", [{"data": 8}, {"data": 4, "model": 2}, {"data": 2, "model": 4}]
)
def test_losses_are_the_same_on_every_mesh(
  ten_steps, ten_losses, tmp_path, mesh
):
  _train(dataclasses.replace(ten_steps, mesh=mesh), tmp_path / "many")
  assert len(ten_losses) == 10
  # Reference: one device. Sums are taken in another order.
  np.testing.assert_allclose(_losses(tmp_path / "many"), ten_losses, rtol=1e-5)


def test_micro_batches_give_the_losses_of_whole_ones(
  ten_steps, ten_losses, tmp_path
):
  _train(dataclasses.replace(ten_steps, accumulation=4), tmp_path / "parts")
  np.testing.assert_allclose(_losses(tmp_path / "parts"), ten_losses, rtol=1e-5)


def test_several_steps_a_dispatch_give_the_same_losses(
  ten_steps, ten_losses, tmp_path
):
  recipe = dataclasses.replace(ten_steps, steps_per_call=4, log_every=5)
  several, _ = _train(recipe, tmp_path / "four")
  # Every row has 12 tokens, so a line's mean is a plain one.
  expected = [np.mean(ten_losses[:5]), np.mean(ten_losses[5:])]
  np.testing.assert_allclose(_losses(tmp_path / "four"), expected, rtol=1e-5)
  # How the steps fall into dispatches changes no bit: cut elsewhere.
  cut = dataclasses.replace(recipe, checkpoint_every=3)
  other, _ = _train(cut, tmp_path / "cut")
  _assert_same(other.state.params, several.state.params)


def test_run_goes_on_on_another_mesh(ten_steps, ten_losses, tmp_path):
  _train(ten_steps, tmp_path / "moved", stop=5)
  recipe = dataclasses.replace(ten_steps, mesh={"data": 4, "model": 2})
  _train(recipe, tmp_path / "moved")
  np.testing.assert_allclose(_losses(tmp_path / "moved"), ten_losses, rtol=1e-5)


def test_divergence_stops_with_step_and_seed(make_recipe, tmp_path):
  optimizer = recipe_lib.OptimizerConfig(learning_rate=1e38)
  recipe = make_recipe(optimizer=optimizer, checkpoint_every=1, seed=5)
  with pytest.raises(
    loop.NonFiniteError, match=r"at step 1 .* batch of seed 5, step 1\)"
  ):
    _train(recipe, tmp_path / "run")
  # What was found before is still there.
  saved = tmp_path / "run" / checkpoint.FOLDER
  assert [path.name for path in saved.iterdir()] == ["1"]


def test_run_of_another_config_names_the_fields(make_recipe, tmp_path):
  _train(make_recipe(num_steps=2), tmp_path / "run")
  other = make_recipe(num_steps=2, seed=1, process_options={"r_max": 0.3})
  with pytest.raises(
    ValueError,
    match=r"another config: process_options.r_max is missing, asked 0.3;"
    r" seed is 0, asked 1",
  ):
    _train(other, tmp_path / "run")


def test_run_on_text_that_changed_is_refused(make_recipe, corpus, tmp_path):
  _train(make_recipe(num_steps=2), tmp_path / "run")
  path = corpus.removeprefix("file:")
  with open(path, "a") as file:
    file.write("a new end of the text that shifts where training stops\n" * 9)
  with pytest.raises(
    ValueError, match="holds a run on other text: corpus file"
  ):
    _train(make_recipe(num_steps=4), tmp_path / "run")


def test_foreign_directory_is_left_alone(make_recipe, tmp_path):
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "thesis.tex").write_text("x")
  with pytest.raises(ValueError, match="not the directory of a training run"):
    _train(make_recipe(), tmp_path / "run")
  assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"mesh": {"data": 16}}, "needs 16 devices, found 8"),
    ({"mesh": {"data": 3}}, "batch_size 8 must be a multiple of 3"),
    ({"accumulation": 3}, "must be a multiple of 3: 1 shards"),
    ({"mesh": {"fsdp": 3}}, "must be a multiple of 3|not divisible by 3"),
  ],
)
def test_recipe_that_does_not_fit_writes_nothing(
  make_recipe, tmp_path, fields, message
):
  with pytest.raises(ValueError, match=message):
    _train(make_recipe(**fields), tmp_path / "run")
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stop", [0, 7])
def test_stopping_outside_the_run_is_refused(make_recipe, tmp_path, stop):
  with pytest.raises(
    ValueError, match=f"steps must be from 1 to .* got {stop}"
  ):
    _train(make_recipe(num_steps=6), tmp_path / "run", stop=stop)
