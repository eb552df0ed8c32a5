"""Progress of long work, on standard error.

A terminal gets a live bar; a log file gets a plain line now and then. Nothing
is ever written to standard output, which belongs to results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import sys
import threading
import time
from typing import Any, TextIO

import rich.console
import rich.progress

# Metrics may live on a device, where reading one waits for the step that
# computes it. They are read this often (seconds), not at every step.
_READ_EVERY = 0.5

# In a log, work that took less than this (seconds) leaves no line.
_WORTH_A_LINE = 1.0

# The live display of this thread, so that a bar inside a bar adds a line to it.
_live: contextvars.ContextVar[rich.progress.Progress | None] = (
  contextvars.ContextVar("live_progress", default=None)
)


class Bar:
  """Counts finished units of work and shows how far it is.

  Threads may share one.
  """

  def __init__(
    self,
    show: Callable[[Bar], None],
    description: str,
    total: int | None,
    start: int,
    unit: str,
    interval: float,
    clock: Callable[[], float],
  ):
    self._show = show
    self._lock = threading.Lock()
    self._interval = interval
    self._clock = clock
    self._shown_done: int | None = None
    self._started = self._shown = clock()
    self._first: tuple[float, int] | None = None
    self._values: dict[str, Any] = {}
    self.description = description
    self.total = total
    self.unit = unit
    self.done = start

  def advance(self, steps: int = 1, **metrics: Any) -> None:
    """Adds finished units.

    Args:
      steps: how many were finished, at least 0.
      **metrics: latest values to show, for instance `loss=0.3`; numbers or
        scalar arrays, which are read only when they are shown.
    """
    if steps < 0:
      raise ValueError(f"steps must be at least 0, got {steps}")
    with self._lock:
      self.done += steps
      self._values.update(metrics)
    now = self._clock()
    if self._first is None:
      self._first = (now, self.done)
    if now - self._shown >= self._interval:
      self.show()

  def show(self) -> None:
    """Shows the present state, unless it is on show already."""
    if self._shown_done != self.done:
      self._shown, self._shown_done = self._clock(), self.done
      self._show(self)

  def metrics(self) -> str:
    """Latest metrics as text, such as `loss 0.31, tokens/s 12,300`."""
    return ", ".join(
      f"{name.replace('_per_', '/').replace('_', ' ')} {_number(value)}"
      for name, value in self._values.items()
    )

  def elapsed(self) -> float:
    """Seconds since the bar was opened."""
    return self._clock() - self._started

  def remaining(self) -> float | None:
    """Seconds left at the pace so far, or None if it cannot be told.

    The pace is taken from the end of the first unit on, which holds the
    compilation.
    """
    if self.total is None or self._first is None:
      return None
    first_time, first_done = self._first
    if self.done <= first_done:
      return None
    pace = (self._clock() - first_time) / (self.done - first_done)
    return pace * max(self.total - self.done, 0)

  def line(self) -> str:
    """One plain line on the state of the work."""
    count = f"{self.done:,}"
    if self.total is not None:
      count += f"/{self.total:,}"
    parts = [f"{self.description}: {count} {self.unit}"]
    if self._values:
      parts.append(self.metrics())
    left = self.remaining()
    if left:
      parts.append(f"{_duration(left)} left")
    else:
      parts.append(f"after {_duration(self.elapsed())}")
    return ", ".join(parts)


@contextlib.contextmanager
def bar(
  description: str,
  *,
  total: int | None,
  start: int = 0,
  unit: str = "steps",
  interval: float = 15.0,
  enabled: bool = True,
  stream: TextIO | None = None,
  clock: Callable[[], float] = time.monotonic,
) -> Iterator[Bar]:
  """Shows progress while the block runs.

  A bar opened inside another one is shown below it.

  Args:
    description: what is being done, for instance "training".
    total: number of units, or None if unknown.
    start: units that were finished before.
    unit: what is counted.
    interval: seconds between two lines where there is no terminal.
    enabled: False to show nothing, as on all but the first of several
      processes.
    stream: where to write; None for standard error.
    clock: seconds, for tests.

  Yields:
    A `Bar`; call `advance` on it.
  """
  stream = stream or sys.stderr
  if not enabled:
    yield Bar(
      lambda progress: None,
      description,
      total,
      start,
      unit,
      float("inf"),
      clock,
    )
    return
  console = rich.console.Console(file=stream)
  if not console.is_terminal:
    yield from _lines(description, total, start, unit, interval, stream, clock)
    return
  outer = _live.get()
  with contextlib.ExitStack() as stack:
    if outer is None:
      live = stack.enter_context(_display(console))
      stack.callback(_live.reset, _live.set(live))
    else:
      live = outer
    task = live.add_task(
      description, total=total, completed=start, unit=unit, metrics=""
    )

    def show(progress: Bar) -> None:
      live.update(task, completed=progress.done, metrics=progress.metrics())

    progress = Bar(show, description, total, start, unit, _READ_EVERY, clock)
    yield progress
    progress.show()
    if outer is not None:
      live.remove_task(task)


def _lines(description, total, start, unit, interval, stream, clock):
  """Yields a bar that writes plain lines."""

  def show(progress: Bar) -> None:
    print(progress.line(), file=stream, flush=True)

  progress = Bar(show, description, total, start, unit, interval, clock)
  yield progress
  if progress.elapsed() >= _WORTH_A_LINE:
    progress.show()


def _display(console: rich.console.Console) -> rich.progress.Progress:
  return rich.progress.Progress(
    rich.progress.TextColumn("{task.description}"),
    rich.progress.BarColumn(bar_width=24),
    rich.progress.MofNCompleteColumn(),
    rich.progress.TextColumn("{task.fields[unit]}"),
    rich.progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
    rich.progress.TextColumn("{task.fields[metrics]}"),
    console=console,
    # Results printed meanwhile go to standard output unchanged.
    redirect_stdout=False,
  )


def _number(value: Any) -> str:
  if isinstance(value, str):
    return value
  value = float(value)
  return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _duration(seconds: float) -> str:
  seconds = round(seconds)
  hours, seconds = divmod(seconds, 3600)
  minutes, seconds = divmod(seconds, 60)
  if hours:
    return f"{hours}:{minutes:02d}:{seconds:02d}"
  return f"{minutes}:{seconds:02d}"
