"""Text: corpora, splits, tokenizers, windows, and where files lie."""

from icml26_jax.data import (
  corpora,
  locations,
  splits,
  token_files,
  tokenizers,
  windows,
)

__all__ = [
  "corpora",
  "locations",
  "splits",
  "token_files",
  "tokenizers",
  "windows",
]
