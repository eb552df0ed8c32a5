"""README says what is so."""

import pathlib
import re

import pytest

from experiments import papers, reproduce

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language):
  return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_table_of_papers_is_in_step():
  found = re.search(
    r"<!-- papers:begin .*? -->\n\n(.*?)\n\n<!-- papers:end -->",
    README,
    flags=re.DOTALL,
  )
  listed = [papers.describe(name) for name in papers.names()]
  assert found[1] == reproduce.list_markdown(listed)


def test_python_example_runs(capsys, tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path))
  exec(compile(_blocks("python")[0], "README.md", "exec"), {})
  lines = capsys.readouterr().out.splitlines()
  assert [len(line) for line in lines] == [64] * 4


def test_pretrained_model_answers(capsys, smollm2_path):
  exec(compile(_blocks("python")[1], "README.md", "exec"), {})
  assert "Paris" in capsys.readouterr().out


def test_commands_name_what_exists():
  commands = "\n".join(_blocks("sh"))
  modules = re.findall(r"python -m ([\w.]+)", README)
  paths = re.findall(r"\b((?:configs|tpu|tests)/[\w/]+\.\w+)", README)
  assert "experiments.reproduce" in modules
  assert "pytest" in commands
  for module in modules:
    assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
  for path in paths:
    assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("slug", papers.names())
def test_every_paper_is_named(slug):
  assert f"`{slug}`" in README


def test_flags_are_those_of_the_program():
  source = (ROOT / "experiments" / "reproduce.py").read_text(encoding="utf-8")
  source += (ROOT / "experiments" / "cli.py").read_text(encoding="utf-8")
  table = README.split("## Papers")[0]
  named = set(re.findall(r"`--(\w+)=", table))
  assert named == {"paper", "budget", "seed", "out", "format"}
  for name in named:
    assert re.search(rf'DEFINE_\w+\(\s*"{name}"', source)
