"""Tokenizers: 27 characters, bytes, byte pairs.

Each has a `vocab_size` and turns text into integers in [0, vocab_size) and
back. None of them knows a mask symbol: a diffusion process says which
positions are hidden.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from typing import Protocol

import numpy as np
import tokenizers as hf_tokenizers

from icml26_jax import checks
from icml26_jax.data import corpora, text_files

# Between documents that are encoded one after the other.
_SEPARATOR = "\n\n"
_ALPHABET = " abcdefghijklmnopqrstuvwxyz"
_DIGITS = {"0": "zero", "1": "one", "2": "two", "3": "three", "4": "four"}
_DIGITS |= {"5": "five", "6": "six", "7": "seven", "8": "eight", "9": "nine"}
_BYTES = 256
_PLACES = "'char27', 'byte', 'bpe:SIZE' or 'file:TOKENIZER.JSON'"


class Tokenizer(Protocol):
  """What every tokenizer offers.

  Attributes:
    vocab_size: number of tokens V.
    fingerprint: names what `encode` does; equal for tokenizers that agree.
  """

  @property
  def vocab_size(self) -> int: ...

  @property
  def fingerprint(self) -> str: ...

  def encode(self, text: str) -> np.ndarray:
    """Tokens `[N]` int32 of a text."""
    ...

  def decode(self, ids) -> str:
    """The text of tokens `[N]`, of any integer type."""
    ...

  def encode_documents(self, documents) -> np.ndarray:
    """Tokens `[N]` int32 of several texts, one after the other.

    A blank line (for `char27` a space) ends each. Two runs of documents give
    the tokens of one run of all.
    """
    ...


def clean(text: str) -> str:
  """Text in the 27 characters of text8: a to z and the space.

  Lower-cased; each digit 0 to 9 is spelled out between spaces; every other
  run of characters, and every run of spaces, becomes one space.

  >>> clean("A 27-character text!")
  'a two seven character text '
  """
  text = re.sub("[0-9]", lambda digit: f" {_DIGITS[digit[0]]} ", text)
  return re.sub("[^a-z]+", " ", text.lower())


@dataclasses.dataclass(frozen=True)
class Char27:
  """The alphabet of text8: token 0 is the space, 1 to 26 are a to z.

  `decode(encode(text))` is `clean(text)`.
  """

  @property
  def vocab_size(self) -> int:
    return len(_ALPHABET)

  @property
  def fingerprint(self) -> str:
    return "char27"

  def encode(self, text: str) -> np.ndarray:
    codes = np.frombuffer(clean(text).encode("ascii"), np.uint8)
    return np.where(codes == ord(" "), 0, codes - ord("a") + 1).astype(np.int32)

  def decode(self, ids) -> str:
    ids = _checked(ids, self.vocab_size)
    letters = np.frombuffer(_ALPHABET.encode("ascii"), np.uint8)
    return letters[ids].tobytes().decode("ascii")

  def encode_documents(self, documents) -> np.ndarray:
    # One space between words here too, wherever documents meet.
    texts = (clean(text).strip() for text in documents)
    return self.encode("".join(text + " " for text in texts if text))


@dataclasses.dataclass(frozen=True)
class Byte:
  """The bytes of UTF-8.

  `decode` turns bytes that are not UTF-8, which a model may well produce,
  into U+FFFD.
  """

  @property
  def vocab_size(self) -> int:
    return _BYTES

  @property
  def fingerprint(self) -> str:
    return "byte"

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

  def decode(self, ids) -> str:
    ids = _checked(ids, self.vocab_size)
    return ids.astype(np.uint8).tobytes().decode("utf-8", errors="replace")

  def encode_documents(self, documents) -> np.ndarray:
    return self.encode("".join(text + _SEPARATOR for text in documents))


@dataclasses.dataclass(frozen=True)
class BytePair:
  """Byte pairs, or whatever else a `tokenizer.json` holds.

  Attributes:
    model: `tokenizers.Tokenizer`. Special tokens are neither added by `encode`
      nor left out by `decode`.
  """

  model: hf_tokenizers.Tokenizer

  @functools.cached_property
  def vocab_size(self) -> int:
    # Identifiers may have gaps; a table of embeddings has none.
    return max(self.model.get_vocab(with_added_tokens=True).values()) + 1

  @functools.cached_property
  def fingerprint(self) -> str:
    return hashlib.sha256(self.model.to_str().encode()).hexdigest()

  def encode(self, text: str) -> np.ndarray:
    encoding = self.model.encode(text, add_special_tokens=False)
    return np.asarray(encoding.ids, np.int32)

  def decode(self, ids) -> str:
    ids = _checked(ids, self.vocab_size)
    return self.model.decode(ids.tolist(), skip_special_tokens=False)

  def encode_documents(self, documents) -> np.ndarray:
    encodings = self.model.encode_batch_fast(
      [text + _SEPARATOR for text in documents], add_special_tokens=False
    )
    parts = [np.asarray(encoding.ids, np.int32) for encoding in encodings]
    return np.concatenate([np.zeros(0, np.int32), *parts])


def load(spec: str, corpus: corpora.Corpus | None = None) -> Tokenizer:
  """Makes a tokenizer by name.

  Args:
    spec: `char27`, `byte`, `bpe:SIZE` (trained on `corpus`, lossless) or
      `file:PATH` of a `tokenizer.json`.
    corpus: the training text of `bpe:SIZE`; otherwise not looked at.

  Raises:
    ValueError: if there is no such tokenizer, the file is not one, `corpus` is
      missing, or SIZE is below 256 or more than the text yields.
  """
  kind, _, rest = spec.partition(":")
  if spec == "char27":
    return Char27()
  if spec == "byte":
    return Byte()
  if kind == "bpe" and rest.isascii() and rest.isdigit():
    if corpus is None:
      raise ValueError(f"tokenizer {spec!r} needs a corpus to be trained on")
    return train_byte_pairs(corpus, vocab_size=int(rest))
  if kind == "file" and rest:
    return _from_file(rest)
  raise ValueError(f"tokenizer must be {_PLACES}, got {spec!r}")


def train_byte_pairs(corpus: corpora.Corpus, *, vocab_size: int) -> BytePair:
  """Learns byte pairs; the same text gives the same tokenizer.

  Every byte is a token, so that any text comes back exactly.

  Args:
    corpus: text to learn from.
    vocab_size: number of tokens, at least the 256 bytes.

  Raises:
    ValueError: if `vocab_size` is below 256 or the text has too few different
      pairs.
  """
  checks.check_range("vocab_size", vocab_size, low=_BYTES)
  model = hf_tokenizers.Tokenizer(hf_tokenizers.models.BPE())
  model.pre_tokenizer = hf_tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  model.decoder = hf_tokenizers.decoders.ByteLevel()
  trainer = hf_tokenizers.trainers.BpeTrainer(
    vocab_size=vocab_size,
    initial_alphabet=sorted(hf_tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  model.train_from_iterator(corpus.documents, trainer)
  if model.get_vocab_size() != vocab_size:
    raise ValueError(
      f"{corpus.name} yields at most {model.get_vocab_size()} byte pairs, got"
      f" vocab_size {vocab_size}"
    )
  return BytePair(model)


def _from_file(path: str) -> BytePair:
  """The tokenizer of a `tokenizer.json`."""
  place = text_files.find(path)
  if place.is_dir():
    place = place / "tokenizer.json"
  text = text_files.read(place)
  try:
    json.loads(text)
    model = hf_tokenizers.Tokenizer.from_str(text)
  except Exception as error:  # the library raises no narrower type
    raise ValueError(f"{place} is not a tokenizer.json: {error}") from error
  return BytePair(model)


def _checked(ids, vocab_size: int) -> np.ndarray:
  """Tokens as a NumPy vector, all of them in the vocabulary."""
  array = np.asarray(ids)
  if array.ndim != 1:
    raise ValueError(f"ids must be a vector, got shape {array.shape}")
  if array.size:
    checks.check_tokens("ids", array, vocab_size)
  return array.astype(np.int64)
