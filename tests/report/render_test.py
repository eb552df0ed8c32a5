"""Reports on the console and as Markdown."""

import dataclasses
import io
import math

import pytest
import rich.console

from icml26_jax.report import claims, render


def _printed(report, run, width):
  stream = io.StringIO()
  render.to_console(report, run, rich.console.Console(file=stream, width=width))
  return stream.getvalue()


@pytest.mark.parametrize(
  ("console", "limit"), [(40, 80), (80, 80), (100, 100), (200, 120)]
)
def test_console_fits_80_to_120_columns(report, run, console, limit):
  lines = _printed(report, run, console).splitlines()
  assert max(map(len, lines)) <= limit


def test_console_shows_claims_whole(report, run):
  text = _printed(report, run, 100)
  words = " ".join(text.replace("│", " ").split())
  assert "holds" in words
  assert "inconclusive" in words
  for claim in report.claims:
    assert claim.id in words
    # Wrapped, not cut: every word is there.
    assert all(word in words for word in claim.statement.split())
    assert all(word in words for word in claim.criterion.split())
  assert "…" not in text


def test_console_prints_tables_that_fit_and_names_the_others(report, run):
  text = _printed(report, run, 100)
  assert "3.14" in text
  assert "12,345" in text
  assert "A wide table: see report.md" in text


def test_markdown_tables_survive_any_text():
  text = render.markdown_table(("a", "b"), [("x | y", "<b>\nline \\")])
  assert text.splitlines() == [
    "| a | b |",
    "| --- | --- |",
    "| x \\| y | &lt;b> line \\\\ |",
  ]


def test_markdown_holds_everything(report, run):
  text = render.to_markdown(report, run)
  assert "### oracle: holds" in text
  assert "### trained: inconclusive" in text
  assert "budget small, seed 7, 3 min 12 s" in text
  assert "![quality](quality.png)" in text
  assert "| MDLM | 3.14 |" in text
  assert "| CANDI | n/a |" in text
  assert "3.000 ±0.100" in text
  for claim in report.claims:
    assert claim.criterion in text
    assert claim.measured in text


def test_markdown_says_how_to_repeat_the_run(report, run):
  text = render.to_markdown(report, run)
  assert (
    "`python -m experiments.reproduce --paper=candi --budget=small --seed=7`"
    in text
  )
  assert "2 cores, 2026-07-01 12:00 UTC, commit 0123456789ab\n" in text
  environment = {
    key: value
    for key, value in run.environment.items()
    if key not in ("date", "commit")
  }
  older = dataclasses.replace(run, environment=environment)
  assert "2 cores\n" in render.to_markdown(report, older)


def _judged(checks, seeds):
  claim = claims.judge(
    checks,
    id="x",
    statement="s",
    paper_figure="p",
    criterion="c",
    seeds=seeds,
  )
  return claims.Report((claim,))


CHECKS = [
  claims.below("difference", claims.Estimate(-0.5, -0.75, -0.25), 0.0),
  claims.above("ratio", claims.Estimate(3.0, 2.0, 4.0), 2.5),
  claims.within("slope", claims.Estimate(1.0, 0.9, 1.1), 1.0, 0.5),
  claims.below("reach", claims.Estimate(math.nan), 1.0, note="too short"),
]


def test_markdown_holds_every_condition(run):
  text = render.to_markdown(_judged(CHECKS, 3), run)
  assert "<details><summary>Conditions: 2 of 4 met</summary>" in text
  for row in (
    "| difference | -0.5 | -0.75 | -0.25 | below 0 | holds |",
    "| ratio | 3 | 2 | 4 | above 2.5 | inconclusive |",
    "| slope | 1 | 0.9 | 1.1 | 0.5 to 1.5 | holds |",
    "| reach | none | none | none | below 1 | inconclusive (too short) |",
  ):
    assert row in text
  assert "From and to: ends of the 95% interval." in text


def test_console_leaves_the_conditions_to_the_report(run):
  text = _printed(_judged(CHECKS[:3], 3), run, 120)
  assert "slope" not in text


@pytest.mark.parametrize(
  ("seeds", "ends", "name"),
  [
    (3, (-0.75, -0.25), "95% interval"),
    (claims.EXACT, (-0.75, -0.25), "Numerical tolerance"),
    (claims.EXACT, (-0.5, -0.5), None),
    (3, (math.nan, math.nan), "95% interval"),
    (claims.EXACT, (math.nan, math.nan), None),
  ],
)
def test_only_samples_have_confidence_intervals(run, seeds, ends, name):
  check = claims.below("difference", claims.Estimate(-0.5, *ends), 0.0)
  report = _judged([check], seeds)
  found = render.to_markdown(report, run)
  # Above the conditions.
  found = found.split("<details>")[0]
  for known in ("95% interval", "Numerical tolerance"):
    assert (f"| {known} |" in found) == (known == name)
  printed = _printed(report, run, 120)
  assert ("95%" in printed) == (name == "95% interval")


@pytest.mark.parametrize(
  ("seconds", "text"),
  [(0.4, "0 s"), (59.6, "1 min 0 s"), (192.3, "3 min 12 s")],
)
def test_durations_are_words(seconds, text):
  assert render.duration(seconds) == text
