"""Splits by name, without repeats and without shared paragraphs."""

import hashlib

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from icml26_jax.data import splits

_LONG = "one two three four five six seven eight nine ten " * 2


def _document(name, text):
  return splits.Document(name, name, text)


def test_position_is_the_hash_of_the_name():
  digest = hashlib.sha256(b"json/decoder.py").hexdigest()
  # 53 of its bits; the rest is below one part in 2^53.
  np.testing.assert_allclose(
    splits.position("json/decoder.py"),
    int(digest[:16], 16) / 2**64,
    rtol=0,
    atol=2**-53,
  )


def test_positions_are_uniform():
  places = [splits.position(f"document {i}") for i in range(4000)]
  counts, _ = np.histogram(places, bins=10, range=(0, 1))
  # 400 each, with a standard deviation of 19.
  assert np.all(np.abs(counts - 400) < 4 * 19)


@hypothesis.given(st.sets(st.text(max_size=8), min_size=1, max_size=30))
def test_every_document_is_in_one_split_of_three_and_in_one_half(names):
  documents = [_document(name, "text") for name in sorted(names)]
  for parts in (
    ("train", "validation", "test"),
    ("first_half", "second_half"),
    ("all",),
  ):
    found = [
      document
      for part in parts
      for document in splits.select(documents, part, join_shared=True)
    ]
    assert sorted(found) == documents


def test_split_does_not_change_when_documents_come():
  few = [_document(f"{i}", f"text {i}") for i in range(50)]
  many = few + [_document(f"new {i}", f"new {i}") for i in range(50)]
  before = splits.select(few, "test", join_shared=True)
  after = splits.select(many, "test", join_shared=True)
  assert before
  assert [document for document in after if document in few] == before


def test_shared_paragraph_joins_sources_in_a_chain():
  texts = {
    "c": f"alone\n\n{_LONG}a",
    "a": f"{_LONG}b\n\nmore",
    "b": f"{_LONG}a \n \n{_LONG}b",
    "d": "nothing long",
    "e": "nothing long",
  }
  documents = [_document(name, text) for name, text in texts.items()]
  assert splits.groups(documents) == {
    "a": "a", "b": "a", "c": "a", "d": "d", "e": "e",
  }  # fmt: skip


def test_white_space_does_not_hide_a_shared_paragraph():
  documents = [
    _document("a", _LONG.replace(" ", "\n   ")),
    _document("b", _LONG),
  ]
  assert set(splits.groups(documents).values()) == {"a"}


def test_equal_documents_stay_once_and_blank_ones_not_at_all():
  documents = [
    _document("a", "some text"),
    _document("b", " \n"),
    _document("c", "some\n text "),
    _document("d", "Some text"),
    _document("e", ""),
  ]
  kept = splits.without_repeats(documents)
  assert [document.name for document in kept] == ["a", "d"]


@pytest.mark.parametrize(
  "text",
  [
    "".join(f"line {i}\n" for i in range(300)),
    "word " * 500,
    "x" * 1000,
    "ab",
    "",
  ],
  ids=["lines", "words", "solid", "tiny", "empty"],
)
def test_cut_partitions_a_text_in_order(text):
  parts = [splits.cut(text, name) for name in ("train", "validation", "test")]
  assert "".join(parts) == text == splits.cut(text, "all")
  halves = [splits.cut(text, name) for name in ("first_half", "second_half")]
  assert "".join(halves) == text
  if len(text) >= 1000:
    # A boundary moves by at most 2 % of the text.
    shares = np.array([len(part) / len(text) for part in parts])
    np.testing.assert_allclose(shares, [0.8, 0.1, 0.1], atol=0.02)


def test_cut_is_at_line_ends_where_there_are_any():
  text = "".join(f"a line of words {i}\n" for i in range(300))
  for name in ("train", "validation", "test"):
    part = splits.cut(text, name)
    assert part.startswith("a line")
    assert part.endswith("\n")


def test_unknown_split_lists_the_known():
  for call in (
    lambda: splits.interval("valid"),
    lambda: splits.cut("text", "valid"),
    lambda: splits.select([], "valid", join_shared=True),
  ):
    with pytest.raises(ValueError, match=r"'train', 'validation'.*'valid'"):
      call()
