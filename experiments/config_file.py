"""The `--config` flag: a Python file in `configs/`, with overrides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import pathlib
import runpy
import sys

from absl import flags
import ml_collections
from ml_collections import config_flags

from experiments import cli
from icml26_jax.training import recipe as recipe_lib

_FOLDER = pathlib.Path(__file__).resolve().parents[1] / "configs"


def define() -> None:
  """Defines `--config=configs/NAME.py` and `--config.FIELD=VALUE`."""
  config_flags.DEFINE_config_file(
    "config",
    None,
    f"Configuration file: {', '.join(names())} or your own;"
    " --config.num_steps=100 and the like override its fields.",
    lock_config=True,
  )
  flags.mark_flag_as_required("config")
  cli.show_in_help("config")
  # The parser's own messages on a bad file or field are of no help.
  check_arguments(sys.argv[1:])
  flags.DEFINE_multi_string(
    "config_item",
    [],
    "NAME=VALUE for text fields that --config.NAME=VALUE cannot reach; made of"
    " those by itself.",
  )
  sys.argv[1:] = _as_items(sys.argv[1:])


def check_arguments(arguments: Sequence[str]) -> None:
  """Raises unless `--config` names a sound file and overrides its fields.

  Args:
    arguments: of the command line.

  Raises:
    cli.UserError: naming what is wrong and what there is.
  """
  given = dict(_config_arguments(arguments))
  value = given.pop("config", None)
  if value is None:
    return
  path, _, options = value.partition(":")
  if not pathlib.Path(path).is_file():
    if path in names():
      raise cli.UserError(
        f"config {path} is not in the current folder but in"
        f" {_FOLDER.parent}; run the program there, or give the whole path"
      )
    raise cli.unknown("config", path, names())
  try:
    get_config = runpy.run_path(path)["get_config"]
    config = get_config(options) if options else get_config()
  except KeyError:
    raise cli.UserError(f"config {path} has no function get_config") from None
  except Exception as error:  # whatever the file does
    raise cli.UserError(f"config {path}: {error}") from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise cli.UserError(
      f"config {path}: get_config must return an ml_collections.ConfigDict, got"
      f" {type(config).__name__}"
    )
  for name in given:
    _check_field(config, name.removeprefix("config."))


def _config_arguments(
  arguments: Sequence[str],
) -> Iterator[tuple[str, str]]:
  """Names and values of `--config` and its overrides."""
  for argument, following in zip(arguments, [*arguments[1:], ""], strict=False):
    name, equals, value = argument.lstrip("-").partition("=")
    if argument.startswith("-") and (
      name == "config" or name.startswith("config.")
    ):
      yield name, value if equals else following


def _as_items(arguments: Sequence[str]) -> list[str]:
  """Arguments with overrides of fields that are called as methods are.

  A field such as `options.update` has the name of a method of ConfigDict,
  which the parser would find in its place; `--config_item` sets it.
  """
  found, rest = [], list(arguments)
  while rest:
    argument = rest.pop(0)
    name, equals, value = argument.lstrip("-").partition("=")
    is_method = hasattr(ml_collections.ConfigDict, name.split(".")[-1])
    if name.startswith("config.") and is_method:
      value = value if equals else "".join(rest[:1])
      rest = rest if equals else rest[1:]
      argument = f"--config_item={name.removeprefix('config.')}={value}"
    found.append(argument)
  return found


def _check_field(config: ml_collections.ConfigDict, name: str) -> None:
  """Raises unless a dotted name leads to a field."""
  prefix = ""
  for part in name.split("."):
    fields = config if isinstance(config, ml_collections.ConfigDict) else ()
    if part not in fields:
      raise cli.unknown(
        "config field", name, [prefix + field for field in fields]
      )
    prefix += f"{part}."
    config = config.get_ref(part).get()


def names() -> list[str]:
  """The configurations that come with the project."""
  return sorted(
    f"configs/{path.name}"
    for path in _FOLDER.glob("*.py")
    if path.stem not in ("__init__", "base")
  )


def load() -> recipe_lib.Recipe:
  """The recipe of `--config`.

  Raises:
    cli.UserError: if a field is unknown, missing or not allowed.
  """
  config = flags.FLAGS.config
  for item in flags.FLAGS.config_item:
    path, _, value = item.partition("=")
    *parents, field = path.split(".")
    holder = config
    for name in parents:
      holder = holder[name]
    holder[field] = value
  try:
    return recipe_lib.from_config(config)
  except TypeError as error:
    raise cli.UserError(str(error)) from error
