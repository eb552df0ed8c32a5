import copy
import json
import pathlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from icml26_jax.models import llama
from icml26_jax.pretrained import checkpoint, safetensors

_RECORDS = json.loads(
  pathlib.Path(__file__)
  .with_name("small_golden.json")
  .read_text(encoding="utf-8")
)


def tensors(record):
  """The numbers of `make_small_golden.py`."""
  rng = np.random.default_rng(record["seed"])
  return {
    name: rng.normal(scale=0.3, size=record["shapes"][name]).astype(np.float32)
    for name in sorted(record["shapes"])
  }


def write(folder, record, stored=None, name="model.safetensors"):
  """A directory as transformers writes it."""
  folder.mkdir(exist_ok=True)
  text = json.dumps(record["config"])
  (folder / "config.json").write_text(text, encoding="utf-8")
  stored = tensors(record) if stored is None else stored
  safetensors_numpy.save_file(stored, folder / name)
  return folder


def logits(loaded, tokens):
  apply = jax.jit(llama.apply, static_argnames="config")
  return apply(loaded.params, jnp.array([tokens]), config=loaded.config)[0]


@pytest.mark.parametrize("record", _RECORDS, ids=lambda r: r["name"])
def test_logits_equal_those_of_transformers(tmp_path, record):
  folder = write(tmp_path, record)
  loaded = checkpoint.load(folder, with_tokenizer=False)
  np.testing.assert_allclose(
    logits(loaded, record["tokens"]), record["logits"], atol=5e-5
  )


def test_older_names_of_the_rotary_scaling_are_read(tmp_path):
  (record,) = (r for r in _RECORDS if r["name"] == "llama extended")
  new = safetensors.config(write(tmp_path, record))
  older = copy.deepcopy(record)
  scaling = older["config"].pop("rope_parameters")
  older["config"]["rope_theta"] = scaling.pop("rope_theta")
  for key in ("rope_type", "type"):
    older["config"]["rope_scaling"] = scaling | {"rope_type": "llama3"}
    older["config"]["rope_scaling"][key] = older["config"]["rope_scaling"].pop(
      "rope_type"
    )
    assert safetensors.config(write(tmp_path, older)) == new


def test_several_files_are_read_by_their_index(tmp_path):
  record = _RECORDS[0]
  whole = checkpoint.load(write(tmp_path / "a", record), with_tokenizer=False)
  stored = tensors(record)
  names = sorted(stored)
  parts = {"first.safetensors": names[:7], "second.safetensors": names[7:]}
  folder = tmp_path / "b"
  for file, part in parts.items():
    write(folder, record, {name: stored[name] for name in part}, file)
  index = {name: file for file, part in parts.items() for name in part}
  (folder / "model.safetensors.index.json").write_text(
    json.dumps({"weight_map": index}), encoding="utf-8"
  )
  split = checkpoint.load(folder, with_tokenizer=False)
  jax.tree.map(np.testing.assert_array_equal, split.params, whole.params)
  (folder / "second.safetensors").unlink()
  with pytest.raises(FileNotFoundError, match=r"second\.safetensors"):
    checkpoint.load(folder, with_tokenizer=False)


def test_narrow_files_and_narrow_parameters(tmp_path):
  record = _RECORDS[0]
  wide = tensors(record)
  narrow = {name: x.astype(ml_dtypes.bfloat16) for name, x in wide.items()}
  folder = write(tmp_path, record, narrow)
  loaded = checkpoint.load(folder, with_tokenizer=False)
  assert loaded.params["embedding"].dtype == jnp.float32
  np.testing.assert_array_equal(
    loaded.params["embedding"],
    narrow["model.embed_tokens.weight"].astype(np.float32),
  )
  loaded = checkpoint.load(folder, dtype="bfloat16", with_tokenizer=False)
  assert loaded.config.dtype == "bfloat16"
  assert {x.dtype for x in jax.tree.leaves(loaded.params)} == {
    jnp.dtype("bfloat16")
  }


