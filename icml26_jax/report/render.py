"""A report as a console table and as Markdown."""

from __future__ import annotations

import math

import rich.box
import rich.console
import rich.measure
import rich.table
import rich.text

from icml26_jax.report import claims

_COLOURS = {
  claims.Verdict.HOLDS: "green",
  claims.Verdict.FAILS: "red",
  claims.Verdict.INCONCLUSIVE: "yellow",
}
_MIN_WIDTH = 80
_MAX_WIDTH = 120


def cell(value: str | float | claims.Estimate | None, digits: int = 3) -> str:
  """Text of a table cell.

  Args:
    value: a text, a number, an estimate, or None for "not measured".
    digits: digits after the point of a float.

  Returns:
    The text; an estimate is shown with its interval.
  """
  if value is None:
    return "n/a"
  if isinstance(value, str):
    return value
  if isinstance(value, int):
    return f"{value:,}"
  if not isinstance(value, claims.Estimate):
    return f"{value:.{digits}f}"
  return value.text(digits)


def duration(seconds: float) -> str:
  """Seconds in words: `48 s`, `3 min 12 s`."""
  minutes, rest = divmod(round(seconds), 60)
  return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def to_console(
  report: claims.Report,
  run: claims.Run,
  console: rich.console.Console,
) -> None:
  """Prints a report for a person at a console of 80 to 120 columns.

  Statements are wrapped. A table of measurements is printed if it fits, and
  otherwise only named: report.md holds it.

  Args:
    report: what was found.
    run: how it came about.
    console: where to print.
  """
  width = min(max(console.width, _MIN_WIDTH), _MAX_WIDTH)

  def show(renderable):
    console.print(renderable, width=width, highlight=False)

  show(rich.text.Text(f"{run.paper}: {run.title}", style="bold"))
  show(rich.text.Text(_how(run), style="dim"))
  show(_claims_table(report))
  for table in report.tables:
    rendered = _table(table)
    needed = rich.measure.Measurement.get(
      console, console.options.update(width=1000), rendered
    ).maximum
    if needed <= width:
      show(rendered)
    else:
      show(rich.text.Text(f"{table.title}: see report.md", style="italic"))


def to_markdown(report: claims.Report, run: claims.Run) -> str:
  """A report as Markdown, with its figures beside it.

  Args:
    report: what was found.
    run: how it came about.

  Returns:
    The text of report.md.
  """
  parts = [
    f"# {run.paper}: {run.title}",
    f"`{run.command}`",
    ", ".join(filter(None, [_how(run), *_when(run)])),
    "## Claims",
  ]
  for claim in report.claims:
    parts.append(f"### {claim.id}: {claim.verdict.value}\n\n{claim.statement}")
    parts.append(
      markdown_table(
        ("", ""),
        [
          ("Paper", claim.paper_figure),
          ("Criterion, fixed before the run", claim.criterion),
          ("Measured", claim.measured),
          *([_interval(claim)] if _interval(claim) else []),
          ("Runs behind it", _seeds(claim)),
          ("Verdict", claim.verdict.value),
        ],
      )
    )
    if claim.checks:
      parts.append(_conditions(claim))
  if report.figures:
    parts.append("## Figures")
  for figure in report.figures:
    parts.append(f"![{figure.id}]({figure.id}.png)\n\n{figure.caption}")
  if report.tables:
    parts.append("## Tables")
  for table in report.tables:
    parts.append(f"### {table.title}")
    parts.append(
      markdown_table(
        [column.name for column in table.columns],
        [_cells(table, row) for row in table.rows],
      )
    )
    if table.note:
      parts.append(table.note)
  return "\n\n".join(parts) + "\n"


def markdown_table(header, rows) -> str:
  """A Markdown table; cells may hold any text.

  Args:
    header: the headings.
    rows: one sequence of texts a row.

  Returns:
    The table, without a final line break.
  """
  lines = [header, ["---"] * len(header), *rows]
  return "\n".join(
    "| " + " | ".join(_escape(text) for text in line) + " |" for line in lines
  )


