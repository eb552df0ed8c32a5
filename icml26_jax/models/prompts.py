"""Prompts of different length in one array."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks


def pad(
  prompts: Sequence[Sequence[int] | np.ndarray],
  *,
  side: str = "left",
  pad_token: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
  """Puts prompts of different length into one array.

  Args:
    prompts: B vectors of tokens.
    side: where the padding goes, `left` or `right`.
    pad_token: what it consists of.

  Returns:
    Tokens `[B, T]` int32 and mask `[B, T]` bool, T the longest length.

  Raises:
    ValueError: if there is no prompt, one is empty, or the side is unknown.
  """
  if side not in ("left", "right"):
    raise ValueError(f"side must be left or right, got {side!r}")
  if not len(prompts):
    raise ValueError("prompts must hold at least one prompt")
  rows = [np.asarray(prompt) for prompt in prompts]
  for i, row in enumerate(rows):
    if row.ndim != 1 or not row.size:
      raise ValueError(
        f"prompt {i} must be a vector of at least one token, got shape"
        f" {row.shape}"
      )
    checks.check_tokens(f"prompt {i}", row, np.iinfo(np.int32).max)
  length = max(row.size for row in rows)
  tokens = np.full((len(rows), length), pad_token, np.int32)
  mask = np.zeros((len(rows), length), bool)
  for i, row in enumerate(rows):
    where = slice(row.size) if side == "right" else slice(-row.size, None)
    tokens[i, where], mask[i, where] = row, True
  return tokens, mask


def check(
  tokens: jax.Array,
  mask: jax.Array | None,
  vocab_size: int,
  *,
  allow_empty: bool = False,
) -> jax.Array:
  """The mask of prompts, after prompts and mask were looked at.

  Values that are not known yet, because they are traced, pass.

  Args:
    tokens: `[B, T]` integers.
    mask: `[B, T]` bool, True where there is a token; None for everywhere.
    vocab_size: tokens are below it, except where the mask is False.
    allow_empty: whether a row may have no token.

  Returns:
    `[B, T]` bool.

  Raises:
    TypeError: if the tokens are not integers or the mask is not bool.
    ValueError: if a shape is wrong, a row is empty or a token outside.
  """
  shape = jnp.shape(tokens)
  if len(shape) != 2 or 0 in shape:
    raise ValueError(
      "tokens must have shape [B, T] with at least one row and one token, got"
      f" {shape}"
    )
  if mask is None:
    mask = jnp.ones(shape, jnp.bool_)
  if mask.dtype != jnp.bool_:
    raise TypeError(f"mask must be bool, got {mask.dtype}")
  if mask.shape != shape:
    raise ValueError(
      f"mask {mask.shape} and tokens {shape} must have one shape"
    )
  checks.check_tokens("tokens", tokens, vocab_size, mask)
  if not allow_empty and checks.is_concrete(mask):
    # NumPy, because under jit even an operation on a known array is traced.
    has_token = np.any(np.asarray(mask), axis=1)
    if not has_token.all():
      raise ValueError(
        f"row {int(np.argmin(has_token))} of tokens is an empty prompt: its"
        " mask has no True"
      )
  return mask
