"""Compiled HLO text as a graph of computations: loops, fusions, branches.

XLA prints an optimised module as text; no public interface gives the compiled
module's per-operation cost. This file reads the text: each instruction with
its operands, the computations it calls, its shapes with their memory space,
and the compiler's own `estimated_cycles`. Trip counts of loops are not
annotated; they follow from the constants in the loop's condition, start and
step.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import functools
import json
import math
import re
from typing import Any

_BITS = {
  "pred": 8,
  "token": 0,
  "opaque": 0,
  "bf16": 16,
  "f16": 16,
  "f32": 32,
  "f64": 64,
  "c64": 64,
  "c128": 128,
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_END = re.compile(r"^\}(, execution_thread=.*)?$")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
  r"\b(calls|to_apply|body|condition|true_computation|false_computation|"
  r"branch_computations|called_computations)=(\{[^}]*\}|%?[\w.\-]+)"
)
_UNCHANGED = ("copy", "bitcast", "convert", "reshape", "copy-done")

HBM = 0


class HloError(ValueError):
  """The compiled program has something this reader cannot account for."""


@dataclasses.dataclass(frozen=True)
class Array:
  """One array of an instruction's result.

  Attributes:
    dtype: as HLO names it, e.g. "bf16".
    dims: sizes.
    memory_space: 0 for HBM, 1 for VMEM; others hold scalars and semaphores.
  """

  dtype: str
  dims: tuple[int, ...]
  memory_space: int

  @property
  def size(self) -> int:
    """Number of elements."""
    return math.prod(self.dims)

  @property
  def bytes(self) -> int:
    """Bytes without padding to tiles."""
    return math.ceil(self.size * _bits(self.dtype) / 8)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """One line of a computation.

  Attributes:
    name: unique in its computation.
    opcode: as HLO names it, e.g. "fusion".
    arrays: the arrays of the result, tuples flattened.
    operands: names of the operands.
    literal: what stands between the parentheses of a constant or parameter.
    attributes: the rest of the line.
    is_root: True for the computation's result.
  """

  name: str
  opcode: str
  arrays: tuple[Array, ...]
  operands: tuple[str, ...]
  literal: str
  attributes: str
  is_root: bool

  @functools.cached_property
  def called(self) -> dict[str, tuple[str, ...]]:
    """Names of the computations it calls, by attribute."""
    return {
      role: tuple(name.lstrip("%") for name in re.findall(r"[\w.\-]+", names))
      for role, names in _CALLED.findall(self.attributes)
    }

  @functools.cached_property
  def backend_config(self) -> dict[str, Any]:
    """What the backend attached; empty if nothing, or not JSON."""
    start = self.attributes.find("backend_config={")
    if start < 0:
      return {}
    text = self.attributes[start + len("backend_config=") :]
    try:
      return json.JSONDecoder().raw_decode(text)[0]
    except json.JSONDecodeError:
      return {}

  @property
  def estimated_cycles(self) -> int | None:
    """The compiler's estimate for this instruction, if it made one."""
    cycles = self.backend_config.get("window_config", {}).get(
      "estimated_cycles"
    )
    return None if cycles is None else int(cycles)

  @property
  def custom_call_target(self) -> str:
    """Name of the custom call, "" for another opcode."""
    match = re.search(r'custom_call_target="([^"]*)"', self.attributes)
    return match.group(1) if match else ""

  @property
  def op_name(self) -> str:
    """Where it comes from in the traced program, "" if unknown."""
    match = re.search(r'op_name="([^"]*)"', self.attributes)
    return match.group(1) if match else ""

  @property
  def bytes(self) -> int:
    """Bytes of the result."""
    return sum(array.bytes for array in self.arrays)

  def integer(self, attribute: str) -> int | None:
    """Value of an attribute `name=integer`, None if it is not there."""
    match = re.search(rf"\b{attribute}=(-?\d+)", self.attributes)
    return int(match.group(1)) if match else None

  def integers(self, attribute: str) -> tuple[int, ...]:
    """Value of an attribute `name={1,2}`, () if it is not there."""
    match = re.search(rf"\b{attribute}=\{{([\d,]*)\}}", self.attributes)
    if not match or not match.group(1):
      return ()
    return tuple(int(number) for number in match.group(1).split(","))


@dataclasses.dataclass(frozen=True)
class Computation:
  """A function of the module, its instructions in scheduled order."""

  name: str
  instructions: dict[str, Instruction]

  @functools.cached_property
  def root(self) -> Instruction:
    """The result."""
    return next(i for i in self.instructions.values() if i.is_root)

  @functools.cached_property
  def parameters(self) -> tuple[Instruction, ...]:
    """The arguments, in order."""
    found = [i for i in self.instructions.values() if i.opcode == "parameter"]
    return tuple(sorted(found, key=lambda i: int(i.literal)))

  def __iter__(self) -> Iterator[Instruction]:
    return iter(self.instructions.values())


