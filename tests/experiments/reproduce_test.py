"""The main program: choosing, running, judging, writing."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from experiments import cli, papers, reproduce

ROOT = pathlib.Path(__file__).parents[2]


def _run(*arguments, cwd=ROOT, **environment):
  return subprocess.run(
    [sys.executable, "-m", "experiments.reproduce", *arguments],
    capture_output=True,
    text=True,
    cwd=cwd,
    env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
  )


def test_papers_run_and_reports_are_written(make_papers, good, tmp_path):
  make_papers(alpha=good)
  records, broken = reproduce.run_all(["alpha"], "smoke", tmp_path / "out", 3)
  assert broken == []
  text = (tmp_path / "out" / "alpha" / "report.json").read_text("utf-8")
  assert json.loads(text)["claims"][0]["verdict"] == "holds"
  assert (records[0]["paper"], records[0]["seed"]) == ("alpha", 3)
  assert records[0]["budget"] == "smoke"


def test_the_same_seed_gives_the_same_claims(make_papers, good, tmp_path):
  make_papers(alpha=good)
  values = []
  for index, seed in enumerate((3, 3, 4)):
    records, _ = reproduce.run_all(
      ["alpha"], "smoke", tmp_path / str(index), seed
    )
    values.append(records[0]["claims"][0]["value"])
  assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("def reproduce(: pass", "PaperError: paper 'beta'"),
    ("import no_such_package", "PaperError: paper 'beta'"),
    ("raise ValueError", "PaperError: paper 'beta'"),
    ("reproduce = lambda key, budget: 1 / 0", "ZeroDivisionError"),
    ("reproduce = lambda key, budget: None", "must return a Report"),
  ],
)
def test_a_broken_paper_is_named_and_the_others_run(
  make_papers, good, tmp_path, capsys, text, message
):
  constants = good.split("def reproduce")[0]
  make_papers(alpha=good, beta=constants + text, gamma=good)
  records, broken = reproduce.run_all(
    ["alpha", "beta", "gamma"], "smoke", tmp_path / "out", 0
  )
  assert broken == ["beta"]
  assert [record["paper"] for record in records] == ["alpha", "gamma"]
  errors = capsys.readouterr().err.splitlines()
  line = next(line for line in errors if line.startswith("error: "))
  assert "beta broke" in line
  assert message in line


def test_a_broken_run_keeps_the_earlier_report(make_papers, good, tmp_path):
  folder = make_papers(alpha=good)
  reproduce.run_all(["alpha"], "smoke", tmp_path / "out", 0)
  before = (tmp_path / "out" / "alpha" / "report.json").read_bytes()
  sys.modules.pop("experiments.papers.alpha")
  (folder / "alpha.py").write_text(good.replace("import jax", "1 / 0"))
  _, broken = reproduce.run_all(["alpha"], "smoke", tmp_path / "out", 0)
  assert broken == ["alpha"]
  assert (tmp_path / "out" / "alpha" / "report.json").read_bytes() == before


def test_a_folder_that_turns_out_unwritable_costs_no_report(
  make_papers, good, tmp_path, capsys, monkeypatch
):
  make_papers(alpha=good)
  spare = tmp_path / "spare"
  spare.mkdir()
  monkeypatch.setattr(tempfile, "tempdir", str(spare))
  in_the_way = tmp_path / "out"
  in_the_way.write_text("a file")
  records, broken = reproduce.run_all(["alpha"], "smoke", in_the_way, 3)
  assert broken == ["alpha"]
  (written,) = spare.glob("*/alpha/report.json")
  assert json.loads(written.read_text("utf-8"))["paper"] == "alpha"
  assert len(records) == 1
  assert f"the report goes to {written.parent}" in capsys.readouterr().err


def test_papers_are_chosen_by_name(make_papers, good):
  make_papers(alpha=good, two_words=good)
  assert reproduce.choose("all") == ["alpha", "two-words"]
  assert reproduce.choose("two-words, alpha,two-words") == [
    "two-words",
    "alpha",
  ]
  with pytest.raises(cli.UserError, match=r"did you mean 'two-words'.*alpha"):
    reproduce.choose("alpha,tow-words")
  for nothing in (None, "", " , "):
    with pytest.raises(cli.UserError, match="--paper must name a paper"):
      reproduce.choose(nothing)


def test_list_names_an_unreadable_file_and_shows_the_rest(
  make_papers, good, capsys
):
  make_papers(alpha=good, beta="def (")
  assert reproduce.show_list(markdown=True, as_json=False) == 1
  captured = capsys.readouterr()
  assert "`alpha`" in captured.out
  assert "paper 'beta' (beta.py)" in captured.err


def test_list_is_readable_by_machines(make_papers, good, capsys):
  make_papers(alpha=good)
  assert reproduce.show_list(markdown=False, as_json=True) == 0
  found = json.loads(capsys.readouterr().out)
  assert found["broken"] == []
  assert found["papers"][0]["slug"] == "alpha"
  assert found["papers"][0]["title"] == "A good paper"


def test_list_fits_a_console(make_papers, good, capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  make_papers(alpha=good.replace("A good paper", "A good paper " * 9))
  assert reproduce.show_list(markdown=False, as_json=False) == 0
  lines = capsys.readouterr().out.splitlines()
  assert max(map(len, lines)) <= 80


def test_program_lists_papers():
  run = _run("--paper=list")
  assert run.returncode == 0, run.stderr
  for slug in papers.names():
    assert slug in run.stdout


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--paper=cadni"], "did you mean 'candi'"),
    ([], "--paper must name a paper"),
    (["--paper=candi", "--budget=huge"], "<smoke|small|full>"),
    (["--paper=candi", "--budgte=small"], "Did you mean: budget"),
    (["--paper=candi", "--seed=-1"], "--seed=-1"),
    (["--paper=candi", "--format=xml"], "<table|json>"),
    (["--paper=candi", "--markdown"], "--markdown goes with --paper=list"),
    (["candi"], "unexpected argument 'candi'"),
  ],
)
def test_wrong_arguments_end_in_one_line_and_code_2(
  arguments, message, tmp_path
):
  run = _run(*arguments, cwd=tmp_path)
  assert run.returncode == 2
  assert run.stdout == ""
  assert len(run.stderr.splitlines()) == 1
  assert message in run.stderr
  assert list(tmp_path.iterdir()) == []


def test_a_foreign_output_folder_is_refused_before_any_work(tmp_path):
  (tmp_path / "runs" / "candi").mkdir(parents=True)
  (tmp_path / "runs" / "candi" / "thesis.tex").write_text("mine")
  run = _run("--paper=candi", cwd=tmp_path, ICML26_CACHE=str(tmp_path / "c"))
  assert run.returncode == 2
  assert "not a report on 'candi'" in run.stderr
  assert len(run.stderr.splitlines()) == 1


def test_an_unwritable_cache_is_refused_before_any_work(tmp_path):
  (tmp_path / "file").write_text("")
  run = _run(
    "--paper=candi", cwd=tmp_path, ICML26_CACHE=str(tmp_path / "file" / "x")
  )
  assert run.returncode == 2
  assert "ICML26_CACHE" in run.stderr
  assert len(run.stderr.splitlines()) == 1


def test_json_is_all_that_standard_output_holds(make_papers, good, tmp_path):
  folder = make_papers(alpha=good)
  program = tmp_path / "program.py"
  program.write_text(
    "from experiments import cli, papers, reproduce\n"
    f"papers.__path__ = [{str(folder)!r}]\n"
    "cli.run(reproduce.main, reproduce.define_flags)\n"
  )
  run = subprocess.run(
    [
      sys.executable,
      program,
      "--paper=alpha",
      "--format=json",
      f"--out={tmp_path / 'out'}",
    ],
    capture_output=True,
    text=True,
    env={**os.environ, "PYTHONPATH": str(ROOT)},
  )
  assert run.returncode == 0, run.stderr
  found = json.loads(run.stdout)
  assert found["broken"] == []
  assert found["reports"][0]["claims"][0]["verdict"] == "holds"
  assert "a careless print" in run.stderr
