"""Text of TensorFlow Datasets, from a small data set built on disk."""

import importlib.util
import sys

import numpy as np
import pytest

from icml26_jax.data import corpora, splits, token_files, tokenizers

needs_tfds = pytest.mark.skipif(
  importlib.util.find_spec("tensorflow_datasets") is None,
  reason="needs the extra `tfds`: pip install 'icml26_jax[tfds]'",
)


def _build(folder, name, features, examples):
  """Writes a data set: `examples` maps split names to lists."""
  import tensorflow_datasets as tfds

  def info(self):
    return tfds.core.DatasetInfo(
      builder=self, features=tfds.features.FeaturesDict(features(tfds))
    )

  def generate(self, split):
    return enumerate(examples[split])

  builder = type(
    name,
    (tfds.core.GeneratorBasedBuilder,),
    {
      "VERSION": tfds.core.Version("1.0.0"),
      # The library looks for a package of code where the name has a dot.
      "__module__": "built_in_a_test",
      "_info": info,
      "_split_generators": lambda self, _: {
        split: self._generate_examples(split) for split in examples
      },
      "_generate_examples": generate,
    },
    skip_registration=True,
  )
  builder(data_dir=folder, file_format="array_record").download_and_prepare()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder of data with three data sets."""
  data = tmp_path_factory.mktemp("data")
  target = data / "tensorflow_datasets"

  def text_and_label(tfds):
    text = tfds.features.Text()
    return {"label": np.int64, "text": text, "title": text}

  _build(
    target,
    "TinyText",
    text_and_label,
    {
      split: [
        {"text": f"{split} caf\xe9 {i}", "label": i, "title": "t"}
        for i in range(size)
      ]
      for split, size in (("train", 300), ("test", 7))
    },
  )
  _build(
    target,
    "TwoTexts",
    lambda tfds: {"a": tfds.features.Text(), "b": tfds.features.Text()},
    {"train": [{"a": "a", "b": "b"}]},
  )
  _build(
    target,
    "NoTrain",
    lambda tfds: {"body": tfds.features.Text()},
    {"test": [{"body": "b"}]},
  )
  return data


@pytest.fixture(autouse=True)
def data(request, monkeypatch):
  if "folder" in request.fixturenames:
    monkeypatch.setenv("ICML26_DATA", str(request.getfixturevalue("folder")))


@needs_tfds
@pytest.mark.usefixtures("folder")
def test_own_splits_are_used_and_missing_ones_cut_off_train():
  parts = {
    split: corpora.load("tfds:tiny_text", split=split)
    for split in ("train", "validation", "test")
  }
  assert sorted(parts["test"].documents) == [
    f"test caf\xe9 {i}" for i in range(7)
  ]
  train, held_out = parts["train"].documents, parts["validation"].documents
  assert sorted([*train, *held_out]) == sorted(
    f"train caf\xe9 {i}" for i in range(300)
  )
  low, high = splits.SPLITS["validation"]
  expected = sum(low <= splits.position(str(i)) < high for i in range(300))
  assert len(held_out) == expected > 0


@needs_tfds
@pytest.mark.usefixtures("folder")
def test_documents_are_read_at_random_without_tensorflow(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  documents = corpora.load("tfds:tiny_text").documents
  whole = list(documents)
  assert len(whole) == len(documents)
  assert documents[3] == whole[3]
  assert documents[-1] == whole[-1]
  assert list(documents[5:300:7]) == whole[5:300:7]
  assert list(documents[4:4]) == []
  with pytest.raises(IndexError):
    documents[len(documents)]


@needs_tfds
@pytest.mark.usefixtures("folder")
def test_fingerprint_is_stable_and_tells_splits_apart():
  load = corpora.load
  train = load("tfds:tiny_text").fingerprint
  assert train == load("tfds:tiny_text").fingerprint
  assert train != load("tfds:tiny_text", split="test").fingerprint
  assert train != load("tfds:tiny_text", split="validation").fingerprint


@needs_tfds
@pytest.mark.usefixtures("folder")
def test_tokens_are_mapped_from_a_file_and_equal_those_in_memory(cache):
  corpus = corpora.load("tfds:tiny_text")
  in_memory = corpora.Corpus("copy", tuple(corpus.documents))
  for tokenizer in (tokenizers.Byte(), tokenizers.Char27()):
    tokens = token_files.encode(tokenizer, corpus)
    assert isinstance(tokens, np.memmap)
    expected = token_files.encode(tokenizer, in_memory)
    np.testing.assert_array_equal(tokens, expected)
  assert len(list((cache / "tokens").glob("*.int32"))) == 2


@needs_tfds
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
  ("spec", "split", "message"),
  [
    ("tfds:missing_set", "train", "cannot open tfds:missing_set"),
    ("tfds:two_texts", "train", r"one text feature only, has \['a', 'b'\]"),
    ("tfds:two_texts", "test", "split 'test' of tfds:two_texts is empty"),
    ("tfds:no_train", "train", r"must have a split 'train', has \['test'\]"),
    ("tfds:tiny_text", "all", "must be 'train', 'validation' or 'test'"),
  ],
)
def test_bad_data_set_is_named(spec, split, message):
  with pytest.raises(ValueError, match=message) as error:
    corpora.load(spec, split=split)
  assert "\n" not in str(error.value)


def test_missing_library_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(ValueError, match=r"icml26_jax\[tfds\]"):
    corpora.load("tfds:tiny_text")