def test_repeated_tied_matrix_is_not_needed(tmp_path):
  record = _RECORDS[0]
  stored = tensors(record)
  stored["lm_head.weight"] = stored["model.embed_tokens.weight"].copy()
  loaded = checkpoint.load(
    write(tmp_path, record, stored), with_tokenizer=False
  )
  assert "head" not in loaded.params


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"model_type": "gpt2"}, "model_type 'gpt2'; supported: llama, mistral"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu', which is not supported"),
    ({"mlp_bias": True}, "mlp_bias True, which"),
    (
      {"model_type": "mistral", "sliding_window": 4096},
      "sliding_window 4096, which",
    ),
    (
      {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
      "rotary scaling 'yarn'; supported: default, linear, llama3",
    ),
    (
      {"rope_parameters": {"partial_rotary_factor": 0.5}},
      "turns a part of a head",
    ),
    ({"num_key_value_heads": 3}, "num_heads 4 must be a multiple"),
  ],
)
def test_unsupported_models_are_named(tmp_path, change, message):
  record = copy.deepcopy(_RECORDS[0])
  record["config"] |= change
  with pytest.raises(ValueError, match=message):
    checkpoint.load(write(tmp_path, record), with_tokenizer=False)


def test_missing_entry_is_named(tmp_path):
  record = copy.deepcopy(_RECORDS[0])
  del record["config"]["hidden_size"]
  with pytest.raises(ValueError, match=r"config\.json lacks hidden_size"):
    checkpoint.load(write(tmp_path, record), with_tokenizer=False)


def test_missing_left_over_and_misshapen_tensors_are_named(tmp_path):
  record = _RECORDS[0]
  name = "model.layers.1.mlp.up_proj.weight"
  for change, message in (
    ({name: None}, f"tensor {name} is missing"),
    ({"extra": np.zeros(2, np.float32)}, r"1 tensors have no place.*extra"),
    (
      {name: np.zeros((3, 16), np.float32)},
      rf"tensor {name} has shape \(3, 16\), expected \(24, 16\)",
    ),
    (
      {name: np.zeros((16, 24), np.float32)},
      rf"tensor {name} has shape \(16, 24\), expected \(24, 16\)",
    ),
  ):
    stored = {
      k: v for k, v in (tensors(record) | change).items() if v is not None
    }
    with pytest.raises(ValueError, match=message):
      checkpoint.load(write(tmp_path, record, stored), with_tokenizer=False)


def test_damaged_files_are_named(tmp_path):
  folder = write(tmp_path, _RECORDS[0])
  path = folder / "model.safetensors"
  whole = path.read_bytes()
  for part in (whole[:-1], whole[:20], b""):
    path.write_bytes(part)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a whole"):
      checkpoint.load(folder, with_tokenizer=False)
  path.unlink()
  with pytest.raises(FileNotFoundError, match=r"no file .*model\.safetensors"):
    checkpoint.load(folder, with_tokenizer=False)
  (folder / "config.json").write_text("[1]", encoding="utf-8")
  with pytest.raises(ValueError, match="must hold a JSON object"):
    checkpoint.load(folder, with_tokenizer=False)
  (folder / "config.json").write_text("{", encoding="utf-8")
  with pytest.raises(ValueError, match="is not JSON"):
    checkpoint.load(folder, with_tokenizer=False)


def test_unknown_models_and_types_are_named(tmp_path):
  with pytest.raises(FileNotFoundError, match="one of smollm2-135m, a GGUF"):
    checkpoint.load(tmp_path / "nothing")
  with pytest.raises(FileNotFoundError, match=r"no file .*config\.json"):
    checkpoint.load(tmp_path)
  with pytest.raises(ValueError, match="dtype must be one of float32, bfloat"):
    checkpoint.load(tmp_path, dtype="float16")
