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

  Keywords, strings and comments are left out.

  Args:
    split: split of the files.
    num_tokens: how many characters are wanted.

  Returns:
    `[num_tokens]` int32.

  Raises:
    ValueError: if the split has fewer.
  """
  tokenizer = tokenizers.load("char27")
  parts, found = [], 0
  for document in corpora.load("stdlib:source", split=split).documents:
    names = " ".join(_names(document)) + " "
    parts.append(tokenizer.encode(names))
    found += len(parts[-1])
    if found >= num_tokens:
      return np.concatenate(parts)[:num_tokens]
  raise ValueError(f"num_tokens must be at most {found}, got {num_tokens}")


def windows(text: np.ndarray, length: int, count: int) -> np.ndarray:
  """The first `count` consecutive windows of a text, `[count, length]`."""
  if len(text) < count * length:
    raise ValueError(
      f"count must be at most {len(text) // length}, got {count}"
    )
  return text[: count * length].reshape(count, length)


def _names(code: str):
  readline = io.StringIO(code).readline
  for token in python_tokenize.generate_tokens(readline):
    if token.type == python_tokenize.NAME and not keyword.iskeyword(
      token.string
    ):
      yield token.string
