"""Small models of Python's documentation, shared between papers.

All learn from the first halves of two corpora, split by file; the second
halves are for judging. A model is trained once and then comes from the cache.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any, NamedTuple

import numpy as np

from icml26_jax.data import corpora, tokenizers, windows
from icml26_jax.models import dit
from icml26_jax.training import cache, recipe

CORPORA = ("stdlib:prose", "stdlib:docstrings")
VOCAB_SIZE = 27


class Size(NamedTuple):
  """How large a model is, and how long it learns.

  Attributes:
    d_model: width.
    num_layers: depth.
    length: characters of a row.
    batch_size: rows of a batch.
    num_steps: updates.
  """

  d_model: int
  num_layers: int
  length: int
  batch_size: int
  num_steps: int

  @property
  def characters(self) -> int:
    """Characters seen in training."""
    return self.length * self.batch_size * self.num_steps


def halves(split: str) -> np.ndarray:
  """Characters of one half of the corpora, `[N]` int32.

  Args:
    split: "first_half", which the models learn, or "second_half".
  """
  tokenizer = tokenizers.load("char27")
  return np.concatenate(
    [
      tokenizer.encode_documents(corpora.load(spec, split=split).documents)
      for spec in CORPORA
    ]
  )


@functools.cache
def training_data(length: int) -> recipe.Data:
  """What the models learn from.

  Args:
    length: characters of a row.
  """
  tokens = halves("first_half")
  return recipe.Data(
    tokenizer=tokenizers.load("char27"),
    train=windows.TokenWindows(tokens, length),
    validation=None,
    fingerprint=hashlib.sha256(tokens.tobytes()).hexdigest(),
  )


def make_recipe(
  process: str, size: Size, *, seed: int, **process_options: Any
) -> recipe.Recipe:
  """The recipe of a model.

  Args:
    process: "candi", "mdlm" or "continuous".
    size: its size.
    seed: of the parameters, the batches and the noise.
    **process_options: of the process.
  """
  return recipe.Recipe(
    process=process,
    process_options=tuple(process_options.items()),
    model=dit.Config(
      vocab_size=VOCAB_SIZE,
      d_model=size.d_model,
      num_layers=size.num_layers,
      num_heads=size.d_model // 32,
      d_conditioning=16,
      # Faster on a CPU, and small models compile quickly.
      scan_layers=False,
    ),
    data=recipe.DataConfig(
      # The text is handed over; this names it.
      corpus=f"{'+'.join(CORPORA)} (first halves)",
      tokenizer="char27",
      length=size.length,
      batch_size=size.batch_size,
    ),
    optimizer=recipe.OptimizerConfig(
      learning_rate=2e-3,
      warmup_steps=min(100, size.num_steps // 10),
      decay_steps=size.num_steps,
    ),
    num_steps=size.num_steps,
    seed=seed,
    ema_decay=0.995,
    steps_per_call=10,
    checkpoint_every=1000,
  )


def train(made: recipe.Recipe, description: str) -> Any:
  """Parameters of a recipe from `make_recipe`, from the cache if possible.

  Args:
    made: the recipe.
    description: what the progress bar says.

  Returns:
    Tree of averaged parameters.
  """
  return cache.train_or_load(
    made, data=training_data(made.data.length), description=description
  )
