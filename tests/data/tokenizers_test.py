"""Tokenizers there and back."""

import os
import subprocess
import sys

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from icml26_jax.data import corpora, tokenizers

# Any text that UTF-8 can hold.
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
_LATIN = st.text("aZk 09.,\n\u0130\u212a\u00df\u00e9", max_size=60)


@pytest.fixture(scope="module")
def prose():
  return corpora.load("stdlib:prose")


@pytest.fixture(scope="module")
def byte_pairs(prose):
  return tokenizers.load("bpe:400", prose)


@pytest.mark.parametrize(
  ("text", "cleaned"),
  [
    ("", ""),
    ("Hello, World!", "hello world "),
    ("a1b", "a one b"),
    ("1024", " one zero two four "),
    (" a\n\n\tb  ", " a b "),
    ("x = {'y': 2}", "x y two "),
    ("na\u00efve \u4e2d", "na ve "),
    ("\u00b2\u0663", " "),
    ("\u212a", "k"),
  ],
)
def test_cleaning_by_example(text, cleaned):
  assert tokenizers.clean(text) == cleaned


def _clean_slowly(text):
  """One character at a time."""
  names = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
  ]
  out = ""
  for character in text:
    if character in "0123456789":
      piece = f" {names[int(character)]} "
    else:
      piece = "".join(c if "a" <= c <= "z" else " " for c in character.lower())
    for c in piece:
      if c != " " or not out.endswith(" "):
        out += c
  return out


@hypothesis.given(_TEXT | _LATIN)
def test_cleaning_agrees_with_one_character_at_a_time(text):
  cleaned = tokenizers.clean(text)
  assert cleaned == _clean_slowly(text)
  assert cleaned == tokenizers.clean(cleaned)


@hypothesis.given(_TEXT | _LATIN)
def test_char27_comes_back_cleaned(text):
  tokenizer = tokenizers.Char27()
  ids = tokenizer.encode(text)
  cleaned = tokenizers.clean(text)
  assert tokenizer.decode(ids) == cleaned
  assert ids.tolist() == [
    " abcdefghijklmnopqrstuvwxyz".index(c) for c in cleaned
  ]


@hypothesis.given(_TEXT)
def test_bytes_and_byte_pairs_come_back(byte_pairs, text):
  for tokenizer in (tokenizers.Byte(), byte_pairs):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert np.all((ids >= 0) & (ids < tokenizer.vocab_size))
    assert tokenizer.decode(ids) == text


@hypothesis.given(st.lists(_TEXT | _LATIN, max_size=5), st.integers(0, 5))
def test_runs_of_documents_join(byte_pairs, documents, at):
  for tokenizer in (tokenizers.Byte(), tokenizers.Char27(), byte_pairs):
    whole = tokenizer.encode_documents(documents)
    assert whole.dtype == np.int32
    parts = [
      tokenizer.encode_documents(documents[:at]),
      tokenizer.encode_documents(documents[at:]),
    ]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_documents_are_ended_by_a_blank_line_or_space(byte_pairs):
  documents = ["One.", "Two"]
  for tokenizer in (tokenizers.Byte(), byte_pairs):
    ids = tokenizer.encode_documents(documents)
    assert tokenizer.decode(ids) == "One.\n\nTwo\n\n"
  ids = tokenizers.Char27().encode_documents(["One.", "--", " Two"])
  assert tokenizers.Char27().decode(ids) == "one two "


def test_vocabularies_have_the_size_asked_for(byte_pairs):
  assert tokenizers.load("char27").vocab_size == 27
  assert tokenizers.load("byte").vocab_size == 256
  assert byte_pairs.vocab_size == 400


def test_byte_pairs_shorten_text(byte_pairs, prose):
  text = prose.documents[0]
  assert len(byte_pairs.encode(text)) < 0.7 * len(text.encode())


def test_bytes_that_are_not_text_show_as_such():
  assert tokenizers.Byte().decode(np.array([97, 255])) == "a\ufffd"


