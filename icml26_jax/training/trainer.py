"""Trains a recipe in a directory, from where it was left."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import math
import os
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from icml26_jax.report import progress
from icml26_jax.training import (
  checkpoint,
  distributed,
  loop,
  metrics,
  optimizer,
  sharding,
)
from icml26_jax.training import mesh as mesh_lib
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import state as state_lib
from icml26_jax.training import step as step_lib
from icml26_jax.training import workdir as workdir_lib

# Evaluations draw batches and noise from here, whatever the run's seed.
_EVAL_SEED = 20260706


class Result(NamedTuple):
  """How training ended.

  Attributes:
    state: the state, sharded as it was trained.
    scalars: the last line of metrics by name, `loss` among them; empty if no
      step was taken.
    tokens_per_second: see `loop.Outcome`.
    interrupted: True if SIGTERM or Ctrl-C ended it early.
  """

  state: state_lib.TrainState
  scalars: dict[str, float]
  tokens_per_second: float
  interrupted: bool


def train(
  recipe: recipe_lib.Recipe,
  workdir: str | os.PathLike,
  *,
  stop: int | None = None,
  data: recipe_lib.Data | None = None,
  notify: Callable[[str], None] | None = None,
  wait: bool = False,
  description: str = "training",
) -> Result:
  """Trains, or goes on training, in a directory.

  Ends bit for bit where an uninterrupted run would, however often it was
  stopped or killed.

  Args:
    recipe: the recipe.
    workdir: the run's directory: created, or that of a run of this recipe.
    stop: the step to stop at, at most the recipe's last; None for that.
    data: the recipe's data, if it is loaded already.
    notify: called with lines of text on what is going on; None prints them on
      standard error.
    wait: whether to wait for another process that uses the directory, rather
      than to refuse.
    description: what the progress bar says.

  Returns:
    How it ended. The state has been saved.

  Raises:
    ValueError: if the recipe does not fit the devices, the data or what the
      directory holds.
    OSError: if something cannot be written; earlier checkpoints are left.
    training.loop.NonFiniteError: if the loss or a gradient is not finite.
  """
  notify = _on_first(notify or (lambda line: print(line, file=sys.stderr)))
  stop = recipe.num_steps if stop is None else stop
  if not 1 <= stop <= recipe.num_steps:
    raise ValueError(
      f"steps must be from 1 to num_steps {recipe.num_steps}, got {stop}"
    )
  task = recipe_lib.build(recipe)
  setup = _Setup(task)
  notify(setup.describe())
  if data is None:
    data = recipe_lib.load_data(recipe, with_validation=bool(recipe.eval_every))
  distributed.check_agreement("the corpus or tokenizer", data.fingerprint)
  notify(_describe_data(recipe, data))
  with contextlib.ExitStack() as stack:
    path = _claim(workdir, recipe)
    _lock(stack, path, wait, notify)
    checkpoints = stack.enter_context(
      checkpoint.Checkpointer(path, keep=recipe.keep, notify=notify)
    )
    state, host = _restore_or_init(setup, checkpoints, path, data, notify)
    start = int(state.step)
    if start >= stop:
      notify(f"nothing to do: already at step {start:,}")
      return Result(state, {}, float("nan"), False)
    should_stop = stack.enter_context(loop.stop_request())
    log = _open_metrics(stack, path, start)
    bar = stack.enter_context(
      progress.bar(
        description,
        total=stop,
        start=start,
        unit="steps",
        enabled=jax.process_index() == 0,
      )
    )
    outcome = loop.run(
      state,
      loop.Plan(
        stop=stop,
        log_every=recipe.log_every,
        eval_every=recipe.eval_every,
        save_every=recipe.checkpoint_every,
        steps_per_call=recipe.steps_per_call,
        seed=recipe.seed,
      ),
      loop.Hooks(
        batch=setup.batches(data.train),
        advance=setup.advance(),
        log=log,
        evaluate=setup.evaluation(data.validation),
        save=lambda state, window: checkpoints.save(
          state, _host(recipe, data, int(state.step), window)
        ),
        should_stop=should_stop,
      ),
      window=host.get("window"),
      bar=bar,
    )
  return Result(*outcome)


def load_params(
  task: recipe_lib.Task,
  workdir: str | os.PathLike,
  *,
  step: int | None = None,
  mesh: jax.sharding.Mesh | None = None,
  notify: Callable[[str], None] | None = None,
) -> tuple[Any, int]:
  """Parameters of a trained task, to sample or evaluate with.

  Args:
    task: the task, of the recipe in the directory.
    workdir: directory of the run.
    step: which checkpoint; None for the last whole one.
    mesh: where to put them; None for one device.
    notify: called with a line of text for each damaged checkpoint that is
      skipped; None prints it on standard error.

  Returns:
    The parameters, or their average if the recipe asks for one, and the step.

  Raises:
    ValueError: if there is no such checkpoint, or none that can be restored.
  """
  if mesh is None:
    mesh = mesh_lib.make_mesh({})
  shapes = jax.eval_shape(task.init, jax.random.key(0))
  shardings = sharding.param_shardings(
    mesh, task.logical_axes, task.recipe.all_rules, shapes
  )
  abstract = jax.tree.map(
    lambda leaf, where: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=where
    ),
    shapes,
    shardings,
  )
  return checkpoint.restore_params(
    workdir,
    abstract,
    with_ema=task.recipe.ema_decay is not None,
    step=step,
    notify=notify,
  )


class _Setup:
  """A task on its mesh."""

  def __init__(self, task: recipe_lib.Task):
    recipe = task.recipe
    self.task = task
    self.mesh = mesh_lib.make_mesh(dict(recipe.mesh))
    self.rules = recipe.all_rules
    sharding.check_batch(
      self.mesh, self.rules, recipe.data.batch_size, recipe.accumulation
    )
    self.optimizer = optimizer.make(recipe.optimizer, task.logical_axes)
    self.abstract = state_lib.abstract(
      task.init,
      self.optimizer,
      self.mesh,
      self.rules,
      task.logical_axes,
      with_ema=recipe.ema_decay is not None,
    )

  def describe(self) -> str:
    """Parameters, devices and processes, in a line."""
    leaves = jax.tree.leaves(self.abstract.params)
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    axes = " x ".join(f"{axis}={n}" for axis, n in self.mesh.shape.items())
    kind = self.mesh.devices.flat[0].device_kind
    return (
      f"{self.task.recipe.process}: {count:,} parameters on mesh {axes}, using"
      f" {self.mesh.size} of {jax.device_count()} devices ({kind}) of"
      f" {jax.process_count()} process(es)"
    )

  def init(self) -> state_lib.TrainState:
    key = jax.random.key(self.task.recipe.seed)
    return state_lib.init(key, self.task.init, self.optimizer, self.abstract)

  def advance(self):
    """The loop's `advance`."""
    recipe = self.task.recipe
    make = (
      step_lib.make_train_step
      if recipe.steps_per_call == 1
      else step_lib.make_multi_step
    )
    step = make(
      self.task.loss_fn,
      self.optimizer,
      self.mesh,
      self.rules,
      state_shardings=state_lib.shardings(self.abstract),
      accumulation=recipe.accumulation,
      ema_decay=recipe.ema_decay,
    )
    if recipe.steps_per_call == 1:
      return lambda state, batch, count: step(state, batch)
    return lambda state, batch, count: step(state, batch, np.int32(count))

  def batches(self, windows):
    """The loop's `batch`."""
    recipe = self.task.recipe
    stacked = recipe.steps_per_call > 1
    rows = sharding.batch_sharding(
      self.mesh, self.rules, leading=1 if stacked else 0
    )
    one = self._one_batch(windows, recipe.seed)

    def batch(step, count):
      if not stacked:
        return _global(rows, one(step))
      taken = [one(step + i) for i in range(count)]
      # The buffer has one shape; what lies beyond the count is not looked at.
      taken += taken[-1:] * (recipe.steps_per_call - count)
      return _global(
        rows, {name: np.stack([b[name] for b in taken]) for name in taken[0]}
      )

    return batch

  def evaluation(self, windows):
    """The loop's `evaluate`: mean loss on the same held-out batches."""
    rows = sharding.batch_sharding(self.mesh, self.rules)
    shardings = state_lib.shardings(self.abstract)

    def scoped(*arguments):
      with sharding.scope(self.mesh, self.rules):
        return self.task.loss_fn(*arguments)

    loss = jax.jit(
      scoped,
      in_shardings=(
        shardings.params,
        rows,
        sharding.replicated(self.mesh),
      ),
      out_shardings=sharding.replicated(self.mesh),
    )

    def evaluate(state):
      one = self._one_batch(windows, _EVAL_SEED)
      total = weight = 0.0
      for i in range(self.task.recipe.eval_batches):
        key = jax.random.fold_in(jax.random.key(_EVAL_SEED), i)
        value, aux = loss(state.sampling_params, _global(rows, one(i)), key)
        total += float(value) * float(aux["weight"])
        weight += float(aux["weight"])
      return {"validation_loss": total / weight}

    return evaluate

  def _one_batch(self, windows, seed):
    """This process's rows of a step's batch."""
    batch_size = self.task.recipe.data.batch_size
    rows = sharding.batch_sharding(self.mesh, self.rules)
    index, count = sharding.process_rows(rows, batch_size)
    return lambda step: windows.batch(
      seed=seed,
      step=step,
      batch_size=batch_size,
      process_index=index,
      process_count=count,
    )


