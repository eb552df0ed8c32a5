"""How programs start, fail and print for machines."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from experiments import cli

ROOT = pathlib.Path(__file__).parents[2]


def _program(tmp_path, body, *arguments):
  path = tmp_path / "program.py"
  path.write_text(
    textwrap.dedent(
      '''
      """A program."""
      from absl import flags
      from experiments import cli

      def define_flags():
        flags.DEFINE_string("paper", "candi", "A paper.")

      def main():
      '''
    )
    + textwrap.indent(textwrap.dedent(body), "  ")
    + "\ncli.run(main, define_flags)\n"
  )
  return subprocess.run(
    [sys.executable, path, *arguments],
    capture_output=True,
    text=True,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
  )


@pytest.mark.parametrize(
  ("body", "code"), [("pass", 0), ("return 1", 1), ("return None", 0)]
)
def test_exit_code_is_what_main_returns(tmp_path, body, code):
  run = _program(tmp_path, body)
  assert (run.returncode, run.stdout, run.stderr) == (code, "", "")


@pytest.mark.parametrize(
  "error",
  [
    "cli.UserError('first\\n  second')",
    "ValueError('first second')",
    "OSError('first second')",
  ],
)
def test_a_users_mistake_is_one_line_and_code_2(tmp_path, error):
  run = _program(tmp_path, f"raise {error}")
  assert (run.returncode, run.stdout) == (2, "")
  assert run.stderr == "error: first second\n"


def test_verbose_shows_the_traceback_too(tmp_path):
  run = _program(tmp_path, "raise ValueError('bad')", "--v=1")
  assert run.returncode == 2
  assert "Traceback" in run.stderr
  assert run.stderr.endswith("error: bad\n")


def test_small_reports_of_libraries_are_shown_only_when_asked_for(tmp_path):
  body = "import logging; logging.getLogger('library').info('a small thing')"
  assert _program(tmp_path, body).stderr == ""
  assert "a small thing" in _program(tmp_path, body, "--v=0").stderr


def test_a_defect_keeps_its_traceback(tmp_path):
  run = _program(tmp_path, "1 / 0")
  assert run.returncode == 1
  assert "ZeroDivisionError" in run.stderr


def test_an_interrupt_is_one_line(tmp_path):
  run = _program(tmp_path, "raise KeyboardInterrupt")
  assert (run.returncode, run.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
  ("argument", "message"),
  [("--papre=x", "Did you mean: paper"), ("x", "unexpected argument 'x'")],
)
def test_wrong_arguments_are_one_line_and_code_2(tmp_path, argument, message):
  run = _program(tmp_path, "pass", argument)
  assert run.returncode == 2
  assert message in run.stderr
  assert len(run.stderr.splitlines()) == 1


def test_help_is_no_error(tmp_path):
  run = _program(tmp_path, "pass", "--help")
  assert run.returncode == 0
  assert "--paper" in run.stdout


def test_json_is_kept_apart_from_prints(capsys):
  with cli.json_output() as emit:
    print("noise")
    emit({"value": float("nan")})
  captured = capsys.readouterr()
  assert captured.out == '{\n  "value": null\n}\n'
  assert captured.err == "noise\n"


def _emit(records, error=None):
  with cli.json_output() as emit:
    for record in records:
      emit(record)
    if error is not None:
      raise error


def test_no_json_after_an_error(capsys):
  with pytest.raises(ValueError, match="bad"):
    _emit([{}], ValueError("bad"))
  assert capsys.readouterr().out == ""


@pytest.mark.parametrize("count", [0, 2])
def test_json_output_is_one_object(count):
  with pytest.raises(AssertionError, match="one JSON object"):
    _emit([{}] * count)


def test_unknown_names_list_the_valid_ones():
  error = cli.unknown("corpus", "stdlib:pros", ["stdlib:prose", "file:PATH"])
  assert str(error) == (
    "unknown corpus 'stdlib:pros' (did you mean 'stdlib:prose'?); valid:"
    " file:PATH, stdlib:prose"
  )
  assert str(cli.unknown("paper", "x", [])) == "unknown paper 'x'; valid: none"


def test_an_error_without_a_message_is_still_a_line():
  assert cli.one_line(ValueError()) == "ValueError"
