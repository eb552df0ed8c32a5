"""Compiled HLO text as a graph of computations: loops, fusions, branches.

XLA prints an optimised module as text; no public interface gives the compiled
module's per-operation cost. This file reads the text: each instruction with
its operands, the computations it calls, its shapes with their memory space,
and the compiler's own `estimated_cycles`.
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
