"""The program that checks laws on a user's model."""

import dataclasses
import json
import pathlib

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from experiments import cli, validate
from experiments.validators import (
  llama_subject,
  loading,
  measure,
  subject,
  transformer_subject,
)
from icml26_jax.models import causal, dit, llama
from icml26_jax.training import recipe as recipe_lib

_GOLDEN = pathlib.Path(__file__).parents[1] / "pretrained/small_golden.json"

CONFIG = llama.Config(
  vocab_size=23,
  d_model=16,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=24,
  rope_pairing="half",
  max_length=32,
)


def tokens(rows=2, length=12, vocab_size=23):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.integers(vocab_size, size=(rows, length)), jnp.int32)


def make(config=CONFIG, **options):
  params = llama.init(jax.random.key(0), config)
  return llama_subject.make("tiny", params, config, tokens(), **options)


def verdicts(record):
  return {row["law"]: row["verdict"] for row in record["laws"]}


def other_pairing(params, tokens, *, config):
  other = dataclasses.replace(config, rope_pairing="interleaved")
  return llama.apply(params, tokens, config=other)


def wrong_gradient(params, tokens, *, config):
  down = jax.lax.stop_gradient(params["layers"]["down"])
  layers = {**params["layers"], "down": down}
  return llama.apply({**params, "layers": layers}, tokens, config=config)


def test_all_laws_of_a_tied_model_hold_beside_controls_that_move():
  record = validate.check_subject(make(), None)
  assert verdicts(record) == dict.fromkeys(
    ["swiglu", "query_key", "value_output", "attention_gain", "mlp_gain"],
    "holds",
  )
  assert record["holds"]
  assert set(record["absent"]) == {"final_gain", "output", "router"}
  for row in record["laws"]:
    assert row["largest"] < 1e-6
    assert row["weakest"] > 1e-3
    assert len(row["largest_by_layer"]) == row["layers"] == 2
  # Weights that were not trained cannot tell pairings apart.
  assert record["rotary_pairing"]["verdict"] != "broken"


def test_untied_model_has_two_laws_more():
  untied = dataclasses.replace(CONFIG, tie_embeddings=False, qkv_bias=True)
  record = validate.check_subject(make(untied), None)
  found = verdicts(record)
  assert found["final_gain"] == found["output"] == "holds"
  assert set(record["absent"]) == {"router"}
  assert record["holds"]


def test_other_rotary_pairing_is_caught():
  record = validate.check_subject(
    make(apply=other_pairing), ["query_key", "swiglu"]
  )
  assert verdicts(record) == {"query_key": "broken", "swiglu": "holds"}
  assert not record["holds"]


def test_wrong_gradient_is_caught():
  record = validate.check_subject(make(apply=wrong_gradient), ["swiglu"])
  assert verdicts(record) == {"swiglu": "broken"}
  assert not record["holds"]


def test_nan_is_broken_and_names_the_layer():
  broken = make()
  up = broken.params["layers"]["up"].at[1, 0, 0].set(jnp.nan)
  layers = {**broken.params["layers"], "up": up}
  broken = broken._replace(params={**broken.params, "layers": layers})
  record = validate.check_subject(broken, ["swiglu"])
  (row,) = record["laws"]
  assert row["verdict"] == "broken"
  assert np.isnan(row["largest"])


def test_check_without_a_gradient_has_no_power():
  still = make()._replace(loss=lambda params, batch: jnp.float32(0.0))
  record = validate.check_subject(still, ["swiglu"])
  assert verdicts(record) == {"swiglu": "no power"}
  assert not record["holds"]


