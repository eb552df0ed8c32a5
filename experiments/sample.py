"""Samples text from a trained model: a table and files.

  python -m experiments.sample --checkpoint=runs/x
  python -m experiments.sample --checkpoint=runs/x --steps=16 --temperature=0.8
  python -m experiments.sample --checkpoint=runs/x --prompt="the ____ is ____"

A prompt fixes the tokens it names; each `_` (see `--mask_char`) and whatever
lies behind its end is filled in. Transforms of the predictions apply in the
order temperature, top-k, top-p. `--option=update=release` and the like change
options of the process for sampling.
"""

from __future__ import annotations

import ast
import json
import pathlib
import sys
import time
from typing import Any

from absl import flags

from experiments import cli

_POLICIES = ("ancestral", "confident", "random")
_RECORD = "sample.json"


def define_flags() -> None:
  """Defines the flags of this program."""
  flags.DEFINE_string(
    "checkpoint", None, "Directory of a training run.", required=True
  )
  flags.DEFINE_integer(
    "checkpoint_step", None, "Checkpoint to use; the last one if not given."
  )
  flags.DEFINE_integer("num_samples", 8, "Samples to draw.", lower_bound=1)
  flags.DEFINE_integer("steps", 64, "Sampling steps.", lower_bound=1)
  flags.DEFINE_integer(
    "length", None, "Tokens a sample; as in training if not given.", 1
  )
  flags.DEFINE_string("prompt", None, "Text to keep, with gaps to fill in.")
  flags.DEFINE_string("mask_char", "_", "Character that stands for a gap.")
  flags.DEFINE_float("temperature", 1.0, "Below 1 sharpens predictions.")
  flags.DEFINE_integer("top_k", None, "Keep the k best tokens.", lower_bound=1)
  flags.DEFINE_float("top_p", None, "Keep the best tokens with this mass.")
  flags.DEFINE_enum(
    "policy", "ancestral", _POLICIES, "Which positions to commit at a step."
  )
  flags.DEFINE_multi_string(
    "option", [], "NAME=VALUE: option of the process; may be repeated."
  )
  flags.DEFINE_integer("seed", 0, "Seed of the samples.", lower_bound=0)
  flags.DEFINE_string(
    "out", None, "Directory for the files; CHECKPOINT/samples if not given."
  )
  cli.define_format()


def main() -> int:
  """Samples; see the module's docstring."""
  # Help and refusals should not wait for JAX.
  from icml26_jax.training import allocator

  # Before JAX starts its threads.
  allocator.keep_freed_memory()
  values = flags.FLAGS.flag_values_dict()
  options = {
    name: values[name]
    for name in (
      "num_samples", "steps", "length", "prompt", "mask_char", "temperature",
      "top_k", "top_p", "policy", "seed",
    )
  }  # fmt: skip
  options["process_options"] = parse_options(values["option"])
  folder = pathlib.Path(
    values["out"] or pathlib.Path(values["checkpoint"]) / "samples"
  )
  check_folder(folder)
  if values["format"] == "json":
    with cli.json_output() as emit:
      record = draw(values["checkpoint"], values["checkpoint_step"], options)
      write(folder, record)
      emit(record)
  else:
    replaces = (folder / _RECORD).exists()
    record = draw(values["checkpoint"], values["checkpoint_step"], options)
    write(folder, record)
    show(record, folder, replaces=replaces)
  return 0


