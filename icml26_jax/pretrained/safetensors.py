"""Models of the Llama family in Hugging Face directories."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from typing import Any

import numpy as np
import safetensors

from icml26_jax.layers import rotary
from icml26_jax.models import llama
from icml26_jax.pretrained import parameters

_ARCHITECTURES = ("llama", "mistral", "qwen2")
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_LAYER_NAMES = {
  "attention_norm": "input_layernorm.weight",
  "query": "self_attn.q_proj.weight",
  "key": "self_attn.k_proj.weight",
  "value": "self_attn.v_proj.weight",
  "output": "self_attn.o_proj.weight",
  "mlp_norm": "post_attention_layernorm.weight",
  "gate": "mlp.gate_proj.weight",
  "up": "mlp.up_proj.weight",
  "down": "mlp.down_proj.weight",
  "query_bias": "self_attn.q_proj.bias",
  "key_bias": "self_attn.k_proj.bias",
  "value_bias": "self_attn.v_proj.bias",
  "output_bias": "self_attn.o_proj.bias",
}
_HEAD = "lm_head.weight"
_NAMES: dict[tuple[str, ...], str] = {
  ("embedding",): "model.embed_tokens.weight",
  ("final_norm",): "model.norm.weight",
  ("head",): _HEAD,
  **{
    ("layers", name): f"model.layers.{{layer}}.{stored}"
    for name, stored in _LAYER_NAMES.items()
  },
}


def config(
  folder: str | os.PathLike, *, dtype: str = "float32"
) -> llama.Config:
  """Shape of the model in a directory, from its `config.json`.

  Args:
    folder: the directory.
    dtype: type to compute in.

  Returns:
    The config.

  Raises:
    FileNotFoundError: if there is no `config.json`.
    ValueError: if the architecture, or something it does, is not supported.
  """
  path = pathlib.Path(folder) / "config.json"
  said = read_json(path)
  kind = said.get("model_type")
  if kind not in _ARCHITECTURES:
    raise ValueError(
      f"{path} has model_type {kind!r}; supported: {', '.join(_ARCHITECTURES)}"
    )
  refused = {
    "hidden_act": said.get("hidden_act", "silu") != "silu",
    "mlp_bias": bool(said.get("mlp_bias")),
    "sliding_window": (
      said.get("sliding_window") is not None
      and said.get("use_sliding_window", kind == "mistral")
    ),
  }
  for key, is_refused in refused.items():
    if is_refused:
      raise ValueError(
        f"{path} has {key} {said[key]!r}, which is not supported"
      )

  def get(key):
    if key not in said:
      raise ValueError(f"{path} lacks {key}")
    return said[key]

  num_heads, d_model = get("num_attention_heads"), get("hidden_size")
  head_dim = said.get("head_dim") or d_model // num_heads
  base, divisors = _rope(said, path, head_dim)
  attention_bias = bool(said.get("attention_bias"))
  return llama.Config(
    vocab_size=get("vocab_size"),
    d_model=d_model,
    num_layers=get("num_hidden_layers"),
    num_heads=num_heads,
    num_kv_heads=said.get("num_key_value_heads") or num_heads,
    head_dim=head_dim,
    d_ff=get("intermediate_size"),
    rope_base=base,
    rope_pairing="half",
    rope_divisors=divisors,
    norm_eps=get("rms_norm_eps"),
    max_length=get("max_position_embeddings"),
    tie_embeddings=bool(said.get("tie_word_embeddings")),
    qkv_bias=attention_bias or kind == "qwen2",
    output_bias=attention_bias,
    dtype=dtype,
  )


def params(
  folder: str | os.PathLike, shape: llama.Config, *, dtype: str = "float32"
) -> llama.Params:
  """Parameters of the model in a directory, from its safetensors files.

  Args:
    folder: the directory, with one file or an index of several.
    shape: from `config`.
    dtype: type of the parameters, `float32` or `bfloat16`.

  Returns:
    The parameters.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if a file is damaged, or a tensor is missing, left over or of
      the wrong shape.
  """
  folder = pathlib.Path(folder)
  with contextlib.ExitStack() as stack:
    read: dict[str, Any] = {}
    for path in _files(folder):
      try:
        file = stack.enter_context(
          safetensors.safe_open(path, framework="numpy")
        )
      except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a whole file: {error}") from error
      for name in file.keys():  # noqa: SIM118 - not a mapping
        read[name] = functools.partial(file.get_tensor, name)
    try:
      return parameters.assemble(
        shape,
        _NAMES,
        lambda name: np.asarray(read[name]()),
        read.keys(),
        # Some files repeat the tied matrix.
        ignored=(_HEAD,) if shape.tie_embeddings else (),
        dtype=dtype,
      )
    except ValueError as error:
      raise ValueError(f"{folder}: {error}") from error


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file.

  Raises:
    FileNotFoundError: if there is none.
    ValueError: if it does not hold a JSON object.
  """
  if not path.is_file():
    raise FileNotFoundError(f"there is no file {path}")
  try:
    value = json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  if not isinstance(value, dict):
    raise ValueError(f"{path} must hold a JSON object")
  return value


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
  index = folder / _INDEX
  if not index.is_file():
    files = [folder / _WEIGHTS]
  else:
    names = read_json(index).get("weight_map", {}).values()
    files = [folder / name for name in sorted(set(names))]
  for path in files:
    if not path.is_file():
      raise FileNotFoundError(f"there is no file {path}")
  return files


def _rope(said, path, head_dim) -> tuple[float, tuple[float, ...] | None]:
  """Base and divisors of the rotary frequencies."""
  # One dictionary since transformers 5, before that two entries.
  scaling = said.get("rope_parameters") or said.get("rope_scaling") or {}
  base = scaling.get("rope_theta", said.get("rope_theta", 10_000.0))
  kind = scaling.get("rope_type", scaling.get("type", "default"))
  if scaling.get("partial_rotary_factor", 1.0) != 1.0:
    raise ValueError(f"{path} turns a part of a head, which is not supported")
  if kind == "default":
    return base, None
  if kind == "linear":
    return base, (float(scaling["factor"]),) * (head_dim // 2)
  if kind == "llama3":
    return base, rotary.long_context_divisors(
      head_dim,
      base=base,
      factor=scaling["factor"],
      low_frequency_factor=scaling["low_freq_factor"],
      high_frequency_factor=scaling["high_freq_factor"],
      original_length=scaling["original_max_position_embeddings"],
    )
  raise ValueError(
    f"{path} has rotary scaling {kind!r}; supported: default, linear, llama3"
  )
