"""How often the loops of a compiled program run.

Trip counts are seldom annotated in HLO text; they follow from the constants
in a loop's condition, start and step.
"""

from __future__ import annotations

from collections.abc import Iterator
import math
import re

from tpu import hlo

# Instructions that pass a value on.
_UNCHANGED = (
  "copy",
  "bitcast",
  "convert",
  "reshape",
  "copy-start",
  "copy-done",
)


def visits(
  module: hlo.Module,
) -> Iterator[tuple[hlo.Computation, hlo.Instruction, int]]:
  """Every instruction that runs, with how often a step runs it.

  Fused computations are part of the instruction that calls them. Of a
  conditional, every branch is visited.

  Args:
    module: the program.

  Yields:
    `(computation, instruction, count)`.

  Raises:
    HloError: if a loop's trip count cannot be read.
  """
  yield from _visits(module, module.computations[module.entry], 1)


def _visits(module, computation, count):
  for instruction in computation:
    yield computation, instruction, count
    if instruction.opcode == "while":
      inner = count * trip_count(module, computation, instruction)
      body = module.called(instruction, "body")
      yield from _visits(module, body, inner)
    elif instruction.opcode == "conditional":
      for branch in module.branches(instruction):
        yield from _visits(module, branch, count)
    elif instruction.opcode == "call":
      called = module.called(instruction, "to_apply")
      yield from _visits(module, called, count)


def trip_count(
  module: hlo.Module, computation: hlo.Computation, loop: hlo.Instruction
) -> int:
  """How often the body of a counting loop runs.

  Args:
    module: the program.
    computation: where the loop stands.
    loop: a `while` instruction.

  Returns:
    The number of iterations, 0 if the condition is false at the start.

  Raises:
    hlo.HloError: naming the loop, if its condition is not a comparison of a
      counter with a constant, or the counter's start or step is not constant.
  """
  known = loop.backend_config.get("known_trip_count", {}).get("n")
  if known is not None:
    return int(known)
  condition = module.called(loop, "condition")
  body = module.called(loop, "body")
  compare, sides = _through_fusion(module, condition, condition.root)
  if compare.opcode != "compare":
    raise hlo.HloError(
      f"loop {loop.name} ({loop.op_name}) has no constant trip count: its "
      f"condition is {condition.root.opcode}, not a comparison"
    )
  counter = limit = None
  for side in sides:
    index = _carried(*side)
    value = _constant(module, *side)
    if value is not None:
      limit = value
    elif index is not None:
      counter = index
  if counter is None or limit is None:
    raise hlo.HloError(
      f"loop {loop.name} ({loop.op_name}) has no constant trip count: its "
      "condition does not compare a counter with a constant"
    )
  start = _constant(
    module, computation, _element(computation, loop.operands[0], counter)
  )
  step = _step(module, body, counter)
  if start is None or not step:
    raise hlo.HloError(
      f"loop {loop.name} ({loop.op_name}) has no constant trip count: its "
      f"counter starts at {start} and moves by {step}"
    )
  match = re.search(r"direction=(\w+)", compare.attributes)
  direction = match.group(1) if match else ""
  if _carried(*sides[0]) != counter:
    # `limit > counter` says the same as `counter < limit`.
    direction = {"GT": "LT", "GE": "LE", "LT": "GT", "LE": "GE"}.get(
      direction, direction
    )
  if direction == "NE" and (limit - start) % step == 0:
    return max(0, (limit - start) // step)
  if direction in ("LT", "LE") and step > 0:
    return max(0, math.ceil((limit + (direction == "LE") - start) / step))
  if direction in ("GT", "GE") and step < 0:
    return max(0, math.ceil((start + (direction == "GE") - limit) / -step))
  raise hlo.HloError(
    f"loop {loop.name} ({loop.op_name}) never ends by its counter: from "
    f"{start} by {step} while {direction} {limit}"
  )


def _follow(computation, name):
  """Steps back over instructions that do not change a value."""
  instruction = computation.instructions.get(name)
  while instruction is not None and instruction.opcode in _UNCHANGED:
    instruction = computation.instructions.get(instruction.operands[0])
  return instruction


def _carried(computation, name):
  """Index of the loop-carried value that `name` is, or None."""
  instruction = _follow(computation, name)
  if instruction is None or instruction.opcode != "get-tuple-element":
    return None
  source = _follow(computation, instruction.operands[0])
  if source is None or source.opcode != "parameter":
    return None
  return instruction.integer("index")


def _element(computation, name, index):
  """Name of the `index`-th element of a tuple, or None."""
  instruction = _follow(computation, name)
  if instruction is None or instruction.opcode != "tuple":
    return None
  return instruction.operands[index]


def _constant(module, computation, name):
  """The integer that `name` always is, or None."""
  instruction = _follow(computation, name)
  if instruction is None:
    return None
  if instruction.opcode == "constant":
    try:
      return int(instruction.literal)
    except ValueError:
      return None
  if instruction.opcode == "get-tuple-element":
    source = _follow(computation, instruction.operands[0])
    index = instruction.integer("index")
    if source is not None and source.opcode == "tuple":
      return _constant(module, computation, source.operands[index])
    if source is not None and source.opcode == "parameter":
      return _invariant(module, computation, index)
  return None


def _invariant(module, computation, index):
  """The constant a loop carries unchanged at `index`, or None."""
  callers = module.callers.get(computation.name, [])
  if len(callers) != 1 or callers[0][1].opcode != "while":
    return None
  outer, loop = callers[0]
  body = module.called(loop, "body")
  if _carried(body, _element(body, body.root.name, index)) != index:
    return None
  element = _element(outer, loop.operands[0], index)
  return _constant(module, outer, element)


def _through_fusion(module, computation, instruction):
  """An instruction and where its operands stand, seen through a fusion.

  Returns:
    `(instruction, ((computation, name), ...))`.
  """
  if instruction.opcode != "fusion":
    return instruction, [(computation, name) for name in instruction.operands]
  fused = module.called(instruction, "calls")
  outside = {
    parameter.name: operand
    for parameter, operand in zip(
      fused.parameters, instruction.operands, strict=True
    )
  }
  operands = []
  for name in fused.root.operands:
    inner = _follow(fused, name)
    if inner is not None and inner.name in outside:
      operands.append((computation, outside[inner.name]))
    else:
      operands.append((fused, name))
  return fused.root, operands


def _step(module, body, index):
  """By how much a loop's counter moves, or None."""
  name = _element(body, body.root.name, index)
  instruction = _follow(body, name)
  if instruction is None:
    return None
  add, operands = _through_fusion(module, body, instruction)
  if add.opcode not in ("add", "subtract"):
    return None
  values = [_constant(module, *operand) for operand in operands]
  carried = [_carried(*operand) for operand in operands]
  if add.opcode == "subtract":
    return -values[1] if carried[0] == index and values[1] else None
  for value, other in ((values[0], carried[1]), (values[1], carried[0])):
    if value is not None and other == index:
      return value
  return None
