"""Checksums of arrays that do not depend on the mesh they are spread over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def of_leaves(tree: Any) -> list[int]:
  """One checksum a leaf; equal trees have equal ones on any mesh.

  The bits of each element, times an odd number that depends on its place,
  summed modulo 2^32: any single changed element shows.

  Args:
    tree: arrays of at most 32-bit elements, or typed keys.

  Returns:
    Integers in [0, 2^32), in the order of the tree's leaves.
  """
  return [int(value) for value in _of_leaves(jax.tree.leaves(tree))]


@jax.jit
def _of_leaves(leaves: list[jax.Array]) -> list[jax.Array]:
  return [_of_leaf(leaf) for leaf in leaves]


def _of_leaf(leaf: jax.Array) -> jax.Array:
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    leaf = jax.random.key_data(leaf)
  if leaf.dtype == jnp.bool_:
    leaf = leaf.astype(jnp.uint8)
  width = leaf.dtype.itemsize * 8
  if width > 32:
    raise TypeError(f"elements must have at most 32 bits, got {leaf.dtype}")
  bits = jax.lax.bitcast_convert_type(leaf, jnp.dtype(f"uint{width}"))
  place = jnp.zeros(leaf.shape, jnp.uint32)
  stride = 1
  for axis in reversed(range(leaf.ndim)):
    index = jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
    place = place + index * jnp.uint32(stride % 2**32)
    stride *= leaf.shape[axis]
  odd = 2 * place + 1
  return jnp.sum(bits.astype(jnp.uint32) * odd, dtype=jnp.uint32)
