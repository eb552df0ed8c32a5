"""What the operations of a compiled program communicate between chips."""

from __future__ import annotations

from tpu import hlo, interconnect


def collective(
  module: hlo.Module, computation: hlo.Computation, instruction: hlo.Instruction
) -> tuple[hlo.Instruction, str, int, str] | None:
  """What an instruction communicates, if it does.

  Args:
    module: the program.
    computation: where the instruction stands.
    instruction: any instruction.

  Returns:
    None, or `(inner, kind, bytes, phase)`: the instruction with the groups,
    a kind of `interconnect.KINDS`, bytes of the whole array on one chip, and
    "sync", "start" or "done". The pieces that a fusion carries on between a
    start and a done are no collective of their own.
  """
  opcode = instruction.opcode
  for kind in interconnect.KINDS:
    if opcode == kind:
      moved = _whole_bytes(computation, instruction, kind)
      return instruction, kind, moved, "sync"
    if opcode == f"{kind}-start":
      moved = _whole_bytes(computation, instruction, kind)
      return instruction, kind, moved, "start"
    if opcode == f"{kind}-done":
      start = computation.instructions.get(instruction.operands[0])
      return (start or instruction), kind, 0, "done"
  if opcode in ("async-start", "async-done", "async-update"):
    wrapped = (
      module.called(instruction, "calls") if instruction.called else None
    )
    inner = wrapped.root if wrapped else None
    if inner is None or inner.opcode not in interconnect.KINDS:
      return None
    if opcode == "async-update":
      return inner, inner.opcode, 0, "done"
    moved = _whole_bytes(wrapped, inner, inner.opcode)
    return inner, inner.opcode, moved, opcode.removeprefix("async-")
  if opcode != "fusion" or instruction.estimated_cycles is not None:
    return None
  fused = module.called(instruction, "calls")
  inner = next((i for i in fused if i.opcode in interconnect.KINDS), None)
  if inner is None:
    return None
  target = fused.root.custom_call_target
  moved = _whole_bytes(fused, inner, inner.opcode)
  if target == "AsyncCollectiveDone":
    return inner, inner.opcode, 0, "done"
  kind = inner.opcode
  if kind == "all-reduce" and fused.root.opcode == "dynamic-slice":
    kind = "reduce-scatter"
  return inner, kind, moved, "start" if target else "sync"


def _whole_bytes(computation, instruction, kind):
  """Bytes of the gathered, or not yet reduced, array on one chip."""
  if kind == "all-gather":
    arrays = instruction.arrays
    if instruction.opcode.endswith("-start"):
      arrays = arrays[len(arrays) // 2 :]
    return sum(array.bytes for array in arrays)
  operands = [computation.instructions[n] for n in instruction.operands]
  return sum(operand.bytes for operand in operands)