@pytest.mark.parametrize(
  ("maxima", "control", "verdict", "layer"),
  [
    ([1e-8, 2e-7], [0.1, 0.2], "holds", 1),
    ([1e-6, 1e-9], [0.1, 0.2], "holds", 0),
    ([1e-8, 2e-6], [0.1, 0.2], "broken", 1),
    ([np.nan, 1.0], [0.1, 0.2], "broken", 0),
    ([0.0, 0.0], [0.1, 1e-6], "no power", 0),
    ([0.0, 0.0], [0.1, np.nan], "no power", 0),
  ],
)
def test_verdict(maxima, control, verdict, layer):
  row = measure.judge("x", np.array(maxima), {"c": np.array(control)}, 1e-6)
  assert (row.verdict, row.layer) == (verdict, layer)


def test_weakest_control_is_the_one_that_moves_least():
  row = measure.judge(
    "x",
    np.zeros(2),
    {"a": np.array([0.5, 0.3]), "b": np.array([0.2, 0.9])},
    1e-6,
  )
  assert (row.control, row.weakest) == ("b", 0.2)
  alone = measure.judge("x", np.zeros(2), {}, 1e-6)
  assert (alone.verdict, alone.control) == ("holds", "")


@pytest.mark.parametrize(
  ("gap", "verdict"), [(1.0, "holds"), (-1.0, "broken"), (0.0, "undecided")]
)
def test_pairing_is_judged_by_the_loss(gap, verdict):
  rng = np.random.default_rng(0)

  def losses(params, batch):
    del params, batch
    own = rng.normal(size=(2, 30)).astype(np.float32)
    return jnp.asarray(own), jnp.asarray(own + gap + 0.1 * own**2 - 0.1)

  some = make()._replace(pairing_losses=losses)
  found = measure.Program(some, []).pairing(some.params, some.batch)
  assert found.verdict == verdict
  assert found.low <= found.other_loss - found.loss <= found.high


@pytest.mark.slow  # Loads the pretrained model and runs it twice.
def test_weights_read_with_the_wrong_pairing_are_caught(smollm2):
  params, config, tokenizer = smollm2
  text = loading.text_tokens(
    tokenizer,
    loading.find_text("stdlib:docstrings"),
    rows=1,
    length=65,
    seed=0,
  )
  found = {}
  for pairing in ("interleaved", "half"):
    declared = dataclasses.replace(config, rope_pairing=pairing)
    checked = llama_subject.make("x", params, declared, jnp.asarray(text))
    found[pairing] = validate.check_subject(checked, [subject.PAIRING])
  assert found["interleaved"]["holds"]
  assert not found["half"]["holds"]
  losses = found["half"]["rotary_pairing"]
  assert losses["loss"] - losses["other_loss"] > 0.5


def _recipe(process, **model):
  kind = causal.Config if process == "autoregressive" else dit.Config
  return recipe_lib.Recipe(
    process=process,
    model=kind(vocab_size=27, d_model=16, num_layers=2, num_heads=2, **model),
    data=recipe_lib.DataConfig(
      corpus="stdlib:prose", tokenizer="char27", length=12, batch_size=4
    ),
    optimizer=recipe_lib.OptimizerConfig(),
    num_steps=1,
  )


@pytest.mark.parametrize(
  ("process", "model", "laws"),
  [
    (
      "autoregressive",
      {"dtype": "bfloat16"},
      {
        "value_output",
        "query_key",
        "attention_gain",
        "mlp_gain",
        "final_gain",
        "output",
      },
    ),
    (
      "mdlm",
      {"qk_norm": True, "time_conditioning": False},
      {"value_output", "attention_gain", "mlp_gain", "final_gain", "output"},
    ),
  ],
)
def test_laws_of_transformers_that_we_train(process, model, laws):
  task = transformer_subject.task_of(_recipe(process, **model))
  params = task.init(jax.random.key(1))
  # As if trained: what starts at 0 or 1 would hide what it does.
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: x + 0.2 * rng.normal(size=x.shape).astype(np.float32), params
  )
  rows = tokens(4, 12, 27)
  index = jnp.arange(4, dtype=jnp.int32)
  batch = {
    "tokens": rows,
    "mask": jnp.ones(rows.shape, jnp.bool_),
    "index": index,
    "stratum": index / 4,
  }
  checked = transformer_subject.make(
    "ours", task, params, batch, jax.random.key(2)
  )
  record = validate.check_subject(checked, None)
  assert verdicts(record) == dict.fromkeys(laws, "holds")
  assert set(record["absent"]) == set(subject.LAWS) - laws
  assert record["rotary_pairing"] is None


