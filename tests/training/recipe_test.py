import dataclasses
import json

import jax
import ml_collections
import numpy as np
import pytest

from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion import sampling
from icml26_jax.models import dit
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import sharding


def test_recipe_survives_json_and_config(make_recipe):
  recipe = make_recipe(
    process_options={"r_max": 0.3},
    mesh={"model": 2, "data": 2},
    rules={"vocab": None, "batch": ["data", "fsdp"]},
  )
  text = json.dumps(recipe_lib.to_dict(recipe))
  assert recipe_lib.from_dict(json.loads(text)) == recipe
  config = ml_collections.ConfigDict(json.loads(text))
  assert recipe_lib.from_config(config) == recipe
  assert hash(recipe) == hash(recipe_lib.from_dict(json.loads(text)))


def test_mappings_are_kept_as_sorted_pairs(make_recipe):
  recipe = make_recipe(mesh={"model": 2, "data": 1})
  assert recipe.mesh == (("data", 1), ("model", 2))
  assert recipe == make_recipe(mesh=(("data", 1), ("model", 2)))


def test_own_rules_replace_the_defaults_of_their_axis(make_recipe):
  rules = make_recipe(rules={"vocab": "fsdp"}).all_rules
  assert [target for axis, target in rules if axis == "vocab"] == ["fsdp"]
  assert make_recipe().all_rules == sharding.DEFAULT_RULES


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ("num_stepz", 1, r"field 'num_stepz' \(did you mean 'num_steps'\?\)"),
    ("model.d_modle", 1, r"'model.d_modle' \(did you mean 'model.d_model'"),
    ("data.corpse", "x", r"'data.corpse' \(did you mean 'data.corpus'"),
    ("optimizer.lr", 1, r"unknown field 'optimizer.lr'.*valid: optimizer.lear"),
    ("process", "cnadi", r"'cnadi' \(did you mean 'candi'\?\); valid: autoreg"),
    (
      "process_options",
      {"r_mix": 1},
      r"process option 'r_mix'.*valid: .*r_max",
    ),
    ("process_options", {"r_max": 0.6}, "r_max must be in"),
    ("process_options", {"space": "x"}, "'x'; valid: one_hot, embedding"),
    ("num_steps", 0, r"num_steps must be in \[1, inf\], got 0"),
    ("seed", -1, "seed must be in"),
    ("ema_decay", 1.0, r"ema_decay must be in \[0, 1\), got 1.0"),
    ("accumulation", 0, "accumulation must be in"),
    ("data.length", 0, "data.length must be in"),
    ("data.batch_size", 0, "data.batch_size must be in"),
  ],
)
def test_bad_value_is_refused(make_recipe, path, value, message):
  fields = recipe_lib.to_dict(make_recipe())
  group, _, name = path.rpartition(".")
  (fields[group] if group else fields)[name] = value
  with pytest.raises(ValueError, match=message):
    recipe_lib.from_dict(fields)


@pytest.mark.parametrize(
  ("path", "value", "message"),
  [
    ("num_steps", "many", "num_steps must be int, got 'many'"),
    ("num_steps", 1.5, "num_steps must be int, got 1.5"),
    ("num_steps", True, "num_steps must be int, got True"),
    ("ema_decay", "x", r"ema_decay must be float \| None, got 'x'"),
    ("model.dtype", 32, "model.dtype must be str, got 32"),
    ("data", 3, "data must be a group of fields"),
  ],
)
def test_wrong_type_is_refused(make_recipe, path, value, message):
  fields = recipe_lib.to_dict(make_recipe())
  group, _, name = path.rpartition(".")
  (fields[group] if group else fields)[name] = value
  with pytest.raises(TypeError, match=message):
    recipe_lib.from_dict(fields)


def test_integer_will_do_for_a_float(make_recipe):
  fields = recipe_lib.to_dict(make_recipe())
  fields["optimizer"]["weight_decay"] = 1
  assert recipe_lib.from_dict(fields).optimizer.weight_decay == 1


@pytest.mark.parametrize("name", ["num_steps", "data.corpus"])
def test_missing_field_is_named(make_recipe, name):
  fields = recipe_lib.to_dict(make_recipe())
  group, _, leaf = name.rpartition(".")
  del (fields[group] if group else fields)[leaf]
  with pytest.raises(ValueError, match=f"field {name} is missing"):
    recipe_lib.from_dict(fields)


def test_network_must_fit_the_process(make_recipe):
  with pytest.raises(
    TypeError,
    match=r"'autoregressive' must be .*got icml26_jax.models.dit.Config",
  ):
    make_recipe("autoregressive", model=dit.Config(27))


def test_masking_has_no_noise_to_embed(make_recipe):
  with pytest.raises(ValueError, match="needs a process with Gaussian noise"):
    make_recipe("mdlm", process_options={"space": "embedding"})


