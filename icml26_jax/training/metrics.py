"""Metrics of a run: one JSON object a line, and TensorBoard if there is one."""

from __future__ import annotations

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any

from icml26_jax.data import locations
from icml26_jax.report import encoding
from icml26_jax.training import tensorboard

FILE_NAME = "metrics.jsonl"


class MetricsWriter:
  """Appends to `metrics.jsonl` of a working directory.

  A resumed run goes on where its checkpoint was taken: lines of later steps,
  and a last line cut short by a kill, are removed, so that the file ends as an
  uninterrupted run's would.

  Args:
    workdir: the run's directory.
    step: step of the checkpoint resumed from; 0 for a fresh start.
    with_tensorboard: also write event files; None where TensorBoard is
      installed.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    step: int = 0,
    with_tensorboard: bool | None = None,
  ):
    self._path = pathlib.Path(workdir) / FILE_NAME
    _keep_until(self._path, step)
    # Line-buffered: a kill between two lines leaves both whole.
    self._file = open(self._path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
    if with_tensorboard is None:
      with_tensorboard = tensorboard.is_installed()
    self._events = (
      tensorboard.EventWriter(workdir) if with_tensorboard else None
    )

  def write(self, step: int, scalars: Mapping[str, Any]) -> None:
    """Appends a line.

    Args:
      step: updates made.
      scalars: numbers by name; one that is not finite becomes null.

    Raises:
      OSError: naming the file, if it cannot be written.
    """
    values = {name: float(value) for name, value in scalars.items()}
    try:
      self._file.write(encoding.dumps({"step": step, **values}) + "\n")
      if self._events is not None:
        self._events.write(step, values)
    except OSError as error:
      raise OSError(
        error.errno, f"cannot write to {self._path}: {error.strerror}"
      ) from error

  def close(self) -> None:
    """Closes the files."""
    self._file.close()
    if self._events is not None:
      self._events.close()


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
  """The lines of a metrics file; one cut short at the end is left out."""
  records = []
  for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
    try:
      records.append(json.loads(line))
    except ValueError:
      break
  return records


def _keep_until(path: pathlib.Path, step: int) -> None:
  """Removes the lines of steps after `step`."""
  if not path.exists():
    return
  kept = [record for record in read(path) if record["step"] <= step]
  text = "".join(encoding.dumps(record) + "\n" for record in kept)
  with locations.atomic_writer(path) as file:
    file.write(text.encode())
