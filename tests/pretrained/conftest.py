"""The pretrained model, obtained by the command that users run."""

import fcntl
import subprocess
import sys

import pytest

from icml26_jax.data import locations
from icml26_jax.pretrained import checkpoint

NAME = "smollm2-135m"


@pytest.fixture(scope="session")
def smollm2_path(request):
  """Path of the weights; downloads 93 MB if the cache has none."""
  capture = request.config.pluginmanager.getplugin("capturemanager")
  command = [sys.executable, "-m", "icml26_jax.pretrained.fetch", NAME]
  # Two workers of one test run must not download twice.
  with (locations.cache_dir("pretrained") / ".lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with capture.global_and_fixture_disabled():
      done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    pytest.fail(
      f"the weights could not be obtained: `python -m"
      f" icml26_jax.pretrained.fetch {NAME}` says above why, and how to bring"
      " the file by hand"
    )
  return done.stdout.strip()


@pytest.fixture(scope="session")
def smollm2(smollm2_path) -> checkpoint.Checkpoint:
  """The model in float32, with its tokenizer."""
  return checkpoint.load(NAME)
