"""What a result was computed with."""

from __future__ import annotations

import datetime
from importlib import metadata
import os
import pathlib
import platform

_PACKAGES = ("icml26_jax", "jax", "jaxlib", "flax", "optax", "numpy")


def describe() -> dict[str, str | int]:
  """Versions, device, cores and time, for a report.

  Returns:
    `python` and one version a package; `device`, the kind of the first JAX
    device; `devices`, how many of them this process sees; `cores`, how many
    processor cores it may use; `date`, now in UTC; and `commit`, what git
    has checked out here, unless the package was installed without git. No
    name of the machine or its user.
  """
  # Starting JAX's backend takes a second: not before somebody asks.
  import jax

  versions: dict[str, str | int] = {"python": platform.python_version()}
  for package in _PACKAGES:
    versions[package] = metadata.version(package)
  found = {
    **versions,
    "device": jax.devices()[0].device_kind,
    "devices": jax.local_device_count(),
    "cores": _cores(),
    "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
  }
  # Beside the package only: a repository further up is somebody else's.
  commit = commit_of(pathlib.Path(__file__).parents[2])
  return found if commit is None else {**found, "commit": commit}


def commit_of(root: pathlib.Path) -> str | None:
  """The commit that is checked out in a folder, read from git's files.

  Changes that were not committed do not show.

  Args:
    root: top of the checkout.

  Returns:
    The hash in hexadecimal, or None if this is no checkout with a commit.
  """
  try:
    git = root / ".git"
    if git.is_file():
      # A worktree, or a submodule.
      git = root / _read(git).removeprefix("gitdir: ")
    head = _read(git / "HEAD")
    if not head.startswith("ref: "):
      return _hash(head)
    name = head.removeprefix("ref: ")
    shared = git / "commondir"
    common = git / _read(shared) if shared.exists() else git
    if (common / name).exists():
      return _hash(_read(common / name))
    for line in _read(common / "packed-refs").splitlines():
      commit, _, found = line.partition(" ")
      if found == name:
        return _hash(commit)
  except (OSError, UnicodeDecodeError):
    pass
  return None


def _read(path: pathlib.Path) -> str:
  return path.read_text(encoding="utf-8").strip()


def _hash(text: str) -> str | None:
  """The text if it is a hash of git's, SHA-1 or SHA-256."""
  digits = set(text) <= set("0123456789abcdef")
  return text if digits and len(text) in (40, 64) else None


def _cores() -> int:
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
