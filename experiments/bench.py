"""Times our operations beside named peers, in one process, and prints ratios.

  python -m experiments.bench --suite=diffusion

All sides take turns, so that a machine that is busy for a while slows all of
them. Peers come with the extra `peers`: pip install -e '.[peers]'. Times mean
something only while nothing else runs.
"""

from __future__ import annotations

from typing import Any

from absl import flags
import rich.console
import rich.table

from experiments import benchmarks, cli
from experiments.benchmarks import _timing
from icml26_jax.report import environment, progress
from icml26_jax.training import allocator

SCHEMA = 1


def main() -> None:
  """Runs the suite that the flags name."""
  options = flags.FLAGS
  suite = load(options.suite)
  # Both sides profit; it must be set before either starts its threads.
  allocator.keep_freed_memory()
  if options.format == "json":
    with cli.json_output() as emit:
      emit(run(suite, options.suite, options.repetitions, options.seed))
  else:
    show(run(suite, options.suite, options.repetitions, options.seed))


def load(name: str | None) -> Any:
  """The suite of a name, if what it compares with is installed.

  Args:
    name: one of `benchmarks.names()`.

  Returns:
    Its module.

  Raises:
    UserError: if there is no such suite, listing those that exist, or a peer
      is missing, naming the extra that brings it.
  """
  valid = benchmarks.names()
  if name is None:
    raise cli.UserError(
      f"--suite must name a suite; suites: {', '.join(valid)}"
    )
  if name not in valid:
    raise cli.unknown("suite", name, valid)
  suite = benchmarks.load(name)
  try:
    suite.check_peers()
  except ModuleNotFoundError as error:
    raise cli.UserError(
      f"suite {name} compares with {error.name}, which is not installed: pip"
      " install -e '.[peers]'"
    ) from error
  return suite


def run(suite: Any, name: str, repetitions: int, seed: int) -> dict[str, Any]:
  """Times a suite.

  Args:
    suite: its module.
    name: its name.
    repetitions: timed calls a side.
    seed: of the data.

  Returns:
    The report, for JSON.
  """
  cases = suite.cases(seed)
  with progress.bar(
    "timing", total=len(cases) * repetitions, unit="rounds"
  ) as bar:
    results = _timing.measure(
      cases, repetitions=repetitions, advance=lambda: bar.advance(1)
    )
  return {
    "schema": SCHEMA,
    "suite": name,
    "seed": seed,
    "environment": environment.describe() | suite.environment(),
    "cases": [result.record() for result in results],
  }


def show(report: dict[str, Any]) -> None:
  """Prints a report as a table."""
  table = rich.table.Table(title=f"suite {report['suite']}")
  table.add_column("work")
  table.add_column("side")
  for heading in ("median ms", "quartiles", "GFLOP/s", "ratio"):
    table.add_column(heading, justify="right")
  for case in report["cases"]:
    for i, (side, times) in enumerate(case["sides"].items()):
      low, high = times["quartiles_ms"]
      ratio = ""
      if side == _timing.OURS:
        low_ratio, high_ratio = case["paired_ratio_quartiles"]
        ratio = f"{case['ratio']:.2f} ({low_ratio:.2f} to {high_ratio:.2f})"
      table.add_row(
        case["name"] if i == 0 else "",
        side,
        f"{times['median_ms']:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{times['gflop_per_second']:.0f}",
        ratio,
        end_section=i == len(case["sides"]) - 1,
      )
  console = rich.console.Console()
  console.print(table)
  console.print(
    "Ratio: the peer's time over ours, above 1 where ours is faster."
  )
  for case in report["cases"]:
    aim = "" if case["target"] is None else f"aim {case['target']:g}; "
    console.print(f"{case['name']}: {aim}{case['note']}")
  setting = ", ".join(f"{k} {v}" for k, v in report["environment"].items())
  console.print(setting, soft_wrap=True)


def define_flags() -> None:
  """Defines the flags of this program."""
  flags.DEFINE_string(
    "suite", None, f"What to time: {', '.join(benchmarks.names())}."
  )
  flags.DEFINE_integer(
    "repetitions", 15, "Timed calls of each side.", lower_bound=1
  )
  flags.DEFINE_integer("seed", 0, "Seed of the data.", lower_bound=0)
  cli.define_format()


if __name__ == "__main__":
  cli.run(main, define_flags)
