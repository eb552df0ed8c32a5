"""What is said about a compiled program: figures, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
import math
import re
from typing import Any

import jax
import rich.console
import rich.table

from icml26_jax.training import recipe as recipe_lib
from tpu import collectives, hlo, interconnect, loops, traffic
from tpu import compile as compile_lib
from tpu import estimate as estimate_lib
from tpu import flops as flops_lib

SCHEMA = 1
_SHOWN = 12


def make(
  program: compile_lib.Program,
  compiled: compile_lib.Compiled | MemoryError,
  torus: interconnect.Torus,
  kernel_cycles: Mapping[str, int],
) -> dict[str, Any]:
  """All figures of a program.

  Args:
    program: the traced program.
    compiled: the compiler's result, or its word that memory does not suffice.
    torus: the chips, in the order of the program's devices.
    kernel_cycles: cycles of Pallas kernels by name.

  Returns:
    Nested dictionaries of plain values; bytes and FLOPs as integers, times in
    seconds. Without a result only the memory the compiler asked for.

  Raises:
    hlo.HloError: naming an operation that cannot be accounted for.
  """
  chip = torus.chip
  recipe = program.task.recipe
  record: dict[str, Any] = {
    "schema": SCHEMA,
    "program": program.name,
    "chip": chip.name,
    "chips": program.mesh.size,
    "mesh": dict(program.mesh.shape),
    "rows": program.rows,
    "length": recipe.data.length,
    "params": sum(
      math.prod(leaf.shape) for leaf in jax.tree.leaves(program.params)
    ),
  }
  if isinstance(compiled, MemoryError):
    used = re.search(r"Used ([\d.]+)([KMG]) of", str(compiled))
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}
    total = int(float(used.group(1)) * scale[used.group(2)]) if used else None
    record["fits"] = False
    record["hbm"] = {"total": total, "limit": chip.hbm_bytes}
    record["error"] = str(compiled).splitlines()[0]
    return record
  module = hlo.parse(compiled.text)
  result = estimate_lib.estimate(module, torus, kernel_cycles)
  model = _model_flops(program)
  executed = flops_lib.jaxpr_flops(program.traced.jaxpr)
  per_chip = flops_lib.hlo_flops(module)
  moved = traffic.hbm_bytes(module)
  peak = chip.peak_flops * program.mesh.size
  record |= {
    "fits": compiled.memory["total"] <= chip.hbm_bytes,
    "compile_seconds": compiled.seconds,
    "hbm": {**compiled.memory, "limit": chip.hbm_bytes},
    "flops": {
      "model": model,
      "executed": executed,
      "executed_per_chip": executed / program.mesh.size,
      "compiled_per_chip": per_chip,
    },
    "hbm_bytes_moved_per_chip": moved,
    "estimate": {
      "seconds": result.seconds,
      "mfu": model / peak / result.seconds,
      "hardware_utilisation": executed / peak / result.seconds,
      "tokens_per_second": _tokens(program) / result.seconds,
      "compute_seconds": result.exposed("compute"),
      "kernel_seconds": result.exposed("kernel"),
      "other_seconds": result.exposed("bound"),
      "collective_seconds": result.busy("collective"),
      "collective_seconds_exposed": result.exposed("collective"),
      "copy_seconds": result.busy("copy"),
      "copy_seconds_exposed": result.exposed("copy"),
      "least_seconds_by_flops": executed / peak,
      "least_seconds_by_hbm": moved / chip.hbm_bandwidth,
    },
    "collectives": _collectives(result),
    "parameter_gathers": parameter_gathers(program, module, result),
    "costliest": _costliest(result),
    "kernels": {
      name: cost.busy / cost.count
      for name, cost in result.costs.items()
      if cost.kind == "kernel"
    },
    "assumptions": [
      *estimate_lib.assumptions(torus),
      *_flops_assumptions(program),
    ],
  }
  return record


def parameter_gathers(
  program: compile_lib.Program,
  module: hlo.Module,
  result: estimate_lib.Estimate,
) -> list[dict[str, Any]]:
  """All-gathers of an array as large as a parameter, or larger.

  One is intended if it puts together one layer of a stacked parameter, or
  one that is not stacked, over as many chips as the rules cut it into.

  Args:
    program: the traced program.
    module: its compiled form.
    result: its estimate.

  Returns:
    A dictionary an instruction: name, source, dtype, elements, count, bytes
    (summed), group_size, parameters (those it may be) and intended.
  """
  pieces: dict[int, list[tuple[str, int, bool]]] = {}
  axes = jax.tree.leaves(
    program.task.logical_axes, is_leaf=lambda node: isinstance(node, tuple)
  )
  leaves = jax.tree.leaves_with_path(program.params)
  for (path, leaf), names in zip(leaves, axes, strict=True):
    shards = leaf.size // math.prod(leaf.sharding.shard_shape(leaf.shape))
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    if shards == 1 or len([n for n in names if n not in ("layers", None)]) < 2:
      continue
    is_stacked = names[0] == "layers"
    layers = leaf.shape[0] if is_stacked else 1
    pieces.setdefault(leaf.size // layers, []).append((name, shards, True))
    if is_stacked:
      pieces.setdefault(leaf.size, []).append((name, shards, False))
  if not pieces:
    return []
  smallest = min(pieces)
  found = []
  for computation, instruction, _ in loops.visits(module):
    seen = collectives.collective(module, computation, instruction)
    if seen is None or seen[1] != "all-gather" or seen[3] == "done":
      continue
    inner, _, _, _ = seen
    array = max(inner.arrays, key=lambda array: array.size)
    if array.size < smallest:
      continue
    cost = result.costs[instruction.name]
    matches = pieces.get(array.size, [])
    found.append(
      {
        "name": instruction.name,
        "source": inner.op_name,
        "dtype": array.dtype,
        "elements": array.size,
        "count": cost.count,
        "bytes": cost.bytes,
        "group_size": cost.group_size,
        "parameters": sorted({name for name, _, _ in matches}),
        "intended": any(
          one_layer and shards == cost.group_size
          for _, shards, one_layer in matches
        ),
      }
    )
  return found


def show(
  record: Mapping[str, Any], console: rich.console.Console | None = None
) -> None:
  """Prints a record for people.

  Args:
    record: from `make`, with "config", "topology" and "slice_chips".
    console: where to; standard output if None.
  """
  console = console or rich.console.Console(width=100)
  hbm = record["hbm"]
  mesh = " x ".join(f"{axis} {n}" for axis, n in record["mesh"].items())
  console.print(
    f"[bold]{record['config']} for {record['topology']}[/bold]: "
    f"{record['program']}, {record['params'] / 1e6:,.1f}M parameters, mesh "
    f"{mesh}, {record['rows']:,} x {record['length']:,} tokens"
  )
  if record["chips"] < record["slice_chips"]:
    console.print(
      f"the mesh uses {record['chips']} of {record['slice_chips']} chips;"
      " --config.mesh.data=-1 uses all",
      style="bold",
    )
  if "error" in record:
    console.print(f"does NOT fit: {record['error']}", markup=False)
    return
  table = _table("memory a chip", "GiB")
  for name in (
    "arguments",
    "output",
    "aliased",
    "temporaries",
    "code",
    "total",
    "limit",
  ):
    table.add_row(name, f"{hbm[name] / 2**30:.3f}")
  _print(console, table)
  console.print("fits" if record["fits"] else "does NOT fit")

  flops = record["flops"]
  table = _table("work a step", "a chip")
  count = record["chips"]
  table.add_row("model TFLOP", f"{flops['model'] / count / 1e12:.3f}")
  table.add_row(
    "executed TFLOP, traced (with recomputation)",
    f"{flops['executed_per_chip'] / 1e12:.3f}",
  )
  table.add_row(
    "executed TFLOP, compiled (without Pallas kernels)",
    f"{flops['compiled_per_chip'] / 1e12:.3f}",
  )
  table.add_row(
    "GB to and from HBM", f"{record['hbm_bytes_moved_per_chip'] / 1e9:.1f}"
  )
  _print(console, table)

  table = _table(
    "collectives", "chips", "runs", "GB", "async", "ms", "ms waited"
  )
  for row in record["collectives"]:
    table.add_row(
      row["kind"],
      str(row["group_size"]),
      str(row["count"]),
      f"{row['bytes'] / 1e9:.3f}",
      f"{row['async_count']}/{row['count']}",
      f"{row['seconds'] * 1e3:.2f}",
      f"{row['seconds_exposed'] * 1e3:.2f}",
    )
  _print(console, table)
  table = _table("gathers of parameter size", "chips", "runs", "GB", "intended")
  for row in record["parameter_gathers"]:
    table.add_row(
      f"{', '.join(row['parameters']) or row['source']} ({row['dtype']})",
      str(row["group_size"]),
      str(row["count"]),
      f"{row['bytes'] / 1e9:.3f}",
      "yes" if row["intended"] else "NO",
    )
  _print(console, table)

  guess = record["estimate"]
  table = _table("estimated time", "ms")
  for label, name in (
    ("step", "seconds"),
    ("  compute", "compute_seconds"),
    ("  Pallas kernels", "kernel_seconds"),
    ("  gather, scatter, sort", "other_seconds"),
    ("  waiting for collectives", "collective_seconds_exposed"),
    ("  waiting for copies", "copy_seconds_exposed"),
    ("collectives, hidden or not", "collective_seconds"),
    ("copies, hidden or not", "copy_seconds"),
    ("bound by executed FLOPs", "least_seconds_by_flops"),
    ("bound by HBM traffic", "least_seconds_by_hbm"),
  ):
    table.add_row(label, f"{guess[name] * 1e3:.2f}")
  _print(console, table)
  console.print(
    f"MFU {guess['mfu']:.1%} (with recomputation "
    f"{guess['hardware_utilisation']:.1%}), "
    f"{guess['tokens_per_second']:,.0f} tokens/s",
    highlight=False,
  )
  table = _table("costliest operations", "runs", "ms", "what")
  for row in record["costliest"]:
    table.add_row(
      row["name"],
      str(row["count"]),
      f"{row['seconds_exposed'] * 1e3:.2f}",
      f"{row['opcode']} {_shortened(row['source'])}",
    )
  _print(console, table)
  console.print()
  console.print("The estimate assumes:")
  for text in record["assumptions"]:
    console.print(f"  - {text}", markup=False, highlight=False)


def _print(console, table):
  """A table with a line before it; nothing of an empty one."""
  if table.row_count:
    console.print()
    console.print(table)


def _table(*columns):
  table = rich.table.Table(box=None, pad_edge=False, title_justify="left")
  table.add_column(columns[0], style="bold")
  for column in columns[1:]:
    table.add_column(column, justify="left" if column == "what" else "right")
  return table


def _shortened(source, width=44):
  """The end of an operation's path, from one of its parts on."""
  if len(source) <= width:
    return source
  tail = source[-width:]
  return f".../{tail.partition('/')[2] or tail}"