def test_workdir_of_ours_is_checked(whole_run):
  record = validate.check(
    str(whole_run.workdir),
    None,
    corpus="random",
    rows=2,
    length=None,
    seed=0,
  )
  assert record["holds"]
  assert set(verdicts(record)) == {"value_output", "query_key", "output"}
  assert record["model"].endswith("at step 200")
  assert (record["rows"], record["length"]) == (2, 12)
  with pytest.raises(cli.UserError, match="apply is for pretrained models"):
    loading.load(
      str(whole_run.workdir),
      corpus="random",
      rows=1,
      length=None,
      seed=0,
      apply="a:b",
    )


@pytest.fixture
def folder(tmp_path):
  """A Hugging Face directory."""
  records = json.loads(_GOLDEN.read_text(encoding="utf-8"))
  record = records[0]
  rng = np.random.default_rng(record["seed"])
  stored = {
    name: rng.normal(scale=0.3, size=record["shapes"][name]).astype(np.float32)
    for name in sorted(record["shapes"])
  }
  path = tmp_path / "model"
  path.mkdir()
  (path / "config.json").write_text(json.dumps(record["config"]))
  safetensors_numpy.save_file(stored, path / "model.safetensors")
  return path


def test_program_tells_by_its_exit_code(programs, folder, tmp_path):
  (tmp_path / "my_model.py").write_text(
    "import dataclasses\n"
    "from icml26_jax.models import llama\n"
    "def apply(params, tokens, *, config):\n"
    "  wrong = {'half': 'interleaved', 'interleaved': 'half'}\n"
    "  config = dataclasses.replace(\n"
    "    config, rope_pairing=wrong[config.rope_pairing])\n"
    "  return llama.apply(params, tokens, config=config)\n"
  )
  programs.env["PYTHONPATH"] = str(tmp_path)
  command = [
    "experiments.validate",
    f"--params={folder}",
    "--corpus=random",
    "--length=8",
  ]
  right = programs.start(*command, "--format=json")
  wrong = programs.start(*command, "--apply=my_model:apply")
  stdout, stderr = right.communicate(timeout=300)
  assert right.returncode == 0, stderr
  record = json.loads(stdout)
  assert (record["schema"], record["holds"]) == (1, True)
  assert record["tolerance"] == validate.TOLERANCE
  stdout, stderr = wrong.communicate(timeout=300)
  assert wrong.returncode == 1, stderr
  (line,) = (line for line in stdout.splitlines() if "other_pairing" in line)
  assert line.split()[0] == "query_key"
  assert line.split()[-1] == "broken"
  assert "query_key is broken, most in layer" in stdout
  assert max(map(len, stdout.splitlines())) <= 80
  del programs.env["PYTHONPATH"]


def test_table_fits_a_narrow_terminal(capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "80")
  rows = [
    measure.Row(
      "attention_gain",
      126,
      1.25e-7,
      3,
      "value_output_per_head",
      0.5,
      "no power",
    ),
    measure.Row("output", 1, float("nan"), 0, "", float("nan"), "broken"),
  ]
  validate.show(
    {
      "model": "some",
      "rows": 2,
      "length": 64,
      "corpus": "stdlib:prose",
      "laws": [row._asdict() for row in rows],
      "rotary_pairing": measure.Pairing(
        "half", 5.0, 4.0, -1.5, -0.5, "broken"
      )._asdict(),
      "absent": {"router": "there are [no] experts"},
      "tolerance": 1e-6,
    }
  )
  printed = capsys.readouterr().out
  assert "\u2026" not in printed
  assert max(map(len, printed.splitlines())) <= 80
  words = [line.split() for line in printed.splitlines()]
  assert [
    "attention_gain", "126", "1.2e-07", "value_output_per_head", "5.0e-01",
    "no", "power",
  ] in words  # fmt: skip
  assert ["output", "1", "NaN", "-", "broken"] in words
  assert "output is broken, most in layer 0 of 0 to 0" in printed
  assert "there are [no] experts" in printed
  assert "4.00 with the other pairing: broken" in " ".join(printed.split())


