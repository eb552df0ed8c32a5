"""Checkpoints: asynchronous, atomic, checked, restored into any mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
import logging
import os
import pathlib
import re
import shutil
import sys
import time
from typing import Any

from etils import epath
import jax
from jax.experimental import multihost_utils
import numpy as np
import orbax.checkpoint as ocp

from icml26_jax.training import checksum
from icml26_jax.training import state as state_lib

FOLDER = "checkpoints"
DAMAGED_FOLDER = "damaged"

# Parts of a checkpoint, so that sampling reads no more than it needs.
_PARAMS, _EMA, _REST, _HOST = "params", "ema_params", "rest", "host"

# Files of a failed save: how long to go on removing them (the next run would
# do it), and how long they must stay away.
_REMOVAL_SECONDS, _QUIET_SECONDS = 5.0, 0.1


class Checkpointer:
  """Writes and reads the checkpoints of a run.

  Saving returns as soon as the arrays are copied to the host; a failure shows
  at the next call. A checkpoint appears under its name only when it is whole.
  Every process of the run must make the same calls.

  Args:
    workdir: the run's directory, shared by all processes.
    keep: checkpoints kept; an older one is deleted once a newer is whole.
    notify: called with a line of text that the user should see; None prints
      it on standard error.

  Raises:
    ValueError: if `keep` is below 1.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    keep: int = 3,
    notify: Callable[[str], None] | None = None,
  ):
    if keep < 1:
      raise ValueError(f"keep must be at least 1, got {keep}")
    # Orbax finds out about a relative path only after save() has returned.
    self._workdir = pathlib.Path(workdir).resolve()
    self._folder = self._workdir / FOLDER
    self._notify = notify or _print_error
    self._pending: int | None = None
    self._exit = contextlib.ExitStack()
    self._exit.enter_context(_quiet_orbax())
    self._manager = ocp.CheckpointManager(
      epath.Path(self._folder),
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, cleanup_tmp_directories=True
      ),
    )
    self.latest_step: int | None = None

  def __enter__(self) -> Checkpointer:
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def save(self, state: state_lib.TrainState, host: Mapping[str, Any]) -> None:
    """Starts saving a state.

    Args:
      state: the state; it may be donated as soon as this returns.
      host: what else a resumed run needs, as a tree of JSON values.

    Raises:
      OSError: if this or the previous checkpoint cannot be written.
    """
    self.wait()
    step = int(state.step)
    parts = _parts(state)
    record = {
      "host": dict(host),
      "checksums": {
        name: checksum.of_leaves(tree) for name, tree in parts.items()
      },
    }
    self._pending = step
    with self._saving(step):
      saved = self._manager.save(
        step,
        args=ocp.args.Composite(
          **{name: ocp.args.StandardSave(tree) for name, tree in parts.items()},
          **{_HOST: ocp.args.JsonSave(record)},
        ),
      )
    if not saved:
      raise AssertionError(f"orbax left out the checkpoint of step {step}")

  def wait(self) -> None:
    """Waits until the checkpoint being saved is whole.

    Raises:
      OSError: if it cannot be written; earlier ones are still there.
    """
    if self._pending is None:
      return
    step = self._pending
    with self._saving(step):
      self._manager.wait_until_finished()
    self._pending, self.latest_step = None, step

  def restore(
    self, abstract_state: state_lib.TrainState
  ) -> tuple[state_lib.TrainState, dict[str, Any]] | None:
    """Restores the last whole checkpoint.

    Later ones that are damaged are reported and moved out of the way.

    Args:
      abstract_state: shapes, dtypes and shardings, see `state.abstract`.

    Returns:
      The state and what was saved beside it; None if there is no checkpoint.

    Raises:
      ValueError: if there are checkpoints, but none can be restored.
    """
    found = _last_whole(
      self._manager, self._folder, _parts(abstract_state), self._notify
    )
    if found is None:
      return None
    step, parts, host, damaged = found
    self._move_aside(damaged)
    self.latest_step = step
    return (
      state_lib.TrainState(
        params=parts[_PARAMS], ema_params=parts.get(_EMA), **parts[_REST]
      ),
      host,
    )

  def close(self) -> None:
    """Waits for the checkpoint being saved and releases everything.

    Raises:
      OSError: if that checkpoint cannot be written.
    """
    try:
      self.wait()
    finally:
      # A failure to save has been raised already.
      with contextlib.suppress(Exception):
        self._manager.close()
      self._remove_unfinished()
      self._exit.close()

  @contextlib.contextmanager
  def _saving(self, step: int) -> Iterator[None]:
    """Turns any failure to save into one clear OSError."""
    try:
      yield
    except Exception as error:  # orbax and tensorstore raise many types
      self._pending = None
      self._remove_unfinished()
      rest = (
        "there is no earlier one"
        if self.latest_step is None
        else f"the last whole one is of step {self.latest_step}"
      )
      raise OSError(
        f"cannot save the checkpoint of step {step} in {self._folder}:"
        f" {_reason(error)}; {rest}"
      ) from error

  def _remove_unfinished(self) -> None:
    """Removes what failed saves left."""
    if jax.process_index() != 0:
      return
    # Writing threads of a failed save may still be adding files, even make
    # the folder anew: it is gone when it stays away for a while.
    give_up = time.monotonic() + _REMOVAL_SECONDS
    while left := list(self._folder.glob("*.orbax-checkpoint-tmp*")):
      for path in left:
        shutil.rmtree(path, ignore_errors=True)
      if time.monotonic() > give_up:
        return
      time.sleep(_QUIET_SECONDS)

  def _move_aside(self, steps: list[int]) -> None:
    """Moves damaged checkpoints to where they are not taken for whole ones."""
    if not steps:
      return
    if jax.process_index() == 0:
      folder = self._workdir / DAMAGED_FOLDER
      folder.mkdir(exist_ok=True)
      for step in steps:
        target = folder / str(step)
        if target.exists():
          shutil.rmtree(target)
        (self._folder / str(step)).rename(target)
    if jax.process_count() > 1:
      multihost_utils.sync_global_devices("moved damaged checkpoints")
    self._manager.reload()


