"""The text that the parts of the experiment share."""

from __future__ import annotations

import functools
import io
import keyword
import tokenize as python_tokenize

import numpy as np

from icml26_jax.data import corpora, tokenizers
from icml26_jax.evaluation import markov

VOCAB_SIZE = 27

# Added to every count of the bigram chain, so that no pair is impossible.
SMOOTHING = 0.1

# Files whose names are read; more would take longer and say the same.
_FILES = 100


def tokens(spec: str, split: str) -> np.ndarray:
  """Characters of one split of a corpus, `[N]` int32 in 27 letters."""
  corpus = corpora.load(spec, split=split)
  return tokenizers.load("char27").encode_documents(corpus.documents)


@functools.cache
def chain() -> markov.MarkovChain:
  """The bigram chain of Python's language reference."""
  return markov.fit(
    tokens("stdlib:prose", "all"), VOCAB_SIZE, smoothing=SMOOTHING
  )


def joint_bigrams(chain: markov.MarkovChain) -> np.ndarray:
  """`[V, V]` float64 distribution of neighbours in a chain in equilibrium."""
  initial = np.asarray(chain.initial, np.float64)
  joint = initial[:, None] * np.asarray(chain.transition, np.float64)
  return joint / joint.sum()


def identifiers(split: str, num_tokens: int) -> np.ndarray:
  """Names from Python's source code, as text in 27 letters.

  Keywords, strings and comments are left out. Every file gives as much, so
  that no file's own words dominate.

  Args:
    split: split of the files.
    num_tokens: how many characters are wanted.

  Returns:
    `[num_tokens]` int32.

  Raises:
    ValueError: if the files give fewer.
  """
  documents = corpora.load("stdlib:source", split=split).documents
  # An even choice of files, and some more than their share: some are short.
  chosen = documents[:: max(1, len(documents) // _FILES)]
  share = 5 * num_tokens // (4 * len(chosen))
  tokenizer = tokenizers.load("char27")
  parts = [tokenizer.encode(_names(text, share)) for text in chosen]
  found = np.concatenate(parts)
  if len(found) < num_tokens:
    raise ValueError(
      f"num_tokens must be at most {len(found)}, got {num_tokens}"
    )
  return found[:num_tokens]


def windows(text: np.ndarray, length: int, count: int) -> np.ndarray:
  """The first `count` consecutive windows of a text, `[count, length]`."""
  if len(text) < count * length:
    raise ValueError(
      f"count must be at most {len(text) // length}, got {count}"
    )
  return text[: count * length].reshape(count, length)


def _names(code: str, size: int) -> str:
  """The first names in a file, up to about `size` characters."""
  names, found = [], 0
  for token in python_tokenize.generate_tokens(io.StringIO(code).readline):
    if token.type == python_tokenize.NAME and not keyword.iskeyword(
      token.string
    ):
      names.append(token.string)
      found += len(token.string) + 1
      if found >= size:
        break
  return " ".join(names) + " "
