import errno
import json

import pytest

from icml26_jax.training import metrics


def _write(path, steps, **options):
  writer = metrics.MetricsWriter(path, with_tensorboard=False, **options)
  for step in steps:
    writer.write(step, {"loss": 1 / step})
  writer.close()


def test_each_line_is_one_object(tmp_path):
  _write(tmp_path, [1, 4])
  lines = (tmp_path / metrics.FILE_NAME).read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {"step": 1, "loss": 1.0},
    {"step": 4, "loss": 0.25},
  ]


def test_resumed_file_equals_an_uninterrupted_one(tmp_path):
  for name in ("whole", "resumed"):
    (tmp_path / name).mkdir()
  _write(tmp_path / "whole", [1, 2, 4, 8])
  _write(tmp_path / "resumed", [1, 2, 4])
  path = tmp_path / "resumed" / metrics.FILE_NAME
  with open(path, "a") as file:
    file.write('{"step": 8, "lo')  # killed here
  _write(tmp_path / "resumed", [4, 8], step=3)
  whole = (tmp_path / "whole" / metrics.FILE_NAME).read_bytes()
  assert path.read_bytes() == whole


def test_fresh_start_drops_what_an_earlier_one_left(tmp_path):
  _write(tmp_path, [1, 2])
  _write(tmp_path, [1])
  assert len(metrics.read(tmp_path / metrics.FILE_NAME)) == 1


def test_line_cut_short_is_not_read(tmp_path):
  path = tmp_path / "m.jsonl"
  path.write_text('{"step": 1}\n{"st')
  assert metrics.read(path) == [{"step": 1}]


def test_value_that_is_not_finite_becomes_null(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, with_tensorboard=False)
  writer.write(1, {"loss": float("nan")})
  writer.close()
  (record,) = metrics.read(tmp_path / metrics.FILE_NAME)
  assert record == {"step": 1, "loss": None}


def test_events_are_written_where_asked(tmp_path):
  writer = metrics.MetricsWriter(tmp_path, with_tensorboard=True)
  writer.write(1, {"loss": 1.0})
  writer.close()
  assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def test_full_disk_names_the_file(tmp_path, monkeypatch):
  writer = metrics.MetricsWriter(tmp_path, with_tensorboard=False)

  class Full:
    def write(self, text):
      raise OSError(errno.ENOSPC, "No space left on device")

  with monkeypatch.context() as patch:
    patch.setattr(writer, "_file", Full())
    with pytest.raises(OSError, match=r"metrics.jsonl: No space left on"):
      writer.write(1, {"loss": 1.0})
  writer.close()
