"""Text and pictures: corpora, splits, tokenizers, windows, images, digits."""

from icml26_jax.data import (
  corpora,
  digits,
  images,
  locations,
  splits,
  token_files,
  tokenizers,
  windows,
)

__all__ = [
  "corpora",
  "digits",
  "images",
  "locations",
  "splits",
  "token_files",
  "tokenizers",
  "windows",
]