def test_training_is_the_same_in_another_process(byte_pairs):
  code = (
    "from icml26_jax.data import corpora, tokenizers\n"
    "corpus = corpora.load('stdlib:prose')\n"
    "print(tokenizers.load('bpe:400', corpus).fingerprint)"
  )
  for threads in ("1", "3"):
    got = subprocess.run(
      [sys.executable, "-c", code],
      capture_output=True,
      text=True,
      check=True,
      env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": "5"},
    )
    assert got.stdout.strip() == byte_pairs.fingerprint


def test_tokenizer_file_gives_the_same_tokenizer(tmp_path, byte_pairs, prose):
  path = tmp_path / "tokenizer.json"
  byte_pairs.model.save(str(path))
  for spec in (f"file:{path}", f"file:{tmp_path}"):
    loaded = tokenizers.load(spec)
    assert loaded.vocab_size == 400
    assert loaded.fingerprint == byte_pairs.fingerprint
    text = prose.documents[1]
    np.testing.assert_array_equal(loaded.encode(text), byte_pairs.encode(text))


def test_special_tokens_count_and_are_shown(tmp_path, byte_pairs):
  byte_pairs.model.save(str(tmp_path / "tokenizer.json"))
  tokenizer = tokenizers.load(f"file:{tmp_path}")
  tokenizer.model.add_special_tokens(["<|end|>"])
  tokenizer = tokenizers.BytePair(tokenizer.model)
  assert tokenizer.vocab_size == 401
  assert tokenizer.decode(tokenizer.encode("a<|end|>b")) == "a<|end|>b"
  assert 400 in tokenizer.encode("a<|end|>b")


def test_fingerprints_tell_tokenizers_apart(byte_pairs, prose):
  found = {
    tokenizers.load(spec, prose).fingerprint
    for spec in ("char27", "byte", "bpe:300")
  }
  assert len(found | {byte_pairs.fingerprint}) == 4


@pytest.mark.parametrize(
  "spec", ["", "char", "char27:", "bpe", "bpe:", "bpe:1k", "bpe:-3", "file:"]
)
def test_unknown_tokenizer_lists_the_known(spec, prose):
  with pytest.raises(ValueError, match=r"'char27', 'byte'") as error:
    tokenizers.load(spec, prose)
  assert repr(spec) in str(error.value)


def test_byte_pairs_out_of_range_are_named(prose):
  with pytest.raises(ValueError, match="needs a corpus"):
    tokenizers.load("bpe:300")
  with pytest.raises(ValueError, match=r"vocab_size must be in \[256, inf\]"):
    tokenizers.load("bpe:255", prose)
  tiny = corpora.Corpus("tiny", ("ab ab",))
  with pytest.raises(
    ValueError, match=r"tiny yields at most 2.*got vocab_size"
  ):
    tokenizers.load("bpe:1000", tiny)


@pytest.mark.parametrize("content", [b"{}", b"not json", b"\xff", b""])
def test_file_that_is_no_tokenizer_is_named(tmp_path, content):
  path = tmp_path / "tokenizer.json"
  path.write_bytes(content)
  with pytest.raises(ValueError, match="is not") as error:
    tokenizers.load(f"file:{path}")
  assert str(path) in str(error.value)
  with pytest.raises(ValueError, match="no file or folder"):
    tokenizers.load(f"file:{tmp_path / 'missing.json'}")


def test_bad_ids_are_named(byte_pairs):
  for tokenizer in (tokenizers.Byte(), tokenizers.Char27(), byte_pairs):
    size = tokenizer.vocab_size
    for bad in (-1, size):
      with pytest.raises(ValueError, match=rf"\[0, {size}\), got {bad}"):
        tokenizer.decode(np.array([0, bad]))
    with pytest.raises(ValueError, match="must be a vector"):
      tokenizer.decode(np.zeros((2, 2), np.int32))
    with pytest.raises(TypeError, match="must be integers"):
      tokenizer.decode(np.zeros(2))
    assert tokenizer.decode([]) == ""