def _load(source, **options):
  options = dict(corpus="random", rows=1, length=8, seed=0) | options
  return loading.load(str(source), **options)


def test_bad_arguments_are_refused(folder, tmp_path):
  with pytest.raises(
    cli.UserError, match=r"unknown law 'swigl' \(did you mean"
  ):
    validate.choose("swigl")
  with pytest.raises(cli.UserError, match="--law must name a law"):
    validate.choose(" , ")
  with pytest.raises(cli.UserError, match=r"unknown params 'smollm' .*smollm2"):
    _load("smollm")
  with pytest.raises(FileNotFoundError, match="there is no"):
    _load(tmp_path / "none.gguf")
  with pytest.raises(
    cli.UserError, match=r"neither config\.json .* nor recipe"
  ):
    _load(tmp_path)
  with pytest.raises(cli.UserError, match="length must be at least 2, got 1"):
    _load(folder, length=1)
  long = _load(folder, length=10**5)
  with pytest.raises(ValueError, match="are more than the max_length"):
    long.loss(long.params, long.batch)
  for name, message in (
    ("nomodule:f", "No module named 'nomodule'"),
    ("math:nothing", "has no attribute 'nothing'"),
    ("math:pi", "is not a function"),
    ("math", "must be MODULE:FUNCTION"),
  ):
    with pytest.raises(cli.UserError, match=message):
      _load(folder, apply=name)


def test_corpus_that_is_unknown_or_too_short_is_refused(tmp_path):
  from icml26_jax.data import tokenizers

  tokenizer = tokenizers.load("char27")
  with pytest.raises(ValueError, match="corpus must be 'stdlib:prose'"):
    # Before the weights, which are not there, are asked for.
    _load(tmp_path / "none.gguf", corpus="stdlib:poems")
  short = tmp_path / "short.txt"
  short.write_text("too short\n")
  corpus = loading.find_text(f"file:{short}")
  with pytest.raises(ValueError, match="10 tokens, fewer than 2 rows of 8"):
    loading.text_tokens(tokenizer, corpus, rows=2, length=8, seed=0)
  text = loading.text_tokens(tokenizer, corpus, rows=1, length=8, seed=0)
  assert tokenizer.decode(text[0]) == "too shor"


def test_law_that_the_model_has_not_is_refused_with_the_reason():
  with pytest.raises(
    cli.UserError,
    match="tiny has no law 'final_gain': the output matrix is tied",
  ):
    validate.check_subject(make(), ["final_gain"])
  with pytest.raises(cli.UserError, match="rotary_pairing needs a pretrained"):
    validate.check_subject(make(with_pairing=False), ["rotary_pairing"])


@pytest.mark.parametrize("tolerance", ["0", "1", "nan"])
def test_bad_tolerance_is_refused(programs, tolerance):
  process = programs.start(
    "experiments.validate",
    "--params=smollm2-135m",
    f"--tolerance={tolerance}",
  )
  stdout, stderr = process.communicate(timeout=60)
  assert process.returncode == cli.EXIT_USER_ERROR
  assert stdout == ""
  assert "error: tolerance must be in (0, 1), got" in stderr
  assert "Traceback" not in stderr


def test_list_names_everything(programs):
  process = programs.start(
    "experiments.validate", "--law=list", "--format=json"
  )
  stdout, _ = process.communicate(timeout=60)
  names = [law["name"] for law in json.loads(stdout)["laws"]]
  assert names == [*subject.LAWS, subject.PAIRING]
  assert process.returncode == 0
  assert not flags.FLAGS.is_parsed() or "law" not in flags.FLAGS
