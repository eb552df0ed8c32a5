"""Reproduces the claims of papers: runs, judges, prints and writes a report.

  python -m experiments.reproduce --paper=candi
  python -m experiments.reproduce --paper=list

Each paper gets a folder in `--out` with report.json, report.md and plots. The
exit code is 0 if every experiment ran to its end, whatever its verdicts; 1 if
one broke; 2 if the arguments are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import pathlib
import sys
import tempfile
import time
import traceback
from typing import Any

from absl import flags
import rich.console
import rich.table

from experiments import cli, papers
from icml26_jax.report import claims, environment, render, write


def main() -> int:
  """Runs what the flags ask for."""
  options = flags.FLAGS
  if options.paper == "list":
    return show_list(
      markdown=options.markdown, as_json=options.format == "json"
    )
  if options.markdown:
    raise cli.UserError("--markdown goes with --paper=list")
  slugs = choose(options.paper)
  out = pathlib.Path(options.out)
  # Lists and refusals should not wait for JAX.
  from icml26_jax.data import locations
  from icml26_jax.training import allocator

  # What would end the run is found out before hours of work, not after them.
  locations.cache_dir()
  for slug in slugs:
    write.check_folder(out / slug, slug)
  # Before JAX starts its threads.
  allocator.keep_freed_memory()
  arguments = (slugs, options.budget, out, options.seed)
  if options.format == "json":
    with cli.json_output() as emit:
      records, broken = run_all(*arguments)
      emit({"schema": write.SCHEMA, "reports": records, "broken": broken})
  else:
    records, broken = run_all(*arguments, show=_show)
  return 1 if broken else 0


def choose(paper: str | None) -> list[str]:
  """The papers that `--paper` names.

  Args:
    paper: short names separated by commas, or "all".

  Returns:
    The short names, each once, in the order given.

  Raises:
    UserError: if there is no such paper, listing those that exist.
  """
  valid = papers.names()
  if paper == "all":
    return valid
  slugs = [name.strip() for name in (paper or "").split(",") if name.strip()]
  if not slugs:
    raise cli.UserError(
      f"--paper must name a paper, 'all' or 'list'; papers: {', '.join(valid)}"
    )
  for slug in slugs:
    if slug not in valid:
      raise cli.unknown("paper", slug, valid)
  return list(dict.fromkeys(slugs))


def run_all(
  slugs: Sequence[str],
  budget: str,
  out: pathlib.Path,
  seed: int,
  *,
  show: Callable[[claims.Report, claims.Run, pathlib.Path], None] | None = None,
) -> tuple[list[dict[str, Any]], list[str]]:
  """Runs papers one after another; one that breaks does not stop the rest.

  Args:
    slugs: short names of papers.
    budget: one of `papers.BUDGETS`.
    out: folder of the reports.
    seed: seed of all randomness.
    show: called with each report, how it came about, and its folder.

  Returns:
    The contents of each report.json, and the short names of the papers that
    broke, or whose report could not be written where it was to go.
  """
  records, broken = [], []
  for slug in slugs:
    print(f"{slug}: budget {budget}, seed {seed}", file=sys.stderr, flush=True)
    try:
      report, run = run_one(slug, budget, seed)
    except Exception as error:
      traceback.print_exception(error)
      print(
        f"error: {slug} broke: {type(error).__name__}: {cli.one_line(error)}",
        file=sys.stderr,
      )
      broken.append(slug)
      continue
    folder = out / slug
    try:
      write.write(folder, report, run)
    except (OSError, ValueError) as error:
      # What took long to find is not lost with the disk.
      folder = pathlib.Path(tempfile.mkdtemp(prefix="icml26_jax-")) / slug
      print(
        f"error: {cli.one_line(error)}; the report goes to {folder}",
        file=sys.stderr,
      )
      write.write(folder, report, run)
      broken.append(slug)
    records.append(write.record(report, run))
    if show is not None:
      show(report, run, folder)
  return records, broken


def run_one(
  slug: str, budget: str, seed: int
) -> tuple[claims.Report, claims.Run]:
  """Runs one paper's experiment.

  Args:
    slug: the paper's short name.
    budget: one of `papers.BUDGETS`.
    seed: seed of all randomness.

  Returns:
    What was found, and how it came about.

  Raises:
    PaperError: if the paper's file is unusable.
    TypeError: if its experiment returns anything but a `Report`.
  """
  import jax

  paper = papers.describe(slug)
  reproduce = papers.load(slug)
  start = time.monotonic()
  report = reproduce(jax.random.key(seed), budget)
  seconds = time.monotonic() - start
  if not isinstance(report, claims.Report):
    raise TypeError(f"reproduce must return a Report, got {report!r}")
  run = claims.Run(
    paper=slug,
    title=paper.title,
    budget=budget,
    seed=seed,
    seconds=seconds,
    environment=environment.describe(),
  )
  return report, run


def show_list(*, markdown: bool, as_json: bool) -> int:
  """Prints the papers and what each claims.

  A file that cannot be read is named on standard error.

  Args:
    markdown: True for the table of the README.
    as_json: True for a JSON object.

  Returns:
    0, or 1 if a file cannot be read.
  """
  found, broken = [], []
  for slug in papers.names():
    try:
      found.append(papers.describe(slug))
    except papers.PaperError as error:
      print(f"error: {cli.one_line(error)}", file=sys.stderr)
      broken.append(slug)
  if as_json:
    with cli.json_output() as emit:
      emit({"papers": [paper._asdict() for paper in found], "broken": broken})
  elif markdown:
    print(list_markdown(found))
  else:
    table = rich.table.Table(show_lines=True)
    table.add_column("--paper=", no_wrap=True)
    table.add_column("paper", ratio=2)
    table.add_column("what it claims", ratio=3)
    for paper in found:
      table.add_row(
        paper.slug, f"{paper.title}\n{paper.reference}", paper.claim
      )
    console = rich.console.Console()
    console.print(table, width=min(max(console.width, 80), 120))
  return 1 if broken else 0


def list_markdown(found: Sequence[papers.Paper]) -> str:
  """The README's table of papers."""
  return render.markdown_table(
    ("`--paper=`", "paper", "what it claims"),
    [
      (f"`{paper.slug}`", f"{paper.title} ({paper.reference})", paper.claim)
      for paper in found
    ],
  )


def define_flags() -> None:
  """Defines the flags of this program."""
  flags.DEFINE_string(
    "paper",
    None,
    "Short names of papers, separated by commas; or all; or list.",
  )
  flags.DEFINE_enum(
    "budget",
    "small",
    papers.BUDGETS,
    "smoke: under a minute, to see that it runs. small: a few minutes. full:"
    " the figures of the README.",
  )
  flags.DEFINE_string("out", "runs", "Folder for the reports.")
  flags.DEFINE_integer("seed", 0, "Seed of all randomness.", lower_bound=0)
  flags.DEFINE_bool(
    "markdown", False, "With --paper=list, print a Markdown table."
  )
  cli.define_format()


def _show(report: claims.Report, run: claims.Run, folder: pathlib.Path) -> None:
  console = rich.console.Console()
  render.to_console(report, run, console)
  console.print(f"Tables and plots: {folder / 'report.md'}", soft_wrap=True)


if __name__ == "__main__":
  cli.run(main, define_flags)