def test_autoregression_has_no_process_options(make_recipe):
  with pytest.raises(ValueError, match="must be empty for autoregressive"):
    make_recipe("autoregressive", process_options={"eps": 0.1})


_EMBEDDED = {"space": "embedding"}


@pytest.mark.parametrize(
  ("process", "options"),
  [
    ("candi", {}),
    ("candi", _EMBEDDED),
    ("mdlm", {}),
    ("continuous", {}),
    ("autoregressive", {}),
  ],
)
def test_every_process_has_a_loss_near_that_of_guessing(
  make_recipe, process, options
):
  task = recipe_lib.build(make_recipe(process, process_options=options))
  data = recipe_lib.load_data(task.recipe)
  batch = data.train.batch(seed=0, step=0, batch_size=8)
  for name, spec in task.batch_spec.items():
    assert (batch[name].shape, batch[name].dtype) == (spec.shape, spec.dtype)
  params = jax.jit(task.init)(jax.random.key(0))
  loss, metrics = jax.jit(task.loss_fn)(params, batch, jax.random.key(1))
  # ln 27 = 3.3 nats a token, times a weight of mean 1 for the diffusions.
  assert 1.5 < float(loss) < 8.0
  counted = 8 * (11 if process == "autoregressive" else 12)
  assert float(metrics["weight"]) == counted
  axes = jax.tree.structure(
    task.logical_axes, is_leaf=lambda node: isinstance(node, tuple)
  )
  assert axes == jax.tree.structure(params)


@pytest.mark.parametrize("options", [{}, _EMBEDDED])
def test_process_and_network_sample_together(make_recipe, options):
  task = recipe_lib.build(make_recipe("candi", process_options=options))
  params = jax.jit(task.init)(jax.random.key(0))
  process = task.process(params, update="release")
  assert isinstance(process, process_lib.Process)
  tokens, _ = jax.jit(
    lambda params, key: sampling.sample(
      key,
      task.process(params, update="release"),
      task.denoise_fn(params),
      (2, 12),
      sampling.time_grid(3),
    )
  )(params, jax.random.key(1))
  assert tokens.shape == (2, 12)
  assert 0 <= int(tokens.min()) <= int(tokens.max()) < 27


def test_autoregressive_task_has_a_causal_network_only(make_recipe):
  task = recipe_lib.build(make_recipe("autoregressive"))
  params = jax.jit(task.init)(jax.random.key(0))
  tokens = np.zeros((1, 5), np.int32)
  assert task.apply_causal(params, tokens).shape == (1, 5, 27)
  for refused in (task.process, task.denoise_fn):
    with pytest.raises(ValueError, match="has no corruption process"):
      refused(params)


def test_data_are_train_and_held_out_text(make_recipe):
  data = recipe_lib.load_data(make_recipe(), with_validation=True)
  assert data.tokenizer.vocab_size == 27
  assert data.train.length == data.validation.length == 12
  assert len(data.train.tokens) > 4 * len(data.validation.tokens)
  assert recipe_lib.load_data(make_recipe()).validation is None


def test_fingerprint_follows_text_and_tokenizer(make_recipe, tmp_path):
  def fingerprint(**fields):
    recipe = make_recipe()
    data = dataclasses.replace(recipe.data, **fields)
    size = 256 if data.tokenizer == "byte" else 27
    model = dataclasses.replace(recipe.model, vocab_size=size)
    return recipe_lib.load_data(
      dataclasses.replace(recipe, data=data, model=model)
    ).fingerprint

  other = tmp_path / "other.txt"
  other.write_text("another text " * 200)
  prints = [
    fingerprint(),
    fingerprint(corpus=f"file:{other}"),
    fingerprint(tokenizer="byte"),
  ]
  assert fingerprint(batch_size=4) == prints[0]
  assert len(set(prints)) == 3


def test_vocabulary_must_be_the_tokenizers(make_recipe):
  with pytest.raises(
    ValueError, match="must be the 27 tokens of char27, got 9"
  ):
    recipe_lib.load_data(make_recipe(model=dit.Config(9)))


def test_window_longer_than_the_text_is_refused(make_recipe, corpus):
  data = recipe_lib.DataConfig(corpus, "char27", length=10**6, batch_size=1)
  with pytest.raises(ValueError, match="length must be at most"):
    recipe_lib.load_data(make_recipe(data=data))


def test_tokenizer_alone(make_recipe, corpus):
  assert recipe_lib.load_tokenizer(make_recipe()).vocab_size == 27
  data = recipe_lib.DataConfig(corpus, "bpe:270", length=12, batch_size=8)
  recipe = make_recipe(data=data, model=dit.Config(270))
  tokenizer = recipe_lib.load_tokenizer(recipe)
  assert (
    tokenizer.fingerprint == recipe_lib.load_data(recipe).tokenizer.fingerprint
  )
