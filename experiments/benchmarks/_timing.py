"""Timing of the same work done by several libraries in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import gc
import time
from typing import Any

import numpy as np

OURS = "icml26_jax"


@dataclasses.dataclass(frozen=True)
class Case:
  """One piece of work, and who does it.

  Attributes:
    name: what is done.
    flops: floating-point operations of one call, counted by hand.
    sides: name of a library to a function that does the work once and returns
      when it is done. One is `OURS`; the first other one is the peer that the
      ratio is taken to.
    target: least ratio aimed at; None for none.
    note: what a reader must know to judge the comparison.
  """

  name: str
  flops: float
  sides: Mapping[str, Callable[[], Any]]
  target: float | None = None
  note: str = ""

  @property
  def peer(self) -> str:
    """Name of the side that the ratio is taken to."""
    return next(side for side in self.sides if side != OURS)


@dataclasses.dataclass(frozen=True)
class Measurement:
  """Times of a case.

  Attributes:
    case: the case.
    seconds: name of a side to its `[R]` times, one a repetition.
  """

  case: Case
  seconds: Mapping[str, np.ndarray]

  @property
  def ratio(self) -> float:
    """The peer's median time over ours: above 1 where ours is faster."""
    ours, peer = self.seconds[OURS], self.seconds[self.case.peer]
    return float(np.median(peer) / np.median(ours))

  def record(self) -> dict[str, Any]:
    """The measurement for a JSON report; times in milliseconds."""
    ours, peer = self.seconds[OURS], self.seconds[self.case.peer]
    paired = np.quantile(peer / ours, [0.25, 0.75])
    return {
      "name": self.case.name,
      "note": self.case.note,
      "flops": self.case.flops,
      "repetitions": len(ours),
      "sides": {side: self._side(side) for side in self.seconds},
      "peer": self.case.peer,
      "ratio": self.ratio,
      "paired_ratio_quartiles": paired.tolist(),
      "target": self.case.target,
    }

  def _side(self, side):
    low, middle, high = np.quantile(self.seconds[side], [0.25, 0.5, 0.75])
    return {
      "median_ms": 1e3 * middle,
      "quartiles_ms": [1e3 * low, 1e3 * high],
      "fastest_ms": 1e3 * float(np.min(self.seconds[side])),
      "gflop_per_second": 1e-9 * self.case.flops / middle,
    }


def measure(
  cases: Iterable[Case],
  *,
  repetitions: int,
  warmup: int = 2,
  clock: Callable[[], float] = time.perf_counter,
  advance: Callable[[], None] = lambda: None,
) -> list[Measurement]:
  """Times all sides of all cases, taking turns.

  Within a repetition every side of a case runs once, and the order is reversed
  from one repetition to the next: whatever slows the machine for a while slows
  all sides.

  Args:
    cases: what to time.
    repetitions: timed calls a side, at least 1.
    warmup: calls before, which are not timed; they compile.
    clock: seconds, from any origin.
    advance: called after every repetition of every case, for a progress bar.

  Returns:
    One measurement a case.

  Raises:
    ValueError: if `repetitions` is below 1.
  """
  if repetitions < 1:
    raise ValueError(f"repetitions must be at least 1, got {repetitions}")
  results = []
  for case in cases:
    sides = list(case.sides.items())
    for _, run in sides:
      for _ in range(warmup):
        run()
    seconds: dict[str, list[float]] = {side: [] for side, _ in sides}
    gc.collect()
    for repetition in range(repetitions):
      for side, run in sides if repetition % 2 == 0 else sides[::-1]:
        start = clock()
        run()
        seconds[side].append(clock() - start)
      advance()
    results.append(
      Measurement(
        case, {side: np.asarray(times) for side, times in seconds.items()}
      )
    )
  return results
