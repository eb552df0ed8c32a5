"""Argument checks shared by the public functions."""

from __future__ import annotations

from collections.abc import Iterable
import difflib
import math

import jax
import numpy as np


def is_concrete(*values) -> bool:
  """True if every value is known now, that is, none is being traced."""
  return not any(isinstance(value, jax.core.Tracer) for value in values)


def check_range(
  name: str,
  value,
  *,
  low: float = -math.inf,
  high: float = math.inf,
  open_low: bool = False,
  open_high: bool = False,
) -> None:
  """Raises ValueError unless all of a concrete `value` lies in a range.

  A traced value passes: inside `jit` such checks belong to the caller.

  Args:
    name: how the argument is called, for the message.
    value: number or array; NaN is outside every range.
    low: lower end.
    high: upper end.
    open_low: True if `low` itself is not allowed.
    open_high: True if `high` itself is not allowed.

  Raises:
    ValueError: naming the argument, the first value outside and the range.
    TypeError: if the value is not a number.
  """
  if not is_concrete(value):
    return
  array = np.asarray(value)
  # bfloat16 and the like are of kind V.
  if array.dtype.kind not in "biufV":
    raise TypeError(f"{name} must be a number, got {value!r}")
  above = array > low if open_low else array >= low
  below = array < high if open_high else array <= high
  inside = above & below
  if not np.all(inside):
    left, right = "(["[not open_low], ")]"[not open_high]
    worst = array[~inside].flat[0] if array.ndim else array
    raise ValueError(
      f"{name} must be in {left}{low:g}, {high:g}{right}, got {worst}"
    )


def check_tokens(name: str, tokens, vocab_size: int, mask=None) -> None:
  """Raises unless concrete `tokens` are integers in [0, vocab_size).

  Args:
    name: how the argument is called, for the message.
    tokens: integer array of any shape.
    vocab_size: number of tokens.
    mask: bool array of the same shape; only True positions are looked at.

  Raises:
    TypeError: if the tokens are not integers.
    ValueError: naming the first token outside.
  """
  if not np.issubdtype(tokens.dtype, np.integer):
    raise TypeError(f"{name} must be integers, got {tokens.dtype}")
  if not is_concrete(tokens) or (mask is not None and not is_concrete(mask)):
    return
  array = np.asarray(tokens)
  if mask is not None:
    array = array[np.asarray(mask)]
  outside = array[(array < 0) | (array >= vocab_size)]
  if outside.size:
    raise ValueError(
      f"{name} must be in [0, {vocab_size}), got {outside.flat[0]}"
    )


def check_probabilities(name: str, value) -> None:
  """Raises ValueError unless a concrete `value` holds distributions.

  Args:
    name: how the argument is called, for the message.
    value: `[..., V]` array; each `value[i]` must be non-negative and sum to 1
      within float32 rounding, V * 2^-23 (at least 1e-6).

  Raises:
    ValueError: naming the argument and the first sum that is not 1.
  """
  if not is_concrete(value):
    return
  array = np.asarray(value, np.float64)
  check_range(name, array, low=0.0, high=1.0 + 1e-6)
  sums = array.sum(axis=-1)
  tolerance = max(array.shape[-1] * 2.0**-23, 1e-6)
  wrong = np.abs(sums - 1.0) > tolerance
  if np.any(wrong):
    raise ValueError(
      f"{name} must sum to 1 along its last axis, got {sums[wrong].flat[0]:g}"
    )


def unknown(kind: str, name: str, valid: Iterable[str]) -> str:
  """What to say of a name that does not exist.

  Args:
    kind: what is named, for instance "paper".
    name: the name given.
    valid: the names that exist.

  Returns:
    A message that lists those names, and the one that was perhaps meant.
  """
  valid = list(valid)
  close = difflib.get_close_matches(name, valid, n=1)
  hint = f" (did you mean {close[0]!r}?)" if close else ""
  listed = ", ".join(valid) if valid else "none"
  return f"unknown {kind} {name!r}{hint}; valid: {listed}"
