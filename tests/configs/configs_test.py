"""Every configuration is a sound recipe."""

import importlib
import pathlib

import pytest

from configs import base
from icml26_jax.models import dit
from icml26_jax.training import recipe as recipe_lib

NAMES = sorted(
  path.stem
  for path in pathlib.Path(base.__file__).parent.glob("*.py")
  if path.stem not in ("__init__", "base")
)


def _config(name):
  return importlib.import_module(f"configs.{name}").get_config()


@pytest.mark.parametrize("name", NAMES)
def test_config_is_a_recipe(name):
  recipe = recipe_lib.from_config(_config(name))
  assert name.startswith(recipe.process)
  assert recipe_lib.from_dict(recipe_lib.to_dict(recipe)) == recipe


@pytest.mark.parametrize(
  ("name", "low", "high"),
  [
    ("candi_char", 0.3e6, 0.4e6),
    ("mdlm_char", 0.25e6, 0.4e6),
    ("continuous_char", 0.3e6, 0.4e6),
    ("candi_owt_170m", 165e6, 175e6),
    ("mdlm_owt_170m", 150e6, 175e6),
    ("candi_1b", 1.1e9, 1.3e9),
  ],
)
def test_model_has_the_size_its_name_says(name, low, high):
  recipe = recipe_lib.from_config(_config(name))
  assert low < dit.num_params(recipe.model) < high


def test_learning_rate_follows_an_overridden_length():
  config = _config("candi_char")
  config.num_steps = 300
  assert recipe_lib.from_config(config).optimizer.decay_steps == 300


def test_every_field_can_be_set_and_keeps_its_type():
  config = _config("candi_char")
  config.model.d_ff = 99
  config.mesh.model = 2
  recipe = recipe_lib.from_config(config)
  assert recipe.model.d_ff == 99
  assert dict(recipe.mesh)["model"] == 2
  with pytest.raises(TypeError):
    config.model.d_ff = "wide"


def test_missing_field_is_named():
  config = base.make(
    "mdlm",
    model={"vocab_size": 3},
    data={"tokenizer": "byte", "length": 2, "batch_size": 1},
    optimizer={},
    num_steps=1,
  )
  with pytest.raises(ValueError, match=r"field data.corpus is missing"):
    recipe_lib.from_config(config)
