"""Test setup: eight CPU devices, strict promotion, key-reuse checking.

Also the pretrained model, obtained by the command that users run.
"""

import fcntl
import os
import subprocess
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Test workers may compile for TPU at the same time; libtpu otherwise takes a
# machine-wide lock, and asks a metadata server that is not there.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
# Most of the tests' time is compilation, of programs that run once and are
# small: the code generator's optimisation, a third of it, does not pay. What
# XLA itself does to a program stays.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

hypothesis.settings.register_profile(
  "default", deadline=None, max_examples=25, derandomize=True
)
hypothesis.settings.load_profile("default")

SMOLLM2 = "smollm2-135m"


@pytest.fixture(scope="session")
def smollm2_path(request):
  """Path of the weights; downloads 93 MB if the cache has none."""
  from icml26_jax.data import locations

  capture = request.config.pluginmanager.getplugin("capturemanager")
  command = [sys.executable, "-m", "icml26_jax.pretrained.fetch", SMOLLM2]
  # Two workers of one test run must not download twice.
  with (locations.cache_dir("pretrained") / ".lock").open("w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with capture.global_and_fixture_disabled():
      done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    pytest.fail(
      f"the weights could not be obtained: `python -m"
      f" icml26_jax.pretrained.fetch {SMOLLM2}` says above why, and how to bring"
      " the file by hand"
    )
  return done.stdout.strip()


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
  """The model in float32, with its tokenizer."""
  # Imported here: it takes a while, and most tests do not need it.
  from icml26_jax.pretrained import checkpoint

  return checkpoint.load(SMOLLM2)
