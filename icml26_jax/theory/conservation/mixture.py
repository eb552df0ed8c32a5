"""Invariants of mixtures of experts, and a theorem on them that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.theory.conservation import blocks, law

GATES = (
  "softmax",
  "topk_softmax",
  "top1",
  "normalized_sigmoid",
  "sigmoid",
)


def moe_invariants(
  W: jax.Array, experts: Mapping[str, jax.Array], gate: str
) -> dict[str, jax.Array]:
  """Laws of a mixture of SwiGLU experts with logits `x @ W`.

  A softmax does not see a number added to all logits, so the sum over experts
  stays, dense (`softmax`) or over the k > 1 selected ones (`topk_softmax`; use
  `softmax` too where the k gates are not renormalised, also for k = 1).
  `top1`, softmax over the only one selected, is always 1 and leaves W where it
  is. Sigmoids see that number, normalised or not, and have no law in W.

  Args:
    W: `[..., d, E]` float, the router.
    experts: `A`, `B` `[..., E, d, h]` and `C` `[..., E, h, o]` of the experts,
      see `blocks.swiglu_invariant`.
    gate: one of `GATES`.

  Returns:
    `experts` `[..., E, h]`; and `router`, `[..., d]` for the softmaxes,
    `[..., d, E]` for `top1`, absent for the sigmoids.

  Raises:
    TypeError: if an array is not floating.
    ValueError: if the gate is unknown, a matrix of the experts lacks or the
      shapes do not fit.

  References:
    Tran et al., "Conservation Laws for Modern Neural Architectures", ICML
    2026, theorems 4.5 and 4.6. Theorem 4.7 claims the sum over experts for
    normalised sigmoids as well: see `normalized_sigmoid_counterexample`.
  """
  check_gate(gate)
  blocks.check_matrices(W=W)
  if set(experts) != {"A", "B", "C"}:
    raise ValueError(f"experts must hold A, B and C, got {sorted(experts)}")
  laws = {"experts": blocks.swiglu_invariant(**experts)}
  if experts["A"].ndim < 3:
    raise ValueError(
      f"experts must have an axis of experts, got {experts['A'].shape} for A"
    )
  blocks.check_sizes(
    "W", W.shape[-1], "experts", experts["A"].shape[-3], "experts"
  )
  if gate in ("softmax", "topk_softmax"):
    laws["router"] = jnp.sum(W, axis=-1)
  elif gate == "top1":
    laws["router"] = W
  return laws


def moe_law(
  select: Callable[[Any], tuple[jax.Array, Mapping[str, jax.Array]]],
  gate: str,
) -> law.Law:
  """`moe_invariants` as a law of parameters that hold such a block.

  Args:
    select: picks W and the experts out of the parameters (and out of
      gradients).
    gate: one of `GATES`.

  Returns:
    A law whose value is the dictionary of `moe_invariants`.

  Raises:
    ValueError: if the gate is unknown.
  """
  check_gate(gate)

  def experts(params):
    parts = select(params)[1]
    return parts["A"], parts["B"], parts["C"]

  def router(params):
    return select(params)[0]

  laws = {"experts": blocks.swiglu_law(experts)}
  if gate in ("softmax", "topk_softmax"):
    laws["router"] = law.sum_law(router)
  elif gate == "top1":
    laws["router"] = law.entry_law(router)
  return law.combine(laws)


def check_gate(gate: str) -> None:
  """Raises ValueError unless `gate` is one of `GATES`."""
  if gate not in GATES:
    raise ValueError(checks.unknown("gate", gate, GATES))


class Counterexample(NamedTuple):
  """A mixture of two experts at one input, see the function of that name.

  Attributes:
    gates: `[2]`, weight of each expert.
    logit_gradient: `[2]`, gradient of the loss in the logits.
    router_rate: `[3]`, time derivative of `W[:, 0] + W[:, 1]` under gradient
      flow.
  """

  gates: jax.Array
  logit_gradient: jax.Array
  router_rate: jax.Array


def normalized_sigmoid_counterexample(
  gate: str = "normalized_sigmoid",
) -> Counterexample:
  """The sum over experts is no law of normalised sigmoids.

  The input is the first unit vector, the target 0, the loss half the squared
  error, the experts say 0 and the first unit vector, and the logits are 0 and
  log 3. The sigmoids are 1/2 and 3/4, the gates 2/5 and 3/5, the gradient in
  the logits (-9/125, 9/250), and the sum of the router's first row grows at
  the rate 9/250. A softmax gives gates 1/4 and 3/4 and the rate 0.

  Args:
    gate: `normalized_sigmoid`, or `softmax` for the comparison.

  Returns:
    What happens there, in the default float type.

  Raises:
    ValueError: if the gate is another.

  References:
    Against Tran et al., "Conservation Laws for Modern Neural Architectures",
    ICML 2026, theorem 4.7.
  """
  weigh = {
    "softmax": jax.nn.softmax,
    "normalized_sigmoid": lambda z: (
      jax.nn.sigmoid(z) / jnp.sum(jax.nn.sigmoid(z))
    ),
  }
  if gate not in weigh:
    raise ValueError(checks.unknown("gate", gate, weigh))
  x = jnp.asarray([1.0, 0.0, 0.0])
  router = jnp.zeros((3, 2)).at[0, 1].set(jnp.log(3.0))
  outputs = jnp.zeros((2, 3)).at[1, 0].set(1.0)  # [experts, outputs]

  def loss(logits):
    return jnp.sum(jnp.square(weigh[gate](logits) @ outputs)) / 2

  logits = x @ router
  router_gradient = jax.grad(lambda router: loss(x @ router))(router)
  return Counterexample(
    weigh[gate](logits),
    jax.grad(loss)(logits),
    -jnp.sum(router_gradient, axis=-1),
  )
