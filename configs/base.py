"""What the configurations of language models share."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import ml_collections
from ml_collections import config_dict

from icml26_jax.training import recipe as recipe_lib

GPT2_VOCAB_SIZE = 50_257

# Text and tokenizer of the full-scale runs. Both are looked for in ICML26_DATA:
# a prepared data set in tensorflow_datasets/openwebtext, and GPT-2's
# tokenizer.json in gpt2/.
OPENWEBTEXT = {
  "corpus": "tfds:openwebtext",
  "tokenizer": "file:gpt2/tokenizer.json",
  "length": 1024,
}


def make(
  process: str,
  *,
  model: dict[str, Any],
  data: dict[str, Any],
  optimizer: dict[str, Any],
  process_options: dict[str, Any] | None = None,
  mesh: dict[str, int] | None = None,
  **fields: Any,
) -> ml_collections.ConfigDict:
  """A configuration with every field of a recipe, so that flags may set any.

  The cosine of the learning rate ends with `num_steps`, unless
  `optimizer.decay_steps` is given.

  Args:
    process: see `training.recipe.Recipe`.
    model: fields of the network's configuration.
    data: fields of `training.recipe.DataConfig`.
    optimizer: fields of `training.recipe.OptimizerConfig`.
    process_options: keyword arguments of the process.
    mesh: devices along each axis; 1 along those left out.
    **fields: other fields of `training.recipe.Recipe`.

  Returns:
    The configuration, for `training.recipe.from_config`.
  """
  kind = recipe_lib.model_config_type(process)
  config = ml_collections.ConfigDict(
    {
      **_fields(recipe_lib.Recipe, fields),
      "process": process,
      "process_options": process_options or {},
      "mesh": {"data": 1, "fsdp": 1, "model": 1, **(mesh or {})},
      "rules": {},
      "model": _fields(kind, model),
      "data": _fields(recipe_lib.DataConfig, data),
      "optimizer": _fields(recipe_lib.OptimizerConfig, optimizer),
    }
  )
  if "decay_steps" not in optimizer:
    config.optimizer.decay_steps = config.get_ref("num_steps")
  return config


def _fields(kind: type, given: dict[str, Any]) -> dict[str, Any]:
  """The fields given and the defaults of the others."""
  values = dict(given)
  hints = typing.get_type_hints(kind)
  for field in dataclasses.fields(kind):
    if field.name in values or field.default is dataclasses.MISSING:
      continue
    if field.default is None:
      # A flag may set it, to a value of the right type only.
      values[field.name] = config_dict.placeholder(_optional(hints[field.name]))
    else:
      values[field.name] = field.default
  return values


def _optional(hint: Any) -> type:
  """The type of which None is the alternative."""
  assert isinstance(hint, types.UnionType), hint
  (kind,) = (k for k in typing.get_args(hint) if k is not types.NoneType)
  return kind


def char(
  process: str, *, process_options: dict[str, Any]
) -> ml_collections.ConfigDict:
  """A model of about 0.33M parameters on 64 characters, for two cores.

  Args:
    process: see `training.recipe.Recipe`.
    process_options: keyword arguments of the process.

  Returns:
    The configuration.
  """
  return make(
    process,
    process_options=process_options,
    model={
      "vocab_size": 27,
      "d_model": 64,
      "num_layers": 4,
      "num_heads": 2,
      # Blocks one after the other run faster on a CPU than a loop over them.
      "scan_layers": False,
    },
    data={
      "corpus": "stdlib:prose",
      "tokenizer": "char27",
      "length": 64,
      "batch_size": 64,
    },
    optimizer={"learning_rate": 2e-3, "warmup_steps": 100},
    num_steps=2000,
    ema_decay=0.999,
    log_every=100,
    eval_every=500,
    checkpoint_every=500,
  )


def owt_170m(
  process: str, *, process_options: dict[str, Any]
) -> ml_collections.ConfigDict:
  """A model of 170M parameters on OpenWebText, for 64 chips.

  Args:
    process: see `training.recipe.Recipe`.
    process_options: keyword arguments of the process.

  Returns:
    The configuration.
  """
  return make(
    process,
    process_options=process_options,
    model={
      "vocab_size": GPT2_VOCAB_SIZE,
      "d_model": 768,
      "num_layers": 12,
      "num_heads": 12,
      "dtype": "bfloat16",
    },
    data={**OPENWEBTEXT, "batch_size": 512},
    optimizer={
      "learning_rate": 3e-4,
      "warmup_steps": 2500,
      "b2": 0.999,
      "decay_steps": 0,
    },
    mesh={"data": 64},
    num_steps=1_000_000,
    ema_decay=0.9999,
    log_every=100,
    eval_every=10_000,
    checkpoint_every=5_000,
  )
