"""Folders and atomic writes."""

import errno
import os
import pathlib

import pytest

from icml26_jax.data import locations


def test_cache_is_where_the_variable_says(tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "new" / "cache"))
  path = locations.cache_dir("models", "a")
  assert path == tmp_path / "new" / "cache" / "models" / "a"
  assert path.is_dir()


@pytest.mark.parametrize("variable", [None, ""])
def test_cache_is_in_the_users_cache_folder_otherwise(
  tmp_path, monkeypatch, variable
):
  monkeypatch.delenv("ICML26_CACHE")
  if variable is not None:
    monkeypatch.setenv("ICML26_CACHE", variable)
  monkeypatch.setattr("sys.platform", "linux")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  assert locations.cache_dir() == tmp_path / "icml26_jax"
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert locations.cache_dir() == tmp_path / ".cache" / "icml26_jax"


def test_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
  (tmp_path / "file").write_text("not a folder")
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "file" / "cache"))
  with pytest.raises(ValueError, match="ICML26_CACHE") as error:
    locations.cache_dir()
  assert str(tmp_path / "file" / "cache") in str(error.value)


@pytest.mark.parametrize(
  ("variable", "function"),
  [
    ("ICML26_DATA", locations.data_dir),
    ("ICML26_TRACES", locations.traces_dir),
  ],
)
def test_given_folders(tmp_path, monkeypatch, variable, function):
  monkeypatch.setenv(variable, str(tmp_path))
  assert function() == tmp_path
  monkeypatch.setenv(variable, str(tmp_path / "missing"))
  with pytest.raises(ValueError, match=f"{variable} must name a folder"):
    function()
  monkeypatch.delenv(variable)
  monkeypatch.setattr(locations, "_SHARED", tmp_path / "shared")
  assert function() is None
  default = tmp_path / "shared" / variable.removeprefix("ICML26_").lower()
  default.mkdir(parents=True)
  assert function() == default


def test_default_folders_are_beside_the_repository():
  repository = pathlib.Path(__file__).parents[2]
  assert repository.parent / "shared" == locations._SHARED


def test_atomic_file_appears_whole(tmp_path):
  path = tmp_path / "file"
  with locations.atomic_writer(path) as file:
    file.write(b"all of it")
    assert not path.exists()
  assert path.read_bytes() == b"all of it"
  assert list(tmp_path.iterdir()) == [path]


def test_full_disk_is_told_with_the_path(tmp_path):
  def fail():
    with locations.atomic_writer(tmp_path / "file"):
      raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with pytest.raises(OSError, match=r"No space left on device: '.*file'"):
    fail()


def test_failed_write_leaves_the_earlier_file(tmp_path):
  path = tmp_path / "file"
  path.write_bytes(b"earlier")

  def fail():
    with locations.atomic_writer(path) as file:
      file.write(b"half of")
      raise OSError("disk full")

  with pytest.raises(OSError, match="disk full"):
    fail()
  assert path.read_bytes() == b"earlier"
  assert list(tmp_path.iterdir()) == [path]
