"""Keys and values of the tokens seen so far, in arrays of fixed shape.

All rows of a batch write to the same slots, so that a write is one update in
place. What differs from row to row is which slots hold a token (`valid`) and
the position of the next one: prompts of different length, padded left or
right, need nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
  """Keys and values of L layers, B rows, K heads, S slots.

  Attributes:
    keys: `[L, B, K, S, head_dim]`, with their positions applied.
    values: `[L, B, K, S, head_dim]`.
    valid: `[B, S]` bool, True where a slot holds a token.
    next_slot: `[]` int32, the slot that the next token is written to.
    next_position: `[B]` int32, the position of the next token.
  """

  keys: jax.Array
  values: jax.Array
  valid: jax.Array
  next_slot: jax.Array
  next_position: jax.Array

  @property
  def num_slots(self) -> int:
    return self.valid.shape[1]


class CachedModel(NamedTuple):
  """A causal language model that remembers what it has read.

  Attributes:
    prefill: `(params, tokens [B, T], mask [B, T]) -> (logits [B, V], cache)`,
      the predictions after the last token of each row.
    extend: `(params, cache, tokens [B, T], mask [B, T]) -> (logits [B, T, V],
      cache)`, the predictions after each token. A row whose mask is False
      reads nothing.
    vocab_size: number of tokens V.
    num_slots: how many slots a cache has.
  """

  prefill: Callable[..., tuple[jax.Array, Any]]
  extend: Callable[..., tuple[jax.Array, Any]]
  vocab_size: int
  num_slots: int


def init(
  *,
  num_layers: int,
  batch_size: int,
  num_heads: int,
  num_slots: int,
  head_dim: int,
  dtype,
) -> KVCache:
  """An empty cache.

  Args:
    num_layers: L.
    batch_size: B.
    num_heads: number of heads of keys and values, K.
    num_slots: tokens a row can hold, padding included, S.
    head_dim: components of a head.
    dtype: type of keys and values.

  Returns:
    A cache without tokens.

  Raises:
    ValueError: if a size is below 1.
  """
  sizes = dict(
    num_layers=num_layers,
    batch_size=batch_size,
    num_heads=num_heads,
    num_slots=num_slots,
    head_dim=head_dim,
  )
  for name, size in sizes.items():
    checks.check_range(name, size, low=1)
  shape = (num_layers, batch_size, num_heads, num_slots, head_dim)
  return KVCache(
    keys=jnp.zeros(shape, dtype),
    values=jnp.zeros(shape, dtype),
    valid=jnp.zeros((batch_size, num_slots), jnp.bool_),
    next_slot=jnp.zeros((), jnp.int32),
    next_position=jnp.zeros((batch_size,), jnp.int32),
  )


def append(
  cache: KVCache, keys: jax.Array, values: jax.Array, mask: jax.Array
) -> KVCache:
  """Writes T tokens a row into the next T slots.

  Under `jit` the number of slots in use is not known, and nothing can be
  raised when they run out: the values then become NaN, and with them every
  later prediction.

  Args:
    cache: the cache.
    keys: `[L, B, K, T, head_dim]`.
    values: `[L, B, K, T, head_dim]`.
    mask: `[B, T]` bool, True where there is a token.

  Returns:
    The cache with the tokens.

  Raises:
    ValueError: if T tokens do not fit.
  """
  length = mask.shape[1]
  check_room(cache, length)
  start = cache.next_slot
  full = start + length > cache.num_slots
  values = jnp.where(full, jnp.full_like(values, jnp.nan), values)

  def write(whole, part, axis):
    part = part.astype(whole.dtype)
    return jax.lax.dynamic_update_slice_in_dim(whole, part, start, axis)

  return KVCache(
    keys=write(cache.keys, keys, 3),
    values=write(cache.values, values, 3),
    valid=write(cache.valid, mask, 1),
    next_slot=start + length,
    next_position=cache.next_position + jnp.sum(mask, axis=1, dtype=jnp.int32),
  )


def check_room(cache: KVCache, length: int) -> None:
  """Raises ValueError if it is known that `length` tokens do not fit."""
  used = int(cache.next_slot) if checks.is_concrete(cache.next_slot) else 0
  if used + length > cache.num_slots:
    raise ValueError(
      f"{length} tokens do not fit into the cache: {used} of its"
      f" {cache.num_slots} slots are in use"
    )


def logical_axes() -> KVCache:
  """Logical axis names of every array of a cache."""
  stored = ("layers", "batch", "heads", None, "head_dim")
  return KVCache(
    keys=stored,  # type: ignore[arg-type]
    values=stored,  # type: ignore[arg-type]
    valid=("batch", None),  # type: ignore[arg-type]
    next_slot=(),  # type: ignore[arg-type]
    next_position=("batch",),  # type: ignore[arg-type]
  )
