"""A run's directory: what it holds, whose it is, and who is using it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import contextlib
import fcntl
import json
import os
import pathlib
from typing import Any

from icml26_jax.data import locations
from icml26_jax.report import encoding

RECIPE_FILE = "recipe.json"
_LOCK_FILE = ".lock"
_KIND = "icml26_jax training run"
_SCHEMA = 1


def claim(
  path: str | os.PathLike,
  recipe: Mapping[str, Any],
  *,
  free: Iterable[str] = (),
) -> pathlib.Path:
  """Makes a directory that of a run, or finds that it is.

  Args:
    path: the directory; it and its parents are created.
    recipe: what the run does, as a tree of JSON values.
    free: dotted names of fields, or of groups of them, that may differ when a
      run is resumed, such as the mesh.

  Returns:
    The absolute path, with `recipe.json` in it.

  Raises:
    ValueError: if the path is a file, or a directory with other contents, or
      that of a run of another recipe; the message names the fields.
  """
  if "://" in os.fspath(path):
    raise ValueError(
      f"workdir must be a local or mounted directory, got {os.fspath(path)};"
      " mount the bucket on every machine"
    )
  path = pathlib.Path(path).expanduser().resolve()
  if path.exists() and not path.is_dir():
    raise ValueError(f"workdir {path} is not a directory")
  recipe = json.loads(encoding.dumps(recipe))
  found = read(path) if path.is_dir() and _is_used(path) else None
  if found is not None:
    differing = differences(found, recipe, free=free)
    if differing:
      # One of these may be what the others follow from.
      allowed = [x for x in differences(found, recipe) if x not in differing]
      also = f" (also, which alone would do: {'; '.join(allowed)})"
      raise ValueError(
        f"{path} holds a run of another config: {'; '.join(differing)}"
        f"{also if allowed else ''}; choose another workdir, or the config it"
        " was started with"
      )
  else:
    path.mkdir(parents=True, exist_ok=True)
    record = {"kind": _KIND, "schema": _SCHEMA, "recipe": recipe}
    with locations.atomic_writer(path / RECIPE_FILE) as file:
      file.write((encoding.dumps(record, indent=2) + "\n").encode())
  return path


def read(path: str | os.PathLike) -> dict[str, Any]:
  """The recipe of the run in a directory.

  Args:
    path: the directory.

  Returns:
    A tree of JSON values.

  Raises:
    ValueError: if the directory is missing, or not that of a run.
  """
  path = pathlib.Path(path)
  if not path.is_dir():
    raise ValueError(f"there is no directory {path}")
  try:
    record = json.loads((path / RECIPE_FILE).read_text(encoding="utf-8"))
    if record["kind"] != _KIND:
      raise ValueError("of another kind")
    schema, recipe = record["schema"], record["recipe"]
    if not isinstance(recipe, dict):
      raise ValueError("of another form")
  except (OSError, ValueError, KeyError, TypeError):
    raise ValueError(
      f"{path} is not the directory of a training run: it has no"
      f" {RECIPE_FILE} of ours; choose another"
    ) from None
  if schema != _SCHEMA:
    raise ValueError(
      f"{path} was written with schema {schema}; this version reads {_SCHEMA}"
    )
  return recipe


def differences(
  found: Mapping[str, Any],
  asked: Mapping[str, Any],
  *,
  free: Iterable[str] = (),
) -> list[str]:
  """Where two recipes differ, one text a field.

  Args:
    found: a tree of JSON values.
    asked: another.
    free: dotted names of fields or groups that are not looked at.

  Returns:
    Texts such as `model.d_model is 128, asked 64`.
  """
  old, new = dict(_flat(found)), dict(_flat(asked))
  free = tuple(free)
  texts = []
  for name in sorted(old.keys() | new.keys()):
    if any(name == part or name.startswith(part + ".") for part in free):
      continue
    left, right = old.get(name, _MISSING), new.get(name, _MISSING)
    if left != right:
      texts.append(f"{name} is {_shown(left)}, asked {_shown(right)}")
  return texts


@contextlib.contextmanager
def lock(path: pathlib.Path, *, wait: bool = False) -> Iterator[bool]:
  """Keeps other processes of this machine out of a directory.

  The lock goes with the process, however it ends.

  Args:
    path: the directory, which must exist.
    wait: whether to wait for another holder to finish.

  Yields:
    True if another process had to be waited for.

  Raises:
    ValueError: if another process holds it and `wait` is False.
  """
  with open(path / _LOCK_FILE, "a") as file:
    waited = False
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      if not wait:
        raise ValueError(
          f"another process is using {path}; wait for it, or choose another"
          " workdir"
        ) from None
      waited = True
      fcntl.flock(file, fcntl.LOCK_EX)
    yield waited


_MISSING = object()


def _is_used(path: pathlib.Path) -> bool:
  """True if a directory holds more than what a killed `claim` leaves."""
  return any(
    not entry.name.startswith(f".{RECIPE_FILE}.") for entry in path.iterdir()
  )


def _shown(value: Any) -> str:
  return "missing" if value is _MISSING else json.dumps(value)


def _flat(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
  """Dotted names and leaves of nested objects; a list is a leaf."""
  for name, value in tree.items():
    if isinstance(value, Mapping):
      yield from _flat(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", value
