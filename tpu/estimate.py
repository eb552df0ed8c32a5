"""Time of a compiled step, from the compiler's own cycle estimates.

XLA writes `estimated_cycles` beside nearly every TPU operation, inside loop
bodies too. The estimate walks the schedule once with three resources: the
core, which runs operations one after another; the links, which carry one
asynchronous collective at a time; and the copy engine between HBM and VMEM. A synchronous
collective stops the core. An asynchronous one runs from its start to its done
beside the core, which waits at the done for what is left. Loop bodies run
twice, and the second run stands for all later ones.

An operation that should cost something and has neither an estimate nor a rule
below is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
import copy
import dataclasses
import math

from tpu import collectives, hlo, interconnect, loops, traffic

FREE_CALLS = frozenset({
  "AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound",
  "GatherScatterIndicesBitpacked", "Sharding", "SPMDFullToShardShape",
  "SPMDShardToFullShape",
})  # fmt: skip
# Elements one vector register holds.
VECTOR_ELEMENTS = 8 * 128
# Vector operations of one compare-exchange of keys with their positions.
SORT_CYCLES = 16

ASSUMPTIONS = (
  "compute: the compiler's estimated_cycles of each operation, one after "
  "another, at {clock:.2f} GHz",
  "collectives: ring bounds at {link:.0f} GB/s a link and direction, "
  "{hop:.1f} us a hop; asynchronous ones overlap the operations scheduled "
  "between their start and done, one after another; a synchronous one shares "
  "the links with what is in flight",
  "copies HBM-VMEM: {hbm:.0f} GB/s, beside the core until their done, without "
  "slowing what runs meanwhile",
  "gather, scatter and copies without an estimate: bytes moved (at least a "
  "4 KiB tile an index) at {hbm:.0f} GB/s; sorts: bitonic, {sort} cycles a "
  "vector and pass; scalar operations: none",
  "loops: trip counts from the constants of their conditions; conditionals: "
  "the slowest branch",
  "Pallas kernels: bundles of the compiler's final schedule times grid steps, "
  "which leaves out waiting; at least the author's CostEstimate at the peak",
)


@dataclasses.dataclass
class Cost:
  """What an operation of one name costs in a whole step.

  Attributes:
    kind: "compute", "collective", "copy", "kernel" or "bound" (by a rule
      of this file).
    opcode: as HLO names it; for a collective its kind.
    op_name: where it comes from.
    count: how often it runs.
    busy: seconds it runs, summed.
    exposed: seconds of those the core cannot do anything else.
    bytes: for a collective, bytes of the whole array on one chip, summed.
    group_size: for a collective, chips that take part.
    is_async: True if the schedule starts it and waits for it later.
  """

  kind: str
  opcode: str
  op_name: str
  count: int = 0
  busy: float = 0.0
  exposed: float = 0.0
  bytes: int = 0
  group_size: int = 0
  is_async: bool = False


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A step's time and where it goes.

  Attributes:
    seconds: of one call of the program.
    costs: by instruction name.
  """

  seconds: float
  costs: dict[str, Cost]

  def exposed(self, kind: str) -> float:
    """Seconds of the step spent on operations of a kind."""
    return sum(c.exposed for c in self.costs.values() if c.kind == kind)

  def busy(self, kind: str) -> float:
    """Seconds operations of a kind run, beside others or not."""
    return sum(c.busy for c in self.costs.values() if c.kind == kind)


def estimate(
  module: hlo.Module,
  torus: interconnect.Torus,
  kernel_cycles: Mapping[str, int] | None = None,
) -> Estimate:
  """Estimates the time of one call of a compiled program.

  Args:
    module: the program, compiled for the chip of `torus`.
    torus: where the program's devices sit.
    kernel_cycles: cycles of Pallas kernels by instruction name, as
      `kernels.read_cycles` reads them.

  Returns:
    The estimate.

  Raises:
    hlo.HloError: naming an operation without a usable estimate, or a loop
      without a constant trip count.
  """
  timeline = _Timeline(module, torus, kernel_cycles or {})
  timeline.run(module.computations[module.entry], 1)
  return Estimate(timeline.now, timeline.costs)


