"""Freed memory is kept for the next step."""

import os
import subprocess
import sys
import textwrap

import pytest

from icml26_jax.training import allocator

# A program with a workspace of 64 MB, that is, 16,384 pages of 4 kB; prints how
# many pages 10 calls touched for the first time, the least of three rounds. On
# a busy machine a call may start before the workspaces of earlier ones are
# free, and find one more for itself.
_PROGRAM = """
  import resource

  from icml26_jax.training import allocator

  assert allocator.keep_freed_memory()

  import jax
  import jax.numpy as jnp

  x = jnp.ones(2**22)
  f = jax.jit(lambda x: jnp.sum(jnp.sort(jnp.stack([x, x + 1, x, x]), axis=0)))
  size = f.lower(x).compile().memory_analysis().temp_size_in_bytes
  assert size >= 2**26, size

  def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

  for _ in range(5):
    f(x).block_until_ready()
  rounds = []
  for _ in range(3):
    before = faults()
    for _ in range(10):
      f(x).block_until_ready()
    rounds.append(faults() - before)
  print(min(rounds))
"""


@pytest.mark.skipif(
  sys.platform != "linux", reason="the setting is one of glibc"
)
def test_a_workspace_is_faulted_in_once_only():
  run = subprocess.run(
    [sys.executable, "-c", textwrap.dedent(_PROGRAM)],
    capture_output=True,
    text=True,
    check=True,
    # Sorting is many times slower without the code generator's optimisation.
    env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""},
  )
  # Otherwise each of the 10 calls faults in a workspace, in every round.
  assert int(run.stdout) < 5 * 16_384


def test_other_systems_are_left_alone(monkeypatch):
  monkeypatch.setattr(sys, "platform", "darwin")
  assert not allocator.keep_freed_memory()
