"""Corpora by name."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from icml26_jax.data import corpora, splits, token_files, tokenizers
from icml26_jax.evaluation import text_metrics

_THREE = ("train", "validation", "test")
_STDLIB = ("stdlib:prose", "stdlib:docstrings", "stdlib:source")


def _paragraphs(corpus):
  return {
    " ".join(paragraph.split())
    for document in corpus.documents
    for paragraph in re.split(r"\n\s*\n", document)
  }


@pytest.mark.parametrize("spec", _STDLIB)
def test_splits_are_filled_and_together_all(spec):
  parts = [corpora.load(spec, split=split) for split in _THREE]
  whole = corpora.load(spec, split="all")
  merged = [document for part in parts for document in part.documents]
  assert sorted(merged) == sorted(whole.documents)
  total = sum(map(len, whole.documents))
  for part, least in zip(parts, (0.7, 0.04, 0.04), strict=True):
    assert sum(map(len, part.documents)) > least * total
  halves = [
    sum(map(len, corpora.load(spec, split=f"{which}_half").documents))
    for which in ("first", "second")
  ]
  assert sum(halves) == total
  assert min(halves) > 0.25 * total


@pytest.mark.parametrize("spec", _STDLIB)
def test_no_document_is_in_two_splits(spec):
  train, validation, test = (
    {" ".join(text.split()) for text in corpora.load(spec, split=s).documents}
    for s in _THREE
  )
  assert not train & validation
  assert not train & test
  assert not validation & test


@pytest.mark.parametrize("spec", _STDLIB[:2])
def test_no_long_paragraph_is_in_two_splits(spec):
  parts = [_paragraphs(corpora.load(spec, split=split)) for split in _THREE]
  for i, first in enumerate(parts):
    for second in parts[i + 1 :]:
      assert not [text for text in first & second if len(text) >= 80]


@pytest.mark.parametrize(
  ("spec", "millions"), [("stdlib:prose", 0.39), ("stdlib:docstrings", 1.5)]
)
def test_cleaned_size_is_near_that_of_the_reference(spec, millions):
  corpus = corpora.load(spec, split="all")
  tokens = token_files.encode(tokenizers.Char27(), corpus)
  # The reference is Python 3.11; later ones have longer text, and modules
  # that distributions package apart are left out here.
  np.testing.assert_allclose(len(tokens) / 1e6, millions, rtol=0.15)


def test_source_size_is_near_that_of_the_reference():
  corpus = corpora.load("stdlib:source", split="all")
  size = sum(map(len, corpus.documents)) / 1e6
  np.testing.assert_allclose(size, 10.8, rtol=0.15)


@pytest.mark.parametrize(
  ("spec", "bits", "atol"),
  [
    ("stdlib:prose", [4.10, 3.32, 2.45, 1.71, 1.32], 0.01),
    ("stdlib:docstrings", [4.11, 3.41, 2.62, 1.89, 1.52], 0.025),
  ],
)
def test_conditional_entropies_are_those_of_the_reference(spec, bits, atol):
  corpus = corpora.load(spec, split="all")
  tokens = token_files.encode(tokenizers.Char27(), corpus)
  got = [
    text_metrics.conditional_entropy(tokens, 27, order=order) / np.log(2)
    for order in range(5)
  ]
  # Python 3.11's text; its other versions differ by some per cent of it.
  exact = sys.version_info[:2] == (3, 11)
  np.testing.assert_allclose(got, bits, atol=atol if exact else 0.05)


def test_another_process_loads_the_same():
  code = (
    "from icml26_jax.data import corpora\n"
    "for spec in ('prose', 'docstrings', 'source'):\n"
    "  print(corpora.load('stdlib:' + spec, split='test').fingerprint)"
  )
  got = subprocess.run(
    [sys.executable, "-c", code],
    capture_output=True,
    text=True,
    check=True,
    env={**os.environ, "PYTHONHASHSEED": "7"},
  ).stdout.split()
  assert got == [corpora.load(s, split="test").fingerprint for s in _STDLIB]


def test_fingerprint_follows_text_and_document_borders():
  def fingerprint(*documents):
    return corpora.Corpus("name", documents).fingerprint

  assert fingerprint("ab", "c") == fingerprint("ab", "c")
  different = {
    fingerprint(*documents)
    for documents in (("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab"), ())
  }
  assert len(different) == 5


def test_file_is_cut_into_stretches(tmp_path):
  path = tmp_path / "text.txt"
  path.write_bytes(("caf\xe9 \u4e2d\n" * 500).encode())
  parts = [corpora.load(f"file:{path}", split=split) for split in _THREE]
  assert "".join(part.documents[0] for part in parts) == path.read_text("utf-8")
  assert parts[0].name == f"file:{path}"
  assert parts[1].split == "validation"


def test_folder_is_split_by_file(tmp_path):
  (tmp_path / "sub").mkdir()
  for i in range(60):
    folder = tmp_path / "sub" if i % 2 else tmp_path
    (folder / f"{i}.txt").write_text(f"text number {i}\n", "utf-8")
  (tmp_path / "copy.txt").write_text("text number 7\n", "utf-8")
  (tmp_path / ".hidden").write_bytes(b"\xff")
  parts = [corpora.load(f"file:{tmp_path}", split=split) for split in _THREE]
  merged = [document for part in parts for document in part.documents]
  assert sorted(merged) == sorted(f"text number {i}\n" for i in range(60))
  low, high = splits.SPLITS["test"]
  in_test = low <= splits.position("sub/7.txt") < high
  assert ("text number 7\n" in parts[2].documents) == in_test


def test_file_is_also_looked_for_in_the_folder_of_data(tmp_path, monkeypatch):
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "a.txt").write_text("some text\n" * 20, "utf-8")
  monkeypatch.setenv("ICML26_DATA", str(tmp_path / "data"))
  monkeypatch.chdir(tmp_path)
  corpus = corpora.load("file:a.txt", split="all")
  assert corpus.documents == ("some text\n" * 20,)


@pytest.mark.parametrize(
  "spec",
  ["", "prose", "stdlib", "stdlib:", "stdlib:topics", "file:", "tfds:", "x:y"],
)
def test_unknown_corpus_lists_the_known(spec):
  with pytest.raises(ValueError, match=r"'stdlib:prose'.*'tfds:NAME'") as error:
    corpora.load(spec)
  assert repr(spec) in str(error.value)


@pytest.mark.parametrize("spec", _STDLIB)
def test_unknown_split_lists_the_known(spec):
  with pytest.raises(ValueError, match=r"'train', 'validation'.*'dev'"):
    corpora.load(spec, split="dev")


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", "holds no text"),
    (b" \n\t\n", "holds no text"),
    (b"text\n" * 5 + b"\xff", "not UTF-8 text: byte 0xff at offset 25"),
    (b"te\x00xt", "not UTF-8 text: byte 0x00 at offset 2"),
    (b"\xff\xfet\x00", "not UTF-8 text: byte 0xff at offset 0"),
    (b"te\x00xt\xff", "not UTF-8 text: byte 0x00 at offset 2"),
    (b"te\xffxt\x00", "not UTF-8 text: byte 0xff at offset 2"),
    (b"text \xe4\xb8", "not UTF-8 text: byte 0xe4 at offset 5"),
    (b"a\n", "split 'test' of file:.* is empty: 2 characters"),
  ],
)
def test_bad_file_is_named(tmp_path, content, message):
  path = tmp_path / "text"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=message) as error:
    corpora.load(f"file:{path}", split="test")
  assert str(path) in str(error.value)


def test_byte_order_mark_is_left_out(tmp_path):
  path = tmp_path / "text"
  path.write_bytes(b"\xef\xbb\xbftext")
  assert corpora.load(f"file:{path}", split="all").documents == ("text",)


def test_missing_path_is_named(tmp_path):
  with pytest.raises(ValueError, match="no file or folder") as error:
    corpora.load(f"file:{tmp_path / 'missing'}")
  assert str(tmp_path / "missing") in str(error.value)


def test_folder_without_text_is_named(tmp_path):
  for content in (None, ""):
    if content is not None:
      (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ValueError, match=r"no file in .* holds text"):
      corpora.load(f"file:{tmp_path}")


def test_binary_file_in_a_folder_is_named(tmp_path):
  (tmp_path / "a.txt").write_text("text")
  (tmp_path / "b.bin").write_bytes(b"\x80")
  with pytest.raises(ValueError, match=r"b\.bin is not UTF-8 text"):
    corpora.load(f"file:{tmp_path}")


def test_what_may_not_be_read_is_named(tmp_path, monkeypatch):
  (tmp_path / "sub").mkdir()
  (tmp_path / "a.txt").write_text("text")

  def forbid(path, *_):
    raise PermissionError(13, "Permission denied", str(path))

  monkeypatch.setattr(pathlib.Path, "read_bytes", forbid)
  with pytest.raises(ValueError, match=r"cannot read .*a\.txt: Permission"):
    corpora.load(f"file:{tmp_path / 'a.txt'}")
  monkeypatch.undo()
  scandir = os.scandir
  monkeypatch.setattr(
    os,
    "scandir",
    lambda path: forbid(path) if str(path).endswith("sub") else scandir(path),
  )
  with pytest.raises(ValueError, match=r"cannot read .*sub: Permission"):
    corpora.load(f"file:{tmp_path}")


def test_folder_with_an_empty_split_says_what_to_do(tmp_path):
  (tmp_path / "a.txt").write_text("text")
  owner = splits.position("a.txt")
  empty = "test" if owner < 0.9 else "train"
  with pytest.raises(ValueError, match=r"1 documents.*give one file"):
    corpora.load(f"file:{tmp_path}", split=empty)


def test_unwritable_cache_is_named(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "file"))
  with pytest.raises(ValueError, match="ICML26_CACHE"):
    corpora.load("stdlib:docstrings")
