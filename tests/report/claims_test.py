"""Verdicts follow from intervals, criteria and seeds."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from icml26_jax.report import claims

Estimate = claims.Estimate
Verdict = claims.Verdict


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
  assert claims.below("x", estimate, 0.0).verdict is verdict
  mirrored = Estimate(-estimate.value, -high, -low)
  assert claims.above("x", mirrored, 0.0).verdict is verdict


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
  check = claims.within("x", Estimate((low + high) / 2, low, high), 3.0, 0.1)
  assert check.verdict is verdict


@given(st.floats(-10, 10), st.floats(0, 5), st.floats(-10, 10), st.floats(0, 5))
def test_margin_is_positive_only_if_it_holds(value, half, centre, radius):
  estimate = Estimate(value, value - half, value + half)
  for check in (
    claims.below("x", estimate, centre),
    claims.above("x", estimate, centre),
  ):
    assert (check.verdict is Verdict.HOLDS) == (check.margin > 0)
  check = claims.within("x", estimate, centre, radius)
  if check.margin > 0:
    assert check.verdict is Verdict.HOLDS


HOLDS = claims.below("holds", Estimate(-3.0, -4.0, -2.0), 0.0)
BARELY = claims.below("barely", Estimate(-3.0, -4.0, -0.5), 0.0)
OPEN = claims.below("open", Estimate(0.0, -1.0, 1.0), 0.0)
FAILS = claims.below("fails", Estimate(3.0, 2.0, 4.0), 0.0)
UNKNOWN = claims.below("unknown", Estimate(-3.0), 0.0)


@pytest.mark.parametrize(
  ("checks", "verdict", "decided_by"),
  [
    ([HOLDS], Verdict.HOLDS, HOLDS),
    ([HOLDS, BARELY], Verdict.HOLDS, BARELY),
    ([HOLDS, OPEN], Verdict.INCONCLUSIVE, OPEN),
    ([OPEN, UNKNOWN, HOLDS], Verdict.INCONCLUSIVE, UNKNOWN),
    ([HOLDS, OPEN, FAILS], Verdict.FAILS, FAILS),
  ],
)
def test_all_conditions_must_be_met(checks, verdict, decided_by):
  assert claims.all_of(checks, seeds=3) is verdict
  assert claims.deciding(checks) is decided_by


@pytest.mark.parametrize("checks", [[HOLDS], [FAILS], [OPEN]])
@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_leave_the_verdict_open(checks, seeds):
  assert claims.all_of(checks, seeds=seeds) is Verdict.INCONCLUSIVE


def test_exact_values_need_no_seeds():
  assert claims.all_of([HOLDS], seeds=claims.EXACT) is Verdict.HOLDS
  assert claims.all_of([FAILS], seeds=claims.EXACT) is Verdict.FAILS


def test_no_condition_is_an_error():
  with pytest.raises(ValueError, match="at least one condition"):
    claims.all_of([], seeds=3)


def test_negative_radius_is_an_error():
  with pytest.raises(ValueError, match=r"radius must be at least 0, got -0\.1"):
    claims.within("x", Estimate(1.0, 0.9, 1.1), 1.0, -0.1)


def test_judge_names_the_deciding_condition():
  claim = claims.judge(
    [HOLDS, BARELY],
    id="low-nll",
    statement="It is better.",
    paper_figure="2.0 lower on text8",
    criterion="below 0",
    seeds=3,
    unit="nat",
    note="Trained briefly",
  )
  assert claim.verdict is Verdict.HOLDS
  assert claim.value == -3.0
  assert claim.interval == (-4.0, -0.5)
  assert claim.measured == (
    "barely: -3.000 [-4.000, -0.500] nat (the closest of 2 conditions, 2 met)."
    " Trained briefly"
  )


def test_judge_without_interval_has_none():
  claim = claims.judge(
    [UNKNOWN],
    id="x",
    statement="s",
    paper_figure="p",
    criterion="c",
    seeds=3,
  )
  assert claim.interval is None
  assert claim.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
  ("estimate", "text"),
  [
    (Estimate(3.0451, 3.0331, 3.0571), "3.045 ±0.012"),
    (Estimate(3.0451, 3.0331, 3.0501), "3.045 [3.033, 3.050]"),
    (Estimate(3.0451), "3.045"),
  ],
)
def test_estimates_read_with_their_interval(estimate, text):
  assert estimate.text() == text


def _claim(**changes):
  fields = {
    "id": "x",
    "statement": "s",
    "paper_figure": "p",
    "criterion": "c",
    "measured": "m",
    "value": 1.0,
    "interval": (0.5, 1.5),
    "seeds": 3,
    "verdict": Verdict.HOLDS,
  }
  return claims.Claim(**{**fields, **changes})


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"id": ""}, ValueError, "id must be"),
    ({"criterion": "  "}, ValueError, "criterion must be"),
    ({"measured": 3.0}, ValueError, "measured must be"),
    ({"verdict": "holds"}, TypeError, "must be a Verdict, got 'holds'"),
    ({"seeds": -1}, ValueError, "seeds must be at least 0, got -1"),
    ({"interval": (2.0, 1.0)}, ValueError, r"interval must be \(low, high\)"),
  ],
)
def test_wrong_claims_are_rejected(changes, error, message):
  with pytest.raises(error, match=message):
    _claim(**changes)


def test_report_needs_a_claim_and_unique_ids():
  with pytest.raises(ValueError, match="at least one claim"):
    claims.Report(())
  with pytest.raises(ValueError, match="ids of claims must be unique"):
    claims.Report((_claim(), _claim()))


def test_ragged_table_is_rejected():
  columns = (claims.Column("a"), claims.Column("b"))
  with pytest.raises(ValueError, match="must have 2 cells"):
    claims.Table("t", "title", columns, (("x", 1), ("y",)))
