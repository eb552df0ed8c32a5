"""Models in GGUF files, quantised or not."""

from __future__ import annotations

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import gguf
import numpy as np

from icml26_jax.models import llama
from icml26_jax.pretrained import parameters

# The converter of llama.cpp stores queries and keys of these architectures
# for this pairing; the file does not say so.
_PAIRINGS = {"llama": "interleaved", "qwen2": "half"}

_LAYER_NAMES = {
  "attention_norm": "attn_norm.weight",
  "query": "attn_q.weight",
  "key": "attn_k.weight",
  "value": "attn_v.weight",
  "output": "attn_output.weight",
  "mlp_norm": "ffn_norm.weight",
  "gate": "ffn_gate.weight",
  "up": "ffn_up.weight",
  "down": "ffn_down.weight",
  "query_bias": "attn_q.bias",
  "key_bias": "attn_k.bias",
  "value_bias": "attn_v.bias",
  "output_bias": "attn_output.bias",
}
_NAMES: dict[tuple[str, ...], str] = {
  ("embedding",): "token_embd.weight",
  ("final_norm",): "output_norm.weight",
  ("head",): "output.weight",
  **{
    ("layers", name): f"blk.{{layer}}.{stored}"
    for name, stored in _LAYER_NAMES.items()
  },
}
_DIVISORS = "rope_freqs.weight"
_REQUIRED = object()


class File:
  """An open GGUF file.

  Attributes:
    path: where it is.
    metadata: what it says of itself.
  """

  def __init__(self, path: str | os.PathLike):
    """Opens a file.

    Args:
      path: the file.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: if it is not a whole GGUF file.
    """
    self.path = pathlib.Path(path)
    if not self.path.is_file():
      raise FileNotFoundError(f"there is no file {self.path}")
    try:
      reader = gguf.GGUFReader(self.path)
      self.metadata: Mapping[str, Any] = {
        name: field.contents() for name, field in reader.fields.items()
      }
    # What the package raises depends on where the file breaks off.
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as e:
      raise ValueError(f"{self.path} is not a whole GGUF file: {e}") from e
    self._tensors = {tensor.name: tensor for tensor in reader.tensors}

  @property
  def tensor_names(self) -> tuple[str, ...]:
    return tuple(self._tensors)

  def get(self, key: str, default: Any = _REQUIRED) -> Any:
    """A value of the metadata.

    Raises:
      ValueError: if it is missing and there is no default.
    """
    if key in self.metadata:
      return self.metadata[key]
    if default is _REQUIRED:
      raise ValueError(f"{self.path} lacks {key}")
    return default

  def shape(self, name: str) -> tuple[int, ...]:
    """Shape of a tensor, `[out, in]`."""
    return tuple(int(size) for size in reversed(self._tensors[name].shape))

  def read(self, name: str) -> np.ndarray:
    """A tensor, dequantised to float32 (or as stored, if float16 or 32)."""
    tensor = self._tensors[name]
    try:
      return gguf.dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
      raise ValueError(f"tensor {name} of {self.path}: {error}") from error


def config(file: File, *, dtype: str = "float32") -> llama.Config:
  """Shape of the model in a file.

  Args:
    file: an open file.
    dtype: type to compute in.

  Returns:
    The config.

  Raises:
    ValueError: if the architecture, or something it does, is not supported.
  """
  kind = file.get("general.architecture")
  if kind not in _PAIRINGS:
    raise ValueError(
      f"{file.path} has architecture {kind!r}; supported:"
      f" {', '.join(_PAIRINGS)}"
    )

  def get(key, default=_REQUIRED):
    return file.get(f"{kind}.{key}", default)

  if get("expert_count", 0):
    raise ValueError(
      f"{file.path} is a mixture of {get('expert_count')} experts; only dense"
      " models are supported"
    )
  num_heads, d_model = get("attention.head_count"), get("embedding_length")
  num_kv_heads = get("attention.head_count_kv", num_heads)
  if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int):
    raise ValueError(
      f"{file.path} has a number of heads that differs by layer; only equal"
      " layers are supported"
    )
  head_dim = get("attention.key_length", d_model // num_heads)
  for key in ("attention.value_length", "rope.dimension_count"):
    if get(key, head_dim) != head_dim:
      raise ValueError(
        f"{file.path} has {kind}.{key} {get(key)}; only the size of a key,"
        f" {head_dim}, is supported"
      )
  return llama.Config(
    vocab_size=_shape(file, "token_embd.weight")[0],
    d_model=d_model,
    num_layers=get("block_count"),
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_dim=head_dim,
    d_ff=get("feed_forward_length"),
    rope_base=get("rope.freq_base", 10_000.0),
    rope_pairing=_PAIRINGS[kind],
    rope_divisors=_divisors(file, kind, head_dim),
    norm_eps=get("attention.layer_norm_rms_epsilon"),
    max_length=get("context_length"),
    tie_embeddings="output.weight" not in file.tensor_names,
    qkv_bias="blk.0.attn_q.bias" in file.tensor_names,
    output_bias="blk.0.attn_output.bias" in file.tensor_names,
    dtype=dtype,
  )


def params(
  file: File, shape: llama.Config, *, dtype: str = "float32"
) -> llama.Params:
  """Parameters of the model in a file.

  Args:
    file: an open file.
    shape: from `config`.
    dtype: type of the parameters, `float32` or `bfloat16`.

  Returns:
    The parameters.

  Raises:
    ValueError: if a tensor is missing, left over or of the wrong shape.
  """
  try:
    return parameters.assemble(
      shape,
      _NAMES,
      file.read,
      file.tensor_names,
      ignored=(_DIVISORS,),
      dtype=dtype,
    )
  except ValueError as error:
    raise ValueError(f"{file.path}: {error}") from error


def _shape(file: File, name: str) -> tuple[int, ...]:
  if name not in file.tensor_names:
    raise ValueError(f"{file.path}: tensor {name} is missing")
  return file.shape(name)


def _divisors(file, kind, head_dim) -> tuple[float, ...] | None:
  """Slow-down of the rotary pairs, however the file says it."""
  scaling = file.get(f"{kind}.rope.scaling.type", "none")
  if scaling not in ("none", "linear"):
    raise ValueError(
      f"{file.path} has rotary scaling {scaling!r}; supported: none, linear"
    )
  factor = 1.0
  if scaling == "linear":
    factor = float(file.get(f"{kind}.rope.scaling.factor"))
  if _DIVISORS in file.tensor_names:
    return tuple((factor * file.read(_DIVISORS).astype(float)).tolist())
  return None if factor == 1.0 else (factor,) * (head_dim // 2)
