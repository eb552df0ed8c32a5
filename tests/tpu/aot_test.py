"""The program as a user runs it."""

import importlib.util
import json
import subprocess
import sys

import pytest

CONFIG = "--config=configs/candi_char.py"
SMALL = (
  CONFIG,
  "--config.mesh.data=2",
  "--config.mesh.fsdp=2",
  "--config.model.num_layers=2",
  "--config.model.d_model=128",
  "--config.model.num_heads=1",
  "--config.model.dtype=bfloat16",
  "--config.model.attention=kernel",
  "--config.model.remat=qkv+context",
  "--config.model.scan_layers=True",
  "--config.data.length=128",
  "--config.data.batch_size=8",
)


def run(*arguments):
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed: pip install 'icml26_jax[test]'")
  return subprocess.run(
    [sys.executable, "-m", "tpu.aot", *arguments],
    capture_output=True,
    text=True,
    timeout=600,
    check=False,
  )


def record(*arguments):
  done = run(*arguments, "--format=json")
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)


@pytest.mark.slow  # starts Python and compiles a training step
def test_training_step_of_a_small_model():
  result = record(*SMALL, "--topology=v5e:2x2")
  assert result["schema"] == 1
  assert result["fits"] is True
  assert result["chips"] == 4
  assert result["mesh"] == {"data": 2, "fsdp": 2, "model": 1}

  memory = result["hbm"]
  assert memory["total"] == (
    memory["arguments"]
    + memory["output"]
    - memory["aliased"]
    + memory["temporaries"]
    + memory["code"]
  )
  # Parameters, their average and two moments, half of them on each chip.
  assert memory["arguments"] >= 4 * 4 * result["params"] / 2 * 0.9

  # By hand: 12 d^2 a layer, and the output table.
  d, layers, vocabulary, tokens, length = 128, 2, 27, 8 * 128, 128
  n = layers * 12 * d**2 + d * vocabulary
  model = 6 * n * tokens + 12 * layers * d * length * tokens
  flops = result["flops"]
  assert flops["model"] == model
  # "qkv" and "context" are kept: the other products but the last of each
  # block, whose result nobody asks for, and attention's scores run again.
  assert model < flops["executed"] < 1.5 * model

  guess = result["estimate"]
  assert guess["seconds"] >= guess["least_seconds_by_flops"]
  parts = (
    "compute_seconds", "kernel_seconds", "other_seconds",
    "collective_seconds_exposed", "copy_seconds_exposed",
  )  # fmt: skip
  assert guess["seconds"] == pytest.approx(sum(guess[p] for p in parts))
  assert guess["kernel_seconds"] > 0
  assert guess["mfu"] == pytest.approx(model / 4 / 197e12 / guess["seconds"])
  assert {row["kind"] for row in result["collectives"]} >= {"all-reduce"}
  assert all(row["intended"] for row in result["parameter_gathers"])
  assert any("N = " in text for text in result["assumptions"])


@pytest.mark.slow  # starts Python and compiles a sampler
def test_sampler_of_a_small_model():
  arguments = (*SMALL, "--topology=v5e:2x2", "--program=sample")
  result = record(*arguments, "--sample_steps=5")
  assert result["program"] == "sample"
  assert result["rows"] == 4
  d, layers, vocabulary, tokens, length = 128, 2, 27, 4 * 128, 128
  n = layers * 12 * d**2 + d * vocabulary
  forward = 2 * n * tokens + 4 * layers * d * length * tokens
  assert result["flops"]["model"] == 5 * forward
  assert result["estimate"]["seconds"] > 0


@pytest.mark.slow  # starts Python and compiles
def test_table_for_people_shows_the_verdict():
  done = run(*SMALL, "--topology=v6e:2x2", "--config.model.attention=plain")
  assert done.returncode == 0, done.stderr
  for text in ("fits", "MFU", "collectives", "The estimate assumes"):
    assert text in done.stdout


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((CONFIG, "--topology=v5e:3x3"), "valid: v5e:2x2"),
    (("--config=configs/none.py", "--topology=v5e:2x2"), "candi_char"),
    ((CONFIG,), "topology"),
    ((CONFIG, "--topology=v5e:2x2", "--config.mesh.data=8"), "mesh"),
  ],
)
def test_mistake_is_one_line_and_exit_code_two(arguments, message):
  done = run(*arguments)
  assert done.returncode == 2
  assert done.stdout == ""
  assert message in done.stderr
  assert "Traceback" not in done.stderr
