"""One training step, and several in one dispatch."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from icml26_jax.training import sharding as sharding_lib
from icml26_jax.training import state as state_lib

Batch = Any
Metrics = dict[str, jax.Array]
LossFn = Callable[[Any, Batch, jax.Array], tuple[jax.Array, Metrics]]
StepFn = Callable[
  [state_lib.TrainState, Batch], tuple[state_lib.TrainState, Metrics]
]


def ema_rate(step: jax.Array | int, decay: float) -> jax.Array:
  """Decay of the parameters' average at an update.

  `min(decay, (1 + n) / (10 + n))` for update n, from 0, so that a short run's
  average forgets the initial parameters.

  Args:
    step: number of the update.
    decay: the decay in the long run.

  Returns:
    `[]` float32.
  """
  step = jnp.asarray(step, jnp.float32)
  return jnp.minimum(decay, (1.0 + step) / (10.0 + step))


def accumulated_gradients(
  loss_fn: LossFn,
  params: Any,
  batch: Batch,
  key: jax.Array,
  *,
  accumulation: int,
  sharding: jax.NamedSharding | None = None,
) -> tuple[jax.Array, Metrics, Any]:
  """Loss, metrics and gradients of a batch cut into micro-batches.

  Micro-batch j takes every k-th row, so that each device cuts its own rows.
  Each counts as much as `metrics["weight"]` says, so the result is that of
  the whole batch, up to rounding.

  Args:
    loss_fn: `(params, batch, key) -> (loss, metrics)`; `metrics["weight"]` is
      the number of counted tokens, and the loss and all other metrics are
      means over them.
    params: parameters.
    batch: tree of arrays with B rows each.
    key: typed key, handed to every micro-batch: rows draw from it by their
      own number within the batch.
    accumulation: number k of micro-batches; divides B.
    sharding: sharding of the micro-batches, `[k, B / k, ...]`.

  Returns:
    Loss `[]` float32, metrics (the weight is the total), and gradients in the
    parameters' dtype. Without any counted token the loss and gradients are 0.

  Raises:
    ValueError: if the loss function reports no weight, or B is not divisible.
  """
  grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
  if accumulation == 1:
    (loss, metrics), grads = grad_fn(params, batch, key)
    return loss, _checked(metrics), grads

  def split(leaf):
    if leaf.shape[0] % accumulation:
      raise ValueError(
        f"batch of {leaf.shape[0]} rows is not divisible by accumulation"
        f" {accumulation}"
      )
    leaf = leaf.reshape(
      leaf.shape[0] // accumulation, accumulation, *leaf.shape[1:]
    )
    leaf = jnp.swapaxes(leaf, 0, 1)
    if sharding is None:
      return leaf
    return jax.lax.with_sharding_constraint(leaf, sharding)

  def body(total, micro):
    # On purpose the same key: rows fold in their number in the whole batch.
    (loss, metrics), grads = grad_fn(params, micro, jax.random.clone(key))
    weight = _checked(metrics)["weight"].astype(jnp.float32)
    total = jax.tree.map(
      lambda t, g: t + weight * g.astype(jnp.float32), total, grads
    )
    return total, (loss, metrics)

  zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
  total, (losses, metrics) = jax.lax.scan(
    body, zeros, jax.tree.map(split, batch)
  )
  weights = metrics["weight"].astype(jnp.float32)
  weight = jnp.sum(weights)
  scale = 1.0 / jnp.where(weight > 0, weight, 1.0)

  def mean(values):  # [k, ...] -> [...]
    values = values.astype(jnp.float32)
    return jnp.tensordot(weights, values, axes=1) * scale

  averaged = {name: mean(values) for name, values in metrics.items()}
  grads = jax.tree.map(lambda t, p: (t * scale).astype(p.dtype), total, params)
  return mean(losses), averaged | {"weight": weight}, grads


def make_train_step(
  loss_fn: LossFn,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  rules: sharding_lib.Rules,
  *,
  state_shardings: state_lib.TrainState,
  accumulation: int = 1,
  ema_decay: float | None = None,
) -> StepFn:
  """The step: gradients, update, average, all in one program.

  A step whose loss or gradient norm is not finite changes nothing, not even
  the step number, and says so in `metrics["finite"]`.

  Args:
    loss_fn: see `accumulated_gradients`.
    optimizer: the optimizer.
    mesh: the mesh.
    rules: logical axis rules; "batch" says how rows lie.
    state_shardings: shardings of the state, see `training.state`.
    accumulation: micro-batches a step.
    ema_decay: decay of the parameters' average; None if the state has none.

  Returns:
    A jitted `step(state, batch) -> (state, metrics)`. The state given is
    donated. Metrics are those of the loss function and `loss`, `grad_norm`
    (before clipping) and `finite`.
  """
  update = _make_update(
    loss_fn, optimizer, mesh, rules, state_shardings, accumulation, ema_decay
  )
  return jax.jit(
    update,
    in_shardings=(state_shardings, sharding_lib.batch_sharding(mesh, rules)),
    out_shardings=(state_shardings, sharding_lib.replicated(mesh)),
    donate_argnums=0,
  )


def make_multi_step(
  loss_fn: LossFn,
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  rules: sharding_lib.Rules,
  *,
  state_shardings: state_lib.TrainState,
  accumulation: int = 1,
  ema_decay: float | None = None,
) -> Callable[
  [state_lib.TrainState, Batch, jax.Array],
  tuple[state_lib.TrainState, Metrics],
]:
  """Up to k steps in one dispatch, for models so small that dispatching costs.

  One compiled body serves any number of steps, so how a run is cut into
  dispatches does not change its result. After a step that is not finite no
  further one is taken.

  Args:
    loss_fn: see `accumulated_gradients`.
    optimizer: the optimizer.
    mesh: the mesh.
    rules: logical axis rules.
    state_shardings: shardings of the state.
    accumulation: micro-batches a step.
    ema_decay: decay of the parameters' average; None if the state has none.

  Returns:
    A jitted `step(state, batches, count) -> (state, metrics)`: `batches` are
    stacked `[k, B, ...]`, of which the first `count` (`[]` int32, at most k)
    are used. Metrics are `[k]`, zero where no step was taken, and `taken`
    `[k]` bool, which is True at the steps computed.
  """
  update = _make_update(
    loss_fn, optimizer, mesh, rules, state_shardings, accumulation, ema_decay
  )
  rows = sharding_lib.batch_sharding(mesh, rules)

  def run(state, batches, count):
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    _, shapes = jax.eval_shape(update, state, first)
    length = jax.tree.leaves(batches)[0].shape[0]
    metrics = {
      name: jnp.zeros((length, *leaf.shape), leaf.dtype)
      for name, leaf in shapes.items()
    }
    metrics["taken"] = jnp.zeros(length, bool)

    def unfinished(carry):
      i, ok, _, _ = carry
      return (i < count) & ok

    def body(carry):
      i, _, state, metrics = carry
      batch = jax.tree.map(
        lambda leaf: jax.lax.with_sharding_constraint(
          jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), rows
        ),
        batches,
      )
      state, new = update(state, batch)
      new["taken"] = jnp.bool_(True)
      metrics = {
        name: values.at[i].set(new[name]) for name, values in metrics.items()
      }
      return i + 1, new["finite"], state, metrics

    start = (jnp.int32(0), jnp.bool_(True), state, metrics)
    _, _, state, metrics = jax.lax.while_loop(unfinished, body, start)
    return state, metrics

  whole = sharding_lib.replicated(mesh)
  return jax.jit(
    run,
    in_shardings=(
      state_shardings,
      sharding_lib.batch_sharding(mesh, rules, leading=1),
      whole,
    ),
    out_shardings=(state_shardings, whole),
    donate_argnums=0,
  )


def _make_update(
  loss_fn, optimizer, mesh, rules, state_shardings, accumulation, ema_decay
):
  """The pure step function under both public ones."""
  if ema_decay is not None and not 0.0 <= ema_decay < 1.0:
    raise ValueError(f"ema_decay must be in [0, 1), got {ema_decay}")
  if (ema_decay is None) != (state_shardings.ema_params is None):
    raise ValueError(
      "ema_decay and the state's ema_params must both be given or both be None"
    )
  if accumulation < 1:
    raise ValueError(f"accumulation must be at least 1, got {accumulation}")
  micro_rows = sharding_lib.batch_sharding(mesh, rules, leading=1)

  def update(state, batch):
    key = jax.random.fold_in(state.key, state.step)
    with sharding_lib.scope(mesh, rules):
      loss, metrics, grads = accumulated_gradients(
        loss_fn,
        state.params,
        batch,
        key,
        accumulation=accumulation,
        sharding=micro_rows,
      )
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    ema_params = state.ema_params
    if ema_params is not None:
      rate = ema_rate(state.step, ema_decay)
      ema_params = jax.tree.map(
        lambda average, new: (rate * average + (1.0 - rate) * new).astype(
          average.dtype
        ),
        ema_params,
        params,
      )
    new = dataclasses.replace(
      state,
      step=state.step + 1,
      params=params,
      ema_params=ema_params,
      opt_state=opt_state,
    )
    kept = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old),
      dataclasses.replace(new, key=None),
      dataclasses.replace(state, key=None),
    )
    new = dataclasses.replace(kept, key=state.key)
    extra = {"loss": loss, "grad_norm": norm, "finite": finite}
    return new, metrics | extra

  return update


def _checked(metrics: Metrics) -> Metrics:
  if "weight" not in metrics:
    raise ValueError(
      "loss_fn must report metrics['weight'], the number of counted tokens;"
      f" got {sorted(metrics)}"
    )
  return metrics
