"""Which documents train and which are held out.

A document belongs to a source (a file, a topic). Sources that share a
paragraph form one group, and the group's name, hashed, decides its split: the
same on every machine, and unchanged when unrelated documents come or go.
Windows are never split at random: Python's docstrings and language reference
repeat whole sections, and a model would be tested on what it has seen.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
import hashlib
import re
from typing import NamedTuple

# Share of the groups, as intervals of the hash. The halves are for
# experiments whose judge is itself fitted on text.
SPLITS = {
  "train": (0.0, 0.8),
  "validation": (0.8, 0.9),
  "test": (0.9, 1.0),
  "first_half": (0.0, 0.5),
  "second_half": (0.5, 1.0),
  "all": (0.0, 1.0),
}

# A whole sentence or two: short paragraphs ("See also:") repeat by chance.
_MIN_SHARED = 80


class Document(NamedTuple):
  """A piece of text.

  Attributes:
    name: names it within its corpus.
    source: the file or topic it comes from; all of a source is in one split.
    text: its text.
  """

  name: str
  source: str
  text: str


def interval(split: str) -> tuple[float, float]:
  """The interval of the hash that a split covers.

  Raises:
    ValueError: if there is no such split.
  """
  if split not in SPLITS:
    names = ", ".join(repr(name) for name in SPLITS)
    raise ValueError(f"split must be one of {names}, got {split!r}")
  return SPLITS[split]


def position(name: str) -> float:
  """Hash of a name, uniform in [0, 1): the same everywhere."""
  digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
  # 53 bits, so that the quotient is exact and never rounds to 1.
  return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def without_repeats(documents: Iterable[Document]) -> list[Document]:
  """Drops blank documents and those whose text came before.

  Texts are compared up to white space.

  Args:
    documents: in the order that says which of two equal ones stays.
  """
  seen = set()
  kept = []
  for document in documents:
    key = " ".join(document.text.split())
    if key and key not in seen:
      seen.add(key)
      kept.append(document)
  return kept


def groups(documents: Iterable[Document]) -> dict[str, str]:
  """Joins sources that share a paragraph.

  Paragraphs are compared up to white space; those under 80 characters do not
  count.

  Returns:
    The group of each source, named by its alphabetically first member.
  """
  parents: dict[str, str] = {}

  def root(source):
    while parents[source] != source:
      parents[source] = parents[parents[source]]
      source = parents[source]
    return source

  owners = collections.defaultdict(set)
  for document in documents:
    parents.setdefault(document.source, document.source)
    for paragraph in re.split(r"\n\s*\n", document.text):
      normal = " ".join(paragraph.split())
      if len(normal) >= _MIN_SHARED:
        owners[normal].add(document.source)
  for sources in owners.values():
    first, *others = sorted(sources)
    for other in others:
      low, high = sorted((root(first), root(other)))
      parents[high] = low
  return {source: root(source) for source in parents}


def select(
  documents: Sequence[Document], split: str, *, join_shared: bool
) -> list[Document]:
  """The documents of a split.

  Args:
    documents: all documents of the corpus.
    split: name of the split.
    join_shared: True to put sources that share a paragraph into one split.
      For code it would join everything under one licence header.

  Raises:
    ValueError: if there is no such split.
  """
  low, high = interval(split)
  group = groups(documents) if join_shared else {}
  return [
    document
    for document in documents
    if low <= position(group.get(document.source, document.source)) < high
  ]


def cut(text: str, split: str) -> str:
  """The stretch of one text that a split covers.

  For a text that is one file: a contiguous share, cut after the next line
  end, or after the next space if no line ends soon.

  Raises:
    ValueError: if there is no such split.
  """
  low, high = (_boundary(text, fraction) for fraction in interval(split))
  return text[low:high]


def _boundary(text: str, fraction: float) -> int:
  """Where to cut at a fraction of a text."""
  start = round(fraction * len(text))
  if start in (0, len(text)):
    return start
  for separator in "\n ":
    # A boundary may not run into the next split of a short text.
    found = text.find(separator, start, start + len(text) // 50)
    if found >= 0:
      return found + 1
  return start
