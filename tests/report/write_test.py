"""Reports are written whole or not at all, and only over our own."""

import dataclasses
import errno
import json
import os
import pathlib
import tempfile

import pytest

from icml26_jax.report import write


def _names(folder):
  return sorted(path.name for path in pathlib.Path(folder).iterdir())


def test_folder_holds_the_report(tmp_path, report, run):
  write.write(tmp_path / "runs" / "candi", report, run)
  assert _names(tmp_path / "runs") == ["candi"]
  folder = tmp_path / "runs" / "candi"
  assert _names(folder) == ["quality.png", "report.json", "report.md"]
  assert (folder / "quality.png").read_bytes().startswith(b"\x89PNG")


def test_json_has_the_fields_of_schema_1(tmp_path, report, run):
  write.write(tmp_path / "candi", report, run)
  found = json.loads((tmp_path / "candi" / "report.json").read_text("utf-8"))
  assert found["schema"] == 1
  assert (found["paper"], found["budget"], found["seed"]) == (
    "candi",
    "small",
    7,
  )
  assert found["seconds"] == 192.34
  assert found["environment"] == run.environment
  assert found["figures"] == ["quality.png"]
  assert [claim["verdict"] for claim in found["claims"]] == [
    "holds",
    "inconclusive",
  ]
  assert set(found["claims"][0]) == {
    "id",
    "statement",
    "paper_figure",
    "criterion",
    "measured",
    "value",
    "interval",
    "seeds",
    "verdict",
    "checks",
  }
  assert found["claims"][0]["interval"] == [-0.12, -0.08]
  assert found["claims"][0]["checks"] == [
    {
      "name": "difference at N=2",
      "value": -0.1,
      "low": -0.12,
      "high": -0.08,
      "lower": None,
      "upper": 0.0,
      "margin": 0.08,
      "verdict": "holds",
      "note": "",
    }
  ]
  assert found["command"] == (
    "python -m experiments.reproduce --paper=candi --budget=small --seed=7"
  )
  wide, narrow = found["tables"]
  assert wide["rows"][0][0] == {"value": 3.0, "low": 2.9, "high": 3.1}
  assert narrow["columns"] == ["process", "NLL (nats)"]
  assert narrow["rows"][1] == ["CANDI", None]


def test_a_new_report_replaces_the_earlier_one(tmp_path, report, run):
  write.write(tmp_path / "candi", report, run)
  later = dataclasses.replace(report, figures=())
  write.write(tmp_path / "candi", later, dataclasses.replace(run, seed=8))
  assert _names(tmp_path / "candi") == ["report.json", "report.md"]
  assert _names(tmp_path) == ["candi"]
  found = json.loads((tmp_path / "candi" / "report.json").read_text("utf-8"))
  assert found["seed"] == 8


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_full_disk_keeps_the_earlier_report(
  tmp_path, report, run, monkeypatch, failing
):
  write.write(tmp_path / "candi", report, run)
  before = (tmp_path / "candi" / "report.json").read_bytes()
  calls = []

  def fsync(descriptor):
    calls.append(descriptor)
    if len(calls) == failing:
      raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "fsync", fsync)
  with pytest.raises(OSError, match="No space left"):
    write.write(tmp_path / "candi", report, dataclasses.replace(run, seed=8))
  assert _names(tmp_path) == ["candi"]
  assert (tmp_path / "candi" / "report.json").read_bytes() == before


def test_failed_move_puts_the_earlier_report_back(
  tmp_path, report, run, monkeypatch
):
  write.write(tmp_path / "candi", report, run)
  before = (tmp_path / "candi" / "report.json").read_bytes()
  rename = pathlib.Path.rename

  def failing(self, target):
    if self.name == "new":
      raise OSError(errno.EIO, "Input/output error")
    return rename(self, target)

  monkeypatch.setattr(pathlib.Path, "rename", failing)
  with pytest.raises(OSError, match="Input/output error"):
    write.write(tmp_path / "candi", report, run)
  assert _names(tmp_path) == ["candi"]
  assert (tmp_path / "candi" / "report.json").read_bytes() == before


def test_empty_folder_is_fine(tmp_path, report, run):
  (tmp_path / "candi").mkdir()
  write.write(tmp_path / "candi", report, run)
  assert "report.json" in _names(tmp_path / "candi")


@pytest.mark.parametrize(
  "content",
  [
    {"notes.txt": "mine"},
    {"report.json": "not json"},
    {"report.json": "[]"},
    {"report.json": '{"schema": 1, "paper": "other", "figures": []}'},
    {"report.json": '{"paper": "candi", "figures": []}'},
  ],
)
def test_foreign_folder_is_left_alone(tmp_path, report, run, content):
  folder = tmp_path / "candi"
  folder.mkdir()
  for name, text in content.items():
    (folder / name).write_text(text)
  with pytest.raises(ValueError, match="not a report on 'candi'"):
    write.write(folder, report, run)
  assert {name: (folder / name).read_text() for name in content} == content
  assert _names(tmp_path) == ["candi"]


def test_foreign_file_beside_our_report_is_not_lost(tmp_path, report, run):
  write.write(tmp_path / "candi", report, run)
  (tmp_path / "candi" / "notes.txt").write_text("mine")
  with pytest.raises(ValueError, match=r"'notes\.txt'.*would be lost"):
    write.write(tmp_path / "candi", report, run)
  assert (tmp_path / "candi" / "notes.txt").read_text() == "mine"


def test_parent_that_is_a_file_is_an_error(tmp_path):
  (tmp_path / "out").write_text("mine")
  with pytest.raises(ValueError, match="out is not a folder"):
    write.check_folder(tmp_path / "out" / "deeper" / "candi", "candi")


def test_parent_that_is_not_writable_is_an_error(tmp_path, monkeypatch):
  def refuse(**options):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))

  monkeypatch.setattr(tempfile, "mkdtemp", refuse)
  with pytest.raises(ValueError, match=r"is not writable \(Read-only file"):
    write.check_folder(tmp_path / "runs" / "candi", "candi")


def test_nothing_is_left_by_looking_whether_a_folder_can_be_written(tmp_path):
  write.check_folder(tmp_path / "runs" / "candi", "candi")
  assert list(tmp_path.iterdir()) == []


def test_file_in_the_way_is_an_error(tmp_path, report, run):
  (tmp_path / "candi").write_text("mine")
  with pytest.raises(ValueError, match="in the way"):
    write.check_folder(tmp_path / "candi", "candi")
  (tmp_path / "link").symlink_to(tmp_path)
  with pytest.raises(ValueError, match="in the way"):
    write.check_folder(tmp_path / "link", "candi")
