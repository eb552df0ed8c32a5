"""Where files live: the cache, public data and request traces."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import sys
import tempfile
from typing import BinaryIO
import uuid

_SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared"


def cache_dir(*parts: str) -> pathlib.Path:
  """Folder of what can be made again: trained models, extracted text.

  `ICML26_CACHE` if set, otherwise `icml26_jax` in the user's cache folder. It
  is created if it is missing.

  Args:
    *parts: sub-folder.

  Returns:
    An absolute path of a folder that files can be written to.

  Raises:
    ValueError: if the folder cannot be created or written to.
  """
  variable = os.environ.get("ICML26_CACHE")
  path = pathlib.Path(variable).expanduser() if variable else _user_cache()
  path = path.absolute().joinpath(*parts)
  try:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      pass
  except OSError as error:
    raise ValueError(
      f"the cache folder {path} is not writable ({error.strerror}); set"
      " ICML26_CACHE to a folder that is"
    ) from error
  return path


def data_dir() -> pathlib.Path | None:
  """Folder of public data files.

  Returns:
    `ICML26_DATA` if set, otherwise `../shared/data` beside the repository if
    it exists, otherwise None.

  Raises:
    ValueError: if `ICML26_DATA` is set, but is not a folder.
  """
  return _given("ICML26_DATA", _SHARED / "data")


def traces_dir() -> pathlib.Path | None:
  """Folder of request traces.

  Returns:
    `ICML26_TRACES` if set, otherwise `../shared/traces` beside the repository
    if it exists, otherwise None.

  Raises:
    ValueError: if `ICML26_TRACES` is set, but is not a folder.
  """
  return _given("ICML26_TRACES", _SHARED / "traces")


@contextlib.contextmanager
def atomic_writer(path: pathlib.Path) -> Iterator[BinaryIO]:
  """Opens a file that appears under its name whole or not at all.

  Written beside its target and renamed at the end, so that a killed process
  leaves at most a hidden temporary file and a concurrent reader never sees a
  part. If the block raises, an earlier file of that name stays.

  Args:
    path: the file, in a folder that exists.

  Yields:
    A binary file to write to.
  """
  temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
  try:
    with open(temporary, "xb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException as error:
    temporary.unlink(missing_ok=True)
    if isinstance(error, OSError) and error.errno and error.filename is None:
      # A full disk does not say which.
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise


def _given(variable: str, default: pathlib.Path) -> pathlib.Path | None:
  """The folder a variable names, or the default where that exists."""
  value = os.environ.get(variable)
  if not value:
    return default if default.is_dir() else None
  path = pathlib.Path(value).expanduser().absolute()
  if not path.is_dir():
    raise ValueError(f"{variable} must name a folder, got {value!r}")
  return path


def _user_cache() -> pathlib.Path:
  """The platform's folder for caches, with our name."""
  if sys.platform == "win32":
    root = os.environ.get("LOCALAPPDATA", "~/AppData/Local")
  elif sys.platform == "darwin":
    root = "~/Library/Caches"
  else:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  try:
    return pathlib.Path(root).expanduser() / "icml26_jax"
  except RuntimeError as error:  # no home folder
    raise ValueError(
      "there is no home folder to put a cache in; set ICML26_CACHE"
    ) from error
