"""Pretrained language models by name or path."""

from __future__ import annotations

import os
import pathlib
from typing import NamedTuple

from icml26_jax.models import llama
from icml26_jax.pretrained import fetch, gguf, parameters, safetensors
from icml26_jax.pretrained import tokenizer as tokenizer_lib


class Checkpoint(NamedTuple):
  """A pretrained model.

  Attributes:
    params: parameters.
    config: shape of the model, for the functions of `llama`.
    tokenizer: None if it was not asked for.
  """

  params: llama.Params
  config: llama.Config
  tokenizer: tokenizer_lib.Tokenizer | None


def load(
  source: str | os.PathLike,
  *,
  dtype: str = "float32",
  with_tokenizer: bool = True,
) -> Checkpoint:
  """Loads a model; downloads nothing.

  Args:
    source: a name that `fetch` knows, the path of a GGUF file, or of a Hugging
      Face directory of a model of the Llama family.
    dtype: type of the parameters and to compute in, `float32` or `bfloat16`.
    with_tokenizer: False to leave the tokenizer.

  Returns:
    Parameters, config and tokenizer.

  Raises:
    FileNotFoundError: if the weights are not there; says how to obtain them.
    ValueError: if they are damaged or of a kind that is not supported.
  """
  parameters.check_dtype(dtype)
  if source in fetch.SOURCES:
    source = fetch.find(str(source))
  path = pathlib.Path(source).expanduser()
  if path.is_dir():
    config = safetensors.config(path, dtype=dtype)
    params = safetensors.params(path, config, dtype=dtype)
    words = tokenizer_lib.from_folder(path) if with_tokenizer else None
    return Checkpoint(params, config, words)
  if not path.exists():
    raise FileNotFoundError(
      f"there is no {source}; a model is one of {', '.join(fetch.SOURCES)}, a"
      " GGUF file or a Hugging Face directory"
    )
  file = gguf.File(path)
  config = gguf.config(file, dtype=dtype)
  params = gguf.params(file, config, dtype=dtype)
  words = tokenizer_lib.from_gguf(file) if with_tokenizer else None
  return Checkpoint(params, config, words)
