"""What an experiment reports: claims with verdicts, tables and figures.

A verdict is computed, never written by hand: from a criterion fixed before
the run, a 95% interval and the number of seeds behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import TYPE_CHECKING

from icml26_jax.report import conditions

if TYPE_CHECKING:
  # Only needed by experiments that plot.
  import matplotlib.figure

# Experiments and renderers need one module only.
MIN_SEEDS = conditions.MIN_SEEDS
EXACT = conditions.EXACT
Verdict = conditions.Verdict
Estimate = conditions.Estimate
Check = conditions.Check
below = conditions.below
above = conditions.above
within = conditions.within
all_of = conditions.all_of
deciding = conditions.deciding

# More conditions than this `measured` only counts; the report holds them all.
_NAMED = 3


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
    interval: ends of its 95% interval, or of the numerical tolerance if it was
      computed, or None.
    seeds: number of independent runs behind it; `EXACT` if computed.
    verdict: computed from the criterion and the measurement.
    checks: the conditions of the criterion.
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
  checks: tuple[Check, ...] = ()

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

  @property
  def command(self) -> str:
    """What repeats the run."""
    return (
      f"python -m experiments.reproduce --paper={self.paper}"
      f" --budget={self.budget} --seed={self.seed}"
    )


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
    The claim. `measured` names the condition that decided with its value, and
    the conditions that fail or are open.
  """
  verdict = all_of(checks, seeds=seeds)
  check = deciding(checks)
  estimate = check.estimate
  measured = f"{check.name}: {estimate.text(digits)}"
  if unit and not math.isnan(estimate.value):
    measured += f" {unit}"
  details = [check.note, _standing(checks, check), _too_few(seeds)]
  if any(details):
    measured += f" ({'; '.join(filter(None, details))})"
  if note:
    measured += f". {note}"
  return Claim(
    id=id,
    statement=statement,
    paper_figure=paper_figure,
    criterion=criterion,
    measured=measured,
    value=float(estimate.value),
    interval=(
      (float(estimate.low), float(estimate.high))
      if estimate.has_interval
      else None
    ),
    seeds=seeds,
    verdict=verdict,
    checks=tuple(checks),
  )


def _standing(checks: Sequence[Check], decided: Check) -> str:
  """How the conditions fared, in words; "" if there is one only."""
  if len(checks) == 1:
    return ""
  kinds = {
    kind: [check.name for check in checks if check.verdict is kind]
    for kind in Verdict
  }
  if len(kinds[Verdict.HOLDS]) == len(checks):
    return f"the tightest of {len(checks)} conditions, all met"
  fails, unclear = kinds[Verdict.FAILS], kinds[Verdict.INCONCLUSIVE]
  if len(fails) > 1:
    parts = ["the clearest miss"]
  else:
    parts = ["a miss" if decided.verdict is Verdict.FAILS else "open"]
  parts.append(f"{len(kinds[Verdict.HOLDS])} of {len(checks)} conditions met")
  for word, names in (("failing", fails), ("open", unclear)):
    others = [name for name in names if name != decided.name]
    if len(others) > _NAMED:
      parts.append(f"{len(others)} others {word}")
    elif others:
      parts.append(f"also {word}: {', '.join(others)}")
  return "; ".join(parts)


def _too_few(seeds: int) -> str:
  if seeds == EXACT or seeds >= MIN_SEEDS:
    return ""
  return f"a verdict needs {MIN_SEEDS} seeds"
