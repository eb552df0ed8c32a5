"""Claims say what decided them."""

import math

import pytest

from icml26_jax.report import claims

Estimate = claims.Estimate
Verdict = claims.Verdict


HOLDS = claims.below("holds", Estimate(-3.0, -4.0, -2.0), 0.0)
BARELY = claims.below("barely", Estimate(-3.0, -4.0, -0.5), 0.0)
OPEN = claims.below("open", Estimate(0.0, -1.0, 1.0), 0.0)
FAILS = claims.below("fails", Estimate(3.0, 2.0, 4.0), 0.0)
CLEARLY = claims.below("clearly", Estimate(3.0, 2.9, 3.1), 0.0)
UNKNOWN = claims.below(
  "unknown", Estimate(math.nan), 0.0, note="no such length"
)


def _judge(checks, **changes):
  fields = {
    "id": "x",
    "statement": "s",
    "paper_figure": "p",
    "criterion": "c",
    "seeds": 3,
  }
  return claims.judge(checks, **{**fields, **changes})


def test_judge_names_the_tightest_condition():
  claim = _judge([HOLDS, BARELY], unit="nat", note="Trained briefly")
  assert claim.verdict is Verdict.HOLDS
  assert claim.value == -3.0
  assert claim.interval == (-4.0, -0.5)
  assert claim.checks == (HOLDS, BARELY)
  assert claim.measured == (
    "barely: -3.000 [-4.000, -0.500] nat (the tightest of 2 conditions, all"
    " met). Trained briefly"
  )


@pytest.mark.parametrize(
  ("checks", "text"),
  [
    ([HOLDS], "holds: -3.000 ±1.000"),
    ([FAILS], "fails: 3.000 ±1.000"),
    (
      [HOLDS, FAILS],
      "fails: 3.000 ±1.000 (a miss; 1 of 2 conditions met)",
    ),
    (
      [FAILS, HOLDS, CLEARLY, OPEN],
      "clearly: 3.000 ±0.100 (the clearest miss; 1 of 4 conditions met; also"
      " failing: fails; also open: open)",
    ),
    (
      [OPEN, HOLDS, UNKNOWN],
      "unknown: not measured (no such length; open; 1 of 3 conditions met;"
      " also open: open)",
    ),
    ([UNKNOWN], "unknown: not measured (no such length)"),
  ],
)
def test_judge_says_which_conditions_are_not_met(checks, text):
  assert _judge(checks).measured == text


def test_judge_says_that_seeds_are_too_few():
  claim = _judge([HOLDS, BARELY], seeds=1)
  assert claim.verdict is Verdict.INCONCLUSIVE
  assert claim.measured.endswith(
    "(the tightest of 2 conditions, all met; a verdict needs 3 seeds)"
  )
  assert "seeds" not in _judge([HOLDS], seeds=claims.EXACT).measured


def test_many_failures_are_counted():
  many = [
    claims.below(f"length {n}", Estimate(3.0, 2.0, 4.0), 0.0) for n in range(9)
  ]
  assert _judge(many).measured.endswith(
    "(the clearest miss; 0 of 9 conditions met; 8 others failing)"
  )


def test_judge_without_interval_has_none():
  claim = _judge([UNKNOWN])
  assert claim.interval is None
  assert claim.verdict is Verdict.INCONCLUSIVE


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
