"""Text of TensorFlow Datasets, read at random without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import hashlib
import json
from typing import Any, overload

import numpy as np

from icml26_jax.data import locations, splits

# Documents that enter the fingerprint, spread evenly.
_SAMPLED = 64


class Documents(Sequence[str]):
  """Documents of a data set, read from disk when asked for.

  Attributes:
    fingerprint: SHA-256 over the data set's name, version and sizes and the
      text of 64 documents: it does not take reading them all.
  """

  def __init__(
    self, source: Any, feature: str, indices: np.ndarray, split: str
  ):
    """Wraps examples of a `tfds.data_source`.

    Args:
      source: random-access data source.
      feature: name of the feature that holds the text.
      indices: `[N]` int64, the examples that belong here.
      split: name of the split of the data set they come from.
    """
    self._source = source
    self._feature = feature
    self._indices = indices
    info = source.dataset_info
    digest = hashlib.sha256()
    shards = info.splits[split].shard_lengths
    facts = [info.full_name, split, feature, shards, len(self)]
    digest.update(json.dumps(facts).encode())
    sampled = np.linspace(0, len(self) - 1, min(_SAMPLED, len(self)))
    for i in sampled.astype(np.int64):
      digest.update(hashlib.sha256(self[int(i)].encode()).digest())
    self.fingerprint = digest.hexdigest()

  def __len__(self) -> int:
    return len(self._indices)

  @overload
  def __getitem__(self, index: int) -> str: ...
  @overload
  def __getitem__(self, index: slice) -> Sequence[str]: ...
  def __getitem__(self, index):
    indices = self._indices[index]
    if np.ndim(indices) == 0:
      return self._text(self._source[int(indices)])
    if not len(indices):
      return ()
    examples = self._source.__getitems__(indices.tolist())
    return tuple(self._text(example) for example in examples)

  def __iter__(self) -> Iterator[str]:
    for start in range(0, len(self), 256):
      yield from self[start : start + 256]

  def _text(self, example: dict[str, Any]) -> str:
    value = example[self._feature]
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def load(name: str, *, split: str) -> Documents:
  """Documents of one split of a data set.

  The data set's own splits are used where it has them; a missing validation
  or test split is cut off its training split by a hash of the example's
  number. Looked for in `ICML26_DATA/tensorflow_datasets` if that exists,
  otherwise in the library's own folder, where it is prepared at first use.

  Args:
    name: as the library spells it, e.g. `wiki40b/en`.
    split: "train", "validation" or "test".

  Raises:
    ValueError: if the library is not installed, or has no such data set, or
      there is no such split or no one text feature.
  """
  if split not in ("train", "validation", "test"):
    raise ValueError(
      "split of a tfds: corpus must be 'train', 'validation' or 'test', got"
      f" {split!r}"
    )
  sources = _open(name)
  if "train" not in sources:
    raise ValueError(
      f"tfds:{name} must have a split 'train', has {sorted(sources)}"
    )
  origin = split if split in sources else "train"
  source = sources[origin]
  indices = np.arange(len(source), dtype=np.int64)
  if origin == "train":
    owned = _owner(len(source), sources)
    indices = indices[owned == split]
  if not len(indices):
    raise ValueError(f"split {split!r} of tfds:{name} is empty")
  feature = _text_feature(name, source.dataset_info.features)
  return Documents(source, feature, indices, origin)


def _open(name: str) -> dict[str, Any]:
  """The random-access sources of a data set, by its own splits."""
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise ValueError(
      f"tfds:{name} needs tensorflow-datasets: pip install 'icml26_jax[tfds]'"
    ) from error
  data = locations.data_dir()
  folder = data / "tensorflow_datasets" if data is not None else None
  if folder is not None and not folder.is_dir():
    folder = None
  try:
    return dict(tfds.data_source(name, data_dir=folder))
  except Exception as error:
    # The library raises many types here, with pages of text.
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise ValueError(f"cannot open tfds:{name}: {reason}") from error


def _owner(size: int, sources: dict[str, Any]) -> np.ndarray:
  """`[size]` names: the split each example of `train` goes to."""
  places = np.array([splits.position(str(i)) for i in range(size)])
  owner = np.full(size, "train", dtype="U10")
  for split in ("validation", "test"):
    low, high = splits.interval(split)
    if split not in sources:
      owner[(low <= places) & (places < high)] = split
  return owner


def _text_feature(name: str, features: Any) -> str:
  """The feature that holds the text."""
  found = sorted(
    key
    for key, feature in features.items()
    if feature.shape == () and np.dtype(feature.np_dtype).kind == "O"
  )
  if "text" in found:
    return "text"
  if len(found) != 1:
    raise ValueError(
      f"tfds:{name} must have a feature 'text' or one text feature only, has"
      f" {found or sorted(features)}"
    )
  return found[0]
