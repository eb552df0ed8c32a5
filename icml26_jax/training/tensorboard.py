"""Scalars in TensorBoard's event file format, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
import importlib.util
import os
import pathlib
import struct
import time


def is_installed() -> bool:
  """True if TensorBoard is installed, so that somebody may look at the file."""
  return importlib.util.find_spec("tensorboard") is not None


def crc32c(data: bytes) -> int:
  """The Castagnoli checksum that guards TensorBoard's records."""
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
  return crc ^ 0xFFFFFFFF


class EventWriter:
  """Appends scalars to a new event file.

  Args:
    folder: the run's folder, which TensorBoard's `--logdir` names; created if
      it is missing.
    wall_time: seconds since 1970 that the file is named after.
  """

  def __init__(
    self, folder: str | os.PathLike, *, wall_time: float | None = None
  ):
    wall_time = time.time() if wall_time is None else wall_time
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"events.out.tfevents.{int(wall_time)}.{os.getpid()}"
    self._file = open(folder / name, "ab")  # noqa: SIM115, closed by close()
    self._write(_double(1, wall_time) + _bytes(3, b"brain.Event:2"))

  def write(
    self,
    step: int,
    scalars: Mapping[str, float],
    *,
    wall_time: float | None = None,
  ) -> None:
    """Appends one event with the values of a step.

    Args:
      step: number of the step.
      scalars: values by name.
      wall_time: seconds since 1970; None for now.
    """
    wall_time = time.time() if wall_time is None else wall_time
    summary = b"".join(
      _bytes(1, _bytes(1, name.encode()) + _float(2, value))
      for name, value in scalars.items()
    )
    self._write(_double(1, wall_time) + _varint(2, step) + _bytes(5, summary))

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _write(self, event: bytes) -> None:
    length = struct.pack("<Q", len(event))
    self._file.write(length + _masked(length) + event + _masked(event))
    self._file.flush()


def _table() -> list[int]:
  table = []
  for value in range(256):
    for _ in range(8):
      value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    table.append(value)
  return table


_TABLE = _table()


def _masked(data: bytes) -> bytes:
  """A checksum as TFRecord stores it, rotated and shifted."""
  crc = crc32c(data)
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  return struct.pack("<I", (rotated + 0xA282EAD8) & 0xFFFFFFFF)


# Protocol buffer fields: the number and wire type, then the value.


def _leb128(value: int) -> bytes:
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def _varint(field: int, value: int) -> bytes:
  return _leb128(field << 3) + _leb128(value)


def _double(field: int, value: float) -> bytes:
  return _leb128(field << 3 | 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
  return _leb128(field << 3 | 2) + _leb128(len(value)) + value


def _float(field: int, value: float) -> bytes:
  return _leb128(field << 3 | 5) + struct.pack("<f", value)
