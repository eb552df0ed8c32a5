"""Papers are found by file, and described without being run."""

import importlib
import subprocess
import sys

import pytest

from experiments import papers


def test_papers_are_found_by_file(make_papers, good):
  folder = make_papers(two_words=good, alpha=good, _private=good)
  (folder / "package").mkdir()
  (folder / "package" / "__init__.py").write_text("")
  (folder / "notes.txt").write_text("")
  importlib.invalidate_caches()
  assert papers.names() == ["alpha", "two-words"]


def test_description_does_not_run_the_file(make_papers, good):
  make_papers(alpha=good + "\nraise RuntimeError('was run')\n")
  paper = papers.describe("alpha")
  assert paper == papers.Paper(
    slug="alpha",
    title="A good paper",
    reference="Author, ICML 2026",
    claim="Things are better.",
    docstring="Tests a thing.",
  )


def test_long_texts_may_be_written_in_pieces(make_papers, good):
  text = good.replace('"Things are better."', '("Things are"\n  " better.")', 1)
  make_papers(alpha=text)
  assert papers.describe("alpha").claim == "Things are better."


@pytest.mark.parametrize(
  ("old", "new", "message"),
  [
    ('TITLE = "A good paper"', "", "must declare TITLE"),
    ('TITLE = "A good paper"', 'TITLE = ""', "must declare TITLE"),
    ('TITLE = "A good paper"', "TITLE = str(3)", "must declare TITLE"),
    ('"""Tests a thing."""', "", "must declare a docstring"),
    ("def reproduce", "def reproduce(:", r"'alpha' \(alpha\.py\)"),
  ],
)
def test_a_file_that_declares_too_little_is_named(
  make_papers, good, old, new, message
):
  make_papers(alpha=good.replace(old, new, 1))
  with pytest.raises(papers.PaperError, match=message):
    papers.describe("alpha")


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("import no_such_package", "ModuleNotFoundError: No module named"),
    ("1 / 0", "ZeroDivisionError"),
    ("x = 1", "AttributeError"),
  ],
)
def test_a_file_that_cannot_be_loaded_is_named(make_papers, text, message):
  make_papers(alpha=text)
  with pytest.raises(
    papers.PaperError, match=rf"'alpha' \(alpha\.py\): {message}"
  ):
    papers.load("alpha")


@pytest.mark.parametrize("slug", papers.names())
def test_every_paper_is_described_and_loads(slug):
  paper = papers.describe(slug)
  assert len(paper.claim) < 400
  assert callable(papers.load(slug))


def test_listing_imports_no_jax():
  code = (
    "import sys; from experiments import papers;"
    "[papers.describe(name) for name in papers.names()];"
    "print('jax' in sys.modules or 'matplotlib' in sys.modules)"
  )
  run = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert run.stdout.strip() == "False"
