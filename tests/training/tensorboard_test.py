import struct

import pytest

from icml26_jax.training import tensorboard


# Known answers of RFC 3720, appendix B.4, and the checksum's check value.
@pytest.mark.parametrize(
  ("data", "expected"),
  [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
  ],
)
def test_checksum_has_its_known_values(data, expected):
  assert tensorboard.crc32c(data) == expected


def test_file_is_byte_for_byte_what_tensorboard_writes(tmp_path):
  writer = tensorboard.EventWriter(tmp_path / "run", wall_time=1.5)
  writer.write(300, {"loss": 1.25, "tokens/s": 4096.0}, wall_time=2.25)
  writer.close()
  (path,) = (tmp_path / "run").iterdir()
  assert path.name.startswith("events.out.tfevents.1.")
  # Written once with tensorboard 2.20's RecordWriter and its own messages.
  expected = (
    "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a32"
    "2a28646c2c00000000000000f4aecc4509000000000000024010ac022a1e0a0b0a046c6f737315"
    "0000a03f0a0f0a08746f6b656e732f731500008045dcdb5aed"
  )
  assert path.read_bytes().hex() == expected


def test_every_record_frames_its_length(tmp_path):
  writer = tensorboard.EventWriter(tmp_path)
  for step in (0, 127, 128, 10**9):
    writer.write(step, {"a": float("nan")})
  writer.close()
  data, lengths = next(tmp_path.iterdir()).read_bytes(), []
  while data:
    (length,) = struct.unpack("<Q", data[:8])
    lengths.append(length)
    data = data[8 + 4 + length + 4 :]
  # Steps of 1, 1, 2 and 5 bytes, as base-128 varints.
  assert [n - lengths[1] for n in lengths[1:]] == [0, 0, 1, 4]
