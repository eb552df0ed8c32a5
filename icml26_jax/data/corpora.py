"""Corpora of text by name, each split by file or topic.

| name | text |
| --- | --- |
| `stdlib:prose` | Python's language reference |
| `stdlib:docstrings` | docstrings of Python's standard library |
| `stdlib:source` | its source code |
| `file:PATH` | a UTF-8 text file, or a folder of them |
| `tfds:NAME` | a data set of TensorFlow Datasets |
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
import hashlib

from icml26_jax.data import splits, stdlib, text_files, tfds_text

_STDLIB = {
  "prose": stdlib.prose,
  "docstrings": stdlib.docstrings,
  "source": stdlib.source,
}


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents of one split.

  Attributes:
    name: the corpus as it was asked for, e.g. `stdlib:prose`.
    documents: their texts; read from disk on demand for a `tfds:` corpus.
    split: name of the split.
  """

  name: str
  documents: Sequence[str]
  split: str = "train"

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256 of the text, in hexadecimal: equal text, equal fingerprint."""
    known = getattr(self.documents, "fingerprint", None)
    if known is not None:
      return known
    digest = hashlib.sha256()
    for document in self.documents:
      # Digests have one length: moving text between documents shows.
      digest.update(
        hashlib.sha256(document.encode("utf-8", "surrogatepass")).digest()
      )
    return digest.hexdigest()


def load(spec: str, *, split: str = "train") -> Corpus:
  """Loads one split of a corpus.

  80 % of the sources (files, topics) train, 10 % validate, 10 % test, by a
  hash of their names. Sources of `stdlib:prose` and `stdlib:docstrings` that
  share a paragraph share a split. Of equal documents the first stays. A
  `file:` corpus of one file is cut into contiguous stretches of those shares,
  in that order, at a line end.

  Args:
    spec: `stdlib:prose`, `stdlib:docstrings`, `stdlib:source`, `file:PATH`
      (relative to here or to `ICML26_DATA`) or `tfds:NAME`.
    split: "train", "validation", "test"; except for `tfds:` also "all" and
      "first_half", "second_half", for a judge fitted on text that the model
      never saw.

  Returns:
    The corpus, with at least one document.

  Raises:
    ValueError: if there is no such corpus or split, the split is empty, a file
      is not UTF-8 text, or a package or folder is missing.
  """
  kind, _, rest = spec.partition(":")
  if kind == "stdlib" and rest in _STDLIB:
    texts = _of_documents(
      spec, _STDLIB[rest](), split, join_shared=rest != "source"
    )
  elif kind == "file" and rest:
    texts = _of_path(spec, rest, split)
  elif kind == "tfds" and rest:
    return Corpus(spec, tfds_text.load(rest, split=split), split)
  else:
    raise ValueError(
      "corpus must be 'stdlib:prose', 'stdlib:docstrings', 'stdlib:source',"
      f" 'file:PATH' or 'tfds:NAME', got {spec!r}"
    )
  return Corpus(spec, texts, split)


def _of_path(spec: str, path: str, split: str) -> tuple[str, ...]:
  """Texts of a file or of a folder."""
  place = text_files.find(path)
  if place.is_dir():
    return _of_documents(
      spec, text_files.documents(place), split, join_shared=False
    )
  text = text_files.read(place)
  if not text.strip():
    raise ValueError(f"{place} holds no text")
  stretch = splits.cut(text, split)
  if not stretch.strip():
    raise ValueError(
      f"split {split!r} of {spec} is empty: {len(text)} characters are too few"
    )
  return (stretch,)


def _of_documents(
  spec: str, documents: list[splits.Document], split: str, *, join_shared: bool
) -> tuple[str, ...]:
  """Texts of the documents in a split, without repeats."""
  documents = splits.without_repeats(documents)
  chosen = splits.select(documents, split, join_shared=join_shared)
  if not chosen:
    raise ValueError(
      f"split {split!r} of {spec} is empty: the names of its"
      f" {len(documents)} documents, hashed, all fall outside; add documents,"
      " or give one file, which is cut into stretches"
    )
  return tuple(document.text for document in chosen)
