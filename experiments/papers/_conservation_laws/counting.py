"""Part (c): how many laws small blocks have, by the rank of a Lie algebra."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.layers import rotary
from icml26_jax.report import claims
from icml26_jax.theory import conservation

# Angle from one position to the next; no multiple of pi.
_TURN = 0.7
_SEED = 20260706


class Block(NamedTuple):
  """A block small enough to count.

  Attributes:
    name: what it is.
    shapes: of its parameters.
    apply: `apply(params, inputs)`.
    inputs: shape of the random inputs.
    laws: number of laws by the theory.
    source: where that number is from.
  """

  name: str
  shapes: dict[str, tuple[int, ...]]
  apply: Callable[[Any, jax.Array], jax.Array]
  inputs: tuple[int, ...]
  laws: int
  source: str


class Count(NamedTuple):
  """A block, its number of parameters, and the number of laws found."""

  block: Block
  num_params: int
  found: int


def blocks() -> list[Block]:
  """The blocks that are counted."""
  gated = {"A": (2, 2), "B": (2, 2), "C": (2, 2)}
  plain = {"A": (3, 3), "C": (3, 2)}
  heads = {name: (2, 2) for name in "QKVO"}
  experts = {"W": (2, 2), "A": (2, 2, 1), "B": (2, 2, 1), "C": (2, 1, 1)}
  wide, narrow = (30, 3), (30, 2)
  return [
    Block("GELU 3-3-2", plain, _two_layer(jax.nn.gelu), wide, 0, "theorem 4.1"),
    Block("SiLU 3-3-2", plain, _two_layer(jax.nn.silu), wide, 0, "theorem 4.1"),
    Block("ReLU 3-3-2", plain, _two_layer(jax.nn.relu), wide, 3, "known: h"),
    Block("SwiGLU 2-2-2", gated, _glu(jax.nn.silu), narrow, 2, "theorem 4.2"),
    Block("bilinear 2-2-2", gated, _glu(lambda u: u), narrow, 4, "ours: 2 h"),
    Block("attention", heads, _attention(False), (8, 3, 2), 6, "theorem 4.3"),
    Block(
      "attention, rotary", heads, _attention(True), (8, 3, 2), 4, "theorem 4.4"
    ),
    Block(
      "mixture, softmax",
      experts,
      functools.partial(_mixture, jax.nn.softmax),
      narrow,
      4,
      "theorem 4.5",
    ),
    Block(
      "mixture, normalised sigmoid",
      experts,
      functools.partial(_mixture, _normalised_sigmoid),
      narrow,
      2,
      "ours; theorem 4.7 says 4",
    ),
  ]


def run(chosen: list[Block]) -> list[Count]:
  """Counts the laws of blocks at random parameters."""
  rng = np.random.default_rng(_SEED)
  counts = []
  for block in chosen:
    params = {
      name: rng.normal(size=shape) for name, shape in block.shapes.items()
    }
    found = conservation.num_laws(
      block.apply, params, rng.normal(size=block.inputs)
    )
    counts.append(Count(block, sum(p.size for p in params.values()), found))
  return counts


def checks(counts: list[Count]) -> list[claims.Check]:
  """That each block has as many laws as the theory says."""
  return [
    claims.within(
      f"laws of {count.block.name}",
      claims.Estimate(*[float(count.found)] * 3),
      float(count.block.laws),
      0.0,
    )
    for count in counts
  ]


def _two_layer(activation):
  return lambda params, x: activation(x @ params["A"]) @ params["C"]


def _glu(activation):
  return lambda params, x: (
    ((x @ params["A"]) * activation(x @ params["B"])) @ params["C"]
  )


def _attention(rope):
  def apply(params, x):
    query, key, value = (x @ params[name] for name in "QKV")
    if rope:
      angle = _TURN * jnp.arange(x.shape[1], dtype=x.dtype)[None, :, None]
      cosine, sine = jnp.cos(angle), jnp.sin(angle)
      query, key = (
        rotary.rotate(z, cosine, sine, pairing="half") for z in (query, key)
      )
    weights = jax.nn.softmax(query @ jnp.swapaxes(key, 1, 2))
    return weights @ value @ params["O"]

  return apply


def _mixture(weigh, params, x):
  up = jnp.einsum("nd,edh->neh", x, params["A"])
  inner = jnp.einsum("nd,edh->neh", x, params["B"])
  hidden = weigh(x @ params["W"])[..., None] * up * jax.nn.silu(inner)
  return jnp.einsum("neh,eho->no", hidden, params["C"])


def _normalised_sigmoid(z):
  gates = jax.nn.sigmoid(z)
  return gates / jnp.sum(gates, axis=-1, keepdims=True)
