"""Facts of the TPU chips that the estimates use.

Sources: the architecture pages docs.cloud.google.com/tpu/docs/v5e, .../v5p and
.../v6e (peak, HBM, number of links and their two-way bandwidth a chip);
"How to Scale Your Model" (jax-ml.github.io/scaling-book/tpus), whose one-way
bandwidth of a link is what collectives reach in practice, 0.9 of the nominal.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
  """One chip, as one JAX device.

  Attributes:
    name: as topology names begin, e.g. "v5e".
    peak_flops: bfloat16 FLOP a second, all cores of the chip.
    clock_hz: cycles a second that turn the compiler's `estimated_cycles` into
      time. Derived: the clock at which the systolic arrays reach the peak.
      At these clocks the compiler's estimate of a float32 pass over 2 GiB
      comes to 0.81 of the HBM bandwidth on v5e and v6e alike.
    hbm_bytes: memory a program may use, as the compiler reports it when a
      program does not fit.
    hbm_bandwidth: bytes a second.
    link_bandwidth: bytes a second of one link in one direction.
    hop_seconds: latency of one hop.
    wrapped_size: a torus axis of this many chips (or a multiple, for v5p) has
      the links that close the ring; shorter axes are open lines.
    accelerator: prefix of the accelerator type, e.g. "v5litepod".
    cores_per_chip: how the accelerator type counts: its number is chips times
      this.
  """

  name: str
  peak_flops: float
  clock_hz: float
  hbm_bytes: int
  hbm_bandwidth: float
  link_bandwidth: float
  wrapped_size: int
  accelerator: str
  cores_per_chip: int
  hop_seconds: float = 1e-6

  def is_wrapped(self, axis_size: int) -> bool:
    """True if a torus axis of this size is a closed ring."""
    return axis_size >= self.wrapped_size and axis_size % self.wrapped_size == 0


CHIPS = {
  chip.name: chip
  for chip in (
    Chip(
      name="v5e",
      peak_flops=197e12,
      # 4 arrays of 128 x 128, 2 FLOP each: 131,072 FLOP a cycle.
      clock_hz=1.5e9,
      hbm_bytes=int(15.75 * 2**30),
      hbm_bandwidth=819e9,
      link_bandwidth=45e9,
      wrapped_size=16,
      accelerator="v5litepod",
      cores_per_chip=1,
    ),
    Chip(
      name="v5p",
      peak_flops=459e12,
      # 2 cores with 4 arrays of 128 x 128.
      clock_hz=1.75e9,
      hbm_bytes=int(95.74 * 2**30),
      hbm_bandwidth=2765e9,
      link_bandwidth=90e9,
      wrapped_size=4,
      accelerator="v5p",
      cores_per_chip=2,
    ),
    Chip(
      name="v6e",
      peak_flops=918e12,
      # 2 arrays of 256 x 256, each counted twice to reach the peak.
      clock_hz=1.75e9,
      hbm_bytes=int(31.25 * 2**30),
      hbm_bandwidth=1638e9,
      link_bandwidth=90e9,
      wrapped_size=16,
      accelerator="v6e",
      cores_per_chip=1,
    ),
  )
}