def draw(
  checkpoint: str, checkpoint_step: int | None, options: dict[str, Any]
) -> dict[str, Any]:
  """Draws samples from a trained model.

  Args:
    checkpoint: directory of the training run.
    checkpoint_step: which checkpoint; None for the last whole one.
    options: values of the flags `num_samples`, `steps`, `length`, `prompt`,
      `mask_char`, `temperature`, `top_k`, `top_p`, `policy` and `seed`, and
      `process_options`, a dictionary.

  Returns:
    What was done, and `samples`: one object each with `text`, `tokens` and
    `nfe`, the network calls it took.

  Raises:
    ValueError: if the directory, a flag or the prompt is wrong.
  """
  import jax
  import numpy as np

  from icml26_jax.training import recipe as recipe_lib
  from icml26_jax.training import trainer, workdir

  try:
    recipe = recipe_lib.from_dict(workdir.read(checkpoint))
  except TypeError as error:
    raise cli.UserError(f"recipe of {checkpoint}: {error}") from error
  task = recipe_lib.build(recipe)
  recipe_lib.check_process_options(recipe, options["process_options"])
  tokenizer = recipe_lib.load_tokenizer(recipe)
  length = options["length"] or recipe.data.length
  if length > recipe.data.length:
    print(
      f"note: the model was trained on {recipe.data.length} tokens a row, not"
      f" on {length}",
      file=sys.stderr,
    )
  tokens, mask = parse_prompt(
    tokenizer, options["prompt"], options["mask_char"], length
  )
  transform = _transform(options)
  sampler = _causal_sampler if task.apply_causal else _diffusion_sampler
  run = sampler(task, tokens, mask, transform, options)
  params, step = trainer.load_params(task, checkpoint, step=checkpoint_step)
  key = jax.random.key(options["seed"])
  start = time.perf_counter()
  drawn, nfe = jax.device_get(jax.jit(run)(params, key))
  seconds = time.perf_counter() - start
  if np.any(np.asarray(drawn) < 0):
    raise cli.UserError(
      "the predictions are no probabilities (NaN): look at the checkpoint's"
      " loss, and at --temperature"
    )
  return {
    "schema": 1,
    "checkpoint": checkpoint,
    "step": step,
    "process": recipe.process,
    **options,
    "length": length,
    "seconds": seconds,
    "samples": [
      {
        "text": tokenizer.decode(np.asarray(row)),
        "tokens": np.asarray(row).tolist(),
        "nfe": int(calls),
      }
      for row, calls in zip(drawn, nfe, strict=True)
    ],
  }


def parse_options(pairs: list[str]) -> dict[str, Any]:
  """Options of a process from `NAME=VALUE`.

  >>> parse_options(["update=release", "r_max=0.3"])
  {'update': 'release', 'r_max': 0.3}
  """
  options = {}
  for pair in pairs:
    name, equals, value = pair.partition("=")
    if not (name and equals):
      raise cli.UserError(f"option must be NAME=VALUE, got {pair!r}")
    try:
      options[name] = ast.literal_eval(value)
    except (ValueError, SyntaxError):
      options[name] = value
  return options


def parse_prompt(tokenizer, prompt: str | None, mask_char: str, length: int):
  """Tokens to keep, and where.

  Args:
    tokenizer: see `data.tokenizers`.
    prompt: text in which each `mask_char` is a gap of one token; None for an
      empty one.
    mask_char: one character.
    length: tokens in all.

  Returns:
    `[length]` int32 tokens, 0 in the gaps, and a bool mask, True where a token
    is kept.

  Raises:
    cli.UserError: if `mask_char` is not one character or the prompt is longer
      than the sample.
  """
  import numpy as np

  if len(mask_char) != 1:
    raise cli.UserError(f"mask_char must be one character, got {mask_char!r}")
  tokens: list[int] = []
  kept: list[bool] = []
  for i, part in enumerate((prompt or "").split(mask_char)):
    if i:
      tokens.append(0)
      kept.append(False)
    encoded = tokenizer.encode(part).tolist() if part else []
    read = tokenizer.decode(np.asarray(encoded, np.int32)) if part else ""
    if read != part:
      print(f"note: {part!r} is read as {read!r}", file=sys.stderr)
    tokens.extend(encoded)
    kept.extend([True] * len(encoded))
  if len(tokens) > length:
    raise cli.UserError(
      f"prompt of {len(tokens)} tokens is longer than a sample of {length}; see"
      " --length"
    )
  rest = length - len(tokens)
  return (
    np.asarray(tokens + [0] * rest, np.int32),
    np.asarray(kept + [False] * rest, np.bool_),
  )


def check_folder(folder: pathlib.Path) -> None:
  """Raises ValueError if a directory holds anything but earlier samples."""
  if folder.exists() and not folder.is_dir():
    raise cli.UserError(f"out {folder} is not a directory")
  names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
  foreign = names - {_RECORD, "samples.txt"}
  if foreign or (names and _RECORD not in names):
    raise cli.UserError(
      f"out {folder} holds {min(foreign or names)!r}, which is not a sample of"
      " ours; choose another directory"
    )