def restore_params(
  workdir: str | os.PathLike,
  abstract_params: Any,
  *,
  with_ema: bool,
  step: int | None = None,
  notify: Callable[[str], None] | None = None,
) -> tuple[Any, int]:
  """Reads the parameters to sample with; changes nothing on disk.

  Args:
    workdir: the run's directory.
    abstract_params: shapes, dtypes and shardings of the parameters.
    with_ema: whether to read their average.
    step: which checkpoint; None for the last whole one.
    notify: called with a line of text for each damaged one that is skipped;
      None prints it on standard error.

  Returns:
    The parameters and the step.

  Raises:
    ValueError: if there is no checkpoint, or not of that step, or none that
      can be restored.
  """
  folder = pathlib.Path(workdir).resolve() / FOLDER
  name = _EMA if with_ema else _PARAMS
  with contextlib.ExitStack() as stack:
    stack.enter_context(_quiet_orbax())
    if not folder.is_dir():
      raise ValueError(f"there is no checkpoint in {workdir}")
    manager = ocp.CheckpointManager(
      epath.Path(folder),
      options=ocp.CheckpointManagerOptions(read_only=True, create=False),
    )
    stack.callback(manager.close)
    found = _last_whole(
      manager,
      folder,
      {name: abstract_params},
      notify or _print_error,
      only=step,
    )
  if found is None:
    raise ValueError(f"there is no checkpoint in {workdir}")
  step, parts, _, _ = found
  return parts[name], step


