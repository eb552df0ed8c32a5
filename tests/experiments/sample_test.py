"""The sampling program."""

import json
import shutil

import numpy as np
import pytest

from experiments import cli, sample
from icml26_jax.data import tokenizers
from icml26_jax.training import checkpoint

OPTIONS = {
  "num_samples": 2,
  "steps": 3,
  "length": None,
  "prompt": None,
  "mask_char": "_",
  "temperature": 1.0,
  "top_k": None,
  "top_p": None,
  "policy": "ancestral",
  "seed": 0,
  "process_options": {},
}


def _draw(run, **options):
  return sample.draw(str(run.workdir), None, OPTIONS | options)


def test_program_prints_one_object_and_writes_files(
  programs, whole_run, tmp_path
):
  out = tmp_path / "out"
  process = programs.start(
    "experiments.sample",
    f"--checkpoint={whole_run.workdir}",
    "--num_samples=3",
    "--steps=4",
    "--prompt=the ___ fox",
    "--temperature=0.8",
    "--top_p=0.9",
    "--option=update=release",
    f"--out={out}",
    "--format=json",
  )
  stdout, stderr = process.communicate(timeout=300)
  assert process.returncode == 0, stderr
  record = json.loads(stdout)
  assert (record["schema"], record["step"]) == (1, 200)
  assert record["process_options"] == {"update": "release"}
  assert len(record["samples"]) == 3
  for drawn in record["samples"]:
    assert drawn["text"].startswith("the ")
    assert drawn["text"][7:11] == " fox"
    assert len(drawn["tokens"]) == 12
    # A row that is complete before the last step needs no further call.
    assert 1 <= drawn["nfe"] <= 4
  assert json.loads((out / "sample.json").read_text()) == record
  assert (out / "samples.txt").read_text().count("--- ") == 3


def test_same_seed_draws_the_same(whole_run):
  first, again, other = (
    _draw(whole_run, seed=seed)["samples"] for seed in (0, 0, 1)
  )
  assert first == again
  assert first != other


@pytest.mark.parametrize("policy", ["confident", "random"])
def test_policies_fill_everything(whole_run, policy):
  for drawn in _draw(whole_run, policy=policy, length=9)["samples"]:
    assert len(drawn["tokens"]) == 9


def test_greedy_decoding_leaves_no_choice(whole_run):
  # One step and the best token only: rows differ by their noise alone.
  drawn = _draw(whole_run, steps=1, top_k=1, prompt="the quick br")["samples"]
  assert {row["text"] for row in drawn} == {"the quick br"}


def test_table_shows_every_sample(whole_run, capsys, tmp_path):
  record = _draw(whole_run)
  record["samples"][0]["text"] = "two\nlines"
  sample.show(record, tmp_path)
  printed = capsys.readouterr().out
  assert "two\u21b5lines" in printed
  assert record["samples"][1]["text"].strip() in printed
  assert "2 samples of 12 tokens from candi at step 200" in printed


def test_damaged_checkpoint_is_skipped(whole_run, tmp_path, capfd):
  copy = tmp_path / "run"
  shutil.copytree(whole_run.workdir, copy)
  shutil.rmtree(copy / checkpoint.FOLDER / "200" / "ema_params")
  record = sample.draw(str(copy), None, OPTIONS)
  assert record["step"] == 180
  assert "checkpoint of step 200" in capfd.readouterr().err


@pytest.mark.parametrize(
  ("options", "error", "message"),
  [
    ({"prompt": "x" * 13}, cli.UserError, "prompt of 13 tokens is longer"),
    ({"mask_char": "__"}, cli.UserError, "mask_char must be one character"),
    ({"temperature": 0.0}, ValueError, "temperature must be in"),
    ({"top_p": 2.0}, ValueError, "p must be in"),
    (
      {"process_options": {"udpate": 1}},
      ValueError,
      r"process option 'udpate' \(did you mean 'update'",
    ),
    (
      {"process_options": {"guidance": 3}},
      ValueError,
      "guidance is a function or an array, which only code can give",
    ),
    ({"process_options": {"vocab_size": 3}}, ValueError, "unknown process opt"),
    (
      {"process_options": {"r_max": "abc"}},
      ValueError,
      r"'r_max': 'abc'}: could not convert",
    ),
    (
      {"process_options": {"eps": None}},
      ValueError,
      r"process options {'eps': None}: ",
    ),
  ],
)
def test_bad_option_is_refused(whole_run, options, error, message):
  with pytest.raises(error, match=message):
    _draw(whole_run, **options)


def test_directory_without_a_run_is_refused(tmp_path):
  with pytest.raises(ValueError, match="there is no directory"):
    sample.draw(str(tmp_path / "none"), None, OPTIONS)
  (tmp_path / "file").write_text("x")
  with pytest.raises(ValueError, match="not the directory of a training run"):
    sample.draw(str(tmp_path), None, OPTIONS)


def test_prompt_keeps_text_and_leaves_gaps():
  tokenizer = tokenizers.load("char27")
  tokens, mask = sample.parse_prompt(tokenizer, "ab#c", "#", 6)
  assert mask.tolist() == [True, True, False, True, False, False]
  assert tokenizer.decode(tokens[mask]) == "abc"
  tokens, mask = sample.parse_prompt(tokenizer, None, "_", 3)
  assert not mask.any()
  np.testing.assert_array_equal(tokens, 0)


def test_options_are_numbers_where_they_can_be():
  assert sample.parse_options(["a=1", "b=0.5", "c=x=y", "d=None"]) == {
    "a": 1,
    "b": 0.5,
    "c": "x=y",
    "d": None,
  }
  with pytest.raises(cli.UserError, match="must be NAME=VALUE, got 'a'"):
    sample.parse_options(["a"])


def test_folder_of_somebody_else_is_refused(tmp_path):
  sample.check_folder(tmp_path / "new")
  sample.check_folder(tmp_path)
  (tmp_path / "thesis.tex").write_text("x")
  with pytest.raises(cli.UserError, match=r"holds 'thesis.tex', which is not"):
    sample.check_folder(tmp_path)
  with pytest.raises(cli.UserError, match="is not a directory"):
    sample.check_folder(tmp_path / "thesis.tex")
  (tmp_path / "thesis.tex").rename(tmp_path / "samples.txt")
  (tmp_path / "sample.json").write_text("{}")
  sample.check_folder(tmp_path)
