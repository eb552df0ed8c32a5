"""The papers whose claims can be reproduced, one file each, found by file.

A paper's file holds a docstring that says what is tested and when it counts
as confirmed, three constants that are read without running the file, and one
function:

    TITLE = "the paper's title"
    REFERENCE = "Author et al., ICML 2026"
    CLAIM = "What the paper claims, in one sentence of ours."

    def reproduce(key, budget) -> icml26_jax.report.claims.Report: ...

`key` is a typed JAX key; `budget` is one of `BUDGETS`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
import importlib
import pathlib
import pkgutil
from typing import Any, NamedTuple

BUDGETS = ("smoke", "small", "full")

_CONSTANTS = ("TITLE", "REFERENCE", "CLAIM")


class Paper(NamedTuple):
  """What a paper's file says about it.

  Attributes:
    slug: its short name, for `--paper`.
    title: its title.
    reference: authors and place.
    claim: what it claims, in one sentence.
    docstring: what is tested, and when it counts as confirmed.
  """

  slug: str
  title: str
  reference: str
  claim: str
  docstring: str


class PaperError(Exception):
  """A paper's file is unusable; the message names the file."""


def names() -> list[str]:
  """Short names of all papers, in order."""
  return sorted(
    module.name.replace("_", "-")
    for module in pkgutil.iter_modules(__path__)
    if not module.ispkg and not module.name.startswith("_")
  )


def describe(slug: str) -> Paper:
  """Reads what a paper's file declares, without running it.

  Args:
    slug: one of `names()`.

  Raises:
    PaperError: if the file cannot be parsed or lacks a declaration.
  """
  path = pathlib.Path(next(iter(__path__))) / f"{_module(slug)}.py"
  try:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
  except (OSError, SyntaxError, ValueError) as error:
    raise PaperError(f"paper {slug!r} ({path.name}): {error}") from error
  constants = {}
  for node in tree.body:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      name = node.targets[0].id
      if name in _CONSTANTS:
        constants[name] = _text(node.value)
  docstring = ast.get_docstring(tree)
  missing = [name for name in _CONSTANTS if not constants.get(name)]
  if not docstring:
    missing.append("a docstring")
  if missing:
    raise PaperError(
      f"paper {slug!r} ({path.name}) must declare {' and '.join(missing)} as a"
      " plain text"
    )
  return Paper(
    slug=slug,
    title=constants["TITLE"],
    reference=constants["REFERENCE"],
    claim=constants["CLAIM"],
    docstring=docstring,
  )


def load(slug: str) -> Callable[[Any, str], Any]:
  """Imports a paper's file and returns its `reproduce`.

  Raises:
    PaperError: if the file cannot be imported or has no `reproduce`.
  """
  name = f"{__name__}.{_module(slug)}"
  try:
    return importlib.import_module(name).reproduce
  except Exception as error:
    raise PaperError(
      f"paper {slug!r} ({_module(slug)}.py): {type(error).__name__}: {error}"
    ) from error


def _module(slug: str) -> str:
  return slug.replace("-", "_")


def _text(node: ast.expr) -> str | None:
  try:
    value = ast.literal_eval(node)
  except ValueError:
    return None
  return value if isinstance(value, str) else None
