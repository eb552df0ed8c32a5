"""Rotary position embedding: pairs of components turned by the position."""

from __future__ import annotations

from collections.abc import Sequence
import math

import jax
import jax.numpy as jnp
import numpy as np

# Which two components of a head form pair j: (2j, 2j + 1), or
# (j, j + head_dim / 2).
PAIRINGS = ("interleaved", "half")


def frequencies(
  head_dim: int, *, base: float, divisors: Sequence[float] | None = None
) -> np.ndarray:
  """Angle that each pair turns from one position to the next.

  Pair j turns by `base ** (-2 j / head_dim) / divisors[j]`.

  Args:
    head_dim: number of components, even.
    base: the slowest pair turns by nearly `1 / base`; above 0.
    divisors: `head_dim / 2` numbers above 0 that slow the pairs down; None
      for all ones.

  Returns:
    `[head_dim / 2]` float64, radians.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    Su et al., "RoFormer", arXiv 2104.09864, eq. (15).
  """
  if head_dim < 2 or head_dim % 2:
    raise ValueError(
      f"head_dim must be even and at least 2, got {head_dim}: rotary embedding"
      " turns pairs"
    )
  if not base > 0:
    raise ValueError(f"base must be above 0, got {base}")
  turn = base ** (-np.arange(0, head_dim, 2) / head_dim)
  if divisors is not None:
    if len(divisors) != head_dim // 2 or not all(d > 0 for d in divisors):
      raise ValueError(
        f"divisors must be {head_dim // 2} numbers above 0, got {divisors}"
      )
    turn = turn / np.asarray(divisors)
  return turn


def long_context_divisors(
  head_dim: int,
  *,
  base: float,
  factor: float,
  low_frequency_factor: float,
  high_frequency_factor: float,
  original_length: int,
) -> tuple[float, ...]:
  """Divisors of `frequencies` with which Llama 3.1 was extended.

  Pairs that turn more than `high_frequency_factor` times within the original
  length stay; those that turn less than `low_frequency_factor` times are
  slowed by `factor`; in between the frequency is interpolated linearly in the
  number of turns.

  Args:
    head_dim: see `frequencies`.
    base: see `frequencies`.
    factor: slow-down of the slow pairs, at least 1.
    low_frequency_factor: turns within the original length.
    high_frequency_factor: turns, above the former.
    original_length: positions seen before the extension.

  Returns:
    `head_dim / 2` numbers, at least 1.

  Raises:
    ValueError: if an argument is outside its range.
  """
  if not factor >= 1:
    raise ValueError(f"factor must be at least 1, got {factor}")
  if not 0 < low_frequency_factor < high_frequency_factor:
    raise ValueError(
      "low_frequency_factor must be above 0 and below high_frequency_factor,"
      f" got {low_frequency_factor} and {high_frequency_factor}"
    )
  turns = frequencies(head_dim, base=base) * original_length / (2 * math.pi)
  fast = (turns - low_frequency_factor) / (
    high_frequency_factor - low_frequency_factor
  )
  fast = np.clip(fast, 0.0, 1.0)
  return tuple((1 / (fast + (1 - fast) / factor)).tolist())


def angles(
  positions: jax.Array, turn: np.ndarray, *, dtype=jnp.float32
) -> tuple[jax.Array, jax.Array]:
  """Cosine and sine of each pair's angle.

  Args:
    positions: `[...]` int32.
    turn: `[head_dim / 2]` from `frequencies`.
    dtype: type to compute in; below float32 far positions become equal.

  Returns:
    Two `[..., head_dim / 2]` of `dtype`.
  """
  turn_a_step = jnp.asarray(turn, dtype)
  angle = positions[..., None].astype(dtype) * jnp.expand_dims(
    turn_a_step, tuple(range(positions.ndim))
  )
  return jnp.cos(angle), jnp.sin(angle)


def rotate(
  x: jax.Array, cosine: jax.Array, sine: jax.Array, *, pairing: str
) -> jax.Array:
  """Turns every pair (a, b) into (a cos - b sin, a sin + b cos).

  Args:
    x: `[..., head_dim]` float.
    cosine: `[..., head_dim / 2]`, of one rank with `x`.
    sine: like `cosine`.
    pairing: one of `PAIRINGS`.

  Returns:
    Like `x`; computed in the wider type of `x` and `cosine`.

  Raises:
    ValueError: if the pairing is unknown.
  """
  check_pairing("pairing", pairing)
  half = x.shape[-1] // 2
  # Components are swapped by reversing an axis of two: the gradient of that is
  # again one contiguous loop, unlike that of slices put together.
  if pairing == "interleaved":
    axis, planes, pair = -1, (half, 2), (1, 2)
  else:
    axis, planes, pair = -2, (2, half), (2, 1)
  pairs = x.reshape(*x.shape[:-1], *planes)
  sign = jnp.asarray([-1.0, 1.0], sine.dtype).reshape(
    (1,) * (x.ndim - 1) + pair
  )
  turned = pairs * jnp.expand_dims(cosine, axis) + jnp.flip(pairs, axis) * (
    sign * jnp.expand_dims(sine, axis)
  )
  return turned.reshape(x.shape).astype(x.dtype)


def split_pairs(x: jax.Array, *, pairing: str) -> tuple[jax.Array, jax.Array]:
  """First and second components of the pairs, each `[..., head_dim / 2]`."""
  check_pairing("pairing", pairing)
  half = x.shape[-1] // 2
  if pairing == "interleaved":
    pairs = x.reshape(*x.shape[:-1], half, 2)
    return pairs[..., 0], pairs[..., 1]
  return x[..., :half], x[..., half:]


def reorder(x: jax.Array, *, source: str, target: str) -> jax.Array:
  """Moves the components of a head from one pairing to the other.

  Queries and keys whose weights are both reordered have the same products.

  Args:
    x: `[..., head_dim]`.
    source: pairing of `x`, one of `PAIRINGS`.
    target: pairing of the result.

  Returns:
    Like `x`.

  Raises:
    ValueError: if a pairing is unknown.
  """
  check_pairing("source", source)
  check_pairing("target", target)
  if source == target:
    return x
  pairs = split_pairs(x, pairing=source)
  axis = -1 if target == "interleaved" else -2
  return jnp.stack(pairs, axis=axis).reshape(x.shape)


def check_pairing(name: str, pairing: str) -> None:
  """Raises ValueError unless `pairing` is one of `PAIRINGS`."""
  if pairing not in PAIRINGS:
    raise ValueError(
      f"{name} must be one of {', '.join(PAIRINGS)}, got {pairing!r}"
    )
