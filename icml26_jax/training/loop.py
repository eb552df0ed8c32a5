"""The training loop: batches, steps, logs, checkpoints, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import signal
import threading
import time
from typing import Any, NamedTuple

import jax
from jax.experimental import multihost_utils
import numpy as np

from icml26_jax.report import progress
from icml26_jax.training import state as state_lib

# Metrics of a step that are not means over its tokens.
_NOT_MEANS = ("weight", "grad_norm", "finite", "taken")

# A shorter time says nothing of the speed: metrics are read one dispatch late.
_ENOUGH_SECONDS = 0.5


class NonFiniteError(ArithmeticError):
  """Training met a loss or gradient that is not finite."""


class Plan(NamedTuple):
  """When the loop does what, in steps.

  Attributes:
    stop: the step to stop at.
    log_every: steps a line of metrics.
    eval_every: steps between evaluations; 0 for none.
    save_every: steps between checkpoints; 0 for one at the end only.
    steps_per_call: most steps in one dispatch.
    seed: of the batches, for messages.
  """

  stop: int
  log_every: int
  eval_every: int = 0
  save_every: int = 0
  steps_per_call: int = 1
  seed: int = 0

  def next_boundary(self, step: int) -> int:
    """The first step after `step` at which something other than a step is due."""
    every = (self.log_every, self.eval_every, self.save_every)
    due = [step - step % n + n for n in every if n]
    return min([self.stop, *due])

  def is_due(self, step: int, every: int) -> bool:
    """True if something done every so many steps is due, or it is the end."""
    return bool(every) and (step % every == 0 or step == self.stop)


class Hooks(NamedTuple):
  """What the loop calls.

  Attributes:
    batch: `(step, count) -> batch` on the devices, for `advance`.
    advance: `(state, batch, count) -> (state, metrics)`; with one step at a
      time metrics are scalars, otherwise vectors, see `step.make_multi_step`.
    log: `(step, scalars)`, called with a line of metrics.
    evaluate: `state -> scalars`.
    save: `(state, window)`; `window` is to be handed back on resuming.
    should_stop: `step -> bool`, whether somebody asked to stop.
  """

  batch: Callable[[int, int], Any]
  advance: Callable[
    [state_lib.TrainState, Any, int], tuple[state_lib.TrainState, dict]
  ]
  log: Callable[[int, Mapping[str, float]], None]
  evaluate: Callable[[state_lib.TrainState], Mapping[str, float]]
  save: Callable[[state_lib.TrainState, Mapping[str, float]], None]
  should_stop: Callable[[int], bool]


class Outcome(NamedTuple):
  """How the loop ended.

  Attributes:
    state: the state.
    scalars: the last line of metrics, with the last evaluation's.
    tokens_per_second: of the whole run, compilation left out unless there was
      next to nothing else; NaN if no step was taken.
    interrupted: whether it was asked to stop before the end.
  """

  state: state_lib.TrainState
  scalars: dict[str, float]
  tokens_per_second: float
  interrupted: bool


def run(
  state: state_lib.TrainState,
  plan: Plan,
  hooks: Hooks,
  *,
  window: Mapping[str, float] | None = None,
  bar: progress.Bar | None = None,
  clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
  """Trains until the plan's end, or until asked to stop.

  The next batch is made while the devices work; the metrics of a dispatch are
  read when the next one is under way. Every log, evaluation and checkpoint
  comes after the metrics of all steps before it were found finite.

  Args:
    state: the state to start from; it is donated.
    plan: when to do what.
    hooks: what to call.
    window: metrics since the last line, as handed to `save`.
    bar: shows the progress.
    clock: seconds, for tests.

  Returns:
    The outcome. The state has been saved.

  Raises:
    NonFiniteError: naming the step and the batch; the update was not applied
      and later steps of other dispatches were not saved.
  """
  meter = _Meter(plan, dict(window or {}), bar, clock)
  step = int(state.step)
  saved: int | None = None
  scalars: dict[str, float] = {}
  interrupted = False
  while step < plan.stop:
    if hooks.should_stop(step):
      interrupted = True
      break
    count = min(plan.steps_per_call, plan.next_boundary(step) - step)
    batch = hooks.batch(step, count)
    state, metrics = hooks.advance(state, batch, count)
    meter.add(step, count, metrics)
    step += count
    if step < plan.next_boundary(step - 1):
      continue
    meter.flush()
    if plan.is_due(step, plan.log_every):
      scalars |= meter.line()
      hooks.log(step, meter.line())
      meter.clear()
    if plan.is_due(step, plan.eval_every):
      evaluated = dict(hooks.evaluate(state))
      scalars |= evaluated
      hooks.log(step, evaluated)
      meter.pause()
    if plan.is_due(step, plan.save_every):
      hooks.save(state, meter.window)
      saved = step
      meter.pause()
  meter.flush()
  if saved != step:
    hooks.save(state, meter.window)
  return Outcome(state, scalars, meter.tokens_per_second(), interrupted)


@contextlib.contextmanager
def stop_request() -> Iterator[Callable[[int], bool]]:
  """Lets SIGTERM or Ctrl-C ask for an orderly end while the block runs.

  A second Ctrl-C interrupts at once. With several processes JAX's preemption
  service hears the SIGTERM of any one of them and makes all stop at the same
  step; Ctrl-C then interrupts.

  Yields:
    `step -> bool`, True once a signal has come.
  """
  if jax.process_count() > 1:
    yield multihost_utils.reached_preemption_sync_point
    return
  asked = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield lambda step: False
    return

  def ask(number, frame):
    if number == signal.SIGINT and asked.is_set():
      raise KeyboardInterrupt
    asked.set()

  before = {
    number: signal.signal(number, ask)
    for number in (signal.SIGTERM, signal.SIGINT)
  }
  try:
    yield lambda step: asked.is_set()
  finally:
    for number, handler in before.items():
      signal.signal(number, handler)


class _Meter:
  """Reads metrics one dispatch late, and adds them up between lines."""

  def __init__(self, plan, window, bar, clock):
    self._plan = plan
    self._bar = bar
    self._clock = clock
    self._unread: tuple[int, int, dict] | None = None
    # Sums of metric times weight since the last line, and the weight.
    self.window: dict[str, float] = window
    self._latest: dict[str, float] = {}
    self._start = clock()
    # Compilation comes with the first dispatch: its time counts only if there
    # is no other.
    self._first: tuple[float, float] | None = None
    self._seconds = self._tokens = 0.0
    self._line_seconds = self._line_tokens = 0.0

  def add(self, step, count, metrics):
    self.flush()
    self._unread = (step, count, metrics)

  def flush(self):
    """Reads what is outstanding."""
    if self._unread is None:
      return
    (step, count, metrics), self._unread = self._unread, None
    host = {
      name: np.reshape(np.asarray(values), (-1,))
      for name, values in metrics.items()
    }
    tokens = 0.0
    for i in range(count):
      values = {name: float(series[i]) for name, series in host.items()}
      if not values["finite"]:
        raise NonFiniteError(
          f"loss or gradient is not finite at step {step + i} (loss"
          f" {values['loss']:g}, gradient norm {values['grad_norm']:g}; batch"
          f" of seed {self._plan.seed}, step {step + i}); the update was not"
          " applied"
        )
      weight = values["weight"]
      tokens += weight
      for name, value in values.items():
        if name not in _NOT_MEANS:
          self.window[name] = self.window.get(name, 0.0) + weight * value
      self.window["weight"] = self.window.get("weight", 0.0) + weight
      self._latest = values
    self._time(tokens)
    if self._bar is not None:
      speed = self.tokens_per_second()
      self._bar.advance(count, loss=self._latest["loss"], tokens_per_s=speed)

  def _time(self, tokens):
    now = self._clock()
    seconds, self._start = now - self._start, now
    if self._first is None:
      self._first = (tokens, seconds)
      return
    self._tokens += tokens
    self._seconds += seconds
    self._line_tokens += tokens
    self._line_seconds += seconds

  def pause(self):
    """Leaves the time since the last reading out of the speed."""
    self._start = self._clock()

  def line(self):
    """Means over the tokens since the last line, and the latest norm."""
    total = self.window["weight"]
    scalars = {
      name: value / total if total else 0.0
      for name, value in self.window.items()
      if name != "weight"
    }
    if "grad_norm" in self._latest:
      scalars["grad_norm"] = self._latest["grad_norm"]
    if self._line_seconds >= _ENOUGH_SECONDS:
      scalars["tokens_per_second"] = self._line_tokens / self._line_seconds
    return scalars

  def clear(self):
    self.window = {}
    self._line_seconds = self._line_tokens = 0.0

  def tokens_per_second(self):
    tokens, seconds = self._tokens, self._seconds
    if seconds < _ENOUGH_SECONDS and self._first is not None:
      tokens, seconds = tokens + self._first[0], seconds + self._first[1]
    return tokens / seconds if seconds else float("nan")