def write(folder: pathlib.Path, record: dict[str, Any]) -> None:
  """Writes `sample.json` and `samples.txt`.

  Args:
    folder: the directory, which is created.
    record: from `draw`.
  """
  from icml26_jax.data import locations

  folder.mkdir(parents=True, exist_ok=True)
  text = "".join(
    f"--- {i}\n{sample['text']}\n"
    for i, sample in enumerate(record["samples"], start=1)
  )
  # The record, by which the directory is known to be ours, comes first.
  for name, content in (
    (_RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n"),
    ("samples.txt", text),
  ):
    with locations.atomic_writer(folder / name) as file:
      file.write(content.encode("utf-8", "surrogatepass"))


def show(
  record: dict[str, Any], folder: pathlib.Path, *, replaces: bool = False
) -> None:
  """Prints a table of the samples.

  Args:
    record: from `draw`.
    folder: where the files are.
    replaces: whether earlier files gave way.
  """
  import rich.box
  import rich.console
  import rich.table
  import rich.text

  table = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_lines=True)
  table.add_column("", justify="right")
  table.add_column("sample", overflow="fold")
  for i, sample in enumerate(record["samples"], start=1):
    # Line ends show, so that a row is one sample at a glance.
    text = sample["text"].replace("\n", "\u21b5")
    table.add_row(str(i), rich.text.Text(text))
  rich.console.Console().print(table)
  calls = [sample["nfe"] for sample in record["samples"]]
  print(
    f"{len(calls)} samples of {record['length']} tokens from {record['process']}"
    f" at step {record['step']:,}, {sum(calls) / len(calls):.1f} network calls"
    f" a sample, {record['seconds']:.1f} s with compilation; files in {folder}"
    + (", in place of earlier ones" if replaces else "")
  )


def _transform(options: dict[str, Any]):
  """The chain that the flags ask for."""
  from icml26_jax.diffusion import process as process_lib
  from icml26_jax.diffusion import transforms

  chosen = []
  if options["temperature"] != 1.0:
    chosen.append(transforms.temperature(options["temperature"]))
  if options["top_k"] is not None:
    chosen.append(transforms.top_k(options["top_k"]))
  if options["top_p"] is not None:
    chosen.append(transforms.top_p(options["top_p"]))
  return process_lib.chain(*chosen)


def _diffusion_sampler(task, tokens, mask, transform, options):
  """`(params, key) -> (tokens [B, L], nfe [B])` of a diffusion model."""
  import jax.numpy as jnp

  from icml26_jax.diffusion import policies, sampling

  policy = {
    "ancestral": lambda: None,
    "confident": policies.top_prob,
    "random": policies.random,
  }[options["policy"]]()
  rows = options["num_samples"]
  times = sampling.time_grid(options["steps"])

  def run(params, key):
    drawn, stats = sampling.sample(
      key,
      task.process(params, **options["process_options"]),
      task.denoise_fn(params),
      (rows, len(tokens)),
      times,
      transform=transform,
      policy=policy,
      prompt=jnp.tile(tokens, (rows, 1)),
      prompt_mask=jnp.tile(mask, (rows, 1)),
    )
    return drawn, stats.nfe

  return run


def _causal_sampler(task, tokens, mask, transform, options):
  """The same of an autoregressive model: one token after the other."""
  import jax
  import jax.numpy as jnp

  from icml26_jax.diffusion import categorical
  from icml26_jax.diffusion import process as process_lib

  start = int(mask.sum())
  if mask[start:].any():
    raise cli.UserError("an autoregressive model cannot fill gaps in a prompt")
  if not start:
    raise cli.UserError(
      "an autoregressive model needs a --prompt to go on from"
    )
  if options["policy"] != "ancestral" or options["process_options"]:
    raise cli.UserError(
      "policy and option are for diffusion models; this one is autoregressive"
    )
  rows, length = options["num_samples"], len(tokens)

  def run(params, key):
    keys = process_lib.row_keys(key, rows)
    hidden = process_lib.Latent(
      jnp.zeros((rows, 1), jnp.int32), jnp.zeros((rows, 1), bool)
    )

    def body(carry, i):
      drawn, state = carry
      logits = task.apply_causal(params, drawn)[:, i - 1][:, None]
      step_keys = process_lib.fold_rows(keys, i)
      step = process_lib.Step(
        keys=process_lib.fold_rows(step_keys, 0),
        latent=hidden,
        index=i - start,
        time=1.0 - i / length,
        next_time=1.0 - (i + 1) / length,
        is_last=i == length - 1,
      )
      log_probs = jax.nn.log_softmax(logits)
      log_probs, state = transform.update(log_probs, state, step)
      new = categorical.draw(process_lib.fold_rows(step_keys, 1), log_probs)
      return (drawn.at[:, i].set(new[:, 0]), state), None

    state = transform.init(hidden.tokens)
    (drawn, _), _ = jax.lax.scan(
      body,
      (jnp.tile(tokens, (rows, 1)), state),
      jnp.arange(start, length, dtype=jnp.int32),
    )
    return drawn, jnp.full(rows, length - start, jnp.int32)

  return run


if __name__ == "__main__":
  cli.run(main, define_flags)
