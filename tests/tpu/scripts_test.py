"""Scripts for TPU slices: what they would run, and what workers would do."""

import os
import pathlib
import shlex
import shutil
import subprocess
import time

import pytest

from tpu import topology

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tpu"
SCRIPTS = ("create", "setup", "run", "watch", "delete")
PLACE = ("--name=pod-1", "--zone=us-west4-a")
RUN = ("--config=configs/candi_1b.py", "--workdir=shared/one")


def script(name, *arguments, env=None, stdin=""):
  return subprocess.run(
    [str(FOLDER / f"{name}.sh"), *arguments],
    capture_output=True,
    text=True,
    env=env,
    input=stdin,
    timeout=60,
    check=False,
  )


def commands(name, *arguments):
  """Commands of a dry run, each as its list of arguments."""
  done = script(name, *PLACE, *arguments, "--dry_run")
  assert done.returncode == 0, done.stderr
  # Bash splits what bash has quoted.
  split = 'eval "set -- $1"; printf "%s\\0" "$@"'
  return [
    subprocess.run(
      ["bash", "-c", split, "-", line],
      capture_output=True,
      text=True,
      check=True,
    ).stdout.split("\0")[:-1]
    for line in done.stdout.splitlines()
  ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_names_every_flag(name):
  done = script(name, "--help")
  assert done.returncode == 0
  assert done.stdout.startswith(f"usage: tpu/{name}.sh")
  source = (FOLDER / f"{name}.sh").read_text()
  (line,) = [x for x in source.splitlines() if x.startswith("parse_flags")]
  values, switches = shlex.split(line)[1:3]
  for flag in [*values.split(), "name", "zone", "project"]:
    assert f"--{flag}=" in done.stdout
  for switch in [*switches.split(), "dry_run", "help"]:
    assert f"--{switch}" in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (PLACE[:1], "--zone=VALUE is required"),
    ((*PLACE, "--colour=red"), "unknown flag --colour"),
    ((*PLACE, "--zone"), "--zone needs a value"),
    ((*PLACE, "now"), "unexpected argument 'now'"),
    (("--name=Bad_Name", "--zone=z"), "got 'Bad_Name'"),
  ],
)
def test_mistake_is_one_line_and_exit_code_two(name, arguments, message):
  done = script(name, *arguments, "--dry_run")
  assert done.returncode == 2
  assert message in done.stderr
  assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("v5e:16x16", ("v5litepod-256", "v2-alpha-tpuv5-lite")),
    ("v5p:4x4x4", ("v5p-128", "v2-alpha-tpuv5")),
    ("v6e:2x2", ("v6e-4", "v2-alpha-tpuv6e")),
  ],
)
def test_create_asks_for_the_slice(name, expected):
  create, wait = commands("create", f"--topology={name}", "--spot")
  accelerator, image = expected
  assert create == [
    "gcloud", "compute", "tpus", "queued-resources", "create", "pod-1",
    "--node-id=pod-1", f"--accelerator-type={accelerator}",
    f"--runtime-version={image}", "--spot", "--zone=us-west4-a",
  ]  # fmt: skip
  assert wait[4:6] == ["describe", "pod-1"]


@pytest.mark.parametrize("name", topology.names())
def test_accelerator_type_is_that_of_the_compiler(name):
  chip, shape = topology.parse(name)
  count = chip.cores_per_chip
  for size in shape:
    count *= size
  (create,) = commands("create", f"--topology={name}", "--nowait")
  assert f"--accelerator-type={chip.accelerator}-{count}" in create


def test_create_refuses_what_cannot_be():
  for arguments, message in (
    (("--topology=v7x:2x2x1",), "v5e, v5p or v6e"),
    (("--topology=16x16",), "like v5e:16x16"),
    ((), "--topology=VALUE is required"),
    (("--topology=v5e:2x2", "--spot", "--reserved"), "exclude each other"),
  ):
    done = script("create", *PLACE, *arguments, "--dry_run")
    assert (done.returncode, message in done.stderr) == (2, True)


def test_setup_copies_and_installs_everywhere():
  archive, copy, install, mount, check = commands(
    "setup", "--nfs=10.0.0.2:/a b", "--project=p"
  )
  assert archive[:1] + archive[3:4] == ["git", "archive"]
  assert copy[:5] == ["gcloud", "compute", "tpus", "tpu-vm", "scp"]
  for command in (copy, install, mount, check):
    assert "--worker=all" in command
    assert "--project=p" in command
  assert "pip install --quiet -e './icml26_jax[tpu]'" in install[-3]
  assert "mount -t nfs 10.0.0.2:/a\\ b shared" in mount[-3]
  assert "jax.distributed.initialize" in check[-3]


