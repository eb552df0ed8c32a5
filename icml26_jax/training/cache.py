"""Small models that experiments share: trained once, then loaded."""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import json
from typing import Any

from icml26_jax.data import locations
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import trainer

# Raise it when the same recipe would now give other parameters.
_VERSION = 1


def digest(recipe: recipe_lib.Recipe, data: recipe_lib.Data) -> str:
  """A name for what training a recipe gives.

  Args:
    recipe: the recipe; how the work is spread over devices does not count.
    data: its data.

  Returns:
    16 hexadecimal digits.
  """
  fields = recipe_lib.to_dict(recipe)
  for name in recipe_lib.FREE_FIELDS:
    group, _, field = name.rpartition(".")
    if name != "num_steps":
      (fields[group] if group else fields).pop(field, None)
  facts = json.dumps([_VERSION, fields, data.fingerprint], sort_keys=True)
  return hashlib.sha256(facts.encode()).hexdigest()[:16]


def train_or_load(
  recipe: recipe_lib.Recipe,
  *,
  data: recipe_lib.Data | None = None,
  notify: Callable[[str], None] | None = None,
  description: str = "training",
) -> Any:
  """Parameters of a trained recipe, from the cache if they are there.

  A training that was killed goes on where it was; two processes that want the
  same model train it once.

  Args:
    recipe: the recipe.
    data: its data, if it is loaded already.
    notify: called with lines of text on what is going on; None for nothing
      but the progress bar.
    description: what the progress bar says.

  Returns:
    Tree of parameters: their average, if the recipe asks for one.

  Raises:
    ValueError: if the cache folder is not writable, or as `trainer.train`.
    OSError: if the disk is full.
  """
  if data is None:
    data = recipe_lib.load_data(recipe, with_validation=bool(recipe.eval_every))
  name = f"{recipe.process}-{digest(recipe, data)}"
  result = trainer.train(
    recipe,
    locations.cache_dir("models") / name,
    data=data,
    notify=notify or (lambda line: None),
    wait=True,
    description=description,
  )
  if result.interrupted:
    raise KeyboardInterrupt
  return result.state.sampling_params
