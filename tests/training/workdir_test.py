import subprocess
import sys

import pytest

from icml26_jax.training import workdir

RECIPE = {
  "model": {"d_model": 8, "dtype": "float32"},
  "mesh": {"data": 1},
  "num_steps": 5,
  "rules": [["a", None]],
}


def test_new_directory_becomes_ours(tmp_path):
  path = workdir.claim(tmp_path / "deep" / "run", RECIPE)
  assert path == tmp_path / "deep" / "run"
  assert workdir.read(path) == RECIPE
  assert workdir.claim(path, RECIPE) == path


def test_empty_directory_may_be_used(tmp_path):
  # A kill in the middle of claiming leaves a hidden temporary file.
  (tmp_path / f".{workdir.RECIPE_FILE}.0123").write_text("{")
  workdir.claim(tmp_path, RECIPE)
  assert workdir.read(tmp_path) == RECIPE


def test_fields_that_differ_are_named(tmp_path):
  workdir.claim(tmp_path, RECIPE)
  other = {
    "model": {"d_model": 16, "dtype": "float32", "remat": "full"},
    "num_steps": 5,
    "rules": [["a", None]],
    "mesh": {"data": 1},
  }
  with pytest.raises(
    ValueError,
    match=r"of another config: model.d_model is 8, asked 16; model.remat is"
    r' missing, asked "full"; choose another workdir',
  ):
    workdir.claim(tmp_path, other)
  assert workdir.read(tmp_path) == RECIPE


def test_free_fields_may_differ(tmp_path):
  workdir.claim(tmp_path, RECIPE)
  other = RECIPE | {"mesh": {"data": 8, "model": 2}, "num_steps": 9}
  workdir.claim(tmp_path, other, free=("mesh", "num_steps"))
  with pytest.raises(ValueError, match="num_steps is 5, asked 9"):
    workdir.claim(tmp_path, other, free=("mesh", "num"))


def test_differences_lists_each_field_once():
  assert workdir.differences(RECIPE, RECIPE) == []
  assert workdir.differences({"a": {}}, {"a": {"b": 1}}) == [
    "a.b is missing, asked 1"
  ]
  assert workdir.differences({"a": [1]}, {}) == ["a is [1], asked missing"]


def test_directory_of_somebody_else_is_refused(tmp_path):
  (tmp_path / "thesis.tex").write_text("x")
  with pytest.raises(ValueError, match=r"not the directory of a training run"):
    workdir.claim(tmp_path, RECIPE)
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "not the directory of a training run"),
    ("[]", "not the directory of a training run"),
    ('{"kind": "x", "schema": 1, "recipe": {}}', "not the directory of a"),
    (
      '{"kind": "icml26_jax training run", "schema": 99, "recipe": {}}',
      "written with schema 99; this version reads 1",
    ),
  ],
)
def test_recipe_that_is_not_ours_is_refused(tmp_path, text, message):
  (tmp_path / workdir.RECIPE_FILE).write_text(text)
  with pytest.raises(ValueError, match=message):
    workdir.claim(tmp_path, RECIPE)


def test_file_is_no_directory(tmp_path):
  path = tmp_path / "file"
  path.write_text("x")
  with pytest.raises(ValueError, match="is not a directory"):
    workdir.claim(path, RECIPE)
  with pytest.raises(ValueError, match="there is no directory"):
    workdir.read(path)


def test_address_is_refused():
  with pytest.raises(ValueError, match="got gs://bucket/run; mount the bucket"):
    workdir.claim("gs://bucket/run", RECIPE)


_HOLDER = """
import pathlib
import sys
from icml26_jax.training import workdir

with workdir.lock(pathlib.Path(sys.argv[1])):
  print("ready", flush=True)
  sys.stdin.read()
"""


def test_directory_in_use_is_refused_until_its_holder_is_gone(tmp_path):
  with subprocess.Popen(
    [sys.executable, "-c", _HOLDER, str(tmp_path)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as holder:
    try:
      assert holder.stdout.readline() == "ready\n"
      with (
        pytest.raises(ValueError, match="another process is using"),
        workdir.lock(tmp_path),
      ):
        pass
    finally:
      holder.kill()
  # The lock goes with its process, even one that is killed.
  with workdir.lock(tmp_path, wait=True):
    pass
  with workdir.lock(tmp_path) as waited:
    assert not waited
