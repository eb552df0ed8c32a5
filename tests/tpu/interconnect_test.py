"""Groups of collectives, and their times on a torus."""

import dataclasses

import numpy as np
import pytest

from tpu import hlo, interconnect, loops, topology

ROW = list(range(16))
COLUMN = list(range(0, 256, 16))
LINK = 45e9
# One way round half a ring of 16.
RING_LATENCY = 8e-6


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("replica_groups={{0,1},{2,3}}, x", [[0, 1], [2, 3]]),
    ("replica_groups={}, x", [[0, 1, 2, 3]]),
    ("channel_id=1", [[0, 1, 2, 3]]),
    ("replica_groups=[2,2]<=[4], x", [[0, 1], [2, 3]]),
    ("replica_groups=[2,2]<=[2,2]T(1,0), x", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'b'}, x", [[0, 1], [2, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a'}, x", [[0, 2], [1, 3]]),
    ("replica_groups=mesh['a'=2,'b'=2] {'a','b'}, x", [[0, 1, 2, 3]]),
    (
      "replica_groups=mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}, x",
      [[0, 2], [1, 3]],
    ),
    (
      "replica_groups=mesh['a'=2,'b'=2], device_ids=[2,2]T(1,0) {'b'}, x",
      [[0, 2], [1, 3]],
    ),
  ],
)
def test_groups_in_every_form(text, expected):
  assert interconnect.replica_groups(text, 4) == expected


def test_unknown_form_of_groups_is_an_error():
  with pytest.raises(hlo.HloError, match="replica_groups"):
    interconnect.replica_groups("replica_groups=<new>", 4)


def test_compiled_groups_follow_the_mesh(tpu_slice):
  import jax
  import jax.numpy as jnp

  module = tpu_slice.compile(
    lambda x: jnp.sin(x), (256, 256), specs=[jax.P("model")], out=jax.P()
  )
  text = next(
    i.attributes for _, i, _ in loops.visits(module) if i.opcode == "all-gather"
  )
  groups = interconnect.replica_groups(text, 4)
  assert sorted(map(sorted, groups)) == [[0, 1], [2, 3]]


def ring_all_gather(size, shard_bytes):
  """Seconds of a ring all-gather, one shard at a time, both ways round."""
  held = [{i} for i in range(size)]
  passed = [[i, i] for i in range(size)]  # Last received from each side.
  steps = 0
  while any(len(h) < size for h in held):
    right = [passed[(i - 1) % size][0] for i in range(size)]
    left = [passed[(i + 1) % size][1] for i in range(size)]
    for i in range(size):
      held[i] |= {right[i], left[i]}
      passed[i] = [right[i], left[i]]
    steps += 1
  return steps * shard_bytes / LINK


@pytest.mark.parametrize("group", [ROW, COLUMN])
def test_all_gather_equals_a_simulated_ring(torus, group):
  got = interconnect.seconds(torus, "all-gather", 16 * 2**20, group)
  # 15 shards by two directions are 7.5 steps; a ring cannot do half a step.
  simulated = ring_all_gather(16, 2**20)
  assert got - RING_LATENCY == pytest.approx(simulated * 7.5 / 8)


def test_all_reduce_is_a_scatter_and_a_gather(torus):
  scatter = interconnect.seconds(torus, "reduce-scatter", 2**24, ROW)
  gather = interconnect.seconds(torus, "all-gather", 2**24, ROW)
  both = interconnect.seconds(torus, "all-reduce", 2**24, ROW)
  assert both == pytest.approx(scatter + gather)


def test_two_axes_are_twice_as_fast(torus):
  everyone = list(range(256))
  one = interconnect.seconds(torus, "all-gather", 2**30, ROW)
  two = interconnect.seconds(torus, "all-gather", 2**30, everyone)
  share = (255 / 256) / (15 / 16)
  assert two - 2 * RING_LATENCY == pytest.approx(
    (one - RING_LATENCY) / 2 * share
  )


def test_part_of_an_axis_is_an_open_line(torus):
  got = interconnect.seconds(torus, "all-gather", 4 * 2**20, [0, 1, 2, 3])
  # The link at the end carries the three other shards.
  assert got == pytest.approx(3 * 2**20 / LINK + 4e-6)


def test_groups_between_share_the_links(torus):
  apart = interconnect.spans(torus, [0, 4, 8, 12])
  assert apart == [interconnect.Span(4, 4, True)]
  got = interconnect.seconds(torus, "all-gather", 4 * 2**20, [0, 4, 8, 12])
  assert got == pytest.approx(3 * 2**20 / (2 * LINK / 4) + RING_LATENCY)


def test_small_slice_has_no_rings():
  chip, shape = topology.parse("v5e:4x4")
  rows, columns = np.divmod(np.arange(16), 4)
  small = interconnect.Torus(chip, shape, np.stack([columns, rows], axis=1))
  assert not interconnect.spans(small, [0, 1, 2, 3])[0].is_ring
  cube = dataclasses.replace(small, chip=topology.parse("v5p:4x4x4")[0])
  assert interconnect.spans(cube, [0, 1, 2, 3])[0].is_ring


def line_all_to_all(size, num_bytes):
  """Bytes over the busiest link, by sending every message along the line."""
  load = np.zeros(size - 1)
  for source in range(size):
    for target in range(source + 1, size):
      load[source:target] += num_bytes / size
  return load.max()


def test_all_to_all_equals_counting_messages(torus):
  group = [0, 1, 2, 3]
  got = interconnect.seconds(torus, "all-to-all", 2**20, group)
  assert got == pytest.approx(line_all_to_all(4, 2**20) / LINK + 4e-6)


def test_alone_takes_no_time(torus):
  assert interconnect.seconds(torus, "all-reduce", 2**30, [5]) == 0.0


def test_unknown_collective_is_an_error(torus):
  with pytest.raises(hlo.HloError, match="unknown collective"):
    interconnect.seconds(torus, "all-shuffle", 1, ROW)


def test_permute_takes_the_short_way_round(torus):
  near = interconnect.permute_seconds(torus, 2**20, [(0, 15), (15, 14)])
  assert near == pytest.approx(2**20 / LINK + 1e-6)
  far = interconnect.permute_seconds(torus, 2**20, [(0, 8 + 16)])
  assert far == pytest.approx(9 * (2**20 / LINK + 1e-6))


def test_pairs_of_a_permute():
  text = "channel_id=1, source_target_pairs={{0,2},{1,3}}, metadata={}"
  assert interconnect.permute_pairs(text) == [(0, 2), (1, 3)]
  assert interconnect.permute_pairs("channel_id=1") == []
