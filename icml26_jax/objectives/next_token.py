"""Next-token prediction, for `training.make_train_step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from icml26_jax.diffusion import objective

Params = Any
Batch = dict[str, jax.Array]
LossFn = Callable[
  [Params, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]
]


def nll(logits: jax.Array, tokens: jax.Array, mask: jax.Array) -> jax.Array:
  """Negative log-likelihood of each token given those before it.

  Args:
    logits: `[B, L, V]` any float; those at position i predict token i + 1.
    tokens: `[B, L]` int tokens.
    mask: `[B, L]` bool, tokens that count.

  Returns:
    `[B, L - 1]` float32 in nats, of tokens 1 to L - 1; 0 where a token does
    not count, whatever its logits. The first token has nothing before it and
    is never predicted.

  Raises:
    ValueError: if shapes disagree, L is below 2, or a token known now is
      outside [0, V).
    TypeError: if `mask` is not bool or the tokens are not integers.
  """
  if logits.shape[:-1] != tokens.shape or mask.shape != tokens.shape:
    raise ValueError(
      f"logits {logits.shape}, tokens {tokens.shape} and mask {mask.shape} must"
      " be [B, L, V], [B, L] and [B, L]"
    )
  if tokens.ndim != 2 or tokens.shape[1] < 2:
    raise ValueError(f"tokens must be [B, L], L at least 2, got {tokens.shape}")
  return objective.token_nll(logits[:, :-1], tokens[:, 1:], mask[:, 1:])


def make_loss_fn(
  apply_fn: Callable[[Params, jax.Array], jax.Array],
) -> LossFn:
  """Loss of a causal language model, in nats per predicted token that counts.

  Args:
    apply_fn: `(params, tokens [B, L]) -> logits [B, L, V]`.

  Returns:
    `loss_fn(params, batch, key) -> (loss, metrics)`. The batch holds `tokens`
    `[B, L]` int32 and `mask` `[B, L]` bool; the key is not used.
    `metrics["weight"]` is the number of predicted tokens that count.
  """

  def loss_fn(params, batch, key):
    del key
    logits = apply_fn(params, batch["tokens"])
    weight = jnp.sum(batch["mask"][:, 1:], dtype=jnp.float32)
    total = jnp.sum(nll(logits, batch["tokens"], batch["mask"]))
    return total / jnp.maximum(weight, 1.0), {"weight": weight}

  return loss_fn
