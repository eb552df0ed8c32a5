"""What a report says about the machine."""

import datetime
import json
import platform

import jax
import pytest

from icml26_jax.report import environment


def test_versions_and_device_are_named():
  found = environment.describe()
  assert found["jax"] == jax.__version__
  assert found["devices"] == 8
  assert found["cores"] >= 1
  assert found["device"] == jax.devices()[0].device_kind


def test_nothing_personal_is_named(monkeypatch):
  monkeypatch.setenv("USER", "somebody")
  monkeypatch.setattr(platform, "node", lambda: "my-machine")
  text = json.dumps(environment.describe())
  assert "my-machine" not in text
  assert "somebody" not in text


def test_date_is_now():
  found = datetime.datetime.strptime(
    environment.describe()["date"], "%Y-%m-%d %H:%M UTC"
  ).replace(tzinfo=datetime.UTC)
  age = datetime.datetime.now(datetime.UTC) - found
  assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=2)


HASH, OTHER = "0123456789abcdef" * 2 + "01234567", "f" * 40


def _write(root, files):
  for name, text in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
  "files",
  [
    # On a branch.
    {".git/HEAD": "ref: refs/heads/a/b\n", ".git/refs/heads/a/b": HASH + "\n"},
    # On a branch whose name git has packed, maybe with an older commit.
    {
      ".git/HEAD": "ref: refs/heads/main\n",
      ".git/packed-refs": "# pack-refs with: peeled fully-peeled sorted\n"
      f"{OTHER} refs/heads/other\n{HASH} refs/heads/main\n^{OTHER}\n",
    },
    {
      ".git/HEAD": "ref: refs/heads/main\n",
      ".git/refs/heads/main": HASH + "\n",
      ".git/packed-refs": f"{OTHER} refs/heads/main\n",
    },
    # On no branch.
    {".git/HEAD": HASH + "\n"},
    # A worktree, whose branches lie with the others.
    {
      ".git": "gitdir: real/worktrees/x\n",
      "real/worktrees/x/HEAD": "ref: refs/heads/main\n",
      "real/worktrees/x/commondir": "../..\n",
      "real/refs/heads/main": HASH + "\n",
    },
  ],
)
def test_commit_is_what_git_has_checked_out(tmp_path, files):
  _write(tmp_path, files)
  assert environment.commit_of(tmp_path) == HASH


@pytest.mark.parametrize(
  "files",
  [
    {},
    {"icml26_jax/__init__.py": ""},
    # A repository without a commit.
    {".git/HEAD": "ref: refs/heads/main\n"},
    {".git/HEAD": ""},
    {".git/HEAD": "no hash\n"},
    {".git": "gitdir: nowhere\n"},
  ],
)
def test_no_commit_is_none(tmp_path, files):
  _write(tmp_path, files)
  assert environment.commit_of(tmp_path) is None


def test_a_repository_further_up_is_not_ours(tmp_path):
  _write(tmp_path, {".git/HEAD": HASH})
  (tmp_path / "site-packages").mkdir()
  assert environment.commit_of(tmp_path / "site-packages") is None
