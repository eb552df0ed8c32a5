"""Finds a user's checkpoint and text, and makes a subject of them."""

from __future__ import annotations

from collections.abc import Callable
import functools
import importlib
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from experiments import cli
from experiments.validators import (
  llama_subject,
  subject,
  transformer_subject,
)
from icml26_jax import checks
from icml26_jax.data import corpora
from icml26_jax.models import llama
from icml26_jax.pretrained import checkpoint, fetch
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import trainer, workdir

# Random tokens instead of text: laws hold for any data.
RANDOM = "random"


def load(
  source: str,
  *,
  corpus: str,
  rows: int,
  length: int | None,
  seed: int,
  apply: str | None = None,
) -> subject.Subject:
  """Loads a model and a batch for it.

  Args:
    source: name of pretrained weights, a GGUF file, a Hugging Face directory,
      or the directory of a training run of ours.
    corpus: see `data.corpora.load`, or `RANDOM`.
    rows: rows of the batch.
    length: tokens of a row; None for 64, or as in training.
    seed: chooses the rows.
    apply: `MODULE:FUNCTION`, a forward pass to use instead of ours.

  Returns:
    The subject.

  Raises:
    ValueError: if the model, the corpus or the function is unusable.
    OSError: if a file is not there.
  """
  if length is not None and length < 2:
    raise cli.UserError(f"length must be at least 2, got {length}")
  # What is wrong with the text is found before weights are loaded.
  text = None if corpus == RANDOM else find_text(corpus)
  path = pathlib.Path(source).expanduser()
  if (path / workdir.RECIPE_FILE).is_file():
    if apply is not None:
      raise cli.UserError("apply is for pretrained models, not for a workdir")
    return _trained(path, text, rows, length, seed)
  if path.is_dir() and not (path / "config.json").is_file():
    raise cli.UserError(
      f"params {source} is a directory with neither config.json (Hugging Face)"
      f" nor {workdir.RECIPE_FILE} (a training run)"
    )
  forward = llama.apply if apply is None else load_function(apply)
  _check_source(source)
  loaded = checkpoint.load(source, with_tokenizer=text is not None)
  config = loaded.config
  tokens = _tokens(
    loaded.tokenizer, config.vocab_size, text, rows, length or 64, seed
  )
  return llama_subject.make(
    str(source),
    loaded.params,
    config,
    tokens,
    apply=forward,
    with_pairing=text is not None,
  )


def load_function(name: str) -> Callable:
  """The function that `MODULE:FUNCTION` names.

  Raises:
    cli.UserError: if there is none.
  """
  module, colon, function = name.partition(":")
  if not (module and colon and function):
    raise cli.UserError(f"apply must be MODULE:FUNCTION, got {name!r}")
  try:
    found = getattr(importlib.import_module(module), function)
  except (ImportError, AttributeError) as error:
    raise cli.UserError(f"apply {name!r}: {cli.one_line(error)}") from error
  if not callable(found):
    raise cli.UserError(f"apply {name!r} is not a function")

  @functools.wraps(found)
  def call(*arguments, **options):
    # Exit code 1 says that a law is broken, not that the function is.
    try:
      return found(*arguments, **options)
    except Exception as error:  # whatever it does
      raise cli.UserError(
        f"apply {name!r} raised {type(error).__name__}:"
        f" {cli.one_line(error)}; --v=1 shows where"
      ) from error

  return call


def find_text(spec: str) -> corpora.Corpus:
  """Text that a model did not train on, as far as we know.

  Args:
    spec: see `data.corpora.load`.

  Returns:
    Its validation split, or all of the user's own files.

  Raises:
    ValueError: if the corpus is unknown or empty.
  """
  split = "all" if spec.startswith("file:") else "validation"
  return corpora.load(spec, split=split)


def text_tokens(
  tokenizer, corpus: corpora.Corpus, *, rows: int, length: int, seed: int
) -> np.ndarray:
  """Rows of text: documents in a random order, one after the other.

  Args:
    tokenizer: see `data.tokenizers`.
    corpus: the text.
    rows: number of rows.
    length: tokens of a row.
    seed: of the order.

  Returns:
    `[rows, length]` int32.

  Raises:
    ValueError: if the corpus is too short.
  """
  documents = corpus.documents
  parts, count = [], 0
  for i in np.random.default_rng(seed).permutation(len(documents)):
    parts.append(tokenizer.encode_documents([documents[i]]))
    count += len(parts[-1])
    if count >= rows * length:
      break
  if count < rows * length:
    raise ValueError(
      f"corpus {corpus.name} has {count:,} tokens, fewer than {rows} rows of"
      f" {length}; see --rows and --length"
    )
  return np.concatenate(parts)[: rows * length].reshape(rows, length)


def _check_source(source):
  """Says more than that there is no such file where a name is misspelt."""
  looks_like_a_path = os.sep in source or source.endswith(".gguf")
  if not (
    source in fetch.SOURCES
    or looks_like_a_path
    or pathlib.Path(source).exists()
  ):
    raise cli.UserError(
      f"{checks.unknown('params', source, fetch.SOURCES)}, or the path of a GGUF"
      " file, a Hugging Face directory or a training run"
    )


def _tokens(tokenizer, vocab_size, corpus, rows, length, seed):
  if corpus is None:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab_size, size=(rows, length), dtype=np.int32)
  else:
    tokens = text_tokens(tokenizer, corpus, rows=rows, length=length, seed=seed)
  return jnp.asarray(tokens)


def _trained(path, text, rows, length, seed):
  recipe = recipe_lib.from_dict(workdir.read(path))
  task = transformer_subject.task_of(recipe)
  tokenizer = None if text is None else recipe_lib.load_tokenizer(recipe)
  tokens = _tokens(
    tokenizer,
    recipe.model.vocab_size,
    text,
    rows,
    length or recipe.data.length,
    seed,
  )
  params, step = trainer.load_params(task, path)
  index = jnp.arange(rows, dtype=jnp.int32)
  batch = {
    "tokens": tokens,
    "mask": jnp.ones(tokens.shape, jnp.bool_),
    "index": index,
    "stratum": index / rows,
  }
  return transformer_subject.make(
    f"{path} at step {step:,}", task, params, batch, jax.random.key(seed)
  )
