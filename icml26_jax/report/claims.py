"""What an experiment reports: claims with verdicts, tables and figures.

A verdict is computed, never written by hand: from a criterion fixed before
the run, a 95% interval and the number of seeds behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import dataclasses
import enum
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
  # Only needed by experiments that plot.
  import matplotlib.figure

# Fewer independent runs than this say nothing about the spread between runs.
MIN_SEEDS = 3

# A value that needs no seeds: it was computed, not sampled.
EXACT = 0


class Verdict(enum.StrEnum):
  """Whether a criterion was met."""

  HOLDS = "holds"
  FAILS = "fails"
  INCONCLUSIVE = "inconclusive"


class Estimate(NamedTuple):
  """A measured value with its interval; also a table cell.

  Attributes:
    value: the estimate.
    low: lower end of the interval; NaN if there is none.
    high: upper end of the interval; NaN if there is none.
  """

  value: float
  low: float = math.nan
  high: float = math.nan

  def text(self, digits: int = 3) -> str:
    """`3.045 ±0.012`, or `3.045 [3.030, 3.049]` if it is lopsided."""
    text = f"{self.value:.{digits}f}"
    if math.isnan(self.low) or math.isnan(self.high):
      return text
    up, down = self.high - self.value, self.value - self.low
    if abs(up - down) <= 10.0**-digits:
      return f"{text} ±{max(up, down):.{digits}f}"
    return f"{text} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


class Check(NamedTuple):
  """One condition of a criterion, with what was measured.

  Attributes:
    name: what is compared, for instance "NLL difference at N=4".
    estimate: the measured value with its interval.
    verdict: whether the condition is met.
    margin: distance by which the interval clears the bound, in the unit of
      the estimate; negative if it does not.
  """

  name: str
  estimate: Estimate
  verdict: Verdict
  margin: float


@dataclasses.dataclass(frozen=True)
class Claim:
  """One claim of a paper and what became of it.

  Attributes:
    id: short name, unique within the report.
    statement: the paper's claim in our words.
    paper_figure: the paper's own figure and its setting.
    criterion: when the claim counts as confirmed, fixed before the run.
    measured: what was measured, in words and figures.
    value: the deciding figure, or None if there is not one alone.
    interval: ends of its 95% interval, or None.
    seeds: number of independent runs behind it; `EXACT` if computed.
    verdict: computed from the criterion and the measurement.
  """

  id: str
  statement: str
  paper_figure: str
  criterion: str
  measured: str
  value: float | None
  interval: tuple[float, float] | None
  seeds: int
  verdict: Verdict

  def __post_init__(self):
    for name in ("id", "statement", "paper_figure", "criterion", "measured"):
      value = getattr(self, name)
      if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not empty: {value!r}")
    if not isinstance(self.verdict, Verdict):
      raise TypeError(f"verdict must be a Verdict, got {self.verdict!r}")
    if self.seeds < 0:
      raise ValueError(f"seeds must be at least 0, got {self.seeds}")
    if self.interval is not None and not self.interval[0] <= self.interval[1]:
      raise ValueError(f"interval must be (low, high), got {self.interval}")


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a table.

  Attributes:
    name: the heading, with its unit.
    digits: digits after the point of a float.
  """

  name: str
  digits: int = 3


@dataclasses.dataclass(frozen=True)
class Table:
  """Measured values.

  Attributes:
    id: short name, unique within the report.
    title: what the table shows.
    columns: the columns.
    rows: one tuple of cells a row; a cell is a text, a number, an `Estimate`
      or None for "not measured".
    note: what a reader has to know, or "".
  """

  id: str
  title: str
  columns: tuple[Column, ...]
  rows: tuple[tuple[str | int | float | Estimate | None, ...], ...]
  note: str = ""

  def __post_init__(self):
    for row in self.rows:
      if len(row) != len(self.columns):
        raise ValueError(
          f"row {row} of table {self.id!r} must have {len(self.columns)} cells"
        )


@dataclasses.dataclass(frozen=True)
class Figure:
  """A plot.

  Attributes:
    id: short name, unique within the report; the file is `id.png`.
    caption: what to see in it.
    figure: the plot, see `plots`.
  """

  id: str
  caption: str
  figure: matplotlib.figure.Figure


@dataclasses.dataclass(frozen=True)
class Report:
  """All that an experiment found.

  Attributes:
    claims: at least one.
    tables: the measurements behind the claims.
    figures: the plots.
  """

  claims: tuple[Claim, ...]
  tables: tuple[Table, ...] = ()
  figures: tuple[Figure, ...] = ()

  def __post_init__(self):
    if not self.claims:
      raise ValueError("a report needs at least one claim")
    for kind in ("claims", "tables", "figures"):
      ids = [item.id for item in getattr(self, kind)]
      if len(set(ids)) != len(ids):
        raise ValueError(f"ids of {kind} must be unique, got {ids}")


