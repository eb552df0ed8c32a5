"""The quickstart notebook runs from top to bottom, with fewer steps."""

import pathlib
import re

import nbclient
import nbformat
import pytest

import experiments

_NOTEBOOK = (
  pathlib.Path(experiments.__file__).parent / "colab" / "quickstart.ipynb"
)


def _outputs(notebook):
  return "".join(
    output.get("text", "")
    for cell in notebook.cells
    for output in cell.get("outputs", [])
    if output.get("name") == "stdout"
  )


@pytest.mark.slow  # Starts a kernel and compiles a model and four samplers.
def test_quickstart_runs(tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("TMPDIR", str(tmp_path))
  notebook = nbformat.read(_NOTEBOOK, as_version=4)
  (training,) = (cell for cell in notebook.cells if "STEPS =" in cell.source)
  training.source = re.sub(r"STEPS = \d+", "STEPS = 20", training.source)
  client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
  client.execute(cwd=str(tmp_path))
  printed = _outputs(notebook)
  assert re.search(r"loss \d+\.\d\d", printed)
  assert printed.count("look like code") == 4
  figures = [
    output
    for cell in notebook.cells
    for output in cell.get("outputs", [])
    if "image/png" in output.get("data", {})
  ]
  assert len(figures) == 2


def test_notebook_is_committed_without_outputs():
  notebook = nbformat.read(_NOTEBOOK, as_version=4)
  for cell in notebook.cells:
    assert not cell.get("outputs")
    assert cell.get("execution_count") is None
