"""Invariants of attention: grouped heads, rotary or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from icml26_jax.layers import rotary
from icml26_jax.theory.conservation import blocks, law


def attention_invariants(
  Q: jax.Array,
  K: jax.Array,
  V: jax.Array,
  O: jax.Array,  # noqa: E741
  *,
  rope: bool,
  pairing: str = "interleaved",
) -> dict[str, jax.Array]:
  """Laws of softmax attention, with the head's components as hidden units.

  Query head h reads key head `h // (H / Hkv)`, so the heads of a group are
  summed. Values and outputs: `V^T V - sum O O^T`. Queries and keys without
  positions (or with positions added to the input): `sum Q^T Q - K^T K`. With
  rotary positions only `sum ||Q^(j)||_F^2 - ||K^(j)||_F^2` for the two columns
  of each pair j. A frequency that is a multiple of pi, or equals another,
  leaves more laws than these.

  Args:
    Q: `[..., H, d, dk]` float.
    K: `[..., Hkv, d, dk]` float, Hkv a divisor of H.
    V: `[..., Hkv, d, dk]` float. The head dimension may differ from that of Q
      and K. A bias of queries, keys or values is one more row of its matrix.
    O: `[..., H, dk, o]` float.
    rope: whether queries and keys are turned by their positions.
    pairing: which columns rotary positions pair, `interleaved` or `half`;
      without them it does not matter.

  Returns:
    `value_output` `[..., Hkv, dk, dk]`, and `query_key` `[..., Hkv, dk, dk]`,
    or `[..., Hkv, dk / 2]` with rotary positions.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if shapes do not fit, Hkv does not divide H, the pairing is
      unknown, or dk is odd with rotary positions.

  References:
    Tran et al., "Conservation Laws for Modern Neural Architectures", ICML
    2026, theorems 4.3 and 4.4.
  """
  rotary.check_pairing("pairing", pairing)
  _check(Q, K, V, O)
  query_key = query_key_factors(Q, K)
  if rope:
    checked = law.norm_balance(pair_factors(query_key, pairing))
  else:
    checked = law.gram_balance(query_key)
  return {
    "query_key": checked,
    "value_output": law.gram_balance(value_output_factors(V, O)),
  }


def attention_law(
  select: Callable[[Any], tuple[jax.Array, jax.Array, jax.Array, jax.Array]],
  *,
  rope: bool,
  pairing: str = "interleaved",
) -> law.Law:
  """`attention_invariants` as a law of parameters that hold such a block.

  Args:
    select: picks Q, K, V and O out of the parameters (and out of gradients).
    rope: see `attention_invariants`.
    pairing: see `attention_invariants`.

  Returns:
    A law whose value is the dictionary of `attention_invariants`.

  Raises:
    ValueError: if the pairing is unknown.
  """
  rotary.check_pairing("pairing", pairing)

  def query_key(params):
    Q, K, V, O = select(params)  # noqa: E741
    _check(Q, K, V, O)
    factors = query_key_factors(Q, K)
    return pair_factors(factors, pairing) if rope else factors

  def value_output(params):
    Q, K, V, O = select(params)  # noqa: E741
    _check(Q, K, V, O)
    return value_output_factors(V, O)

  return law.combine(
    {
      "query_key": (law.norm_law if rope else law.gram_law)(query_key),
      "value_output": law.gram_law(value_output),
    }
  )


def query_key_factors(Q: jax.Array, K: jax.Array) -> list[law.Factor]:
  """Columns of a group's queries, and of its keys.

  Args:
    Q: `[..., H, d, dk]`.
    K: `[..., Hkv, d, dk]`.

  Returns:
    Weights 1 and -1 with `[..., Hkv, H / Hkv * d, dk]` and K.
  """
  return [(1.0, group_heads(Q, K.shape[-3])), (-1.0, K)]


def value_output_factors(
  V: jax.Array,
  O: jax.Array,  # noqa: E741
) -> list[law.Factor]:
  """Columns of a group's values, and rows of its outputs.

  Args:
    V: `[..., Hkv, d, dk]`.
    O: `[..., H, dk, o]`.

  Returns:
    Weights 1 and -1 with V and `[..., Hkv, H / Hkv * o, dk]`.
  """
  return [(1.0, V), (-1.0, group_heads(blocks.swap(O), V.shape[-3]))]


def pair_factors(factors: list[law.Factor], pairing: str) -> list[law.Factor]:
  """The same with the two columns of a rotary pair below each other.

  Args:
    factors: weights and `[..., n, dk]`.
    pairing: one of `rotary.PAIRINGS`.

  Returns:
    The weights with `[..., 2 n, dk / 2]`.

  Raises:
    ValueError: if the pairing is unknown or dk is odd.
  """
  for _, matrix in factors:
    if matrix.shape[-1] % 2:
      raise ValueError(
        "dk, the last axis of Q and K, must be even with rope, got"
        f" {matrix.shape[-1]}"
      )
  return [
    (
      weight,
      jnp.concatenate(rotary.split_pairs(matrix, pairing=pairing), axis=-2),
    )
    for weight, matrix in factors
  ]


def group_heads(heads: jax.Array, groups: int) -> jax.Array:
  """`[..., H, n, dk]` as `[..., groups, H / groups * n, dk]`."""
  *batch, count, n, dk = heads.shape
  return heads.reshape(*batch, groups, count // groups * n, dk)


def _check(Q, K, V, O):  # noqa: E741
  blocks.check_matrices(Q=Q, K=K, V=V, O=O)
  for name, heads in dict(Q=Q, K=K, V=V, O=O).items():
    if heads.ndim < 3:
      raise ValueError(
        f"{name} must have axes of heads, inputs and outputs, got shape"
        f" {heads.shape}"
      )
  blocks.check_sizes("Q", Q.shape[-3], "O", O.shape[-3], "heads")
  blocks.check_sizes("K", K.shape[-3], "V", V.shape[-3], "heads")
  if Q.shape[-3] % K.shape[-3]:
    raise ValueError(
      f"K must have a number of heads that divides the {Q.shape[-3]} of Q, got"
      f" {K.shape[-3]}"
    )
  blocks.check_sizes("Q", Q.shape[-2:], "K", K.shape[-2:], "inputs and columns")
  blocks.check_sizes("V", V.shape[-1], "O", O.shape[-2], "columns (rows of O)")