def _global(rows: jax.NamedSharding, batch: dict[str, np.ndarray]) -> Any:
  """This process's rows as part of arrays over all processes."""
  return {
    name: jax.make_array_from_process_local_data(rows, values)
    for name, values in batch.items()
  }


def _claim(workdir, recipe):
  fields = recipe_lib.to_dict(recipe)
  claimed = []

  def claim():
    claimed.append(
      workdir_lib.claim(workdir, fields, free=recipe_lib.FREE_FIELDS)
    )

  distributed.on_first_process("claim the workdir", claim)
  # The others find the directory ready.
  if not claimed:
    claim()
  return claimed[0]


def _lock(stack, path, wait, notify):
  def lock():
    try:
      stack.enter_context(workdir_lib.lock(path))
    except ValueError:
      if not wait:
        raise
      notify(f"waiting for another process that is using {path}")
      stack.enter_context(workdir_lib.lock(path, wait=True))

  distributed.on_first_process("lock the workdir", lock)


def _restore_or_init(setup, checkpoints, path, data, notify):
  restored = checkpoints.restore(setup.abstract)
  if restored is None:
    notify(f"fresh start: no checkpoint in {path}")
    return setup.init(), {}
  state, host = restored
  if host["data"]["fingerprint"] != data.fingerprint:
    raise ValueError(
      f"{path} holds a run on other text: corpus"
      f" {setup.task.recipe.data.corpus} or its tokenizer has changed since"
    )
  notify(f"resumed from step {int(state.step):,} of {path}")
  return state, host


def _describe_data(recipe, data):
  """How much text there is, in a line."""
  line = (
    f"{recipe.data.corpus} as {recipe.data.tokenizer}:"
    f" {len(data.train.tokens):,} tokens to learn from"
  )
  if data.validation is not None:
    line += f", {len(data.validation.tokens):,} held out"
  return line


def _host(recipe, data, step, window):
  """What a checkpoint holds besides the state."""
  return {
    "data": {
      "seed": recipe.seed,
      "next_step": step,
      "fingerprint": data.fingerprint,
    },
    "window": dict(window),
  }


def _open_metrics(stack, path, step):
  """The loop's `log`; only the first process writes."""
  if jax.process_index():
    return lambda step, scalars: None
  writer = metrics.MetricsWriter(path, step=step)
  stack.callback(writer.close)
  return writer.write


def _on_first(notify):
  return notify if jax.process_index() == 0 else lambda line: None
