"""Training loss of any corruption process, for `training.make_train_step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from icml26_jax.diffusion import process as process_lib

Params = Any
Batch = dict[str, jax.Array]
LossFn = Callable[
    [Params, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]
]


def stratified_times(key: jax.Array, strata: jax.Array) -> jax.Array:
  """Antithetic training times: one uniform shift of an even grid.

  Args:
    key: typed key, shared by the global batch.
    strata: `[B]` float32 in [0, 1), `b / B` for row b of the global batch.

  Returns:
    `[B]` float32 in (0, 1]. Each is uniform; together they cover the interval
    evenly, which lowers the variance of the loss.
  """
  shift = jax.random.uniform(key, dtype=jnp.float32)
  return 1.0 - jnp.mod(shift + strata.astype(jnp.float32), 1.0)


def make_loss_fn(
    process: process_lib.Process | Callable[[Params], process_lib.Process],
    apply_fn: Callable[[Params, process_lib.Latent, jax.Array], jax.Array],
) -> LossFn:
  """Loss of a process, in nats per token that counts.

  All randomness of a row comes from `fold_in(key, index)`, so neither
  micro-batching nor sharding changes the loss.

  Args:
    process: the process, or a function from the parameters to it (for a
      process that lives in the model's own embedding space).
    apply_fn: `(params, latent, t [B]) -> logits [B, L, V]`.

  Returns:
    `loss_fn(params, batch, key) -> (loss, metrics)`. The batch holds `tokens`
    `[B, L]` int32, `mask` `[B, L]` bool (positions that count), `index` `[B]`
    int32 (row number within the global batch) and `stratum` `[B]` float32
    (row number over global batch size). `metrics["weight"]` is the number of
    tokens that count: averages over micro-batches use it.
  """

  def loss_fn(params, batch, key):
    proc = process(params) if callable(process) else process
    time_key, noise_key = jax.random.split(key)
    t = stratified_times(time_key, batch["stratum"])
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
        noise_key, batch["index"]
    )
    latent = proc.corrupt(keys, batch["tokens"], t)
    logits = apply_fn(params, latent, t)
    per_row = proc.loss(logits, batch["tokens"], latent, t, batch["mask"])
    weight = jnp.sum(batch["mask"], dtype=jnp.float32)
    loss = jnp.sum(per_row) / jnp.maximum(weight, 1.0)
    return loss, {"weight": weight}

  return loss_fn
