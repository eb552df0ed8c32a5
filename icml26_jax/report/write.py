"""A report as a folder of files, written whole or not at all."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from typing import Any

from icml26_jax.report import claims, encoding, render

SCHEMA = 1

_JSON = "report.json"
_MARKDOWN = "report.md"


def record(report: claims.Report, run: claims.Run) -> dict[str, Any]:
  """The contents of report.json.

  Args:
    report: what was found.
    run: how it came about.

  Returns:
    A JSON object: `schema`, `paper`, `title`, `budget`, `seed`, `command`,
    `seconds`, `environment`, `claims` (with `checks`, the single conditions),
    `tables` (with `columns`, the headings, and `rows`) and `figures`, the
    names of the files.
  """
  return {
    "schema": SCHEMA,
    "paper": run.paper,
    "title": run.title,
    "budget": run.budget,
    "seed": run.seed,
    "command": run.command,
    "seconds": round(run.seconds, 2),
    "environment": run.environment,
    "claims": [
      {
        "id": claim.id,
        "statement": claim.statement,
        "paper_figure": claim.paper_figure,
        "criterion": claim.criterion,
        "measured": claim.measured,
        "value": claim.value,
        "interval": claim.interval,
        "seeds": claim.seeds,
        "verdict": claim.verdict,
        "checks": [_check(check) for check in claim.checks],
      }
      for claim in report.claims
    ],
    "tables": [
      {
        "id": table.id,
        "title": table.title,
        "columns": [column.name for column in table.columns],
        "rows": [[_cell(value) for value in row] for row in table.rows],
        "note": table.note,
      }
      for table in report.tables
    ],
    "figures": [f"{figure.id}.png" for figure in report.figures],
  }


def check_folder(folder: str | os.PathLike, paper: str) -> None:
  """Raises unless `folder` may be replaced by a report on `paper`.

  It may if it does not exist, is empty, or holds a report on the same paper
  and nothing else.

  Args:
    folder: where the report is to go.
    paper: the paper's short name.

  Raises:
    ValueError: naming what is in the way.
  """
  folder = pathlib.Path(folder)
  if not folder.exists() and not folder.is_symlink():
    _check_parent(folder)
    return
  if folder.is_symlink() or not folder.is_dir():
    raise ValueError(f"{folder} is in the way: it is not a folder of reports")
  names = {entry.name for entry in folder.iterdir()}
  if not names:
    return
  try:
    found = json.loads((folder / _JSON).read_text(encoding="utf-8"))
    ours = (
      found["paper"] == paper
      and isinstance(found["schema"], int)
      and isinstance(found["figures"], list)
    )
  except (OSError, ValueError, KeyError, TypeError):
    ours = False
  if not ours:
    raise ValueError(
      f"{folder} holds files that are not a report on {paper!r}; choose"
      " another output folder"
    )
  foreign = sorted(names - {_JSON, _MARKDOWN, *found["figures"]})
  if foreign:
    raise ValueError(
      f"{folder} holds {foreign[0]!r}, which is not part of its report and"
      " would be lost; move it or choose another output folder"
    )


def write(
  folder: str | os.PathLike, report: claims.Report, run: claims.Run
) -> None:
  """Writes report.json, report.md and the figures, replacing an earlier report.

  The files are written beside the folder and moved into place when all of
  them are there: a full disk or a crash leaves the earlier report.

  Args:
    folder: the report's folder; its parents are created.
    report: what was found.
    run: how it came about.

  Raises:
    ValueError: if the folder holds anything but an earlier report.
    OSError: if it cannot be written.
  """
  # matplotlib takes most of a second, which a program that only lists or
  # refuses should not wait for.
  from icml26_jax.report import plots

  folder = pathlib.Path(folder)
  check_folder(folder, run.paper)
  folder.parent.mkdir(parents=True, exist_ok=True)
  # One working folder for the new report and the replaced one.
  work = pathlib.Path(
    tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent)
  )
  new, old = work / "new", work / "old"
  try:
    new.mkdir()
    for figure in report.figures:
      _write(new / f"{figure.id}.png", plots.png(figure.figure))
    markdown = render.to_markdown(report, run)
    _write(new / _MARKDOWN, markdown.encode())
    text = encoding.dumps(record(report, run), indent=2) + "\n"
    _write(new / _JSON, text.encode())
    if folder.exists():
      folder.rename(old)
    try:
      new.rename(folder)
    except OSError:
      if old.exists():
        old.rename(folder)
      raise
  finally:
    shutil.rmtree(work, ignore_errors=True)


def _check_parent(folder: pathlib.Path) -> None:
  """Raises ValueError unless the folder can be created."""
  parent = next(p for p in folder.absolute().parents if p.exists())
  if not parent.is_dir():
    raise ValueError(f"{folder} cannot be created: {parent} is not a folder")
  try:
    # Permissions alone do not tell: the file system may refuse, too.
    pathlib.Path(tempfile.mkdtemp(dir=parent)).rmdir()
  except OSError as error:
    raise ValueError(
      f"{folder} cannot be created: {parent} is not writable ({error.strerror})"
    ) from error


def _write(path: pathlib.Path, data: bytes) -> None:
  with open(path, "wb") as file:
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _check(check: claims.Check) -> dict[str, Any]:
  """A condition as an object; a bound that is not there is null."""
  return {
    "name": check.name,
    **check.estimate._asdict(),
    "lower": check.lower,
    "upper": check.upper,
    "margin": check.margin,
    "verdict": check.verdict,
    "note": check.note,
  }


def _cell(value: Any) -> Any:
  """An estimate as an object, so that nobody has to guess the order."""
  return value._asdict() if isinstance(value, claims.Estimate) else value
