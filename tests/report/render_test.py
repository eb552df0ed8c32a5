"""Reports on the console and as Markdown."""

import io

import pytest
import rich.console

from icml26_jax.report import render


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


@pytest.mark.parametrize(
  ("seconds", "text"),
  [(0.4, "0 s"), (59.6, "1 min 0 s"), (192.3, "3 min 12 s")],
)
def test_durations_are_words(seconds, text):
  assert render.duration(seconds) == text