@dataclasses.dataclass(frozen=True)
class Module:
  """A compiled program.

  Attributes:
    computations: by name.
    entry: name of the one that runs first.
  """

  computations: dict[str, Computation]
  entry: str

  def called(self, instruction: Instruction, role: str) -> Computation:
    """The computation an instruction calls under the attribute `role`."""
    return self.computations[instruction.called[role][0]]

  def branches(self, conditional: Instruction) -> tuple[Computation, ...]:
    """The branches of a conditional."""
    called = conditional.called
    names = called.get("branch_computations") or (
      called["true_computation"] + called["false_computation"]
    )
    return tuple(self.computations[name] for name in names)

  @functools.cached_property
  def callers(self) -> dict[str, list[tuple[Computation, Instruction]]]:
    """Who calls each computation."""
    result: dict[str, list[tuple[Computation, Instruction]]] = {}
    for computation in self.computations.values():
      for instruction in computation:
        for names in instruction.called.values():
          for name in names:
            result.setdefault(name, []).append((computation, instruction))
    return result

  def visits(self) -> Iterator[tuple[Computation, Instruction, int]]:
    """Every instruction that runs, with how often a step runs it.

    Fused computations are part of the instruction that calls them. Of a
    conditional, every branch is visited.

    Yields:
      `(computation, instruction, count)`.

    Raises:
      HloError: if a loop's trip count cannot be read.
    """
    yield from self._visits(self.computations[self.entry], 1)

  def _visits(self, computation, count):
    for instruction in computation:
      yield computation, instruction, count
      if instruction.opcode == "while":
        inner = count * trip_count(self, computation, instruction)
        yield from self._visits(self.called(instruction, "body"), inner)
      elif instruction.opcode == "conditional":
        for branch in self.branches(instruction):
          yield from self._visits(branch, count)
      elif instruction.opcode == "call":
        yield from self._visits(self.called(instruction, "to_apply"), count)


def parse(text: str) -> Module:
  """Reads a module as `compiled.as_text()` prints it.

  Args:
    text: HLO text.

  Returns:
    The module.

  Raises:
    HloError: if there is no entry computation, or a line is not understood.
  """
  computations: dict[str, Computation] = {}
  entry = None
  current: dict[str, Instruction] | None = None
  for line in _logical_lines(text):
    header = _COMPUTATION.match(line)
    if header:
      current = {}
      name = header.group(2)
      computations[name] = Computation(name, current)
      if header.group(1):
        entry = name
    elif _END.match(line):
      current = None
    elif current is not None and line.startswith("  "):
      instruction = _parse_instruction(line.strip())
      current[instruction.name] = instruction
  if entry is None:
    raise HloError("the text has no ENTRY computation")
  return Module(computations, entry)


def trip_count(
  module: Module, computation: Computation, loop: Instruction
) -> int:
  """How often the body of a counting loop runs.

  Args:
    module: the program.
    computation: where the loop stands.
    loop: a `while` instruction.

  Returns:
    The number of iterations, 0 if the condition is false at the start.

  Raises:
    HloError: naming the loop, if its condition is not a comparison of a
      counter with a constant, or the counter's start or step is not constant.
  """
  known = loop.backend_config.get("known_trip_count", {}).get("n")
  if known is not None:
    return int(known)
  condition = module.called(loop, "condition")
  body = module.called(loop, "body")
  compare, sides = _through_fusion(module, condition, condition.root)
  if compare.opcode != "compare":
    raise HloError(
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
    raise HloError(
      f"loop {loop.name} ({loop.op_name}) has no constant trip count: its "
      "condition does not compare a counter with a constant"
    )
  start = _constant(
    module, computation, _element(computation, loop.operands[0], counter)
  )
  step = _step(module, body, counter)
  if start is None or not step:
    raise HloError(
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
  raise HloError(
    f"loop {loop.name} ({loop.op_name}) never ends by its counter: from "
    f"{start} by {step} while {direction} {limit}"
  )


def _logical_lines(text):
  """Lines, those joined again that an attribute's own line breaks cut."""
  pending = ""
  for line in text.splitlines():
    if line.startswith("  ") or _COMPUTATION.match(line) or _END.match(line):
      yield pending
      pending = line
    elif pending.startswith("  "):
      pending += line
  yield pending


def _bits(dtype):
  if dtype in _BITS:
    return _BITS[dtype]
  match = re.match(r"[a-z](\d+)", dtype)
  if not match:
    raise HloError(f"unknown element type {dtype}")
  return int(match.group(1))


def _parse_instruction(line):
  is_root = line.startswith("ROOT ")
  match = re.match(r"(?:ROOT )?%?([\w.\-]+) = ", line)
  if not match:
    raise HloError(f"not an instruction: {line[:80]}")
  position = match.end()
  if line[position] == "(":
    end = _matching(line, position) + 1
  else:
    end = line.index(" ", position)
  opcode_end = line.index("(", end)
  close = _matching(line, opcode_end)
  inside = line[opcode_end + 1 : close]
  opcode = line[end:opcode_end].strip()
  has_literal = opcode in ("constant", "parameter")
  return Instruction(
    name=match.group(1),
    opcode=opcode,
    arrays=_arrays(line[position:end]),
    operands=() if has_literal else tuple(_NAME.findall(inside)),
    literal=inside if has_literal else "",
    attributes=line[close + 1 :],
    is_root=is_root,
  )


def _matching(line, start):
  depth = 0
  for position in range(start, len(line)):
    if line[position] == "(":
      depth += 1
    elif line[position] == ")":
      depth -= 1
      if depth == 0:
        return position
  raise HloError(f"unbalanced parentheses: {line[:80]}")


def _arrays(text):
  result = []
  for dtype, dims, layout in _ARRAY.findall(text):
    space = _MEMORY_SPACE.search(layout)
    sizes = [int(d.lstrip("<=")) for d in dims.split(",") if d]
    result.append(
      Array(dtype, tuple(sizes), int(space.group(1)) if space else HBM)
    )
  return tuple(result)


def _follow(computation, name):
  """Steps back over instructions that do not change a value."""
  instruction = computation.instructions.get(name)
  while instruction is not None and instruction.opcode in (
    *_UNCHANGED,
    "copy-start",
  ):
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
