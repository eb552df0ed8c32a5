"""Conditions on measured values, and whether they are met.

A condition is met only by a whole interval, and a criterion only by all of
its conditions and enough independent runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import enum
import math
from typing import NamedTuple

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
    if math.isnan(self.value):
      return "not measured"
    text = f"{self.value:.{digits}f}"
    if not self.has_interval or self.low == self.high:
      return text
    up, down = self.high - self.value, self.value - self.low
    if abs(up - down) <= 10.0**-digits:
      return f"{text} ±{max(up, down):.{digits}f}"
    return f"{text} [{self.low:.{digits}f}, {self.high:.{digits}f}]"

  @property
  def has_interval(self) -> bool:
    """Whether both ends are known."""
    return not (math.isnan(self.low) or math.isnan(self.high))


class Check(NamedTuple):
  """One condition of a criterion, with what was measured.

  Attributes:
    name: what is compared, for instance "NLL difference at N=4".
    estimate: the measured value with its interval.
    verdict: whether the condition is met.
    margin: distance by which the interval clears the bound, in the unit of
      the estimate; negative if it does not.
    lower: the estimate must lie above this; -inf if there is no such bound.
    upper: the estimate must lie below this; inf if there is no such bound.
    note: why it could not be measured, or "".
  """

  name: str
  estimate: Estimate
  verdict: Verdict
  margin: float
  lower: float = -math.inf
  upper: float = math.inf
  note: str = ""

  @property
  def relative_margin(self) -> float:
    """The margin without its unit, so that conditions can be compared.

    It is counted in halves of the interval's width, and for a value without
    width in the tolerance: half the distance of two bounds, or the size of a
    single one (of the value, if the bound is zero). NaN without an interval.
    """
    width = (self.estimate.high - self.estimate.low) / 2
    if width == 0.0:
      if math.isfinite(self.lower) and math.isfinite(self.upper):
        width = (self.upper - self.lower) / 2
      else:
        bound = self.lower if math.isfinite(self.lower) else self.upper
        width = abs(bound) or abs(self.estimate.value)
    if width == 0.0:
      # Zero against a bound of zero, or two bounds at one place.
      return math.copysign(math.inf, self.margin) if self.margin else 0.0
    return self.margin / width


def below(
  name: str, estimate: Estimate, bound: float, *, note: str = ""
) -> Check:
  """Whether a value lies below a bound.

  Args:
    name: what is compared.
    estimate: the value with its interval.
    bound: the bound, in the unit of the estimate.
    note: why it could not be measured, or "".

  Returns:
    Holds if the whole interval is below the bound, fails if none of it is,
    otherwise inconclusive; inconclusive without an interval.
  """
  return Check(
    name,
    estimate,
    _verdict(estimate.high < bound, estimate.low >= bound),
    bound - estimate.high,
    upper=float(bound),
    note=note,
  )


def above(
  name: str, estimate: Estimate, bound: float, *, note: str = ""
) -> Check:
  """Whether a value lies above a bound; see `below`."""
  return Check(
    name,
    estimate,
    _verdict(estimate.low > bound, estimate.high <= bound),
    estimate.low - bound,
    lower=float(bound),
    note=note,
  )


def within(
  name: str,
  estimate: Estimate,
  centre: float,
  radius: float,
  *,
  note: str = "",
) -> Check:
  """Whether a value lies within `radius` of `centre`.

  Args:
    name: what is compared.
    estimate: the value with its interval.
    centre: the value expected.
    radius: the largest distance allowed, at least 0.
    note: why it could not be measured, or "".

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
    lower=float(low),
    upper=float(high),
    note=note,
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
  """The condition that decided, whatever the units of the others.

  Args:
    checks: the conditions, at least one.

  Returns:
    Of those that fail the one missed most clearly; if none fails, of those
    that are open one that could not be measured, or else the one furthest
    from being met; if all are met the tightest one. `Check.relative_margin`
    tells.
  """
  order = [Verdict.FAILS, Verdict.INCONCLUSIVE, Verdict.HOLDS]

  def rank(check):
    margin = check.relative_margin
    return order.index(check.verdict), -math.inf if margin != margin else margin

  return min(checks, key=rank)


def _verdict(holds: bool, fails: bool) -> Verdict:
  # Comparisons with NaN are False: no interval, no verdict.
  if holds:
    return Verdict.HOLDS
  return Verdict.FAILS if fails else Verdict.INCONCLUSIVE
