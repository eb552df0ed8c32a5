"""Part 1: letters of real text, counted."""

from __future__ import annotations

import numpy as np

from icml26_jax.data import corpora, tokenizers

CORPUS = "stdlib:docstrings"
VOCAB_SIZE = 27
LENGTH = 3
SMOOTHING = 0.5


def letters(num_letters: int | None) -> np.ndarray:
  """The corpus in 27 letters, or its beginning, `[N]` int32."""
  documents = corpora.load(CORPUS, split="all").documents
  tokens = tokenizers.load("char27").encode_documents(documents)
  return tokens[:num_letters]


def count_logits(
  tokens: np.ndarray, *, vocab_size: int, length: int, smoothing: float
) -> list[np.ndarray]:
  """Logits of smoothed counts over all windows of a text.

  They are the logs of the counts themselves: log-probabilities would have
  soft values of 0 everywhere, and be their own rewards.

  Args:
    tokens: `[N]` ints.
    vocab_size: V.
    length: T, tokens of a window.
    smoothing: added to each count, above 0.

  Returns:
    T float64 tables, `log(count(s, y) + smoothing)` of shape `[V**t, V]`.
  """
  windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
  numbers = np.zeros(len(windows), np.int64)
  tables = []
  for t in range(length):
    numbers = numbers * vocab_size + windows[:, t]
    counts = np.bincount(numbers, minlength=vocab_size ** (t + 1))
    tables.append(np.log(counts + smoothing).reshape(-1, vocab_size))
  return tables
