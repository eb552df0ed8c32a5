"""Text from files: one UTF-8 file, or a folder of them."""

from __future__ import annotations

import os
import pathlib

from icml26_jax.data import locations, splits


def find(path: str) -> pathlib.Path:
  """An existing file or folder, here or in the folder of public data.

  Raises:
    ValueError: if there is none.
  """
  given = pathlib.Path(path).expanduser()
  places = [given]
  data = locations.data_dir()
  if data is not None and not given.is_absolute():
    places.append(data / given)
  for place in places:
    if place.is_file() or place.is_dir():
      return place
  tried = " or ".join(str(place.absolute()) for place in places)
  raise ValueError(f"there is no file or folder {tried}")


def read(path: pathlib.Path) -> str:
  """The text of a UTF-8 file; a byte-order mark is left out.

  Raises:
    ValueError: if it is not UTF-8 text, naming the first byte that is not, or
      cannot be read.
  """
  try:
    data = path.read_bytes()
  except OSError as error:
    raise ValueError(f"cannot read {path}: {error.strerror}") from error
  offset = data.find(b"\0")
  try:
    text = data.decode("utf-8")
  except UnicodeDecodeError as error:
    offset = error.start if offset < 0 else min(offset, error.start)
  if offset >= 0:
    raise ValueError(
      f"{path} is not UTF-8 text: byte 0x{data[offset]:02x} at offset {offset}"
    )
  return text.removeprefix("\ufeff")


def documents(folder: pathlib.Path) -> list[splits.Document]:
  """One document a file, from a folder and all below it, sorted by name.

  Hidden files and folders are not looked at.

  Raises:
    ValueError: if a file is not UTF-8 text, no file holds text, or a folder
      cannot be read.
  """

  def refuse(error):
    raise ValueError(
      f"cannot read {error.filename}: {error.strerror}"
    ) from error

  found = []
  for base, folders, names in os.walk(folder, onerror=refuse):
    folders[:] = [name for name in folders if not name.startswith(".")]
    for name in names:
      path = pathlib.Path(base, name)
      if not name.startswith(".") and path.is_file():
        relative = path.relative_to(folder).as_posix()
        found.append(splits.Document(relative, relative, read(path)))
  if not any(document.text.strip() for document in found):
    raise ValueError(f"no file in {folder} holds text")
  return sorted(found)
