"""Drawing tokens from logits, right in the tail and cheap.

`jax.random.categorical` adds Gumbel noise to every logit. In float32 its
default noise stops at ln 2^23 = 15.94, so a token of probability 1e-9 is
never drawn and the law is that of a lower temperature; published masked
diffusion results changed because of such bounds. Its high-precision mode is
right, but draws two random words for every entry of the vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax.diffusion import process as process_lib

_WORD = 2.0**32


def draw(keys: jax.Array, logits: jax.Array) -> jax.Array:
  """Draws one token a position from softmax(logits).

  The weights are summed pairwise up a binary tree, and a token is found by
  walking down it: at each of the ceil(log2 V) nodes a 64-bit uniform number
  decides for the lighter side, so the rate of a token keeps the relative
  precision of float32 however small it is, in steps of 2^-64 (5e-20) a node.
  Nothing is added to a larger number first, as in a cumulative sum.

  Args:
    keys: `[B]` typed keys, one a row, or one key, from which each row's is
      folded. A batch gives what its rows give one by one.
    logits: `[B, L, V]` float, not necessarily normalised. A token with -inf
      is never drawn, nor one of probability below 1e-38.

  Returns:
    `[B, L]` int32 in [0, V). -1 at a position that has no distribution: all
    logits -inf, or one NaN or +inf.

  Raises:
    TypeError: if `keys` are not typed keys, or `logits` are not floats.
    ValueError: if `logits` has not three axes, or V is 0, or several keys are
      given, but not one a row.
  """
  if logits.ndim != 3 or not logits.shape[-1]:
    raise ValueError(
      f"logits must have shape [B, L, V] with V at least 1, got {logits.shape}"
    )
  if not jnp.issubdtype(logits.dtype, jnp.floating):
    raise TypeError(f"logits must be floats, got {logits.dtype}")
  batch_size, length, _ = logits.shape
  keys = process_lib.row_keys(keys, batch_size)

  tree = _tree(jax.lax.stop_gradient(logits).astype(jnp.float32))
  words = jax.vmap(
    lambda key: jax.random.bits(key, (len(tree) - 1, 2, length), jnp.uint32)
  )(keys)  # [B, depth, 2, L]
  node = jnp.zeros((batch_size, length), jnp.int32)
  for depth in reversed(range(len(tree) - 1)):
    half = tree[depth + 1].shape[-1]
    left = _pick(tree[depth], node)
    right = _pick(tree[depth], node + half)
    lighter_is_right = right <= left
    share = jnp.minimum(left, right) / (left + right)
    to_lighter = _coin(words[:, depth, 0], words[:, depth, 1], share)
    node = jnp.where(to_lighter == lighter_is_right, node + half, node)
  # Not from the sums: of a NaN known at compile time, XLA on the CPU makes
  # a number when it folds the exponential.
  has_distribution = jnp.isfinite(jnp.max(logits, axis=-1))
  return jnp.where(has_distribution, node, -1)


def _tree(logits):
  """Weights exp(logits - max) and their pairwise sums, from leaves to root.

  Node j of a level is the sum of nodes j and j + half below it, where half is
  the length of its own level: contiguous halves are added, without padding to
  a power of two.
  """
  top = jnp.max(logits, axis=-1, keepdims=True)
  # All -inf: the weights are exp(-inf) = 0, not exp(-inf + inf).
  weights = jnp.exp(logits - jnp.where(top == -jnp.inf, 0.0, top))
  tree = [weights]
  while (width := tree[-1].shape[-1]) > 1:
    half = (width + 1) // 2
    right = tree[-1][..., half:]
    right = jnp.pad(right, ((0, 0), (0, 0), (0, 2 * half - width)))
    tree.append(tree[-1][..., :half] + right)
  return tree


def _pick(level, node):
  """Weight of a node of each position; 0 beyond the end of the level."""
  return jnp.take_along_axis(
    level, node[..., None], axis=-1, mode="fill", fill_value=0.0
  )[..., 0]


def _coin(high_word, low_word, probability):
  """True with a probability in [0, 1/2], exact to 2^-64.

  Compares the 64-bit number of two uniform words with `probability * 2^64`.
  Scaling a float by a power of two and taking off its integer part are exact.
  """
  scaled = probability * _WORD
  high = jnp.floor(scaled)
  low = (scaled - high) * _WORD
  high, low = high.astype(jnp.uint32), low.astype(jnp.uint32)
  return (high_word < high) | ((high_word == high) & (low_word < low))
