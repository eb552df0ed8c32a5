"""Papers made for a test, in place of the real ones."""

import sys
import textwrap

import pytest

from experiments import papers

GOOD = '''
"""Tests a thing."""

TITLE = "A good paper"
REFERENCE = "Author, ICML 2026"
CLAIM = "Things are better."


def reproduce(key, budget):
  import jax
  from icml26_jax.report import claims

  value = float(jax.random.uniform(key))
  check = claims.below("value", claims.Estimate(value, 0.0, value), 2.0)
  claim = claims.judge(
    [check],
    id="main",
    statement="Things are better.",
    paper_figure="twice as good",
    criterion="below 2",
    seeds=3,
  )
  print("a careless print", budget)
  return claims.Report((claim,))
'''


@pytest.fixture
def make_papers(tmp_path, monkeypatch):
  """Puts papers, given as file name to text, in place of the real ones."""
  folder = tmp_path / "papers"
  folder.mkdir()
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(papers, "__path__", [str(folder)])
  before = set(sys.modules)

  def make(**texts):
    for name, text in texts.items():
      (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return folder

  yield make
  for name in set(sys.modules) - before:
    if name.startswith("experiments.papers."):
      del sys.modules[name]


@pytest.fixture
def good():
  return GOOD
