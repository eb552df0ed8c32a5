"""Transformers that `experiments.train` trained as subjects.

Their blocks have rotary attention (pairing `half`) from one fused matrix and a
GELU between two matrices; diffusion models may be conditioned on time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from experiments.validators import subject
from icml26_jax.models import dit
from icml26_jax.theory import conservation
from icml26_jax.training import recipe as recipe_lib

_PAIRING = "half"


def task_of(recipe: recipe_lib.Recipe) -> recipe_lib.Task:
  """The recipe as functions that compute in float32, without kernels."""
  exact = dataclasses.replace(recipe.model, dtype="float32", attention="plain")
  return recipe_lib.build(dataclasses.replace(recipe, model=exact))


def make(
  title: str,
  task: recipe_lib.Task,
  params: Any,
  batch: dict[str, jax.Array],
  key: jax.Array,
) -> subject.Subject:
  """A trained transformer and its laws.

  Args:
    title: what it is.
    task: from `task_of`.
    params: its parameters.
    batch: rows of tokens, as in training.
    key: of the noise of a diffusion model, which the laws do not depend on.

  Returns:
    The subject.
  """
  config = task.recipe.model
  laws, controls = {}, {}
  absent = {
    "swiglu": "the feed-forward block is a GELU, which has no law (theorem 4.1)",
    "router": "there are no experts",
  }
  laws["value_output"] = _attention_part("value_output", rope=True)
  controls["value_output"] = {"value_alone": conservation.gram_law(_values)}
  if config.qk_norm:
    absent["query_key"] = "queries and keys are normalised after their matrices"
  else:
    laws["query_key"] = _attention_part("query_key", rope=True)
    controls["query_key"] = {
      "query_key_entries": _attention_part("query_key", rope=False)
    }
    if config.head_dim > 2:
      controls["query_key"]["other_pairing"] = _attention_part(
        "query_key", rope=True, pairing="interleaved"
      )
  if not (isinstance(config, dit.Config) and config.time_conditioning):
    for name, factors in _GAINS.items():
      laws[name] = conservation.norm_law(factors)
      controls[name] = {
        "rows_alone": conservation.norm_law(
          lambda params, factors=factors: factors(params)[1:]
        )
      }
  else:
    why = "the normalisation has no gain, but is conditioned on time"
    absent |= dict.fromkeys(_GAINS, why)
  laws["output"] = conservation.sum_law(lambda params: params["output"][None])
  controls["output"] = {
    "all_but_one": conservation.sum_law(
      lambda params: params["output"][None, :, 1:]
    )
  }

  def loss(params, batch):
    return task.loss_fn(params, batch, jax.random.clone(key))[0]

  return subject.Subject(
    title=title,
    params=params,
    loss=loss,
    batch=batch,
    laws=laws,
    absent=absent,
    controls=controls,
    pairing_losses=None,
    pairing=None if config.qk_norm else _PAIRING,
  )


def _attention_part(
  part: str, *, rope: bool, pairing: str = _PAIRING
) -> conservation.Law:
  """One of the laws of `conservation.attention_law`."""
  whole = conservation.attention_law(_heads, rope=rope, pairing=pairing)
  return conservation.Law(
    value=lambda params: whole.value(params)[part],
    gradient_norm=lambda params: whole.gradient_norm(params)[part],
    support_norm=lambda grads: whole.support_norm(grads)[part],
  )


def _heads(params):
  """Q, K, V `[L, H, D, dk]` and O `[L, H, dk, D]`."""
  attention = _blocks(params)["attention"]
  # [L, D, H, 3, dk] -> [3, L, H, D, dk]
  query, key, value = jnp.transpose(attention["qkv"], (3, 0, 2, 1, 4))
  return query, key, value, attention["out"]


def _values(params):
  return [(1.0, _heads(params)[2])]


def _attention_gain(params):
  blocks = _blocks(params)
  qkv = blocks["attention"]["qkv"]
  rows = qkv.reshape(*qkv.shape[:2], -1)
  return _gain(blocks["attention_norm"]["scale"], rows)


def _mlp_gain(params):
  blocks = _blocks(params)
  return _gain(blocks["mlp_norm"]["scale"], blocks["mlp"]["up"]["kernel"])


def _final_gain(params):
  return _gain(params["norm"]["scale"][None], params["output"][None])


_GAINS = {
  "attention_gain": _attention_gain,
  "mlp_gain": _mlp_gain,
  "final_gain": _final_gain,
}


def _gain(gain, rows):
  """A gain `[L, D]` against the rows `[L, D, n]` that read it."""
  return [(1.0, gain[:, None]), (-1.0, jnp.swapaxes(rows, -1, -2))]


def _blocks(params):
  return params["layers"]["blocks"]
