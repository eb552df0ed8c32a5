import dataclasses
import json
import pathlib

import gguf as gguf_package
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.models import llama
from icml26_jax.pretrained import checkpoint, gguf, tokenizer

# Rows of 32 numbers, so that they can be quantised.
CONFIG = llama.Config(
  vocab_size=7,
  d_model=32,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  d_ff=64,
  rope_base=500.0,
  rope_pairing="interleaved",
  norm_eps=1e-5,
  max_length=64,
)
METADATA = {
  "block_count": 2,
  "context_length": 64,
  "embedding_length": 32,
  "feed_forward_length": 64,
  "attention.head_count": 4,
  "attention.head_count_kv": 2,
  "rope.freq_base": 500.0,
  "rope.dimension_count": 8,
  "attention.layer_norm_rms_epsilon": 1e-5,
}
LAYER = {
  "attn_norm.weight": (32,),
  "attn_q.weight": (32, 32),
  "attn_k.weight": (16, 32),
  "attn_v.weight": (16, 32),
  "attn_output.weight": (32, 32),
  "ffn_norm.weight": (32,),
  "ffn_gate.weight": (64, 32),
  "ffn_up.weight": (64, 32),
  "ffn_down.weight": (32, 64),
}


def tensors():
  shapes = {"token_embd.weight": (7, 32), "output_norm.weight": (32,)}
  for i in range(2):
    shapes |= {f"blk.{i}.{name}": shape for name, shape in LAYER.items()}
  rng = np.random.default_rng(0)
  return {
    name: rng.normal(scale=0.3, size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def write(path, *, stored=None, metadata=None, kind="llama", quantise=None):
  """Writes a file; metadata of None is left out."""
  writer = gguf_package.GGUFWriter(path, kind)
  for key, value in (METADATA | (metadata or {})).items():
    if isinstance(value, list):
      writer.add_array(f"{kind}.{key}", value)
    elif isinstance(value, float):
      writer.add_float32(f"{kind}.{key}", value)
    elif isinstance(value, str):
      writer.add_string(f"{kind}.{key}", value)
    elif value is not None:
      writer.add_uint32(f"{kind}.{key}", value)
  for name, value in (tensors() if stored is None else stored).items():
    if quantise is None or value.ndim == 1:
      writer.add_tensor(name, value)
    else:
      data = gguf_package.quantize(value, quantise)
      writer.add_tensor(name, data, raw_dtype=quantise)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def load(path):
  return checkpoint.load(path, with_tokenizer=False)


def test_tensors_find_their_place(tmp_path):
  loaded = load(write(tmp_path / "model.gguf"))
  assert loaded.config.norm_eps == pytest.approx(1e-5)
  assert loaded.config == dataclasses.replace(
    CONFIG, norm_eps=loaded.config.norm_eps
  )
  stored = tensors()
  np.testing.assert_array_equal(
    loaded.params["embedding"], stored["token_embd.weight"]
  )
  layers = loaded.params["layers"]
  np.testing.assert_array_equal(
    layers["key"][1], stored["blk.1.attn_k.weight"].reshape(2, 8, 32)
  )
  np.testing.assert_array_equal(
    layers["output"][0], stored["blk.0.attn_output.weight"].reshape(32, 4, 8)
  )
  np.testing.assert_array_equal(
    layers["down"][1], stored["blk.1.ffn_down.weight"]
  )


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_quantised_tensors_are_read_as_the_package_reads_them(tmp_path, kind):
  kind = gguf_package.GGMLQuantizationType[kind]
  loaded = load(write(tmp_path / "model.gguf", quantise=kind))
  value = tensors()["blk.1.ffn_up.weight"]
  data = gguf_package.quantize(value, kind)
  np.testing.assert_array_equal(
    loaded.params["layers"]["up"][1], gguf_package.dequantize(data, kind)
  )
  np.testing.assert_allclose(loaded.params["layers"]["up"][1], value, atol=0.1)


def permuted(weight, heads):
  """Rows in the order in which llama.cpp's converter stores them."""
  rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1)
  return rows.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_converted_model_predicts_what_transformers_predicts(tmp_path, kind):
  """A tiny model of `small_golden.json`, stored as the converter does."""
  path = pathlib.Path(__file__).with_name("small_golden.json")
  records = json.loads(path.read_text(encoding="utf-8"))
  (record,) = (r for r in records if r["name"] == kind)
  rng = np.random.default_rng(record["seed"])
  given = {
    name: rng.normal(scale=0.3, size=record["shapes"][name]).astype(np.float32)
    for name in sorted(record["shapes"])
  }
  stored = {
    "token_embd.weight": given["model.embed_tokens.weight"],
    "output_norm.weight": given["model.norm.weight"],
  }
  names = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
  }
  for name, value in given.items():
    if not name.startswith("model.layers."):
      continue
    _, _, layer, rest = name.split(".", 3)
    part, suffix = rest.rsplit(".", 1)
    if kind == "llama" and part[-6:] in ("q_proj", "k_proj"):
      value = permuted(value, 4 if "q_proj" in part else 2)
    stored[f"blk.{layer}.{names[part]}.{suffix}"] = value
  loaded = load(
    write(
      tmp_path / "model.gguf",
      stored=stored,
      kind=kind,
      metadata={
        "embedding_length": 16,
        "feed_forward_length": 24,
        "rope.dimension_count": 4,
        "rope.freq_base": 10_000.0,
      },
    )
  )
  apply = jax.jit(llama.apply, static_argnames="config")
  logits = apply(
    loaded.params, jnp.array([record["tokens"]]), config=loaded.config
  )
  np.testing.assert_allclose(logits[0], record["logits"], atol=5e-5)


