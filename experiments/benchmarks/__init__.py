"""Suites of benchmarks beside named peers, one file each, found by file.

A suite's file holds a docstring that says what is compared, and two functions:

    def check_peers() -> None: ...   # raises ModuleNotFoundError
    def cases(seed: int) -> list[timing.Case]: ...

and nothing at import time. Files whose name starts with an underscore are
shared by suites.
"""

from __future__ import annotations

import importlib
import pkgutil
import types


def names() -> list[str]:
  """Names of all suites, in order."""
  return sorted(
    module.name.replace("_", "-")
    for module in pkgutil.iter_modules(__path__)
    if not module.ispkg and not module.name.startswith("_")
  )


def load(name: str) -> types.ModuleType:
  """The module of a suite, one of `names()`."""
  return importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