def _parts(state: state_lib.TrainState) -> dict[str, Any]:
  """A state as the parts of a checkpoint."""
  rest = {"step": state.step, "opt_state": state.opt_state, "key": state.key}
  parts = {_PARAMS: state.params, _REST: rest}
  if state.ema_params is not None:
    parts[_EMA] = state.ema_params
  return parts


def _last_whole(
  manager: ocp.CheckpointManager,
  folder: pathlib.Path,
  targets: Mapping[str, Any],
  notify: Callable[[str], None],
  *,
  only: int | None = None,
) -> tuple[int, dict[str, Any], dict[str, Any], list[int]] | None:
  """Step, parts and host values of the last checkpoint that can be read.

  Also the steps of the damaged ones after it.
  """
  steps = sorted(manager.all_steps(), reverse=True)
  if only is not None:
    if only not in steps:
      listed = ", ".join(str(step) for step in sorted(steps)) or "none"
      raise ValueError(
        f"there is no checkpoint of step {only} in {folder}; there are {listed}"
      )
    steps = [only]
  problems: dict[int, str] = {}
  for step in steps:
    problem = None
    try:
      parts, host = _read(manager, step, targets)
    except Exception as error:  # orbax and tensorstore raise many types
      problem = _reason(error)
    if _any_process(problem is not None):
      problems[step] = problem or "another process cannot read it"
      continue
    for bad, why in problems.items():
      notify(
        f"checkpoint of step {bad} in {folder} is damaged ({why}); skipped for"
        f" that of step {step}"
      )
    return step, parts, host, list(problems)
  if problems:
    texts = "; ".join(f"step {step}: {why}" for step, why in problems.items())
    raise ValueError(
      f"none of the checkpoints in {folder} can be restored: {texts}"
    )
  return None


def _read(manager, step, targets):
  """One checkpoint's parts and host values, checked."""
  restored = manager.restore(
    step,
    args=ocp.args.Composite(
      **{
        name: ocp.args.StandardRestore(target)
        for name, target in targets.items()
      },
      **{_HOST: ocp.args.JsonRestore()},
    ),
  )
  record = restored[_HOST]
  parts = {name: restored[name] for name in targets}
  for name, tree in parts.items():
    if checksum.of_leaves(tree) != record["checksums"][name]:
      raise ValueError(f"values of {name} differ from those saved")
  return parts, record["host"]


def _print_error(line: str) -> None:
  if jax.process_index() == 0:
    print(line, file=sys.stderr)


def _any_process(flag: bool) -> bool:
  if jax.process_count() == 1:
    return flag
  flags = multihost_utils.process_allgather(np.asarray([flag]))
  return bool(np.any(flags))


def _reason(error: BaseException) -> str:
  """Why something failed, in a few words."""
  text = " ".join(str(error).split())
  match = re.search(
    r"No space left on device|File too large|Permission denied"
    r"|Disk quota exceeded|Read-only file system",
    text,
  )
  if match:
    return match[0]
  first = re.split(r"(?<=[.;:]) ", text)[0].rstrip(".;:")
  return first[:160] or type(error).__name__


class _OrbaxFilter(logging.Filter):
  """Drops orbax's log records: what matters is raised, and told once."""

  def filter(self, record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
  """Keeps orbax's tracebacks of failures that we handle off the terminal."""
  logger, orbax_filter = logging.getLogger("absl"), _OrbaxFilter()
  before = sys.unraisablehook

  def hook(unraisable):
    # Reading a damaged array leaves coroutines and callbacks behind that
    # nobody waits for.
    value, source = unraisable.exc_value, repr(unraisable.object)
    late = isinstance(value, RuntimeError) and "loop is closed" in str(value)
    if not late and "_read_array_index" not in source:
      before(unraisable)

  logger.addFilter(orbax_filter)
  sys.unraisablehook = hook
  try:
    yield
  finally:
    logger.removeFilter(orbax_filter)
    if sys.unraisablehook is hook:
      sys.unraisablehook = before