def _tokens(program):
  return program.rows * program.task.recipe.data.length


def _model_flops(program):
  recipe = program.task.recipe
  length = recipe.data.length
  is_causal = recipe.process == recipe_lib.AUTOREGRESSIVE
  forward = flops_lib.forward_flops(
    matmul_params=compile_lib.matmul_params(program.task, program.params),
    num_layers=recipe.model.num_layers,
    d_model=recipe.model.d_model,
    attended=(length + 1) / 2 if is_causal else length,
    tokens=_tokens(program),
  )
  return program.passes * forward


def _flops_assumptions(program):
  n = compile_lib.matmul_params(program.task, program.params)
  return [
    f"model FLOPs: {program.passes} passes of 2 N T + 4 L d S T with "
    f"N = {n:,} parameters that multiply every token; no embedding look-up, "
    "conditioning, noise, recomputation or optimizer",
    "executed FLOPs: matrix products of the traced program, loops times their "
    "trip counts, a conditional's dearest branch",
  ]


def _collectives(result):
  rows: dict[tuple[str, int], dict[str, Any]] = {}
  for cost in result.costs.values():
    if cost.kind != "collective":
      continue
    row = rows.setdefault(
      (cost.opcode, cost.group_size),
      {
        "kind": cost.opcode,
        "group_size": cost.group_size,
        "count": 0,
        "async_count": 0,
        "bytes": 0,
        "seconds": 0.0,
        "seconds_exposed": 0.0,
      },
    )
    row["count"] += cost.count
    row["async_count"] += cost.count if cost.is_async else 0
    row["bytes"] += cost.bytes
    row["seconds"] += cost.busy
    row["seconds_exposed"] += cost.exposed
  return sorted(rows.values(), key=lambda row: -row["seconds"])


def _costliest(result):
  costs = sorted(result.costs.items(), key=lambda item: -item[1].exposed)
  return [
    {
      "name": name,
      "kind": cost.kind,
      "opcode": cost.opcode,
      "source": cost.op_name,
      "count": cost.count,
      "seconds": cost.busy,
      "seconds_exposed": cost.exposed,
    }
    for name, cost in costs[:_SHOWN]
  ]
