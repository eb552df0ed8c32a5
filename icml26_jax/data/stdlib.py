"""Python's own text, which every machine with Python has.

Three corpora: `prose`, the language reference that `help()` shows; the
`docstrings` of the standard library; its `source`. Left out are tests, and
what many systems package apart from Python (tkinter, idlelib and the like),
so that one version of Python gives the same corpus everywhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
import hashlib
import importlib.util
import json
import os
import pathlib
import sys
import sysconfig
import warnings

from absl import logging

from icml26_jax.data import locations, splits

# Folders that hold tests, or what is not Python's own.
_NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
# Packaged apart by Linux distributions, or gone since Python 3.12.
_APART = {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter"}
_APART |= {"turtledemo", "venv"}
# Prose in the shape of a Python file: it is the corpus `prose`.
_LEFT_OUT = _NOT_LIBRARY | _APART | {"pydoc_data"}
# Written when Python is built or installed; they differ between machines.
_MACHINE_MADE = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize")
_CACHE_SCHEMA = 1


def prose() -> list[splits.Document]:
  """The topics of Python's language reference, as `help()` shows them.

  Raises:
    ValueError: if this Python comes without them.
  """
  try:
    from pydoc_data import topics
  except ImportError as error:
    raise ValueError(
      "stdlib:prose needs pydoc_data.topics, which this Python lacks"
    ) from error
  return [
    splits.Document(name, name, text)
    for name, text in sorted(topics.topics.items())
  ]


def source() -> list[splits.Document]:
  """The modules of the standard library, as written.

  Raises:
    ValueError: if this Python comes without its source.
  """
  return [splits.Document(name, name, _decode(path)) for name, path in _files()]


def docstrings() -> list[splits.Document]:
  """The docstrings of the standard library, found without importing it.

  Reading all of it takes seconds, so that the result is kept in the cache
  folder; an entry that is damaged or of another Python is made again.

  Raises:
    ValueError: if this Python comes without its source, or the cache folder
      is not writable.
  """
  files = _files()
  folder = locations.cache_dir("text")
  path = folder / f"docstrings-{_key(files)}.json"
  found = _read_cache(path)
  if found is None:
    found = [
      splits.Document(f"{name}:{qualname}", name, text)
      for name, file in files
      for qualname, text in module_docstrings(file.read_bytes())
    ]
    _write_cache(path, found)
  return found


def module_docstrings(code: bytes) -> list[tuple[str, str]]:
  """Docstrings of one module in the order of the text.

  Args:
    code: text of a Python file, in any encoding that it declares.

  Returns:
    `(qualified name, docstring)` pairs; the module's own has the name "".
    Indentation is removed.

  Raises:
    SyntaxError: if it is not Python.
  """
  with warnings.catch_warnings():
    # Old code has escapes in its strings that newer Pythons warn of.
    warnings.simplefilter("ignore")
    tree = ast.parse(code)
  return list(_walk(tree, ""))


def _walk(node: ast.AST, qualname: str) -> Iterator[tuple[str, str]]:
  """Docstrings of a node and of what is in it, in order."""
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  if isinstance(node, kinds):
    text = ast.get_docstring(node)
    if text:
      yield qualname, text
  for child in ast.iter_child_nodes(node):
    name = getattr(child, "name", None) if isinstance(child, kinds) else None
    inner = f"{qualname}.{name}".lstrip(".") if name else qualname
    yield from _walk(child, inner)


def _files() -> list[tuple[str, pathlib.Path]]:
  """Names and paths of the library's modules, sorted by name."""
  root = pathlib.Path(sysconfig.get_paths()["stdlib"])
  found = []
  for base, folders, names in os.walk(root):
    folders[:] = set(folders) - _LEFT_OUT
    for name in names:
      if name.endswith(".py") and not name.startswith(_MACHINE_MADE):
        path = pathlib.Path(base, name)
        found.append((path.relative_to(root).as_posix(), path))
  if not found:
    raise ValueError(
      f"this Python comes without the source of its library (looked in {root})"
    )
  return sorted(found)


def _decode(path: pathlib.Path) -> str:
  """Text of a Python file, by the encoding that it declares."""
  return importlib.util.decode_source(path.read_bytes())


def _key(files: list[tuple[str, pathlib.Path]]) -> str:
  """Names what the docstrings are extracted from."""
  version = ".".join(map(str, sys.version_info))
  sizes = [(name, path.stat().st_size) for name, path in files]
  facts = json.dumps([_CACHE_SCHEMA, sys.implementation.name, version, sizes])
  return f"{version}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def _read_cache(path: pathlib.Path) -> list[splits.Document] | None:
  """Documents of a cache entry; None if there is none or it is damaged."""
  try:
    digest, payload = path.read_bytes().split(b"\n", 1)
    if digest.decode() != hashlib.sha256(payload).hexdigest():
      raise ValueError("checksum differs")
    return [splits.Document(*fields) for fields in json.loads(payload)]
  except FileNotFoundError:
    return None
  except (OSError, ValueError) as error:
    logging.warning("made %s again: it is damaged (%s)", path, error)
    return None


def _write_cache(path: pathlib.Path, documents: list[splits.Document]) -> None:
  """Writes a cache entry whole."""
  payload = json.dumps(documents).encode()
  digest = hashlib.sha256(payload).hexdigest().encode()
  with locations.atomic_writer(path) as file:
    file.write(digest + b"\n" + payload)
