"""The notebook of validators runs from top to bottom and finds what it says."""

import pathlib
import re

import nbclient
import nbformat
import pytest

import experiments

_NOTEBOOK = (
  pathlib.Path(experiments.__file__).parent / "colab" / "validators.ipynb"
)


def _printed(notebook):
  return "".join(
    output.get("text", "")
    for cell in notebook.cells
    for output in cell.get("outputs", [])
    if output.get("name") == "stdout"
  )


@pytest.mark.slow  # Starts a kernel and compiles many small programs.
def test_notebook_finds_what_it_says(tmp_path, monkeypatch):
  # Nothing may need the weights.
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "cache"))
  notebook = nbformat.read(_NOTEBOOK, as_version=4)
  client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
  client.execute(cwd=str(tmp_path))
  printed = _printed(notebook)
  assert re.search(r"up against down: .*: a law", printed)
  assert re.search(r"gate against down: .*: no law", printed)
  assert "my block: 12 parameters, rank 10, 2 laws" in printed
  assert "GELU: 8 parameters, rank 8, 0 laws" in printed
  assert re.search(r"right: .* 0 of 8 units broken", printed)
  assert re.search(r"frozen: .* [1-8] of 8 units broken", printed)
  drifts = [
    float(x) for x in re.findall(r"a law, step .*: drift ([\d.]+)", printed)
  ]
  assert 1.8 < drifts[0] / drifts[1] < 2.4
  assert re.search(
    r"256 sequences, log-probabilities agree to \de-1[4-6]", printed
  )
  orders = [
    float(x) for x in re.findall(r"W_\d grows like sigma\^(.*)", printed)
  ]
  assert orders == [pytest.approx(1.0, abs=0.05), pytest.approx(0.5, abs=0.1)]
  figures = [
    output
    for cell in notebook.cells
    for output in cell.get("outputs", [])
    if "image/png" in output.get("data", {})
  ]
  assert len(figures) == 3


def test_notebook_is_committed_without_outputs():
  notebook = nbformat.read(_NOTEBOOK, as_version=4)
  for cell in notebook.cells:
    assert not cell.get("outputs")
    assert cell.get("execution_count") is None


def test_weights_are_fetched_only_if_asked_for():
  notebook = nbformat.read(_NOTEBOOK, as_version=4)
  (cell,) = (c for c in notebook.cells if "fetch.fetch" in c.source)
  assert "CHECK_PRETRAINED = False" in cell.source
