"""Training loss of any corruption process, for `training.make_train_step`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib

Params = Any
Batch = dict[str, jax.Array]
LossFn = Callable[
  [Params, Batch, jax.Array], tuple[jax.Array, dict[str, jax.Array]]
]


def token_nll(
  logits: jax.Array, targets: jax.Array, counted: jax.Array
) -> jax.Array:
  """Negative log-probability of each token that counts.

  The target is picked by a comparison and a sum, not a gather, so that a
  vocabulary cut over devices needs one small reduction.

  Args:
    logits: `[B, L, V]` any float; the softmax is taken in float32.
    targets: `[B, L]` int tokens.
    counted: `[B, L]` bool. Where False the logits may hold anything, NaN too.

  Returns:
    `[B, L]` float32 in nats, 0 with zero gradient where not counted.

  Raises:
    TypeError: if the tokens are not integers or `counted` is not bool.
    ValueError: if the shapes disagree, or a token known now is outside [0, V).
  """
  if logits.shape[:-1] != targets.shape or counted.shape != targets.shape:
    raise ValueError(
      f"logits {logits.shape}, targets {targets.shape} and counted"
      f" {counted.shape} must agree in rows and positions"
    )
  if counted.dtype != jnp.bool_:
    raise TypeError(f"counted must be bool, got {counted.dtype}")
  vocab_size = logits.shape[-1]
  checks.check_tokens("targets", targets, vocab_size)
  # Cleared before the softmax: a zero cotangent times NaN would be NaN.
  logits = jnp.where(counted[..., None], logits.astype(jnp.float32), 0.0)
  tokens = jnp.arange(vocab_size)[None, None]
  picked = jnp.where(tokens == targets[..., None], logits, 0.0)
  nll = jax.nn.logsumexp(logits, axis=-1) - jnp.sum(picked, axis=-1)
  return jnp.where(counted, nll, 0.0)


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
