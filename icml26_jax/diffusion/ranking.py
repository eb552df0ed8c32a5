"""The best positions of a row, by rank: shapes stay fixed under `jit`."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def ranks(score: jax.Array, candidates: jax.Array) -> jax.Array:
  """Rank of each position among the candidates of its row, 0 the best.

  Of equal scores the lower position ranks first; positions that are no
  candidates rank after all candidates, whatever their score.

  Args:
    score: `[B, L]` float, higher is better.
    candidates: `[B, L]` bool.

  Returns:
    `[B, L]` int32, each row a permutation of 0 to L - 1.
  """
  order = jnp.lexsort((-score, ~candidates), axis=-1)
  return jnp.argsort(order, axis=-1).astype(jnp.int32)


def best(
  score: jax.Array, candidates: jax.Array, count: jax.Array | int
) -> jax.Array:
  """The `count` best candidates of each row, or all if there are fewer.

  Args:
    score: `[B, L]` float, higher is better.
    candidates: `[B, L]` bool.
    count: `[B]` or `[]` number of positions; 0 or less for none.

  Returns:
    `[B, L]` bool.
  """
  count = jnp.broadcast_to(count, score.shape[:1])
  return candidates & (ranks(score, candidates) < count[:, None])
