"""Tokens of a corpus that is read on demand."""

from collections.abc import Sequence

import numpy as np
import pytest

from icml26_jax.data import corpora, token_files, tokenizers


class _OnDemand(Sequence):
  """Documents that count how often they are read."""

  def __init__(self, texts):
    self.texts = texts
    self.reads = 0
    self.fingerprint = f"{texts}"

  def __len__(self):
    return len(self.texts)

  def __getitem__(self, index):
    self.reads += 1
    return self.texts[index]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path))


def _corpus(size=2500):
  return corpora.Corpus("c", _OnDemand([f"text {i}" for i in range(size)]))


def test_tokens_are_written_once_and_mapped():
  corpus = _corpus()
  tokenizer = tokenizers.Byte()
  expected = tokenizer.encode_documents(corpus.documents.texts)
  tokens = token_files.encode(tokenizer, corpus)
  assert isinstance(tokens, np.memmap)
  assert not tokens.flags.writeable
  np.testing.assert_array_equal(tokens, expected)
  assert tokens.dtype == np.int32
  reads = corpus.documents.reads
  assert reads == 3
  np.testing.assert_array_equal(token_files.encode(tokenizer, corpus), expected)
  assert corpus.documents.reads == reads


def test_tokenizers_and_corpora_have_files_of_their_own():
  first = token_files.encode(tokenizers.Byte(), _corpus())
  second = token_files.encode(tokenizers.Char27(), _corpus())
  third = token_files.encode(tokenizers.Byte(), _corpus(3))
  assert len({first.filename, second.filename, third.filename}) == 3


@pytest.mark.parametrize("damage", ["cut", "longer", "no length", "bad length"])
def test_file_of_another_length_is_made_again(tmp_path, damage):
  corpus = _corpus()
  expected = np.array(token_files.encode(tokenizers.Byte(), corpus))
  (path,) = (tmp_path / "tokens").glob("*.int32")
  if damage == "cut":
    path.write_bytes(path.read_bytes()[:-8])
  elif damage == "longer":
    path.write_bytes(path.read_bytes() + bytes(8))
  elif damage == "no length":
    path.with_suffix(".length").unlink()
  else:
    path.with_suffix(".length").write_text("?")
  again = token_files.encode(tokenizers.Byte(), corpus)
  np.testing.assert_array_equal(again, expected)


def test_corpus_without_tokens_is_named(tmp_path):
  corpus = corpora.Corpus("c", _OnDemand(["--", "12"[:0]]), "test")
  with pytest.raises(ValueError, match="split 'test' of c holds no tokens"):
    token_files.encode(tokenizers.Char27(), corpus)
  assert list((tmp_path / "tokens").iterdir()) == []


def test_corpus_in_memory_needs_no_file(tmp_path):
  corpus = corpora.Corpus("c", ("one", "two"))
  tokens = token_files.encode(tokenizers.Byte(), corpus)
  assert bytes(tokens.astype(np.uint8)) == b"one\n\ntwo\n\n"
  assert list(tmp_path.iterdir()) == []