def _claims_table(report: claims.Report) -> rich.table.Table:
  table = rich.table.Table(
    box=rich.box.ROUNDED, expand=True, show_lines=True, padding=(0, 1)
  )
  table.add_column("claim", ratio=5)
  table.add_column("measured", ratio=3)
  table.add_column("verdict", no_wrap=True)
  for claim in report.claims:
    table.add_row(
      rich.text.Text.assemble(
        (claim.id, "bold"),
        f"  {claim.statement}\n",
        (f"Paper: {claim.paper_figure}\n", "dim"),
        (f"Criterion: {claim.criterion}", "dim"),
      ),
      rich.text.Text.assemble(
        claim.measured,
        (
          "\n"
          + "; ".join(
            filter(None, [": ".join(_interval(claim)), _seeds(claim)])
          ),
          "dim",
        ),
      ),
      rich.text.Text(claim.verdict.value, style=_COLOURS[claim.verdict]),
    )
  return table


def _table(table: claims.Table) -> rich.table.Table:
  rendered = rich.table.Table(
    title=table.title,
    caption=table.note or None,
    box=rich.box.SIMPLE_HEAD,
    title_justify="left",
    caption_justify="left",
  )
  for index, column in enumerate(table.columns):
    text_only = all(isinstance(row[index], str) for row in table.rows)
    rendered.add_column(
      column.name, justify="left" if text_only else "right", no_wrap=True
    )
  for row in table.rows:
    rendered.add_row(*(rich.text.Text(text) for text in _cells(table, row)))
  return rendered


def _cells(table: claims.Table, row) -> list[str]:
  return [
    cell(value, column.digits)
    for value, column in zip(row, table.columns, strict=True)
  ]


def _how(run: claims.Run) -> str:
  environment = run.environment
  cores = environment["cores"]
  return (
    f"budget {run.budget}, seed {run.seed}, {duration(run.seconds)};"
    f" jax {environment['jax']}, {environment['devices']} x"
    f" {environment['device']}, {cores} core{'s' if cores != 1 else ''}"
  )


def _when(run: claims.Run) -> list[str]:
  """Date and commit, as far as they are known."""
  commit = run.environment.get("commit")
  return [
    str(run.environment.get("date", "")),
    f"commit {str(commit)[:12]}" if commit else "",
  ]


def _interval(claim: claims.Claim) -> tuple[str, str] | tuple[()]:
  """What the interval is called and its ends; nothing for an exact value."""
  exact = claim.seeds == claims.EXACT
  if claim.interval is None:
    return () if exact else ("95% interval", "none")
  low, high = claim.interval
  if low == high:
    return ()
  name = "Numerical tolerance" if exact else "95% interval"
  return name, f"{low:.4g} to {high:.4g}"


def _conditions(claim: claims.Claim) -> str:
  """All conditions of a claim, folded."""
  met = sum(check.verdict is claims.Verdict.HOLDS for check in claim.checks)
  table = markdown_table(
    ("condition", "value", "from", "to", "required", "verdict"),
    [
      (
        check.name,
        *map(_number, check.estimate),
        _required(check),
        check.verdict.value + (f" ({check.note})" if check.note else ""),
      )
      for check in claim.checks
    ],
  )
  what = (
    "numerical tolerance" if claim.seeds == claims.EXACT else "95% interval"
  )
  return (
    f"<details><summary>Conditions: {met} of {len(claim.checks)} met"
    f"</summary>\n\n{table}\n\nFrom and to: ends of the {what}.\n\n</details>"
  )


def _required(check: claims.Check) -> str:
  low, high = math.isfinite(check.lower), math.isfinite(check.upper)
  if low and high:
    return f"{_number(check.lower)} to {_number(check.upper)}"
  if low:
    return f"above {_number(check.lower)}"
  return f"below {_number(check.upper)}" if high else "none"


def _number(value: float) -> str:
  return "none" if math.isnan(value) else f"{value:.4g}"


def _seeds(claim: claims.Claim) -> str:
  if claim.seeds == claims.EXACT:
    return "computed, not sampled"
  return f"{claim.seeds} seed{'s' if claim.seeds != 1 else ''}"


def _escape(text: str) -> str:
  text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
  return " ".join(text.split())