def assumptions(torus: interconnect.Torus) -> list[str]:
  """What an estimate rests on, with the numbers used."""
  chip = torus.chip
  return [
    text.format(
      clock=chip.clock_hz / 1e9,
      link=chip.link_bandwidth / 1e9,
      hop=chip.hop_seconds * 1e6,
      hbm=chip.hbm_bandwidth / 1e9,
      sort=SORT_CYCLES,
    )
    for text in ASSUMPTIONS
  ]


class _Timeline:
  """Runs a schedule; `now` is the core's clock."""

  def __init__(self, module, torus, kernel_cycles):
    self.module = module
    self.torus = torus
    self.kernel_cycles = kernel_cycles
    self.costs: dict[str, Cost] = {}
    self.now = 0.0
    self.link_free = 0.0
    self.copy_free = 0.0
    # When what was started will be done, and whose cost waiting for it is.
    self.ready: dict[str, tuple[float, Cost]] = {}

  def run(self, computation, weight):
    for instruction in computation:
      self._step(computation, instruction, weight)

  def _step(self, computation, instruction, weight):
    opcode = instruction.opcode
    if opcode in traffic.FREE:
      return
    if opcode == "while":
      count = loops.trip_count(self.module, computation, instruction)
      self._loop(self.module.called(instruction, "body"), count, weight)
    elif opcode == "conditional":
      self._branch(instruction, weight)
    elif opcode == "call":
      self.run(self.module.called(instruction, "to_apply"), weight)
    elif opcode in traffic.COPIES:
      self._start_copy(instruction, weight)
    elif opcode in traffic.COPIES.values():
      self._wait(instruction.operands[0], weight)
    elif not self._collective(computation, instruction, weight):
      kind, seconds = self._core_seconds(computation, instruction)
      self._add(instruction, kind, seconds, seconds, weight)
      self.now += seconds

  def _loop(self, body, count, weight):
    if count == 0:
      return
    self.run(body, weight)
    if count == 1:
      return
    before = self.now
    self.run(body, weight * (count - 1))
    rest = (count - 2) * (self.now - before)
    self.now += rest
    self.link_free += rest
    self.copy_free += rest
    self.ready = {
      name: (time + rest, cost) for name, (time, cost) in self.ready.items()
    }

  def _branch(self, instruction, weight):
    start, slowest = self._save(), None
    for branch in self.module.branches(instruction):
      self._restore(copy.deepcopy(start))
      self.run(branch, weight)
      if slowest is None or self.now > slowest[0]:
        slowest = self._save()
    self._restore(slowest)

  def _save(self):
    """State to try each branch of a conditional from."""
    # One copy of all, so that what is pending still names its cost.
    return copy.deepcopy(
      (self.now, self.link_free, self.copy_free, self.ready, self.costs)
    )

  def _restore(self, state):
    self.now, self.link_free, self.copy_free, self.ready, self.costs = state

  def _add(self, instruction, kind, busy, exposed, weight, **extra):
    cost = self.costs.setdefault(
      instruction.name,
      Cost(kind, extra.pop("opcode", instruction.opcode), instruction.op_name),
    )
    cost.count += weight
    cost.busy += weight * busy
    cost.exposed += weight * exposed
    cost.bytes += weight * extra.pop("bytes", 0)
    for name, value in extra.items():
      setattr(cost, name, value)
    return cost

  def _start_copy(self, instruction, weight):
    seconds = instruction.arrays[1].bytes / self.torus.chip.hbm_bandwidth
    self.copy_free = max(self.now, self.copy_free) + seconds
    cost = self._add(instruction, "copy", seconds, 0.0, weight)
    self.ready[instruction.name] = (self.copy_free, cost)

  def _wait(self, name, weight):
    ready, cost = self.ready.pop(name, (self.now, None))
    if ready > self.now:
      cost.exposed += weight * (ready - self.now)
      self.now = ready

  def _collective(self, computation, instruction, weight):
    """Runs an instruction if it is (part of) a collective."""
    found = collectives.collective(self.module, computation, instruction)
    if found is None:
      return False
    inner, kind, num_bytes, phase = found
    channel = f"channel {inner.integer('channel_id')} {kind}"
    if phase == "done":
      self._wait(channel, weight)
      return True
    attributes = inner.attributes
    if kind == "collective-permute":
      pairs = interconnect.permute_pairs(attributes)
      seconds = interconnect.permute_seconds(self.torus, num_bytes, pairs)
      size = 2
    else:
      group = interconnect.replica_groups(attributes, len(self.torus.coords))[0]
      seconds = interconnect.seconds(self.torus, kind, num_bytes, group)
      size = len(group)
    details = dict(
      opcode=kind,
      bytes=num_bytes,
      group_size=size,
      is_async=phase == "start",
    )
    if phase == "start":
      self.link_free = max(self.now, self.link_free) + seconds
      cost = self._add(
        instruction, "collective", seconds, 0.0, weight, **details
      )
      self.ready[channel] = (self.link_free, cost)
    else:
      exposed = self._share_links(seconds)
      self._add(instruction, "collective", seconds, exposed, weight, **details)
      self.now += exposed
    return True

  def _share_links(self, seconds):
    """How long a collective takes beside those in flight, which it delays."""
    in_flight = max(0.0, self.link_free - self.now)
    for name, (time, cost) in self.ready.items():
      if cost.kind == "collective" and time > self.now:
        self.ready[name] = (time + min(seconds, time - self.now), cost)
    self.link_free = max(self.now, self.link_free) + seconds
    return seconds + min(seconds, in_flight)

  def _core_seconds(self, computation, instruction):
    """Kind and seconds of an operation the core runs."""
    chip = self.torus.chip
    cycles = instruction.estimated_cycles
    if cycles is not None:
      if cycles <= 0 and not _is_scalar(instruction):
        raise hlo.HloError(
          f"{instruction.name} ({instruction.op_name}) has an estimate of "
          f"{cycles} cycles"
        )
      return "compute", cycles / chip.clock_hz
    if instruction.opcode == "custom-call":
      if instruction.custom_call_target in FREE_CALLS:
        return "compute", 0.0
      return "kernel", self._kernel_seconds(instruction)
    if _is_scalar(instruction):
      return "compute", 0.0
    if instruction.opcode == "sort":
      keys = max(array.size for array in instruction.arrays)
      length = instruction.arrays[0].dims[instruction.integers("dimensions")[0]]
      levels = math.ceil(math.log2(max(length, 2)))
      vectors = math.ceil(keys / VECTOR_ELEMENTS) * len(instruction.arrays)
      passes = levels * (levels + 1) // 2
      return "bound", passes * vectors * SORT_CYCLES / chip.clock_hz
    moved = traffic.indexed_bytes(self.module, computation, instruction)
    if moved is None:
      raise hlo.HloError(
        f"{instruction.opcode} {instruction.name} ({instruction.op_name}) has "
        "no estimated_cycles, and no rule says what it costs"
      )
    return "bound", moved / chip.hbm_bandwidth

  def _kernel_seconds(self, instruction):
    chip = self.torus.chip
    cost = (
      instruction.backend_config.get("custom_call_config", {}).get(
        "cost_estimate"
      )
      or {}
    )
    seconds = max(
      float(cost.get("flops", 0)) / chip.peak_flops,
      float(cost.get("bytes_accessed", 0)) / chip.hbm_bandwidth,
      self._kernel_cycles(instruction.name) / chip.clock_hz,
    )
    if seconds <= 0:
      raise hlo.HloError(
        f"custom call {instruction.name} ({instruction.custom_call_target}, "
        f"{instruction.op_name}) has no estimated_cycles, no schedule and no "
        "CostEstimate"
      )
    return seconds

  def _kernel_cycles(self, name):
    """Cycles of a kernel; alike kernels are compiled, and named, once."""
    if name in self.kernel_cycles:
      return self.kernel_cycles[name]
    stem = name.rsplit(".", 1)[0]
    alike = [
      cycles
      for other, cycles in self.kernel_cycles.items()
      if other.rsplit(".", 1)[0] == stem
    ]
    return max(alike, default=0)


def _is_scalar(instruction):
  return all(array.size <= VECTOR_ELEMENTS for array in instruction.arrays)