def test_slow_down_of_the_rotary_pairs_is_read(tmp_path):
  path = tmp_path / "model.gguf"
  stored = tensors() | {"rope_freqs.weight": np.float32([1, 2, 4, 8])}
  assert load(write(path, stored=stored)).config.rope_divisors == (1, 2, 4, 8)
  linear = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
  loaded = load(write(path, metadata=linear))
  assert loaded.config.rope_divisors == (2, 2, 2, 2)


def test_own_output_matrix_is_read(tmp_path):
  head = np.random.default_rng(1).normal(size=(7, 32)).astype(np.float32)
  loaded = load(
    write(tmp_path / "model.gguf", stored=tensors() | {"output.weight": head})
  )
  assert not loaded.config.tie_embeddings
  np.testing.assert_array_equal(loaded.params["head"], head)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"kind": "mamba"}, "architecture 'mamba'; supported: llama, qwen2"),
    ({"metadata": {"expert_count": 8}}, "mixture of 8 experts"),
    (
      {"metadata": {"attention.head_count_kv": [2, 1]}},
      "number of heads that differs by layer",
    ),
    (
      {"metadata": {"rope.dimension_count": 4}},
      "llama.rope.dimension_count 4; only the size of a key, 8",
    ),
    (
      {"metadata": {"rope.scaling.type": "yarn"}},
      "rotary scaling 'yarn'; supported: none, linear",
    ),
    ({"metadata": {"block_count": None}}, "lacks llama.block_count"),
    (
      {"metadata": {"block_count": 3}},
      r"tensor blk\.2\.\S+ is missing",
    ),
    ({"metadata": {"block_count": 1}}, "9 tensors have no place"),
  ],
)
def test_unsupported_files_are_named(tmp_path, arguments, message):
  path = write(tmp_path / "model.gguf", **arguments)
  with pytest.raises(ValueError, match=message) as raised:
    load(path)
  assert "model.gguf" in str(raised.value)


def test_transposed_tensor_is_named(tmp_path):
  stored = tensors()
  name = "blk.0.ffn_up.weight"
  stored[name] = np.ascontiguousarray(stored[name].T)
  path = write(tmp_path / "model.gguf", stored=stored)
  message = rf"tensor {name} has shape \(32, 64\), expected \(64, 32\)"
  with pytest.raises(ValueError, match=message):
    load(path)


def test_file_that_breaks_off_is_named_wherever_it_does(tmp_path):
  whole = write(tmp_path / "model.gguf").read_bytes()
  path = tmp_path / "part.gguf"
  lengths = np.linspace(0, len(whole) - 1, 60).astype(int)
  for length in lengths:
    path.write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"part\.gguf is not a whole GGUF"):
      load(path)


def test_other_files_are_named(tmp_path):
  path = tmp_path / "model.gguf"
  path.write_bytes(b"neither here nor there" * 100)
  with pytest.raises(ValueError, match="is not a whole GGUF file"):
    load(path)
  with pytest.raises(FileNotFoundError, match="there is no file"):
    gguf.File(tmp_path / "nothing.gguf")


def test_missing_or_foreign_tokenizer_is_named(tmp_path):
  path = write(tmp_path / "model.gguf")
  with pytest.raises(ValueError, match=r"lacks tokenizer\.ggml\.model"):
    checkpoint.load(path)
  file = gguf.File(path)
  file.metadata = {**file.metadata, "tokenizer.ggml.model": "llama"}
  with pytest.raises(ValueError, match="tokenizer of kind 'llama'; supported"):
    tokenizer.from_gguf(file)
