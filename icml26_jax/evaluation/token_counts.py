"""How often tokens, and pairs of neighbours, occur in each row of a text."""

from __future__ import annotations

import numpy as np

from icml26_jax import checks


def unigram_counts(tokens, vocab_size: int) -> np.ndarray:
  """How often each token occurs in each row.

  Args:
    tokens: `[N, L]` integers in [0, V).
    vocab_size: number of tokens V.

  Returns:
    `[N, V]` float32.

  Raises:
    ValueError: if `tokens` has another shape or a token is outside.
    TypeError: if the tokens are not integers.
  """
  return row_counts(_checked(tokens, vocab_size), vocab_size)


def bigram_counts(tokens, vocab_size: int) -> np.ndarray:
  """How often each pair of neighbours occurs in each row.

  Args:
    tokens: `[N, L]` integers in [0, V).
    vocab_size: number of tokens V.

  Returns:
    `[N, V * V]` float32, the pair (a, b) at `a * V + b`.

  Raises:
    ValueError: if `tokens` has another shape or a token is outside.
    TypeError: if the tokens are not integers.
  """
  tokens = _checked(tokens, vocab_size)
  pairs = tokens[:, :-1] * vocab_size + tokens[:, 1:]
  return row_counts(pairs, vocab_size**2)


def row_counts(rows: np.ndarray, size: int) -> np.ndarray:
  """How often each number occurs in each row.

  Args:
    rows: `[R, M]` int64 in [0, size).
    size: how many numbers there are.

  Returns:
    `[R, size]` float32.
  """
  flat = rows + size * np.arange(len(rows))[:, None]
  counts = np.bincount(flat.ravel(), minlength=size * len(rows))
  return counts.reshape(len(rows), size).astype(np.float32)


def _checked(tokens, vocab_size) -> np.ndarray:
  tokens = np.asarray(tokens)
  if tokens.ndim != 2:
    raise ValueError(f"tokens must be [N, L], got shape {tokens.shape}")
  checks.check_tokens("tokens", tokens, vocab_size)
  return tokens.astype(np.int64)
