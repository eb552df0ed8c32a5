"""The tokens of a whole corpus, in memory or in a mapped file."""

from __future__ import annotations

import hashlib
import pathlib

import numpy as np

from icml26_jax.data import corpora, locations, tokenizers

_SCHEMA = 1
# Documents encoded at a time: enough to keep byte pairs busy on all cores.
_CHUNK = 1024


def encode(
  tokenizer: tokenizers.Tokenizer, corpus: corpora.Corpus
) -> np.ndarray:
  """Tokens of all documents of a corpus, one after the other.

  A corpus that is read from disk on demand may be larger than memory: its
  tokens are written once, in pieces, to a file in the cache folder and mapped
  from there. A file that was cut short is made again.

  Args:
    tokenizer: how to encode.
    corpus: what to encode.

  Returns:
    `[N]` int32, read-only if mapped.

  Raises:
    ValueError: if the cache folder is needed and not writable.
  """
  if isinstance(corpus.documents, tuple | list):
    return tokenizer.encode_documents(corpus.documents)
  facts = [str(_SCHEMA), tokenizer.fingerprint, corpus.fingerprint]
  key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]
  path = locations.cache_dir("tokens") / f"{key}.int32"
  if not _is_whole(path):
    _write(path, tokenizer, corpus)
  return np.memmap(path, np.dtype("<i4"), mode="r")


def _length_file(path: pathlib.Path) -> pathlib.Path:
  return path.with_suffix(".length")


def _is_whole(path: pathlib.Path) -> bool:
  """True if a file has the length that was noted after writing it."""
  try:
    return path.stat().st_size == int(_length_file(path).read_text())
  except (OSError, ValueError):
    return False


def _write(path, tokenizer, corpus) -> None:
  """Writes the tokens, then notes their length."""
  documents = corpus.documents
  with locations.atomic_writer(path) as file:
    for start in range(0, len(documents), _CHUNK):
      chunk = documents[start : start + _CHUNK]
      file.write(tokenizer.encode_documents(chunk).astype("<i4").tobytes())
    length = file.tell()
  if not length:
    path.unlink()
    raise ValueError(f"split {corpus.split!r} of {corpus.name} holds no tokens")
  with locations.atomic_writer(_length_file(path)) as file:
    file.write(str(length).encode())
