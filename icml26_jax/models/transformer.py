"""What every transformer here shares: its shape, and its pure functions."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.layers import remat as remat_lib
from icml26_jax.layers import stack

Params = Any

DTYPES = ("float32", "bfloat16")
ATTENTIONS = ("plain", "kernel")

# Predictions start near uniform.
OUTPUT_INIT = nn.initializers.normal(0.02)


@dataclasses.dataclass(frozen=True)
class Config:
  """Shape of a transformer, and how it is computed.

  Attributes:
    vocab_size: number of tokens V, at least 2.
    d_model: width of the residual stream.
    num_layers: number of blocks.
    num_heads: attention heads; their width d_model / num_heads must be even.
    d_ff: width inside the position-wise network; None for 4 d_model.
    qk_norm: whether queries and keys are normalised.
    dtype: what the blocks compute in, "float32" or "bfloat16"; parameters,
      softmax and logits are float32 in any case.
    remat: what the backward pass keeps; see `layers.remat.policy_fn`.
    attention: "plain", or "kernel" for `pallas_kernels.attention`, which on a
      TPU never writes the scores to memory and elsewhere computes them again
      in the backward pass; not with `qk_norm`, and not if causal. Where a mask
      is given, the plain way is taken.
    scan_layers: whether to compile one block and loop over it, or every block.
      Parameters are the same. Loops compile faster; on a CPU they run slower.
  """

  vocab_size: int
  d_model: int = 128
  num_layers: int = 4
  num_heads: int = 4
  d_ff: int | None = None
  qk_norm: bool = False
  dtype: str = "float32"
  remat: str = "none"
  attention: str = "plain"
  scan_layers: bool = True

  def __post_init__(self):
    checks.check_range("vocab_size", self.vocab_size, low=2)
    for name in ("d_model", "num_layers", "num_heads"):
      checks.check_range(name, getattr(self, name), low=1)
    if self.d_ff is not None:
      checks.check_range("d_ff", self.d_ff, low=1)
    if self.d_model % self.num_heads:
      raise ValueError(
        f"d_model must be a multiple of num_heads {self.num_heads}, got"
        f" {self.d_model}"
      )
    if self.head_dim % 2:
      raise ValueError(
        "d_model / num_heads must be even for rotary positions, got"
        f" {self.d_model} / {self.num_heads} = {self.head_dim}"
      )
    if self.dtype not in DTYPES:
      raise ValueError(
        f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}"
      )
    if self.attention not in ATTENTIONS:
      raise ValueError(
        f"attention must be one of {', '.join(ATTENTIONS)}, got"
        f" {self.attention!r}"
      )
    if self.attention == "kernel" and self.qk_norm:
      raise ValueError("attention 'kernel' cannot have qk_norm; use 'plain'")
    remat_lib.check(self.remat)

  @property
  def head_dim(self) -> int:
    """Width of a head."""
    return self.d_model // self.num_heads

  @property
  def hidden_width(self) -> int:
    """Width inside the position-wise network."""
    return 4 * self.d_model if self.d_ff is None else self.d_ff


def make_stack(config: Config, *, is_causal: bool, name: str) -> stack.Stack:
  """The blocks of a transformer.

  Raises:
    ValueError: if causal attention is to use the kernel, which has no mask.
  """
  if is_causal and config.attention == "kernel":
    raise ValueError("attention 'kernel' has no mask; use 'plain' if causal")
  return stack.Stack(
    num_layers=config.num_layers,
    num_heads=config.num_heads,
    d_ff=config.hidden_width,
    qk_norm=config.qk_norm,
    is_causal=is_causal,
    use_kernel=config.attention == "kernel",
    remat=config.remat,
    scan=config.scan_layers,
    name=name,
  )


def init(module: nn.Module, key: jax.Array, *example: Any) -> Params:
  """Parameters of a module as nested dictionaries of float32 arrays."""
  return _init(module, key, *example)


@functools.partial(jax.jit, static_argnums=0)
def _init(module, key, *example):
  """One program, as running it step by step takes many times longer."""
  return nn.meta.unbox(module.init(key, *example))["params"]


def logical_axes(module: nn.Module, *example: Any) -> Params:
  """The parameters' tree, with a tuple of logical axis names a leaf."""
  boxed = jax.eval_shape(
    lambda key: module.init(key, *example), jax.random.key(0)
  )
  specs = nn.get_partition_spec(boxed)["params"]
  return jax.tree.map(
    tuple, specs, is_leaf=lambda node: isinstance(node, jax.P)
  )


def run(module: nn.Module, params: Params, *inputs: Any) -> jax.Array:
  """What a module with these parameters returns."""
  result: jax.Array = module.apply({"params": params}, *inputs)  # type: ignore[assignment]
  return result


def num_params(make: Callable[[jax.Array], Params]) -> int:
  """Number of parameters that `make(key)` would create."""
  shapes = jax.eval_shape(make, jax.random.key(0))
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def logits(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """Products with an output table, accumulated and kept in float32.

  Args:
    x: `[B, T, D]`, in the compute dtype.
    kernel: `[D, V]` float32.

  Returns:
    `[B, T, V]` float32.
  """
  rows = x.reshape(-1, x.shape[-1])
  y = jnp.dot(rows, kernel.astype(x.dtype), preferred_element_type=jnp.float32)
  return y.reshape(*x.shape[:-1], kernel.shape[-1])
