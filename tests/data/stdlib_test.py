"""Python's own text."""

import ast
import inspect
import json
import pathlib
import sysconfig
import textwrap

import pytest

from icml26_jax.data import stdlib

_CODE = '''
"""The module."""
if True:
  class Outer:
    """A class.

      Indented.
    Not so.
    """
    x = "not a docstring"
    async def method(self):
      """A method."""
      def inner(): "Inside."
def bare(): return 1
def blank(): ""
'''


def test_docstrings_are_found_in_order_by_qualified_name():
  assert stdlib.module_docstrings(_CODE.encode()) == [
    ("", "The module."),
    ("Outer", "A class.\n\n  Indented.\nNot so."),
    ("Outer.method", "A method."),
    ("Outer.method.inner", "Inside."),
  ]


def test_declared_encoding_is_honoured():
  code = '# coding: latin-1\n"""caf\xe9"""'
  assert stdlib.module_docstrings(code.encode("latin-1")) == [("", "caf\xe9")]


def test_old_escapes_do_not_warn():
  code = '"""The pattern."""\npattern = "\\d"\n'
  assert stdlib.module_docstrings(code.encode()) == [("", "The pattern.")]


def test_not_python_is_a_syntax_error():
  with pytest.raises(SyntaxError):
    stdlib.module_docstrings(b"def :")


def test_docstrings_agree_with_ast_walk_over_a_module():
  path = inspect.getsourcefile(textwrap)
  code = pathlib.Path(path).read_bytes()
  kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
  expected = [
    ast.get_docstring(node)
    for node in ast.walk(ast.parse(code))
    if isinstance(node, kinds) and ast.get_docstring(node)
  ]
  got = [text for _, text in stdlib.module_docstrings(code)]
  assert sorted(got) == sorted(expected)
  ours = [
    document.text
    for document in stdlib.docstrings()
    if document.source == "textwrap.py"
  ]
  assert ours == got


def test_documents_come_sorted_by_source_and_without_what_is_left_out():
  for documents in (stdlib.prose(), stdlib.source(), stdlib.docstrings()):
    sources = [document.source for document in documents]
    assert sources == sorted(sources)
    for source in sources:
      assert not {"test", "idlelib", "site-packages"} & set(source.split("/"))
  names = {document.name for document in stdlib.source()}
  assert {"ast.py", "json/decoder.py", "asyncio/events.py"} <= names
  assert not any(name.startswith("_sysconfigdata") for name in names)


def test_source_is_the_files_text():
  root = pathlib.Path(sysconfig.get_paths()["stdlib"])
  texts = {document.name: document.text for document in stdlib.source()}
  expected = (root / "json" / "decoder.py").read_text("utf-8")
  assert texts["json/decoder.py"] == expected


def _entry(cache):
  (path,) = (cache / "text").iterdir()
  return path


def test_cache_gives_the_same_documents_without_parsing(monkeypatch, cache):
  first = stdlib.docstrings()
  before = _entry(cache).stat().st_mtime_ns
  monkeypatch.setattr(stdlib, "module_docstrings", None)
  assert stdlib.docstrings() == first
  assert _entry(cache).stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "not documents"])
def test_damaged_cache_is_made_again(tmp_path, monkeypatch, damage):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path))
  (tmp_path / "a.py").write_text('"""The whole of it."""')
  files = [("a.py", tmp_path / "a.py")]
  monkeypatch.setattr(stdlib, "_files", lambda: files)
  expected = stdlib.docstrings()
  assert [document.text for document in expected] == ["The whole of it."]
  path = _entry(tmp_path)
  whole = path.read_bytes()
  path.write_bytes(
    {
      "cut": whole[:-5],
      "empty": b"",
      "flipped": whole.replace(b"whole", b"whale"),
      "not documents": json.dumps({"a": 1}).encode(),
    }[damage]
  )
  assert stdlib.docstrings() == expected
  assert _entry(tmp_path).read_bytes() == whole


def test_changed_library_is_read_again(tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path))
  path = tmp_path / "a.py"
  monkeypatch.setattr(stdlib, "_files", lambda: [("a.py", path)])
  path.write_text('"""Before."""')
  assert [document.text for document in stdlib.docstrings()] == ["Before."]
  path.write_text('"""Afterwards."""')
  assert [document.text for document in stdlib.docstrings()] == ["Afterwards."]


def test_python_without_source_is_named(tmp_path, monkeypatch):
  monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
  with pytest.raises(ValueError, match="without the source"):
    stdlib.source()


def test_python_without_topics_is_named(monkeypatch):
  monkeypatch.setitem(__import__("sys").modules, "pydoc_data", None)
  with pytest.raises(ValueError, match=r"pydoc_data\.topics"):
    stdlib.prose()
