"""FLOPs counted by hand: from the traced program and from compiled HLO.

`cost_analysis` counts the body of a loop once, so it is not used. A matrix
product of `[m, k]` and `[k, n]` is `2 m k n` FLOP; everything else counts as
none, as is usual for model FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
import re
from typing import Any

import jax.extend.core as jex
import numpy as np

from tpu import hlo, loops


def jaxpr_flops(jaxpr: jex.ClosedJaxpr | jex.Jaxpr) -> int:
  """FLOPs of the matrix products of a traced program, loops unrolled.

  Recomputation counts, because it runs. Of a conditional, the dearest branch
  counts. A Pallas kernel counts its body once a grid step.

  Args:
    jaxpr: `jax.make_jaxpr(f)(...)`, or `jax.jit(f).trace(...).jaxpr`.

  Returns:
    FLOPs over all devices. Code under `shard_map` counts once a device.

  Raises:
    ValueError: if the program has a `while_loop`, whose trip count no trace
      knows, with matrix products in it.
  """
  total = 0
  for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
    name = equation.primitive.name
    params = equation.params
    if name == "dot_general":
      total += _dot_flops(equation)
    elif name == "conv_general_dilated":
      raise ValueError("convolutions are not counted: none is expected here")
    elif name == "scan":
      total += params["length"] * jaxpr_flops(params["jaxpr"])
    elif name == "while":
      inner = jaxpr_flops(params["body_jaxpr"]) + jaxpr_flops(
        params["cond_jaxpr"]
      )
      if inner:
        raise ValueError(
          "a while_loop with matrix products has no trip count to multiply "
          f"its {inner} FLOPs with; use lax.scan"
        )
    elif name == "cond":
      total += max(jaxpr_flops(branch) for branch in params["branches"])
    elif name == "pallas_call":
      grid = params["grid_mapping"].grid
      total += math.prod(grid) * jaxpr_flops(params["jaxpr"])
    elif name == "shard_map":
      total += params["mesh"].size * jaxpr_flops(params["jaxpr"])
    else:
      total += sum(jaxpr_flops(inner) for inner in _inner(params))
  return total


def hlo_flops(module: hlo.Module) -> int:
  """FLOPs of the matrix products one chip runs in one call.

  Args:
    module: the compiled program. TPU prints products as convolutions; taps
      that fall on padding or between dilated elements do not count.

  Returns:
    FLOPs of one device, loop bodies times their trip counts. Of a conditional
    every branch counts. Custom calls count nothing.
  """
  total = 0
  for computation, instruction, count in loops.visits(module):
    total += count * _instruction_flops(module, computation, instruction)
  return total


def forward_flops(
  *,
  matmul_params: int,
  num_layers: int,
  d_model: int,
  attended: float,
  tokens: int,
) -> int:
  """Useful FLOPs of one forward pass of a transformer.

  `2 N T + 4 L d S T`: the N parameters that multiply every token, and
  attention's two products over the S positions that a token attends to.
  Training is three such passes: one forward, and two backward, for the
  gradients of activations and of parameters. No recomputation, nothing done
  once a sequence, no noise, no normalisation.

  Args:
    matmul_params: N.
    num_layers: L.
    d_model: width d of all heads together.
    attended: S, the length if attention is bidirectional.
    tokens: tokens of the pass, T.

  Returns:
    FLOPs.
  """
  attention = 4 * num_layers * d_model * attended * tokens
  return 2 * matmul_params * tokens + round(attention)


def window_taps(
  input_size: int,
  output_size: int,
  *,
  size: int,
  stride: int,
  low: int,
  base_dilation: int,
  window_dilation: int,
) -> int:
  """Pairs of output position and window tap that meet an input element."""
  extent = (input_size - 1) * base_dilation + 1 if input_size else 0
  start = np.arange(output_size) * stride - low
  count = 0
  for tap in range(size):
    position = start + tap * window_dilation
    inside = (position >= 0) & (position < extent)
    count += int(np.sum(inside & (position % base_dilation == 0)))
  return count


def _inner(params: dict[str, Any]):
  for value in params.values():
    for item in value if isinstance(value, (tuple, list)) else (value,):
      if isinstance(item, (jex.ClosedJaxpr, jex.Jaxpr)):
        yield item


def _dot_flops(equation):
  (contracting, _), _ = equation.params["dimension_numbers"]
  left = equation.invars[0].aval.shape
  output = equation.outvars[0].aval.shape
  return 2 * math.prod(output) * math.prod(left[i] for i in contracting)


def _instruction_flops(module, computation, instruction):
  if instruction.opcode == "fusion":
    fused = module.called(instruction, "calls")
    return sum(_instruction_flops(module, fused, inner) for inner in fused)
  if instruction.opcode == "dot":
    left = computation.instructions[instruction.operands[0]].arrays[0]
    contracted = instruction.integers("lhs_contracting_dims")
    return (
      2
      * instruction.arrays[0].size
      * math.prod(left.dims[i] for i in contracted)
    )
  if instruction.opcode == "convolution":
    return _convolution_flops(computation, instruction)
  return 0


def _convolution_flops(computation, instruction):
  left, right = (
    computation.instructions[name].arrays[0].dims
    for name in instruction.operands
  )
  output = instruction.arrays[0].dims
  labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
  if not labels:
    raise hlo.HloError(f"{instruction.name} has no dim_labels")
  left_labels, right_labels, output_labels = labels.groups()
  spatial = sorted(label for label in left_labels if label.isdigit())
  window = _window(instruction.attributes, len(spatial))
  taps = 1
  for dimension, label in enumerate(spatial):
    taps *= window_taps(
      left[left_labels.index(label)],
      output[output_labels.index(label)],
      **window[dimension],
    )
  batch_groups = instruction.integer("batch_group_count") or 1
  return (
    2
    * taps
    * left[left_labels.index("b")]
    // batch_groups
    * right[right_labels.index("i")]
    * right[right_labels.index("o")]
  )


def _window(attributes: str, rank: int) -> list[dict[str, int]]:
  match = re.search(r"window=\{([^}]*)\}", attributes)
  text = match.group(1) if match else ""

  def values(name, default) -> Sequence[str]:
    found = re.search(rf"\b{name}=(\S+)", text)
    return found.group(1).split("x") if found else [default] * rank

  return [
    dict(
      size=int(size),
      stride=int(stride),
      low=int(pad.split("_")[0]),
      base_dilation=int(base),
      window_dilation=int(dilation),
    )
    for size, stride, pad, base, dilation in zip(
      values("size", "1"),
      values("stride", "1"),
      values("pad", "0_0"),
      values("lhs_dilate", "1"),
      values("rhs_dilate", "1"),
      strict=True,
    )
  ]