def test_run_starts_training_on_all_workers():
  (start,) = commands(
    "run", *RUN, "--train_args=--config.num_steps=7 --steps=3"
  )
  assert "--worker=all" in start
  assert (
    "../venv/bin/python -m experiments.train --config=configs/candi_1b.py "
    "--workdir=../shared/one --distributed --config.num_steps=7 --steps=3"
  ) in start[-2]


def test_delete_asks_first():
  done = script("delete", *PLACE, stdin="n\n", env={"PATH": os.environ["PATH"]})
  assert done.returncode == 2
  assert "nothing deleted" in done.stderr
  (delete,) = commands("delete")
  assert delete[3:7] == ["queued-resources", "delete", "pod-1", "--force"]


def test_watch_shows_state_and_log():
  state, log = commands("watch", "--worker=all", "--lines=5", "--follow")
  assert "describe" in state
  assert "--worker=all" in log
  assert "tail -n 5 -F runs/log" in log[-2]


@pytest.fixture
def worker(tmp_path):
  """A machine whose gcloud runs remote commands here, and whose training
  program fails as told: it takes its exit codes from a file, one a start."""
  home, folder = tmp_path / "home", tmp_path / "bin"
  (home / "icml26_jax").mkdir(parents=True)
  (home / "venv/bin").mkdir(parents=True)
  folder.mkdir()
  gcloud = folder / "gcloud"
  gcloud.write_text(
    '#!/bin/bash\nfor argument in "$@"; do case $argument in\n'
    '--command=*) cd "$HOME" && exec bash -c "${argument#--command=}";;\n'
    "esac; done\n"
  )
  python = home / "venv/bin/python"
  python.write_text(
    "#!/bin/bash\n"
    'echo "start: $* [$LIBTPU_INIT_ARGS]"\n'
    "code=$(head -n 1 ../codes); sed -i 1d ../codes\n"
    '[ "$code" = wait ] && exec -a experiments.train sleep 60\n'
    'exit "$code"\n'
  )
  gcloud.chmod(0o755)
  python.chmod(0o755)

  class Worker:
    def __init__(self):
      path = f"{folder}:{os.environ['PATH']}"
      self.env = {"HOME": str(home), "PATH": path}

    def codes(self, *codes):
      (home / "codes").write_text("".join(f"{code}\n" for code in codes))

    def log(self):
      path = home / "runs/log"
      return path.read_text() if path.exists() else ""

    def alive(self):
      pid = int((home / "runs/pid").read_text())
      return pathlib.Path(f"/proc/{pid}").exists()

    def wait_for(self, condition):
      end = time.monotonic() + 20
      while not condition():
        assert time.monotonic() < end, self.log()
        time.sleep(0.05)

  return Worker()


def test_interrupted_run_starts_again_and_a_broken_one_does_not(worker):
  worker.codes(75, 75, 1, 0)
  done = script(
    "run", *PLACE, *RUN, "--libtpu_args=--a=1 --b=2", env=worker.env
  )
  assert "started" in done.stdout, done.stderr
  worker.wait_for(lambda: worker.log().count("start:") == 3)
  worker.wait_for(lambda: not worker.alive())
  assert worker.log().count("start:") == 3
  assert "[--a=1 --b=2]" in worker.log()
  # The same command goes on with the run.
  script("run", *PLACE, *RUN, env=worker.env)
  worker.wait_for(lambda: worker.log().count("start:") == 4)


def test_run_is_never_started_twice_and_can_be_stopped(worker):
  worker.codes("wait", 0)
  script("run", *PLACE, *RUN, env=worker.env)
  worker.wait_for(lambda: "start:" in worker.log())
  again = script("run", *PLACE, *RUN, env=worker.env)
  assert "already running" in again.stdout
  shown = script("watch", *PLACE, env=worker.env)
  assert "running" in shown.stdout
  assert "start: -m experiments.train" in shown.stdout
  stopped = script("run", *PLACE, "--stop", env=worker.env)
  assert stopped.returncode == 0, stopped.stderr
  worker.wait_for(lambda: not worker.alive())
  assert worker.log().count("start:") == 1
  assert "not running" in script("watch", *PLACE, env=worker.env).stdout


def test_scripts_are_clean():
  if shutil.which("shellcheck") is None:
    pytest.skip("shellcheck is not installed")
  files = sorted(map(str, FOLDER.glob("*.sh")))
  assert len(files) == len(SCRIPTS) + 1
  done = subprocess.run(
    ["shellcheck", "-x", *files], capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout
