"""Papers made for a test, in place of the real ones."""

import os
import pathlib
import subprocess
import sys
import textwrap
from typing import NamedTuple

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


_CONFIG = """
from configs import base


def get_config():
  return base.make(
    "candi",
    model={"vocab_size": 27, "d_model": 8, "num_layers": 1, "num_heads": 1},
    data={
      "corpus": "file:CORPUS",
      "tokenizer": "char27",
      "length": 12,
      "batch_size": 8,
    },
    optimizer={"learning_rate": 1e-2},
    process_options={"r_max": 0.25},
    num_steps=200,
    ema_decay=0.9,
    log_every=1,
    checkpoint_every=20,
  )
"""


class Programs(NamedTuple):
  """Runs our programs on a tiny model, sharing compiled programs.

  Attributes:
    config: path of the configuration.
    env: the environment of the programs.
  """

  config: pathlib.Path
  env: dict[str, str]

  def start(self, module, *arguments):
    """Starts `python -m module`."""
    return subprocess.Popen(
      [sys.executable, "-m", module, *map(str, arguments)],
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=self.env,
      cwd=pathlib.Path(__file__).parents[2],
    )

  def train(self, workdir, *arguments):
    """Starts training in a directory."""
    return self.start(
      "experiments.train",
      f"--config={self.config}",
      f"--workdir={workdir}",
      *arguments,
    )


class Run(NamedTuple):
  """A finished training run."""

  workdir: pathlib.Path
  stdout: str
  stderr: str


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
  folder = tmp_path_factory.mktemp("programs")
  corpus = folder / "corpus.txt"
  corpus.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
  config = folder / "tiny.py"
  config.write_text(_CONFIG.replace("CORPUS", str(corpus)))
  env = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "ICML26_CACHE": str(folder / "cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    # Loading a compiled program logs what the processor could do besides.
    "TF_CPP_MIN_LOG_LEVEL": "3",
  }
  env.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compilations"))
  return Programs(config, env)


@pytest.fixture(scope="session")
def whole_run(programs, tmp_path_factory):
  """A run that nobody interrupted."""
  workdir = tmp_path_factory.mktemp("whole") / "run"
  process = programs.train(workdir)
  stdout, stderr = process.communicate(timeout=300)
  assert process.returncode == 0, stderr
  return Run(workdir, stdout, stderr)
