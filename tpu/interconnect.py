"""Time of a collective on a torus of chips, from bytes and link bandwidth.

A group of chips communicates along the torus axes that it spans. On a closed
axis both directions carry half of a ring's traffic, on an open one the
busiest link carries all of it in one direction; several axes work at the same
time. These are the usual ring bounds ("How to Scale Your Model", chapter on
sharded matrices), plus a latency per hop.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
import re

import numpy as np

from tpu import chips, hlo

KINDS = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
  "ragged-all-to-all",
  "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Torus:
  """Where the chips of a program sit.

  Attributes:
    chip: facts of the chip.
    shape: chips along each axis, e.g. (16, 16).
    coords: `[N, axes]` int, position of the program's i-th device.
  """

  chip: chips.Chip
  shape: tuple[int, ...]
  coords: np.ndarray


@dataclasses.dataclass(frozen=True)
class Span:
  """How a group lies along one torus axis.

  Attributes:
    size: chips of the group along the axis.
    stride: distance of neighbours in the group; groups in between use the
      same links.
    is_ring: True if the axis is closed and the group goes all the way round.
  """

  size: int
  stride: int
  is_ring: bool


def replica_groups(attributes: str, num_devices: int) -> list[list[int]]:
  """Groups of a collective, in any of the three forms HLO prints.

  Args:
    attributes: text of the instruction behind its operands.
    num_devices: devices of the program; all are one group if none is given.

  Returns:
    Lists of device numbers.

  Raises:
    hlo.HloError: if `replica_groups` has an unknown form.
  """
  match = re.search(r"replica_groups=", attributes)
  if not match:
    return [list(range(num_devices))]
  text = attributes[match.end() :]
  if text.startswith("{{"):
    inside = text[2 : text.index("}}")]
    return [[int(d) for d in g.split(",")] for g in inside.split("},{")]
  if text.startswith("{}"):
    return [list(range(num_devices))]
  iota = re.match(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
  if iota:
    devices = _iota(iota.group(2), iota.group(3))
    return devices.reshape(_sizes(iota.group(1))).tolist()
  mesh = re.match(
    r"mesh\[([^\]]*)\](?:, device_ids=(?:\(([\d,]*)\)|"
    r"\[([\d,]+)\](?:T\(([\d,]+)\))?))? \{([^}]*)\}",
    text,
  )
  if not mesh:
    raise hlo.HloError(f"unknown form of replica_groups: {text[:80]}")
  axes = re.findall(r"'([^']*)'=(\d+)", mesh.group(1))
  names = [name for name, _ in axes]
  shape = [int(size) for _, size in axes]
  if mesh.group(2):
    devices = np.array([int(d) for d in mesh.group(2).split(",")])
  elif mesh.group(3):
    devices = _iota(mesh.group(3), mesh.group(4))
  else:
    devices = np.arange(math.prod(shape))
  chosen = [names.index(n) for n in re.findall(r"'([^']*)'", mesh.group(5))]
  rest = [i for i in range(len(shape)) if i not in chosen]
  size = math.prod(shape[i] for i in chosen)
  grid = devices.reshape(shape).transpose(rest + chosen)
  return grid.reshape(-1, size).tolist()


def spans(torus: Torus, group: Sequence[int]) -> list[Span]:
  """How a group lies along each torus axis that it spans.

  Args:
    torus: the chips.
    group: device numbers.

  Returns:
    One entry an axis with more than one chip of the group.
  """
  coords = torus.coords[np.asarray(group)]
  result = []
  for axis, axis_size in enumerate(torus.shape):
    places = np.unique(coords[:, axis])
    if places.size < 2:
      continue
    stride = int(np.diff(places).min())
    is_ring = (
      torus.chip.is_wrapped(axis_size) and places.size * stride == axis_size
    )
    result.append(Span(int(places.size), stride, is_ring))
  return result


def seconds(
  torus: Torus, kind: str, num_bytes: int, group: Sequence[int]
) -> float:
  """Lower bound of a collective's time.

  Args:
    torus: the chips.
    kind: one of `KINDS` but "collective-permute".
    num_bytes: bytes on one chip of the whole (gathered, unreduced) array: the
      output of an all-gather, the input of the others.
    group: device numbers of one group; the others are alike.

  Returns:
    Seconds; 0.0 for a group of one.

  Raises:
    hlo.HloError: if the kind is unknown.
  """
  axes = spans(torus, group)
  if not axes:
    return 0.0
  link = torus.chip.link_bandwidth
  # Bytes a second that leave a chip along the axes, both ways round a ring.
  rate = sum(link * (2 if a.is_ring else 1) / a.stride for a in axes)
  hops = sum(a.size * a.stride // (2 if a.is_ring else 1) for a in axes)
  latency = hops * torus.chip.hop_seconds
  share = 1 - 1 / len(group)
  if kind in ("all-gather", "reduce-scatter", "collective-broadcast"):
    return num_bytes * share / rate + latency
  if kind == "all-reduce":
    return 2 * (num_bytes * share / rate + latency)
  if kind in ("all-to-all", "ragged-all-to-all"):
    # The middle link of each axis carries what crosses the middle.
    crossing = [a.size * a.stride / (8 if a.is_ring else 4) for a in axes]
    return num_bytes * max(crossing) / link + latency
  raise hlo.HloError(f"unknown collective {kind}")


def permute_seconds(
  torus: Torus, num_bytes: int, pairs: Sequence[tuple[int, int]]
) -> float:
  """Lower bound of a collective-permute's time: the longest way of a message.

  Args:
    torus: the chips.
    num_bytes: bytes each chip sends.
    pairs: (source, target) device numbers.

  Returns:
    Seconds. A message over k hops shares its links with k - 1 others of the
    same pattern.
  """
  if not pairs:
    return 0.0
  source, target = np.asarray(pairs).T
  distance = np.abs(torus.coords[source] - torus.coords[target])
  for axis, size in enumerate(torus.shape):
    if torus.chip.is_wrapped(size):
      distance[:, axis] = np.minimum(
        distance[:, axis], size - distance[:, axis]
      )
  hops = int(distance.sum(axis=1).max())
  return hops * (num_bytes / torus.chip.link_bandwidth + torus.chip.hop_seconds)


def permute_pairs(attributes: str) -> list[tuple[int, int]]:
  """`source_target_pairs` of a collective-permute."""
  match = re.search(r"source_target_pairs=\{(.*?)\}\}", attributes)
  if not match:
    return []
  return [
    (int(a), int(b)) for a, b in re.findall(r"\{(\d+),(\d+)", match.group(0))
  ]


def _sizes(text):
  return [int(number) for number in text.split(",")]


def _iota(shape, permutation):
  shape = _sizes(shape)
  devices = np.arange(math.prod(shape)).reshape(shape)
  if permutation:
    devices = devices.transpose(_sizes(permutation))
  return devices.reshape(-1)
