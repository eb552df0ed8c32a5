"""Pretrained models of the Llama family as subjects."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from experiments.validators import subject
from icml26_jax.layers import rotary
from icml26_jax.models import llama
from icml26_jax.objectives import next_token
from icml26_jax.theory import conservation

Apply = Callable[..., jax.Array]


def make(
  title: str,
  params: llama.Params,
  config: llama.Config,
  tokens: jax.Array,
  *,
  apply: Apply = llama.apply,
  with_pairing: bool = True,
) -> subject.Subject:
  """A model of the Llama family and its laws.

  Args:
    title: what it is.
    params: its parameters, float32.
    config: its shape. The laws take its pairing.
    tokens: `[B, T]` int32, T at least 2.
    apply: `apply(params, tokens, config=config)`, logits `[B, T, V]`.
    with_pairing: whether to compare pairings by the loss, which says something
      only where the tokens are text.

  Returns:
    The subject; its batch is `tokens`.
  """
  pairing = config.rope_pairing
  found = conservation.laws_for(params, pairing=pairing)
  return subject.Subject(
    title=title,
    params=params,
    loss=lambda params, tokens: jnp.mean(nll(params, tokens, config, apply)),
    batch=tokens,
    laws=found.laws,
    absent={**found.absent, **_missing(found)},
    controls=controls(params, pairing),
    pairing_losses=(
      functools.partial(_both_pairings, config=config, apply=apply)
      if with_pairing and config.head_dim > 2
      else None
    ),
    pairing=pairing,
  )


def nll(
  params: llama.Params,
  tokens: jax.Array,
  config: llama.Config,
  apply: Apply = llama.apply,
) -> jax.Array:
  """`[B, T - 1]` nats of every token but the first of each row."""
  logits = apply(params, tokens, config=config)
  return next_token.nll(logits, tokens, jnp.ones(tokens.shape, jnp.bool_))


def controls(
  params: llama.Params, pairing: str
) -> dict[str, dict[str, conservation.Law]]:
  """Quantities that must move, under the law that each stands beside.

  Args:
    params: parameters of a model of the Llama family.
    pairing: see `conservation.laws_for`.
  """
  known = conservation.controls_for(params, pairing=pairing).laws
  chosen = {
    law: {name: known[name] for name in names if name in known}
    for law, names in _CONTROLS.items()
  }
  own = {
    "value_output": {"value_alone": conservation.gram_law(_values)},
    "attention_gain": {
      "gain_without_value": conservation.norm_law(_gain_without_value)
    },
  }
  if "head" in params:
    own["final_gain"] = {
      "rows_alone": conservation.norm_law(
        lambda params: [(1.0, params["head"][None])]
      )
    }
    own["output"] = {
      "all_but_one": conservation.sum_law(
        lambda params: jnp.swapaxes(params["head"][1:], 0, 1)[None]
      )
    }
  for law, laws in own.items():
    if not chosen.get(law):
      chosen[law] = laws
  return chosen


_CONTROLS = {
  "swiglu": ("gate_down",),
  "query_key": ("query_key_entries", "other_pairing", "query_key_per_head"),
  "value_output": ("value_output_per_head",),
  "mlp_gain": ("gain_without_gate",),
}


def _missing(found):
  if "router" in found.laws or "router" in found.absent:
    return {}
  return {"router": "there are no experts"}


def _both_pairings(params, tokens, *, config, apply):
  (other,) = set(rotary.PAIRINGS) - {config.rope_pairing}
  swapped = dataclasses.replace(config, rope_pairing=other)
  return (
    nll(params, tokens, config, apply),
    nll(params, tokens, swapped, apply),
  )


def _values(params: Any) -> list[tuple[float, jax.Array]]:
  """Columns of the values of every key-value head, `[L, K, D, dk]`."""
  value = params["layers"]["value"]
  return [(1.0, jnp.swapaxes(value, -1, -2))]


def _gain_without_value(params):
  gain = params["layers"]["attention_norm"]
  factors = [(1.0, gain[:, None])]
  for name in ("query", "key"):
    matrix = params["layers"][name]
    rows = matrix.reshape(len(matrix), -1, matrix.shape[-1])
    factors.append((-1.0, rows))
  return factors
