"""What a check of conservation laws needs to know of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from icml26_jax.theory import conservation

# All that can be checked, and what it says. No model has all of them.
LAWS = {
  "swiglu": "‖A_i‖² - ‖C_i‖² of each hidden unit of a SwiGLU (theorem 4.2)",
  "query_key": "queries against keys: QᵀQ - KᵀK, summed over a group of heads;"
  " with rotary positions its norm in each pair (4.3, 4.4)",
  "value_output": "VᵀV - O Oᵀ, summed over a group of heads (4.3, 4.4)",
  "attention_gain": "g_i² - Σ‖W[i, :]‖² of the normalisation before attention",
  "mlp_gain": "the same of the normalisation before the feed-forward block",
  "final_gain": "the same of the last normalisation, if the output is not tied",
  "router": "sum over experts of a softmax router (4.5, 4.6)",
  "output": "sum over tokens of the output matrix, if it is not tied",
}
PAIRING = "rotary_pairing"
PAIRING_TEXT = (
  "text is likelier with the rotary pairing that the checkpoint declares than"
  " with the other; not a law, but laws cannot tell"
)


class Subject(NamedTuple):
  """A model with its laws.

  Attributes:
    title: what it is, for people.
    params: its parameters.
    loss: `loss(params, batch)`, a scalar.
    batch: what to differentiate the loss on.
    laws: its laws by name; components have the layer as first axis.
    absent: names of `LAWS` that it has not, with the reason.
    controls: for each law, quantities like it that must move, by name.
    pairing_losses: None, or a function of parameters and batch that gives the
      negative log-likelihood of every token, in nats, with the declared
      pairing and with the other.
    pairing: the declared pairing, or None.
  """

  title: str
  params: Any
  loss: Callable[[Any, Any], jax.Array]
  batch: Any
  laws: Mapping[str, conservation.Law]
  absent: Mapping[str, str]
  controls: Mapping[str, Mapping[str, conservation.Law]]
  pairing_losses: Callable[[Any, Any], tuple[jax.Array, jax.Array]] | None
  pairing: str | None
