"""Checks conservation laws of gradient flow on a model of yours.

  python -m experiments.validate --params=smollm2-135m
  python -m experiments.validate --params=model.gguf --law=swiglu,query_key
  python -m experiments.validate --params=runs/x --corpus=file:book.txt
  python -m experiments.validate --law=list

One gradient of the loss on one batch tells whether the blocks keep what the
theorems promise, each law beside quantities that must move. A law that does
not hold means a wrong gradient or another function than the one claimed: a
wrong rotary pairing, a tied or frozen weight, a gain that somebody else reads.
`--apply=MODULE:FUNCTION` checks a forward pass of yours, `apply(params, tokens,
config=config)` with logits [B, T, V], on the same weights.

The exit code is 0 if every law holds, 1 if one does not, 2 if the arguments
are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
import sys
from typing import Any

from absl import flags
import rich.box
import rich.console
import rich.table

from experiments import cli
from experiments.validators import subject as subject_lib

SCHEMA = 1

# Rounding of float32 sums over a few hundred thousand products; what is no law
# is above 1e-3.
TOLERANCE = 1e-6

_MIN_WIDTH, _MAX_WIDTH = 80, 100


def define_flags() -> None:
  """Defines the flags of this program."""
  flags.DEFINE_string(
    "law", "all", "Names of laws, separated by commas; or all; or list."
  )
  flags.DEFINE_string(
    "params",
    None,
    "What to check: smollm2-135m, a GGUF file, a Hugging Face directory, or the"
    " directory of a training run.",
  )
  flags.DEFINE_string(
    "corpus",
    "stdlib:docstrings",
    "Text of the batch, see experiments.train; or random, for random tokens.",
  )
  flags.DEFINE_integer("rows", 2, "Rows of the batch.", lower_bound=1)
  flags.DEFINE_integer(
    "length",
    None,
    "Tokens of a row; 64, or as in training, if not given.",
    lower_bound=2,
  )
  flags.DEFINE_string(
    "apply", None, "MODULE:FUNCTION, a forward pass to use instead of ours."
  )
  flags.DEFINE_float(
    "tolerance", TOLERANCE, "Largest relative rate of a law, in (0, 1)."
  )
  flags.DEFINE_integer("seed", 0, "Chooses the rows.", lower_bound=0)
  cli.define_format()


def main() -> int:
  """Checks what the flags ask for."""
  options = flags.FLAGS
  as_json = options.format == "json"
  if options.law == "list":
    return show_list(as_json=as_json)
  names = choose(options.law)
  if not 0 < options.tolerance < 1:
    raise cli.UserError(
      f"tolerance must be in (0, 1), got {options.tolerance:g}: a relative rate"
      f" is a cosine; rounding of float32 is below {TOLERANCE:g}"
    )
  if not options.params:
    raise cli.UserError(
      "--params must name what to check: smollm2-135m, a GGUF file, a Hugging"
      " Face directory, or the directory of a training run"
    )
  arguments = dict(
    corpus=options.corpus,
    rows=options.rows,
    length=options.length,
    seed=options.seed,
    apply=options.apply,
    tolerance=options.tolerance,
  )
  if as_json:
    with cli.json_output() as emit:
      record = check(options.params, names, **arguments)
      emit(record)
  else:
    record = check(options.params, names, **arguments)
    show(record)
  return 0 if record["holds"] else 1


def choose(law: str) -> list[str] | None:
  """The laws that `--law` names.

  Args:
    law: names separated by commas, or "all".

  Returns:
    The names, each once, in the order given; None for all that a model has.

  Raises:
    UserError: if there is no such law, listing those that exist.
  """
  if law == "all":
    return None
  valid = [*subject_lib.LAWS, subject_lib.PAIRING]
  names = [name.strip() for name in law.split(",") if name.strip()]
  if not names:
    raise cli.UserError(
      f"--law must name a law, 'all' or 'list'; laws: {', '.join(valid)}"
    )
  for name in names:
    if name not in valid:
      raise cli.unknown("law", name, valid)
  return list(dict.fromkeys(names))


def check(
  source: str,
  names: Sequence[str] | None,
  *,
  corpus: str,
  rows: int,
  length: int | None,
  seed: int,
  apply: str | None = None,
  tolerance: float = TOLERANCE,
) -> dict[str, Any]:
  """Loads a model and checks its laws.

  Args:
    source: see `validators.loading.load`.
    names: laws to check; None for all that the model has.
    corpus: see `validators.loading.load`.
    rows: rows of the batch.
    length: tokens of a row, or None.
    seed: chooses the rows.
    apply: see `validators.loading.load`.
    tolerance: largest relative rate of a law.

  Returns:
    What `--format=json` prints.

  Raises:
    ValueError: if the model, the text or the choice of laws is wrong.
    OSError: if a file is not there.
  """
  # Lists and refusals should not wait for JAX.
  from experiments.validators import loading

  subject = loading.load(
    source, corpus=corpus, rows=rows, length=length, seed=seed, apply=apply
  )
  tokens = subject.batch
  shape = (tokens["tokens"] if isinstance(tokens, dict) else tokens).shape
  print(
    f"{subject.title}: loaded; a gradient on {shape[0]} x {shape[1]} tokens",
    file=sys.stderr,
    flush=True,
  )
  found = check_subject(subject, names, tolerance=tolerance)
  return {
    "schema": SCHEMA,
    "params": source,
    "model": subject.title,
    "corpus": corpus,
    "rows": shape[0],
    "length": shape[1],
    "seed": seed,
    "apply": apply,
    "tolerance": tolerance,
    **found,
  }


def check_subject(
  subject: subject_lib.Subject,
  names: Sequence[str] | None,
  *,
  tolerance: float = TOLERANCE,
) -> dict[str, Any]:
  """Checks laws of a model that is loaded already.

  Args:
    subject: the model.
    names: laws to check; None for all that it has.
    tolerance: largest relative rate of a law.

  Returns:
    `laws`, one object each; `absent`, name to reason; `rotary_pairing`, an
    object or None; `holds`, whether everything does.

  Raises:
    UserError: if the model has not one of the laws.
  """
  from experiments.validators import measure

  with_pairing = subject.pairing_losses is not None
  if names is None:
    chosen = [name for name in subject_lib.LAWS if name in subject.laws]
  else:
    chosen = [name for name in names if name != subject_lib.PAIRING]
    for name in chosen:
      if name not in subject.laws:
        raise cli.UserError(
          f"{subject.title} has no law {name!r}: {subject.absent[name]}"
        )
    if subject_lib.PAIRING not in names:
      with_pairing = False
    elif not with_pairing:
      raise cli.UserError(
        f"{subject.title}: {subject_lib.PAIRING} needs a pretrained model with"
        " heads of more than two components, and a corpus of text"
      )
  program = measure.Program(subject, chosen)
  laws, controls = (
    program(subject.params, subject.batch) if chosen else ({}, {})
  )
  verdicts = [
    measure.judge(name, laws[name], controls[name], tolerance)
    for name in chosen
  ]
  pairing = (
    program.pairing(subject.params, subject.batch) if with_pairing else None
  )
  return {
    "laws": [
      {
        **row._asdict(),
        "largest_by_layer": laws[row.law].tolist(),
        "controls_by_layer": {
          name: values.tolist() for name, values in controls[row.law].items()
        },
      }
      for row in verdicts
    ],
    "absent": dict(subject.absent) if names is None else {},
    subject_lib.PAIRING: None if pairing is None else pairing._asdict(),
    "holds": all(row.verdict == measure.HOLDS for row in verdicts)
    and (pairing is None or pairing.verdict != measure.BROKEN),
  }


def show(record: dict[str, Any]) -> None:
  """Prints a table of what `check` found."""
  console = rich.console.Console(highlight=False)
  width = min(max(console.width, _MIN_WIDTH), _MAX_WIDTH)
  table = rich.table.Table(
    box=rich.box.SIMPLE_HEAD,
    padding=(0, 1, 0, 0),
    title=f"{record['model']}, {record['rows']} x {record['length']} tokens of"
    f" {record['corpus']}",
    title_justify="left",
  )
  for name, options in (
    ("law", {"no_wrap": True}),
    ("layers", {"justify": "right"}),
    ("largest", {"justify": "right", "no_wrap": True}),
    ("control", {"no_wrap": True}),
    ("weakest", {"justify": "right", "no_wrap": True}),
    ("verdict", {"no_wrap": True}),
  ):
    table.add_column(name, **options)
  for row in record["laws"]:
    colour = "green" if row["verdict"] == "holds" else "red"
    table.add_row(
      row["law"],
      str(row["layers"]),
      _number(row["largest"]),
      row["control"] or "-",
      _number(row["weakest"]) if row["control"] else "",
      f"[{colour}]{row['verdict']}[/]",
    )
  if record["laws"]:
    console.print(table, width=width)
  for row in record["laws"]:
    if row["verdict"] == "broken":
      console.print(
        f"{row['law']} is broken, most in layer {row['layer']} of 0 to"
        f" {row['layers'] - 1}",
        width=width,
      )
  pairing = record[subject_lib.PAIRING]
  if pairing is not None:
    colour = {"holds": "green", "broken": "red"}.get(pairing["verdict"], "")
    verdict = pairing["verdict"]
    console.print(
      f"rotary pairing {pairing['declared']!r}: {pairing['loss']:.2f} nats a"
      f" token, {pairing['other_loss']:.2f} with the other pairing:"
      f" {f'[{colour}]{verdict}[/]' if colour else verdict}",
      width=width,
    )
  for name, reason in record["absent"].items():
    console.print(f"no law {name}: {reason}", width=width, markup=False)
  console.print(
    f"largest: relative rate of the law, at rounding if below"
    f" {record['tolerance']:g}. weakest: the same of a quantity that must move,"
    " in the layer where it moves least.",
    style="dim",
    width=width,
  )


def show_list(*, as_json: bool) -> int:
  """Prints what can be checked."""
  described = {
    **subject_lib.LAWS,
    subject_lib.PAIRING: subject_lib.PAIRING_TEXT,
  }
  if as_json:
    with cli.json_output() as emit:
      emit(
        {
          "laws": [
            {"name": name, "text": text} for name, text in described.items()
          ]
        }
      )
    return 0
  table = rich.table.Table(box=rich.box.SIMPLE_HEAD)
  table.add_column("--law=", no_wrap=True)
  table.add_column("what is conserved")
  for name, text in described.items():
    # Not markup: [i, :] is an index.
    table.add_row(name, text.replace("[", r"\["))
  console = rich.console.Console(highlight=False)
  console.print(table, width=min(max(console.width, _MIN_WIDTH), _MAX_WIDTH))
  return 0


def _number(value: float) -> str:
  return "NaN" if math.isnan(value) else f"{value:.1e}"


if __name__ == "__main__":
  cli.run(main, define_flags)
