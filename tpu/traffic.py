"""Bytes that a compiled program moves to and from HBM."""

from __future__ import annotations

import collections
import math

from tpu import hlo, loops

# Nothing runs: names, views and buffers.
FREE = frozenset({
  "parameter", "constant", "tuple", "get-tuple-element", "bitcast",
  "partition-id", "replica-id", "after-all", "add-dependency", "opt-barrier",
  "domain",
})  # fmt: skip
COPIES = {"copy-start": "copy-done", "slice-start": "slice-done"}
_MOVES = frozenset({
  "copy", "reshape", "transpose", "pad", "slice", "concatenate",
  "dynamic-slice", "broadcast", "reverse",
})  # fmt: skip
# An indexed read or write of one element moves a whole tile of 8 x 128 words.
TILE_BYTES = 8 * 128 * 4


def hbm_bytes(module: hlo.Module) -> int:
  """Bytes one call moves to and from HBM, without padding to tiles.

  Every operation reads its operands and writes its result where they live in
  HBM; a fusion that only slices an operand, or updates a slice of it in
  place, moves the slice.

  Args:
    module: the compiled program.

  Returns:
    Bytes of one device, loop bodies times their trip counts.
  """
  total = 0
  for computation, instruction, count in loops.visits(module):
    if instruction.opcode in FREE or instruction.opcode in (
      "while", "conditional", "call", "copy-done", "slice-done",
    ):  # fmt: skip
      continue
    total += count * _moved(module, computation, instruction)
  return total


def indexed_bytes(
  module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
) -> int | None:
  """Bytes moved by an operation that only moves data.

  Args:
    module: the program.
    computation: where the instruction stands.
    instruction: any instruction.

  Returns:
    Bytes read and written, an indexed element at least a tile; None of an
    operation that computes.
  """
  opcode = instruction.opcode
  if opcode in _MOVES:
    return 2 * instruction.bytes
  if opcode == "dynamic-update-slice":
    return 2 * computation.instructions[instruction.operands[1]].bytes
  if opcode == "fusion":
    fused = module.called(instruction, "calls")
    inner = [
      indexed_bytes(module, fused, i)
      for i in fused
      if i.opcode in ("gather", "scatter", "fusion")
    ]
    indexed = [moved for moved in inner if moved is not None]
    return sum(indexed) if indexed else None
  if opcode == "gather":
    sizes = instruction.integers("slice_sizes")
    item = instruction.arrays[0].bytes / max(instruction.arrays[0].size, 1)
    piece = math.prod(sizes) * item
    pieces = instruction.arrays[0].size / max(math.prod(sizes), 1)
    return int(pieces * (max(piece, TILE_BYTES) + piece))
  if opcode == "scatter":
    count = len(instruction.operands)
    updates = computation.instructions[instruction.operands[-1]]
    indices = computation.instructions[instruction.operands[count // 2]]
    pieces = max(math.prod(indices.arrays[0].dims[:-1]), 1)
    piece = updates.bytes / pieces
    # The operand is copied or filled first, then rows are read and written.
    return int(
      instruction.bytes + pieces * (2 * max(piece, TILE_BYTES) + piece)
    )
  return None


def _moved(module, computation, instruction):
  """HBM bytes of one run of an instruction."""
  total = sum(a.bytes for a in instruction.arrays if a.memory_space == hlo.HBM)
  fused = None
  if instruction.opcode == "fusion":
    fused = module.called(instruction, "calls")
    total = sum(_written(fused, a) for a in _results(fused))
  elif instruction.opcode in COPIES:
    return instruction.arrays[1].bytes
  elif instruction.opcode == "dynamic-update-slice":
    update = computation.instructions[instruction.operands[1]]
    return 2 * update.bytes
  elif instruction.opcode in ("dynamic-slice", "slice", "gather"):
    return 2 * total
  for position, name in enumerate(instruction.operands):
    operand = computation.instructions.get(name)
    if operand is None:
      continue
    for array in operand.arrays:
      if array.memory_space == hlo.HBM:
        total += _read(fused, position, array.bytes)
  return total


def _results(fused):
  if fused.root.opcode == "tuple":
    return [fused.instructions[name] for name in fused.root.operands]
  return [fused.root]


def _written(fused, result):
  while result.opcode == "bitcast":
    result = fused.instructions[result.operands[0]]
  if all(array.memory_space != hlo.HBM for array in result.arrays):
    return 0
  if result.opcode == "dynamic-update-slice":
    return fused.instructions[result.operands[1]].bytes
  return 0 if result.opcode == "parameter" else result.bytes


def _read(fused, position, whole):
  """Bytes a fusion reads of its operand."""
  if fused is None:
    return whole
  parameter = fused.parameters[position].name
  names = collections.deque([parameter])
  total = 0
  while names:
    name = names.popleft()
    for user in fused:
      if name not in user.operands:
        continue
      if user.opcode == "bitcast":
        names.append(user.name)
      elif user.opcode in ("dynamic-slice", "slice", "gather"):
        total += user.bytes
      elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
        continue
      else:
        return whole
  return min(total, whole)
