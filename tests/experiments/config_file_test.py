"""Overrides reach the fields of a configuration."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]

_PROGRAM = """
from experiments import cli, config_file

def main():
  print(dict(config_file.load().process_options)["update"])

cli.run(main, config_file.define)
"""


def _run(tmp_path, *arguments, cwd=ROOT):
  path = tmp_path / "program.py"
  path.write_text(_PROGRAM)
  return subprocess.run(
    [sys.executable, path, *arguments],
    capture_output=True,
    text=True,
    cwd=cwd,
    env={"PYTHONPATH": str(ROOT)},
  )


@pytest.mark.parametrize(
  "override",
  [
    ["--config.process_options.update=release"],
    ["--config.process_options.update", "release"],
  ],
)
def test_field_called_as_a_method_can_be_set(tmp_path, override):
  run = _run(tmp_path, "--config=configs/candi_char.py", *override)
  assert (run.returncode, run.stdout, run.stderr) == (0, "release\n", "")


def test_no_config_is_one_line(tmp_path):
  run = _run(tmp_path)
  assert run.returncode == 2
  assert run.stderr == "error: --config is missing; --help shows all flags\n"


def test_config_of_the_project_in_another_folder_is_found_by_name(tmp_path):
  run = _run(tmp_path, "--config=configs/candi_char.py", cwd=tmp_path)
  assert run.returncode == 2
  assert f"is not in the current folder but in {ROOT}" in run.stderr


def test_config_that_returns_something_else_is_named(tmp_path):
  (tmp_path / "own.py").write_text("def get_config():\n  return {}\n")
  run = _run(tmp_path, f"--config={tmp_path / 'own.py'}")
  assert run.returncode == 2
  assert "must return an ml_collections.ConfigDict, got dict" in run.stderr
