"""Conditions are met by whole intervals, criteria by all their conditions."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from icml26_jax.report import conditions

Estimate = conditions.Estimate
Verdict = conditions.Verdict


@pytest.mark.parametrize(
  ("low", "high", "verdict"),
  [
    (-2.0, -1.0, Verdict.HOLDS),
    (-1.0, -1e-9, Verdict.HOLDS),
    (-1.0, 0.0, Verdict.INCONCLUSIVE),
    (-1.0, 1.0, Verdict.INCONCLUSIVE),
    (0.0, 1.0, Verdict.FAILS),
    (1.0, 2.0, Verdict.FAILS),
    (math.nan, math.nan, Verdict.INCONCLUSIVE),
  ],
)
def test_below_needs_the_whole_interval(low, high, verdict):
  estimate = Estimate((low + high) / 2, low, high)
  assert conditions.below("x", estimate, 0.0).verdict is verdict
  mirrored = Estimate(-estimate.value, -high, -low)
  assert conditions.above("x", mirrored, 0.0).verdict is verdict


@pytest.mark.parametrize(
  ("low", "high", "verdict"),
  [
    (2.95, 3.05, Verdict.HOLDS),
    (2.9, 3.1, Verdict.HOLDS),
    (2.85, 3.0, Verdict.INCONCLUSIVE),
    (3.0, 3.2, Verdict.INCONCLUSIVE),
    (2.0, 4.0, Verdict.INCONCLUSIVE),
    (3.11, 3.2, Verdict.FAILS),
    (2.0, 2.89, Verdict.FAILS),
    (math.nan, math.nan, Verdict.INCONCLUSIVE),
  ],
)
def test_within_needs_the_whole_interval(low, high, verdict):
  # The bounds 2.9 and 3.1 as floats: 3.0 - 0.1 is 2.9, 3.0 + 0.1 is 3.1.
  check = conditions.within(
    "x", Estimate((low + high) / 2, low, high), 3.0, 0.1
  )
  assert check.verdict is verdict


@given(st.floats(-10, 10), st.floats(0, 5), st.floats(-10, 10), st.floats(0, 5))
def test_margin_is_positive_only_if_it_holds(value, half, centre, radius):
  estimate = Estimate(value, value - half, value + half)
  for check in (
    conditions.below("x", estimate, centre),
    conditions.above("x", estimate, centre),
  ):
    assert (check.verdict is Verdict.HOLDS) == (check.margin > 0)
  check = conditions.within("x", estimate, centre, radius)
  if check.margin > 0:
    assert check.verdict is Verdict.HOLDS


HOLDS = conditions.below("holds", Estimate(-3.0, -4.0, -2.0), 0.0)
BARELY = conditions.below("barely", Estimate(-3.0, -4.0, -0.5), 0.0)
OPEN = conditions.below("open", Estimate(0.0, -1.0, 1.0), 0.0)
FAILS = conditions.below("fails", Estimate(3.0, 2.0, 4.0), 0.0)
FAILS_BY_MORE = conditions.below("fails by more", Estimate(3.0, 2.9, 3.1), 0.0)
UNKNOWN = conditions.below("unknown", Estimate(-3.0), 0.0)


@pytest.mark.parametrize(
  ("checks", "verdict", "decided_by"),
  [
    ([HOLDS], Verdict.HOLDS, HOLDS),
    ([HOLDS, BARELY], Verdict.HOLDS, BARELY),
    ([HOLDS, OPEN], Verdict.INCONCLUSIVE, OPEN),
    ([OPEN, UNKNOWN, HOLDS], Verdict.INCONCLUSIVE, UNKNOWN),
    ([HOLDS, OPEN, FAILS], Verdict.FAILS, FAILS),
    ([FAILS, FAILS_BY_MORE, HOLDS], Verdict.FAILS, FAILS_BY_MORE),
  ],
)
def test_all_conditions_must_be_met(checks, verdict, decided_by):
  assert conditions.all_of(checks, seeds=3) is verdict
  assert conditions.deciding(checks) is decided_by


@pytest.mark.parametrize("checks", [[HOLDS], [FAILS], [OPEN]])
@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_leave_the_verdict_open(checks, seeds):
  assert conditions.all_of(checks, seeds=seeds) is Verdict.INCONCLUSIVE


def test_exact_values_need_no_seeds():
  assert conditions.all_of([HOLDS], seeds=conditions.EXACT) is Verdict.HOLDS
  assert conditions.all_of([FAILS], seeds=conditions.EXACT) is Verdict.FAILS


def test_no_condition_is_an_error():
  with pytest.raises(ValueError, match="at least one condition"):
    conditions.all_of([], seeds=3)


@pytest.mark.parametrize(
  ("check", "expected"),
  [
    # Two halves of the interval's width away from the bound.
    (conditions.below("x", Estimate(-3.0, -4.0, -2.0), 0.0), 2.0),
    (conditions.above("x", Estimate(3.0, 2.0, 4.0), 0.0), 2.0),
    (conditions.within("x", Estimate(1.0, 0.5, 1.5), 0.0, 2.0), 1.0),
    (conditions.below("x", Estimate(3.0, 2.0, 4.0), 0.0), -4.0),
    # Without width, in units of the tolerance.
    (conditions.below("x", Estimate(1.0, 1.0, 1.0), 4.0), 0.75),
    (conditions.within("x", Estimate(1.0, 1.0, 1.0), 0.0, 2.0), 0.5),
    (conditions.below("x", Estimate(-5.0, -5.0, -5.0), 0.0), 1.0),
    (conditions.below("x", Estimate(0.0, 0.0, 0.0), 0.0), 0.0),
  ],
)
def test_margin_is_counted_in_widths_or_tolerances(check, expected):
  assert check.relative_margin == pytest.approx(expected, abs=1e-12)


def test_margin_without_interval_is_unknown():
  assert math.isnan(UNKNOWN.relative_margin)
  assert math.isnan(
    conditions.below("x", Estimate(math.nan), 0.0).relative_margin
  )


@given(st.floats(1e-6, 1e6))
def test_units_do_not_decide(unit):
  def scaled(estimate):
    return Estimate(*(unit * end for end in estimate))

  for checks in ([HOLDS, BARELY], [FAILS, FAILS_BY_MORE]):
    expected = conditions.deciding(checks).name
    for index in range(2):
      changed = list(checks)
      changed[index] = conditions.below(
        checks[index].name, scaled(checks[index].estimate), 0.0
      )
      assert conditions.deciding(changed).name == expected


def test_checks_carry_their_bounds_and_notes():
  check = conditions.below("x", Estimate(math.nan), 2.0, note="too short")
  assert (check.lower, check.upper) == (-math.inf, 2.0)
  assert check.note == "too short"
  check = conditions.above("x", Estimate(1.0, 0.5, 1.5), 2.0)
  assert (check.lower, check.upper) == (2.0, math.inf)
  check = conditions.within("x", Estimate(1.0, 0.5, 1.5), 2.0, 0.5)
  assert (check.lower, check.upper, check.note) == (1.5, 2.5, "")


def test_negative_radius_is_an_error():
  with pytest.raises(ValueError, match=r"radius must be at least 0, got -0\.1"):
    conditions.within("x", Estimate(1.0, 0.9, 1.1), 1.0, -0.1)


@pytest.mark.parametrize(
  ("estimate", "text"),
  [
    (Estimate(3.0451, 3.0331, 3.0571), "3.045 ±0.012"),
    (Estimate(3.0451, 3.0331, 3.0501), "3.045 [3.033, 3.050]"),
    (Estimate(3.0451), "3.045"),
    (Estimate(3.0451, 3.0451, 3.0451), "3.045"),
    (Estimate(math.nan), "not measured"),
  ],
)
def test_estimates_read_with_their_interval(estimate, text):
  assert estimate.text() == text
