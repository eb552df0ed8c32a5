import dataclasses

import jax
import numpy as np
import pytest

from icml26_jax.training import cache, trainer
from icml26_jax.training import recipe as recipe_lib


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "models"


def _assert_same(a, b):
  for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    np.testing.assert_array_equal(left, right)


def test_second_call_loads_what_the_first_trained(
  make_recipe, cache_folder, monkeypatch
):
  recipe = make_recipe("mdlm", num_steps=3)
  trained = cache.train_or_load(recipe)
  (folder,) = cache_folder.iterdir()
  assert folder.name.startswith("mdlm-")

  def refuse(*args, **kwargs):
    raise AssertionError("trained twice")

  monkeypatch.setattr(trainer.loop, "run", refuse)
  lines = []
  loaded = cache.train_or_load(recipe, notify=lines.append)
  _assert_same(loaded, trained)
  assert lines[-1] == "nothing to do: already at step 3"
  # How the work is spread does not make another model.
  spread = dataclasses.replace(recipe, mesh={"data": 2}, log_every=7)
  _assert_same(cache.train_or_load(spread), trained)


def test_average_is_returned(make_recipe, tmp_path):
  recipe = make_recipe("mdlm", num_steps=3)
  result = trainer.train(recipe, tmp_path / "run")
  _assert_same(cache.train_or_load(recipe), result.state.ema_params)


def test_training_that_was_killed_goes_on(make_recipe, cache_folder):
  recipe = make_recipe("mdlm", num_steps=4, checkpoint_every=2)
  data = recipe_lib.load_data(recipe)
  folder = cache_folder / f"mdlm-{cache.digest(recipe, data)}"
  folder.parent.mkdir(parents=True)
  trainer.train(recipe, folder, stop=2)
  lines = []
  cache.train_or_load(recipe, notify=lines.append)
  assert f"resumed from step 2 of {folder}" in lines


def test_name_follows_whatever_changes_the_model(make_recipe):
  recipe = make_recipe()
  data = recipe_lib.load_data(recipe)

  def digest(**fields):
    return cache.digest(dataclasses.replace(recipe, **fields), data)

  same = [
    digest(),
    digest(mesh={"data": 4}, accumulation=2, steps_per_call=3),
    digest(log_every=1, eval_every=1, checkpoint_every=1, keep=9),
    digest(model=dataclasses.replace(recipe.model, remat="full")),
  ]
  other = [
    digest(seed=1),
    digest(num_steps=9),
    digest(process_options={"r_max": 0.3}),
    digest(model=dataclasses.replace(recipe.model, num_heads=2)),
    digest(optimizer=dataclasses.replace(recipe.optimizer, b1=0.8)),
    cache.digest(recipe, data._replace(fingerprint="0" * 64)),
  ]
  assert len(set(same)) == 1
  assert len({*same, *other}) == 1 + len(other)


def test_unwritable_cache_is_one_clear_error(
  make_recipe, tmp_path, monkeypatch
):
  (tmp_path / "file").write_text("x")
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "file"))
  with pytest.raises(ValueError, match=r"cache folder .* is not writable"):
    cache.train_or_load(make_recipe())
