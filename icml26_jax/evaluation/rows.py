"""Tokens and mask as metrics take them: checked, one sequence a row."""

from __future__ import annotations

import numpy as np

from icml26_jax import checks


def token_rows(tokens, mask, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
  """Checked tokens and mask.

  Args:
    tokens: `[N]` or `[B, L]` integers; those that count in [0, V).
    mask: bool of that shape, True where a token counts; None for all.
    vocab_size: number of tokens V.

  Returns:
    `[B, L]` int64 tokens, 0 where `mask` is False, and the `[B, L]` mask; a
    vector is one row.

  Raises:
    ValueError: if a token that counts is outside the vocabulary, `vocab_size`
      is below 1, or the shapes are wrong.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  checks.check_range("vocab_size", vocab_size, low=1)
  tokens = np.asarray(tokens)
  if tokens.ndim not in (1, 2):
    raise ValueError(f"tokens must be [N] or [B, L], got {tokens.shape}")
  mask = np.ones(tokens.shape, np.bool_) if mask is None else np.asarray(mask)
  if mask.shape != tokens.shape:
    raise ValueError(
      f"tokens {tokens.shape} and mask {mask.shape} must have one shape"
    )
  if mask.dtype != np.bool_:
    raise TypeError(f"mask must be bool, got {mask.dtype}")
  checks.check_tokens("tokens", tokens, vocab_size, mask)
  tokens = np.where(mask, tokens, 0).astype(np.int64)
  return np.atleast_2d(tokens), np.atleast_2d(mask)