@dataclasses.dataclass(frozen=True)
class Run:
  """How a report came about.

  Attributes:
    paper: the paper's short name.
    title: the paper's title.
    budget: "smoke", "small" or "full".
    seed: the seed given.
    seconds: time the experiment took.
    environment: versions and device, see `environment.describe`.
  """

  paper: str
  title: str
  budget: str
  seed: int
  seconds: float
  environment: dict[str, str | int]


def below(name: str, estimate: Estimate, bound: float) -> Check:
  """Whether a value lies below a bound.

  Args:
    name: what is compared.
    estimate: the value with its interval.
    bound: the bound, in the unit of the estimate.

  Returns:
    Holds if the whole interval is below the bound, fails if none of it is,
    otherwise inconclusive; inconclusive without an interval.
  """
  return Check(
    name,
    estimate,
    _verdict(estimate.high < bound, estimate.low >= bound),
    bound - estimate.high,
  )


def above(name: str, estimate: Estimate, bound: float) -> Check:
  """Whether a value lies above a bound; see `below`."""
  return Check(
    name,
    estimate,
    _verdict(estimate.low > bound, estimate.high <= bound),
    estimate.low - bound,
  )


def within(
  name: str, estimate: Estimate, centre: float, radius: float
) -> Check:
  """Whether a value lies within `radius` of `centre`.

  Args:
    name: what is compared.
    estimate: the value with its interval.
    centre: the value expected.
    radius: the largest distance allowed, at least 0.

  Returns:
    Holds if the whole interval is within, fails if none of it is, otherwise
    inconclusive; inconclusive without an interval.
  """
  if radius < 0:
    raise ValueError(f"radius must be at least 0, got {radius}")
  low, high = centre - radius, centre + radius
  return Check(
    name,
    estimate,
    _verdict(
      low <= estimate.low and estimate.high <= high,
      estimate.high < low or estimate.low > high,
    ),
    min(estimate.low - low, high - estimate.high),
  )


def all_of(
  checks: Iterable[Check], *, seeds: int, min_seeds: int = MIN_SEEDS
) -> Verdict:
  """Verdict of a criterion whose conditions must all be met.

  Args:
    checks: the conditions, at least one.
    seeds: number of independent runs behind them; `EXACT` if computed.
    min_seeds: fewer seeds leave the verdict open.

  Returns:
    Inconclusive with too few seeds; otherwise fails if any condition fails,
    holds if all hold, and inconclusive in between.

  Raises:
    ValueError: if there is no condition.
  """
  verdicts = {check.verdict for check in checks}
  if not verdicts:
    raise ValueError("a criterion needs at least one condition")
  if seeds != EXACT and seeds < min_seeds:
    return Verdict.INCONCLUSIVE
  if Verdict.FAILS in verdicts:
    return Verdict.FAILS
  if verdicts == {Verdict.HOLDS}:
    return Verdict.HOLDS
  return Verdict.INCONCLUSIVE


def deciding(checks: Sequence[Check]) -> Check:
  """The condition that decided: the one met by least, or missed by most."""
  order = [Verdict.FAILS, Verdict.INCONCLUSIVE, Verdict.HOLDS]

  def rank(check):
    margin = -math.inf if math.isnan(check.margin) else check.margin
    return order.index(check.verdict), margin

  return min(checks, key=rank)


def judge(
  checks: Sequence[Check],
  *,
  id: str,
  statement: str,
  paper_figure: str,
  criterion: str,
  seeds: int,
  unit: str = "",
  digits: int = 3,
  note: str = "",
) -> Claim:
  """A claim with the verdict that its conditions give.

  Args:
    checks: the conditions of the criterion, at least one.
    id: see `Claim`.
    statement: see `Claim`.
    paper_figure: see `Claim`.
    criterion: see `Claim`.
    seeds: see `Claim`.
    unit: unit of the deciding figure.
    digits: digits after its point.
    note: what a reader has to know about the measurement.

  Returns:
    The claim. `measured` names the condition that decided, its value and how
    many of the conditions were met.
  """
  verdict = all_of(checks, seeds=seeds)
  check = deciding(checks)
  estimate = check.estimate
  met = sum(check.verdict is Verdict.HOLDS for check in checks)
  measured = f"{check.name}: {estimate.text(digits)}"
  if unit:
    measured += f" {unit}"
  if len(checks) > 1:
    measured += f" (the closest of {len(checks)} conditions, {met} met)"
  if note:
    measured += f". {note}"
  has_interval = not (math.isnan(estimate.low) or math.isnan(estimate.high))
  return Claim(
    id=id,
    statement=statement,
    paper_figure=paper_figure,
    criterion=criterion,
    measured=measured,
    value=float(estimate.value),
    interval=(
      (float(estimate.low), float(estimate.high)) if has_interval else None
    ),
    seeds=seeds,
    verdict=verdict,
  )


def _verdict(holds: bool, fails: bool) -> Verdict:
  # Comparisons with NaN are False: no interval, no verdict.
  if holds:
    return Verdict.HOLDS
  return Verdict.FAILS if fails else Verdict.INCONCLUSIVE
