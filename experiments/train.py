"""Trains a language model of any process on a mesh of devices; resumable.

  python -m experiments.train --config=configs/candi_char.py --workdir=runs/x

The same command goes on where the last one stopped; Ctrl-C saves before it
stops, a second one does not. `--steps=N` stops after step N,
`--config.FIELD=VALUE` overrides a field of the configuration. With several
processes, one command each:

  ... --coordinator_address=HOST:PORT --num_processes=2 --process_id=0

or `--distributed` on a TPU slice or under Slurm, where JAX finds the rest.
Exit codes: 0 done, 2 a mistake of the user or an unusable disk, 75 stopped by
SIGTERM or Ctrl-C with everything saved (run it again to go on).
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shlex
import sys

from absl import flags

from experiments import cli, config_file

# The conventional code of a failure that goes away when tried again.
EXIT_RESUMABLE = os.EX_TEMPFAIL

_LOSSES = {
  "loss": "mean loss",
  "validation_loss": "held-out loss",
}


def define_flags() -> None:
  """Defines the flags of this program."""
  config_file.define()
  flags.DEFINE_string(
    "workdir",
    None,
    "Directory of the run, new or to be resumed; shared by all processes.",
    required=True,
  )
  flags.DEFINE_integer(
    "steps",
    None,
    "Stop after this step; the learning rate still follows the whole run.",
    lower_bound=1,
  )
  flags.DEFINE_string("coordinator_address", None, "HOST:PORT of process 0.")
  flags.DEFINE_integer("num_processes", None, "Number of processes.")
  flags.DEFINE_integer("process_id", None, "This process, from 0.")
  flags.DEFINE_bool(
    "distributed", False, "Take the processes from the cluster's environment."
  )
  cli.define_format()


def main() -> int:
  """Trains; see the module's docstring."""
  with _stdout_to_stderr():
    result = _train()
  _report(result)
  return EXIT_RESUMABLE if result.interrupted else 0


def _train():
  """What the flags ask for."""
  from icml26_jax.training import allocator, distributed, loop, trainer

  # Before JAX starts its threads.
  allocator.keep_freed_memory()
  # First of all: making a recipe already computes something on a device.
  distributed.initialize(
    coordinator_address=flags.FLAGS.coordinator_address,
    num_processes=flags.FLAGS.num_processes,
    process_id=flags.FLAGS.process_id,
    automatic=flags.FLAGS.distributed,
  )
  recipe = config_file.load()
  try:
    return trainer.train(recipe, flags.FLAGS.workdir, stop=flags.FLAGS.steps)
  except loop.NonFiniteError as error:
    raise cli.UserError(
      f"{error}; checkpoints before it, if any, are in {flags.FLAGS.workdir}"
    ) from error


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
  """Keeps standard output for the result: collectives of the CPU print too."""
  sys.stdout.flush()
  kept = os.dup(1)
  try:
    os.dup2(2, 1)
    yield
  finally:
    sys.stdout.flush()
    os.dup2(kept, 1)
    os.close(kept)


def _report(result) -> None:
  """Says how it ended, on the first process."""
  import jax

  from icml26_jax.training import checkpoint

  if jax.process_index():
    return
  workdir = flags.FLAGS.workdir
  step = int(result.state.step)
  folder = pathlib.Path(workdir) / checkpoint.FOLDER / str(step)
  command = f"python -m experiments.sample --checkpoint={shlex.quote(workdir)}"
  if flags.FLAGS.format == "json":
    with cli.json_output() as emit:
      emit(
        {
          "schema": 1,
          "step": step,
          "interrupted": result.interrupted,
          **result.scalars,
          "tokens_per_second": result.tokens_per_second,
          "checkpoint": folder,
          "sample_command": command,
        }
      )
    return
  facts = [f"step {step:,}"]
  for name in _LOSSES:
    if name in result.scalars:
      facts.append(f"{_LOSSES[name]} {result.scalars[name]:.4f}")
  if result.tokens_per_second == result.tokens_per_second:
    facts.append(f"{result.tokens_per_second:,.0f} tokens/s")
  print(f"{', '.join(facts)}; checkpoint {folder}")
  if result.interrupted:
    print("stopped early; run the same command to go on", file=sys.stderr)
  else:
    print(f"to sample: {command}")


if __name__ == "__main__":
  cli.run(main, define_flags)
