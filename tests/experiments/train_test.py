"""The training program, end to end."""

import json
import os
import signal
import socket
import time

import jax
import numpy as np
import pytest

from experiments import cli, config_file, train
from icml26_jax.training import checkpoint, metrics, trainer
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import workdir as workdir_lib


def _records(workdir):
  path = workdir / metrics.FILE_NAME
  return metrics.read(path) if path.exists() else []


def _wait_for_step(process, workdir, step):
  """Returns once a run has logged a step."""
  deadline = time.monotonic() + 240
  while time.monotonic() < deadline:
    records = _records(workdir)
    if records and records[-1]["step"] >= step:
      return
    if process.poll() is not None:
      break
    time.sleep(0.002)
  process.kill()
  pytest.fail(f"step {step} was not reached: {process.communicate()[1]}")


def _checksums(workdir, step=200):
  """What the checkpoint says of every leaf: parameters, moments, key."""
  path = workdir / checkpoint.FOLDER / str(step) / "host" / "metadata"
  return json.loads(path.read_text())["checksums"]


def _params(workdir):
  task = recipe_lib.build(recipe_lib.from_dict(workdir_lib.read(workdir)))
  return trainer.load_params(task, workdir)[0]


def _assert_same_end(workdir, whole):
  assert _checksums(workdir) == _checksums(whole)
  for a, b in zip(
    jax.tree.leaves(_params(workdir)),
    jax.tree.leaves(_params(whole)),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)
  # Speed aside, the metrics too are those of an uninterrupted run.
  losses = [
    [(record["step"], record["loss"]) for record in _records(path)]
    for path in (workdir, whole)
  ]
  assert losses[0] == losses[1]


def test_start_and_end_say_what_is_going_on(whole_run):
  lines = whole_run.stderr.splitlines()
  assert "parameters on mesh data=1 x fsdp=1 x model=1" in lines[0]
  assert lines[1].endswith("as char27: 7,084 tokens to learn from")
  assert lines[2] == f"fresh start: no checkpoint in {whole_run.workdir}"
  last, hint = whole_run.stdout.splitlines()
  assert last.startswith("step 200, mean loss ")
  assert " tokens/s; checkpoint " in last
  assert last.endswith(str(whole_run.workdir / checkpoint.FOLDER / "200"))
  assert hint == (
    "to sample: python -m experiments.sample --checkpoint="
    + str(whole_run.workdir)
  )


# Before the first checkpoint, and at two steps drawn at random.
@pytest.mark.parametrize(
  "step", [5, *np.random.default_rng(0).integers(25, 170, size=2).tolist()]
)
@pytest.mark.slow  # two processes start, one after the other
def test_killed_run_ends_bit_for_bit_like_a_whole_one(
  programs, whole_run, tmp_path, step
):
  workdir = tmp_path / "run"
  process = programs.train(workdir)
  _wait_for_step(process, workdir, step)
  os.kill(process.pid, signal.SIGKILL)
  process.communicate()
  assert process.returncode == -signal.SIGKILL
  resumed = programs.train(workdir)
  _, stderr = resumed.communicate(timeout=300)
  assert resumed.returncode == 0, stderr
  assert "resumed from step" in stderr or step < 20
  _assert_same_end(workdir, whole_run.workdir)


@pytest.mark.slow  # two processes start, one after the other
def test_ctrl_c_saves_and_says_how_to_go_on(programs, whole_run, tmp_path):
  workdir = tmp_path / "run"
  process = programs.train(workdir)
  _wait_for_step(process, workdir, 30)
  process.send_signal(signal.SIGINT)
  _, stderr = process.communicate(timeout=300)
  assert process.returncode == train.EXIT_RESUMABLE
  assert stderr.endswith("stopped early; run the same command to go on\n")
  stopped = _records(workdir)[-1]["step"]
  assert (workdir / checkpoint.FOLDER / str(stopped)).is_dir()
  resumed = programs.train(workdir)
  _, stderr = resumed.communicate(timeout=300)
  assert f"resumed from step {stopped} of {workdir}" in stderr
  _assert_same_end(workdir, whole_run.workdir)


