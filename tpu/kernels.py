"""Cycles of Pallas kernels, from the compiler's final instruction schedule.

XLA estimates no cycles for a Pallas kernel. libtpu can write the final VLIW
schedule of each operation: one bundle is issued a cycle, so bundles times
trip counts are what a kernel takes if it never waits. Both arms of a branch
count. Waiting for memory or for a busy unit is not in it, so an estimate
should not fall below the kernel's FLOPs over the peak.
"""

from __future__ import annotations

import os
import pathlib
import re

from tpu import hlo

_FILE = re.compile(r"^\d+-(.+)-\d+-final_bundles\.txt$")
_BUNDLE = re.compile(r"^\s*0x[0-9a-f]+\s+(\w*)\s*:\s*([> ]*)\{")
_EXIT = re.compile(r"scmp\.ge\.s32\.totalorder %\S+, (\d+) /\* loop exit test")


def dump_schedules(folder: str | os.PathLike[str]) -> None:
  """Makes libtpu write the final schedules of what it compiles to a folder.

  Args:
    folder: where to; must exist. Takes effect only before libtpu is loaded.
  """
  flags = (
    f"--xla_jf_dump_to={os.fspath(folder)}",
    "--xla_jf_dump_llo_text=true",
    "--xla_jf_dump_llo_pass_label_regex=^final_bundles",
  )
  before = os.environ.get("LIBTPU_INIT_ARGS", "")
  os.environ["LIBTPU_INIT_ARGS"] = " ".join([before, *flags]).strip()


def read_cycles(folder: str | os.PathLike[str]) -> dict[str, int]:
  """Cycles of each operation in a folder of schedules.

  Args:
    folder: as given to `dump_schedules`.

  Returns:
    Cycles by the operation's name. Operations whose loops have no constant
    trip count are left out.
  """
  result = {}
  for path in sorted(pathlib.Path(folder).iterdir()):
    match = _FILE.match(path.name)
    if match:
      try:
        result[match.group(1)] = schedule_cycles(path.read_text())
      except hlo.HloError:
        continue
  return result


def schedule_cycles(text: str) -> int:
  """Bundles of a schedule, those in loops times the trip counts.

  Args:
    text: a final schedule. `>` marks how deep in loops a bundle stands.

  Returns:
    Cycles.

  Raises:
    hlo.HloError: if a loop has no constant trip count.
  """
  # (bundles so far, trip count) of the program and of each open loop.
  stack: list[list[int | None]] = [[0, 1]]

  def close():
    count, trips = stack.pop()
    if trips is None:
      raise hlo.HloError("a loop of the schedule has no constant trip count")
    stack[-1][0] += count * trips

  for line in text.splitlines():
    match = _BUNDLE.match(line)
    if not match:
      continue
    depth = match.group(2).count(">")
    # Empty bundles bear no mark: a loop is left only after its exit test.
    # The slots behind its branch do: only a label opens a loop.
    while len(stack) > depth + 1 and stack[-1][1] is not None:
      close()
    if match.group(1) == "LB" and depth:
      while len(stack) > depth:
        close()
      stack.append([0, None])
    stack[-1][0] += 1
    limit = _EXIT.search(line)
    if limit:
      stack[-1][1] = int(limit.group(1))
  while len(stack) > 1:
    close()
  return stack[0][0]
