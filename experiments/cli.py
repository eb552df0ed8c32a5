"""How every program here starts, fails and prints for machines.

A mistake of the user ends in one line on standard error and exit code 2;
`--v=1` shows the traceback as well. With `--format=json` standard output holds
one JSON object and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
import re
import sys
import traceback
from typing import Any, NoReturn

from absl import app, flags, logging

from experiments import platforms
from icml26_jax import checks
from icml26_jax.report import encoding

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

# What a wrong argument or an unusable file raises. Anything else is a defect
# and keeps its traceback.
_USER_ERRORS = (ValueError, OSError)


class UserError(ValueError):
  """A mistake of the user, with a message that says what is allowed."""


def run(
  main: Callable[[], int | None],
  define_flags: Callable[[], None] | None = None,
) -> NoReturn:
  """Parses the flags, runs `main` and exits.

  Args:
    main: the program; returns an exit code, or None for 0. ValueError,
      OSError and `UserError` end in one line and exit code 2.
    define_flags: defines the program's flags; may raise `UserError`. Flags
      defined here and not at import leave the module importable beside other
      programs.
  """
  platforms.skip_absent_tpu()
  if define_flags is not None:
    try:
      define_flags()
    except UserError as error:
      _fail(error)

  def guarded(argv: list[str]) -> int:
    del argv
    if not flags.FLAGS["verbosity"].present:
      # absl defaults to INFO, where libraries report every small thing.
      logging.set_verbosity(logging.WARNING)
    try:
      return main() or 0
    except _USER_ERRORS as error:
      _fail(error)
    except KeyboardInterrupt:
      print("interrupted", file=sys.stderr)
      return EXIT_INTERRUPTED

  # Everything but results goes to standard error, where absl logs too.
  app.run(guarded, flags_parser=_parse_flags)
  raise AssertionError("app.run returned")


def define_format() -> None:
  """Defines `--format=table|json`."""
  flags.DEFINE_enum(
    "format",
    "table",
    ["table", "json"],
    "table for people; json prints one JSON object on standard output and"
    " nothing else there.",
  )
  show_in_help("format")


def show_in_help(name: str) -> None:
  """Lists a flag under `--help`, which shows those of the program's own file.

  Args:
    name: a flag that a module shared by programs has defined.
  """
  flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


@contextlib.contextmanager
def json_output() -> Iterator[Callable[[Any], None]]:
  """Keeps standard output for one JSON object.

  Whatever the block prints goes to standard error.

  Yields:
    A function that takes the object; it is printed when the block ends
    without an error.
  """
  records: list[Any] = []
  with contextlib.redirect_stdout(sys.stderr):
    yield records.append
  if len(records) != 1:
    raise AssertionError(f"one JSON object expected, got {len(records)}")
  print(encoding.dumps(records[0], indent=2))


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
  """The error for a name that does not exist, listing those that do.

  Args:
    kind: what is named, for instance "paper".
    name: the name given.
    valid: the names that exist.

  Returns:
    The error, to be raised.
  """
  return UserError(checks.unknown(kind, name, sorted(valid)))


def one_line(error: BaseException) -> str:
  """An error's message on one line, never empty."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  if lines and lines[0].startswith("Error whilst parsing config file"):
    # ml_collections puts the traceback into the message; its end says why.
    return lines[-1]
  return " ".join(lines) or type(error).__name__


def _parse_flags(argv: list[str]) -> list[str]:
  try:
    rest = flags.FLAGS(argv)
  except SystemExit:
    # Only a help flag exits here, with 1; help was asked for and given.
    sys.exit(0)
  except (flags.Error, AttributeError, KeyError, *_USER_ERRORS) as error:
    missing = re.search(r"Flag --(\w+) must have a value other", str(error))
    if missing:
      error = UserError(f"--{missing[1]} is missing; --help shows all flags")
    _fail(error)
  if len(rest) > 1:
    _fail(UserError(f"unexpected argument {rest[1]!r}; flags are --name=value"))
  return rest


def _fail(error: BaseException) -> NoReturn:
  if flags.FLAGS.is_parsed() and logging.get_verbosity() >= logging.DEBUG:
    traceback.print_exception(error)
  print(f"error: {one_line(error)}", file=sys.stderr)
  sys.exit(EXIT_USER_ERROR)