@pytest.mark.slow  # two processes start at once and talk to each other
def test_two_processes_have_the_losses_of_one(programs, whole_run, tmp_path):
  with socket.socket() as free:
    free.bind(("localhost", 0))
    address = f"localhost:{free.getsockname()[1]}"
  workdir = tmp_path / "run"
  processes = [
    programs.train(
      workdir,
      "--config.mesh.data=2",
      "--steps=10",
      f"--coordinator_address={address}",
      "--num_processes=2",
      f"--process_id={i}",
    )
    for i in range(2)
  ]
  outputs = [process.communicate(timeout=300) for process in processes]
  for process, (_, stderr) in zip(processes, outputs, strict=True):
    assert process.returncode == 0, stderr
  assert "using 2 of 2 devices" in outputs[0][1]
  assert "of 2 process(es)" in outputs[0][1]
  assert outputs[1][0] == ""  # the first process speaks for all
  got = [record["loss"] for record in _records(workdir)]
  expected = [record["loss"] for record in _records(whole_run.workdir)][:10]
  assert len(got) == 10
  # Reference: one process. Sums are taken in another order.
  np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_json_is_one_object(programs, whole_run):
  process = programs.train(whole_run.workdir, "--format=json")
  stdout, stderr = process.communicate(timeout=300)
  record = json.loads(stdout)
  assert (record["schema"], record["step"]) == (1, 200)
  assert record["interrupted"] is False
  assert "nothing to do: already at step 200" in stderr


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--stepz=3"], "Did you mean: steps"),
    (["--config.mesh.data=64"], "mesh data=64 x fsdp=1 x model=1 needs 64"),
    (["--config.seed=1"], "another config: seed is 0, asked 1"),
    (["--num_processes=2"], "must be given together; coordinator_address and"),
  ],
)
def test_mistake_is_one_line_and_code_2(
  programs, whole_run, arguments, message
):
  process = programs.train(whole_run.workdir, *arguments)
  stdout, stderr = process.communicate(timeout=300)
  assert process.returncode == 2
  assert stdout == ""
  last = stderr.splitlines()[-1]
  assert last.startswith("error: ")
  assert message in last
  assert "Traceback" not in stderr


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config=nope.py"], r"unknown config 'nope.py'; valid: .*candi_1b.py"),
    (["--config", "nope.py"], r"unknown config 'nope.py'"),
    (["--config=TINY", "--config.sede=1"], r"'sede' \(did you mean 'seed'"),
    (
      ["--config=TINY", "--config.model.d_modle", "1"],
      r"'model.d_modle' \(did you mean 'model.d_model'",
    ),
    (["--config=TINY", "--config.seed.x=1"], "unknown config field 'seed.x'"),
    (["--config=TINY:fast"], "config .*tiny.py: .*positional argument"),
  ],
)
def test_bad_config_argument_is_refused(programs, arguments, message):
  given = [text.replace("TINY", str(programs.config)) for text in arguments]
  with pytest.raises(cli.UserError, match=message):
    config_file.check_arguments(given)


def test_good_config_arguments_pass(programs):
  config_file.check_arguments(
    [f"--config={programs.config}", "--config.model.d_ff=9", "--steps=3"]
  )
  config_file.check_arguments(["--steps=3"])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("x = 1", "has no function get_config"),
    ("def get_config():\n  raise ValueError('no size')", "no size"),
    ("import", "invalid syntax"),
  ],
)
def test_broken_config_file_is_told(tmp_path, text, message):
  path = tmp_path / "broken.py"
  path.write_text(text)
  with pytest.raises(cli.UserError, match=message):
    config_file.check_arguments([f"--config={path}"])
