"""Laws of a language model of the Llama family, found in its parameters.

Reads the trees of `icml26_jax.models.llama`: matrices `[out, in]`, layers
stacked along the first axis. Layers may also have what that model has not:
shifts of the normalisations, attention without rotary positions, and experts
behind a router.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax.layers import rotary
from icml26_jax.theory.conservation import attention, blocks, law, mixture
from icml26_jax.theory.conservation import rate as rate_lib

_ATTENTION = ("query", "key", "value", "output")
_SWIGLU = ("gate", "up", "down")
_OPTIONAL = (
  "router",
  "attention_norm_shift",
  "mlp_norm_shift",
  "query_bias",
  "key_bias",
  "value_bias",
  "output_bias",
)
_TOP = ("embedding", "layers", "final_norm", "final_norm_shift", "head")


class FoundLaws(NamedTuple):
  """The laws of a model.

  Attributes:
    laws: by name; components have the layer as first axis, of length 1 for
      what occurs once.
    absent: quantities that look like laws and are none here, with the reason.
  """

  laws: dict[str, law.Law]
  absent: dict[str, str]


def laws_for(
  params: Any, *, pairing: str | None, gate: str = "softmax"
) -> FoundLaws:
  """Finds the laws that the blocks of a model have.

  `swiglu` (theorem 4.2), `query_key` and `value_output` (4.3 and 4.4, summed
  in groups of heads), `attention_gain`, `mlp_gain`, `final_gain`, `router`
  (4.5 and 4.6) and `output` (softmax cross-entropy only). Measure them with
  `rate.measure`, all from one gradient.

  Args:
    params: parameters, or their `ShapeDtypeStruct`s. Experts are an axis
      before the matrices of the SwiGLU, behind `router` `[L, E, D]`.
    pairing: which components rotary positions pair, the `rope_pairing` of the
      config; None for attention without rotary positions.
    gate: how logits of a router become weights, one of `mixture.GATES`.

  Returns:
    The laws, and those that a reader may miss.

  Raises:
    TypeError: if a parameter is not floating.
    ValueError: if an array is missing, unknown or of the wrong rank, or the
      pairing or gate is unknown.

  References:
    Tran et al., "Conservation Laws for Modern Neural Architectures", ICML
    2026, theorems 4.2 to 4.7.
  """
  names = _check(params, pairing, gate)
  laws = {
    "swiglu": law.norm_law(_swiglu),
    "query_key": _query_key(pairing),
    "value_output": law.gram_law(_value_output),
    "attention_gain": law.norm_law(
      functools.partial(_gain, "attention_norm", ("query", "key", "value"))
    ),
    "mlp_gain": law.norm_law(
      functools.partial(_gain, "mlp_norm", ("gate", "up", "router"))
    ),
  }
  absent = {}
  if "router" in names:
    if gate in ("softmax", "topk_softmax"):
      laws["router"] = law.sum_law(_router)
    elif gate == "top1":
      laws["router"] = law.entry_law(_router)
    else:
      absent["router"] = (
        f"gate {gate!r}: sigmoids see a number added to all logits, normalised"
        " or not (against theorem 4.7)"
      )
  if "head" in params:
    laws["final_gain"] = law.norm_law(_final_gain)
    laws["output"] = law.sum_law(
      lambda params: blocks.swap(params["head"])[None]
    )
  else:
    absent["final_gain"] = (
      "the output matrix is tied to the embedding, which also reads tokens: it"
      " cannot shrink while the gain grows"
    )
    absent["output"] = (
      "the output matrix is tied to the embedding: adding a vector to all its"
      " rows changes what the model reads"
    )
  return FoundLaws(laws, absent)


def controls_for(params: Any, *, pairing: str | None) -> FoundLaws:
  """Quantities like the laws that no network of this kind conserves.

  A check in which these do not move has no power. `query_key_entries`: single
  entries of `Q^T Q - K^T K` in spite of rotary positions; `other_pairing`;
  `query_key_per_head` and `value_output_per_head`: without the sum over the
  group; `gate_down`: `||B_i||^2 - ||C_i||^2`; `gain_without_gate`.

  Args:
    params: see `laws_for`.
    pairing: see `laws_for`.

  Returns:
    The controls, and those that would be laws here.

  Raises:
    TypeError: see `laws_for`.
    ValueError: see `laws_for`.
  """
  names = _check(params, pairing, "softmax")
  controls = {
    "gate_down": law.norm_law(
      lambda params: [
        (1.0, blocks.swap(params["layers"]["gate"])),
        (-1.0, params["layers"]["down"]),
      ]
    ),
    "gain_without_gate": law.norm_law(
      functools.partial(
        _gain,
        "mlp_norm",
        ("up", "router") if "router" in names else ("up",),
      )
    ),
  }
  absent = {}
  if pairing is None:
    absent["query_key_entries"] = (
      "every entry is a law without rotary positions"
    )
    absent["other_pairing"] = "there is no pairing without rotary positions"
  else:
    controls["query_key_entries"] = law.gram_law(_query_key_factors)
    (other,) = set(rotary.PAIRINGS) - {pairing}
    if _shape(params, "query")[-2] == 2:
      absent["other_pairing"] = "two components are one pair either way"
    else:
      controls["other_pairing"] = _query_key(other)
  if _shape(params, "query")[1] == _shape(params, "key")[1]:
    for name in ("query_key_per_head", "value_output_per_head"):
      absent[name] = "every group has one head: this is the law itself"
  else:
    controls["query_key_per_head"] = _query_key(pairing, per_head=True)
    controls["value_output_per_head"] = law.gram_law(
      functools.partial(_value_output, per_head=True)
    )
  return FoundLaws(controls, absent)


def layer_maxima(
  rates: Mapping[str, rate_lib.Rates],
) -> dict[str, rate_lib.Rates]:
  """Largest absolute rate and relative rate in each layer.

  Args:
    rates: from `rate.measure` of laws of this module.

  Returns:
    Rates with arrays `[L]` (`[1]` for what occurs once); NaN if a component
    is.
  """
  return jax.tree.map(
    lambda x: jnp.max(jnp.abs(x.reshape(len(x), -1)), axis=1), dict(rates)
  )


def _query_key(pairing, *, per_head=False):
  factors = functools.partial(_query_key_factors, per_head=per_head)
  if pairing is None:
    return law.gram_law(factors)
  return law.norm_law(
    lambda params: attention.pair_factors(factors(params), pairing)
  )


def _query_key_factors(params, *, per_head=False):
  query, key = _heads(params, "query"), _heads(params, "key")
  if per_head:
    key = jnp.repeat(key, query.shape[1] // key.shape[1], axis=1)
  return attention.query_key_factors(query, key)


def _value_output(params, *, per_head=False):
  value = _heads(params, "value")
  # [L, D, H, dk] -> [L, H, dk, D]
  output = jnp.moveaxis(params["layers"]["output"], 1, -1)
  if per_head:
    value = jnp.repeat(value, output.shape[1] // value.shape[1], axis=1)
  return attention.value_output_factors(value, output)


def _heads(params, name):
  """`[L, H, dk, D]` as `[L, H, D, dk]`, with a bias as one more row."""
  heads = blocks.swap(params["layers"][name])
  bias = f"{name}_bias"
  if bias not in params["layers"]:
    return heads
  return blocks.append_row(heads, params["layers"][bias])


def _swiglu(params):
  up, down = params["layers"]["up"], params["layers"]["down"]
  return [(1.0, blocks.swap(up)), (-1.0, down)]


def _gain(norm, readers, params):
  """Gain (and shift) of a normalisation, and all that reads it."""
  names = params["layers"]
  rows = [params["layers"][norm]]
  if f"{norm}_shift" in names:
    rows.append(params["layers"][f"{norm}_shift"])
  factors = [(1.0, jnp.stack(rows, axis=1))]
  for name in readers:
    if name in names:
      matrix = params["layers"][name]
      # Whatever is between layers and inputs: heads, experts, outputs.
      rows_of = matrix.reshape(len(matrix), -1, matrix.shape[-1])
      factors.append((-1.0, rows_of))
  return factors


def _final_gain(params):
  rows = [params["final_norm"]]
  if "final_norm_shift" in params:
    rows.append(params["final_norm_shift"])
  return [(1.0, jnp.stack(rows)[None]), (-1.0, params["head"][None])]


def _router(params):
  return blocks.swap(params["layers"]["router"])


def _shape(params, name):
  return params["layers"][name].shape


def _check(params, pairing, gate):
  """Names of the arrays of a layer, after looking at everything."""
  if pairing is not None:
    rotary.check_pairing("pairing", pairing)
  mixture.check_gate(gate)
  if "layers" not in params:
    raise ValueError(f"params lacks layers, has {', '.join(sorted(params))}")
  names = params["layers"]
  needed = (*_ATTENTION, *_SWIGLU, "attention_norm", "mlp_norm")
  for name in needed:
    if name not in names:
      raise ValueError(f"params lacks layers.{name}")
  for name in names:
    if name not in (*needed, *_OPTIONAL):
      raise ValueError(
        f"params has layers.{name}, whose part in the laws is not known;"
        f" known: {', '.join((*needed, *_OPTIONAL))}"
      )
  for name in params:
    if name not in _TOP:
      raise ValueError(
        f"params has {name}, whose part in the laws is not known; known:"
        f" {', '.join(_TOP)}"
      )
  rate_lib.check_floating("params", params)
  ranks = dict.fromkeys(_ATTENTION, 4)
  ranks |= dict.fromkeys(_SWIGLU, 4 if "router" in names else 3)
  for name, rank in ranks.items():
    shape = _shape(params, name)
    if len(shape) != rank:
      raise ValueError(
        f"layers.{name} must have {rank} axes, layers first, got {shape}"
      )
  return names
