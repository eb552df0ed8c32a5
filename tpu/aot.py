"""Compiles a recipe for a TPU slice without having one, and says how it does.

  python -m tpu.aot --config=configs/candi_1b.py --topology=v5e:16x16

The real sharded step goes through the real TPU compiler. Reported: memory a
chip and whether it fits, FLOPs and bytes a step, collectives by kind, gathers
of parameters, and an estimated step time with the model FLOPs utilisation
(MFU) it implies, each assumption beside it. Nothing is run. Exit code 0 if the
program fits, 1 if it does not, 2 for a mistake in the arguments.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

from absl import flags
from ml_collections import config_flags

from tpu import topology

EXIT_DOES_NOT_FIT = 1


def define_flags() -> None:
  """Defines the flags of this program."""
  from experiments import cli, config_file

  flags.DEFINE_string(
    "topology",
    None,
    f"TPU slice to compile for: {', '.join(topology.names())}.",
    required=True,
  )
  flags.DEFINE_enum("program", "train", ["train", "sample"], "What to compile.")
  flags.DEFINE_integer(
    "sample_rows",
    None,
    "Sequences the sampler draws at once; one a chip if not given.",
    lower_bound=1,
  )
  flags.DEFINE_integer(
    "sample_steps", 64, "Steps of the sampler.", lower_bound=1
  )
  flags.DEFINE_string(
    "hlo", None, "File to write the compiled program's text to."
  )
  cli.define_format()
  config_file.define()


def main() -> int:
  """Compiles what the flags ask for, prints the report."""
  from experiments import cli, config_file
  from tpu import compile as compile_lib
  from tpu import kernels
  from tpu import report as report_lib

  options = flags.FLAGS
  if options.hlo and not pathlib.Path(options.hlo).absolute().parent.is_dir():
    raise cli.UserError(f"hlo {options.hlo}: there is no such folder")
  topology.parse(options.topology)
  recipe = config_file.load()
  with tempfile.TemporaryDirectory() as folder:
    kernels.dump_schedules(folder)
    devices, torus = topology.describe(options.topology)
    _say("tracing")
    program = compile_lib.trace(
      recipe,
      options.program,
      devices,
      sample_rows=options.sample_rows,
      sample_steps=options.sample_steps,
    )
    torus = topology.torus(
      torus.chip, torus.shape, list(program.mesh.devices.flat)
    )
    _say(f"compiling for {options.topology}, which takes a minute or more")
    try:
      compiled = compile_lib.compile_program(program)
    except MemoryError as error:
      compiled = error
    _say("estimating")
    record = report_lib.make(
      program, compiled, torus, kernels.read_cycles(folder)
    )
  record = {
    "config": config_flags.get_config_filename(options["config"]),
    "topology": options.topology,
    "slice_chips": len(devices),
    **record,
  }
  if options.hlo and record["fits"]:
    pathlib.Path(options.hlo).write_text(compiled.text)
  if options.format == "json":
    with cli.json_output() as emit:
      emit(record)
  else:
    report_lib.show(record)
  return 0 if record["fits"] else EXIT_DOES_NOT_FIT


def _say(text: str) -> None:
  print(f"{text} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
  topology.prepare_environment()
  from experiments import cli

  cli.run(main, define_flags)
