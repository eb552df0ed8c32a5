"""Shape of a model of the Llama family, and of its parameters."""

from __future__ import annotations

import dataclasses

from icml26_jax import checks
from icml26_jax.layers import remat, rotary

Path = tuple[str, ...]
Shape = tuple[int, ...]
Axes = tuple[str, ...]

_DTYPES = ("float32", "bfloat16", "float64")


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape of a model.

  Attributes:
    vocab_size: number of tokens V.
    d_model: width of the residual stream D.
    num_layers: L.
    num_heads: heads of the queries H, a multiple of `num_kv_heads`.
    num_kv_heads: heads of the keys and values K.
    head_dim: components of a head, even.
    d_ff: width of the SwiGLU F.
    rope_base: base of the rotary frequencies.
    rope_pairing: which components the weights pair, `interleaved` or `half`.
    rope_divisors: slow-down of each pair, see `rotary.frequencies`.
    norm_eps: added to the mean square by the normalisation.
    max_length: positions the model was trained for; more are refused.
    tie_embeddings: True if the embedding table is also the output matrix.
    qkv_bias: True if queries, keys and values have a bias.
    output_bias: True if the output of the attention has a bias.
    dtype: type to compute in. float32 means float32 on every platform;
      normalisation, softmax and logits are never narrower.
    remat: what the backward pass computes again: `none`, `full` (all of a
      layer) or `dots` (all but matrix products).
  """

  vocab_size: int
  d_model: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  d_ff: int
  rope_base: float = 10_000.0
  rope_pairing: str = "half"
  rope_divisors: tuple[float, ...] | None = None
  norm_eps: float = 1e-5
  max_length: int = 2048
  tie_embeddings: bool = True
  qkv_bias: bool = False
  output_bias: bool = False
  dtype: str = "float32"
  remat: str = "none"

  def __post_init__(self):
    for name in (
      "vocab_size",
      "d_model",
      "num_layers",
      "num_heads",
      "num_kv_heads",
      "d_ff",
      "max_length",
    ):
      checks.check_range(name, getattr(self, name), low=1)
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads {self.num_heads} must be a multiple of num_kv_heads"
        f" {self.num_kv_heads}"
      )
    rotary.check_pairing("rope_pairing", self.rope_pairing)
    rotary.frequencies(
      self.head_dim, base=self.rope_base, divisors=self.rope_divisors
    )
    checks.check_range("norm_eps", self.norm_eps, low=0.0, open_low=True)
    for name, allowed in (("dtype", _DTYPES), ("remat", remat.POLICIES)):
      if getattr(self, name) not in allowed:
        raise ValueError(
          f"{name} must be one of {', '.join(allowed)}, got"
          f" {getattr(self, name)!r}"
        )


def parameters(config: Config) -> dict[Path, tuple[Shape, Axes]]:
  """Shape and logical axes of every array, by path."""
  c = config
  d, h, k, n, f = c.d_model, c.num_heads, c.num_kv_heads, c.head_dim, c.d_ff
  heads = ("heads", "head_dim")
  layers: dict[str, tuple[Shape, Axes]] = {
    "attention_norm": ((d,), ("embed",)),
    "query": ((h, n, d), (*heads, "embed")),
    "key": ((k, n, d), (*heads, "embed")),
    "value": ((k, n, d), (*heads, "embed")),
    "output": ((d, h, n), ("embed", *heads)),
    "mlp_norm": ((d,), ("embed",)),
    "gate": ((f, d), ("mlp", "embed")),
    "up": ((f, d), ("mlp", "embed")),
    "down": ((d, f), ("embed", "mlp")),
  }
  if c.qkv_bias:
    layers["query_bias"] = ((h, n), heads)
    layers["key_bias"] = ((k, n), heads)
    layers["value_bias"] = ((k, n), heads)
  if c.output_bias:
    layers["output_bias"] = ((d,), ("embed",))
  table = ((c.vocab_size, d), ("vocab", "embed"))
  shapes: dict[Path, tuple[Shape, Axes]] = {
    ("embedding",): table,
    ("final_norm",): ((d,), ("embed",)),
  }
  if not c.tie_embeddings:
    shapes[("head",)] = table
  for name, (shape, axes) in layers.items():
    shapes[("layers", name)] = ((c.num_layers, *shape), ("layers", *axes))
  return shapes


def num_inputs(name: str) -> int:
  """How many of a matrix's last axes are inputs."""
  return 2 if name == "output" else 1
