"""The programs of a recipe, compiled for a TPU slice."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import jax

from icml26_jax.diffusion import sampling
from icml26_jax.training import mesh as mesh_lib
from icml26_jax.training import optimizer as optimizer_lib
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import sharding as sharding_lib
from icml26_jax.training import state as state_lib
from icml26_jax.training import step as step_lib

PROGRAMS = ("train", "sample")


@dataclasses.dataclass(frozen=True)
class Program:
  """A traced and lowered program, ready to compile.

  Attributes:
    name: "train" or "sample".
    task: the recipe's functions.
    mesh: the mesh it runs on.
    params: the parameters' shapes and shardings.
    traced: what `jax.jit(...).trace(...)` returned.
    rows: sequences a call works on.
    passes: passes through the network a call is worth: 3 for a training
      step, one a step for the sampler.
  """

  name: str
  task: recipe_lib.Task
  mesh: jax.sharding.Mesh
  params: Any
  traced: Any
  rows: int
  passes: int


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What the compiler made of a program.

  Attributes:
    text: optimised HLO.
    memory: bytes a chip: "arguments", "output", "aliased", "temporaries",
      "code" and "total" of what must be there at once.
    seconds: how long compiling took.
  """

  text: str
  memory: dict[str, int]
  seconds: float


def trace(
  recipe: recipe_lib.Recipe,
  program: str,
  devices: list[Any],
  *,
  sample_rows: int | None = None,
  sample_steps: int = 64,
) -> Program:
  """Traces a program of a recipe over a slice's devices.

  Args:
    recipe: the recipe; its mesh must fit the devices.
    program: "train" for one step of training, forward, backward, optimizer
      and all; "sample" for a whole sampling run.
    devices: of `topology.describe`.
    sample_rows: sequences to sample at once; None for one a device.
    sample_steps: steps of the sampler.

  Returns:
    The program.

  Raises:
    ValueError: if the mesh, the batch or the rules do not fit, or an
      autoregressive recipe is to be sampled.
  """
  mesh = mesh_lib.make_mesh(dict(recipe.mesh), devices=devices)
  task = recipe_lib.build(recipe)
  rules = recipe.all_rules
  optimizer = optimizer_lib.make(recipe.optimizer)
  state = state_lib.abstract(
    task.init,
    optimizer,
    mesh,
    rules,
    task.logical_axes,
    with_ema=recipe.ema_decay is not None,
  )
  rows = sharding_lib.batch_sharding(mesh, rules)
  if program == "train":
    sharding_lib.check_batch(
      mesh, rules, recipe.data.batch_size, recipe.accumulation
    )
    step = step_lib.make_train_step(
      task.loss_fn,
      optimizer,
      mesh,
      rules,
      state_shardings=state_lib.shardings(state),
      accumulation=recipe.accumulation,
      ema_decay=recipe.ema_decay,
    )
    batch = {
      name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=rows)
      for name, leaf in task.batch_spec.items()
    }
    traced = step.trace(state, batch)
    return Program(
      program, task, mesh, state.params, traced, recipe.data.batch_size, 3
    )
  if program != "sample":
    raise ValueError(
      f"program must be one of {', '.join(PROGRAMS)}, got {program!r}"
    )
  count = mesh.size if sample_rows is None else sample_rows
  sharding_lib.check_batch(mesh, rules, count)
  times = sampling.time_grid(sample_steps)

  def draw(params, key):
    with sharding_lib.scope(mesh, rules):
      return sampling.sample(
        key,
        task.process(params),
        task.denoise_fn(params),
        (count, recipe.data.length),
        times,
      )[0]

  key = jax.eval_shape(lambda: jax.random.key(0))
  traced = jax.jit(draw, out_shardings=rows).trace(
    state.params,
    jax.ShapeDtypeStruct(
      key.shape, key.dtype, sharding=sharding_lib.replicated(mesh)
    ),
  )
  return Program(program, task, mesh, state.params, traced, count, sample_steps)


def compile_program(program: Program) -> Compiled:
  """Compiles with the real TPU compiler.

  Args:
    program: the traced program.

  Returns:
    The result.

  Raises:
    MemoryError: with the compiler's message, if the program does not fit.
  """
  start = time.monotonic()
  lowered = program.traced.lower()
  try:
    compiled = lowered.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    raise MemoryError(str(error)) from error
  memory = compiled.memory_analysis()
  parts = {
    "arguments": memory.argument_size_in_bytes,
    "output": memory.output_size_in_bytes,
    "aliased": memory.alias_size_in_bytes,
    "temporaries": memory.temp_size_in_bytes,
    "code": memory.generated_code_size_in_bytes,
  }
  # Donated arguments hold the outputs that alias them.
  parts["total"] = (
    parts["arguments"] + parts["output"] - parts["aliased"]
    + parts["temporaries"] + parts["code"]
  )  # fmt: skip
  return Compiled(compiled.as_text(), parts, time.monotonic() - start)


def matmul_params(task: recipe_lib.Task, params: Any) -> int:
  """Parameters that multiply every token: N of `6 N T`.

  Matrices count, except the embedding table, which is looked up (but counts
  if no other matrix maps to the vocabulary), and those on the conditioning
  path, which work once a sequence.

  Args:
    task: the recipe's functions.
    params: tree of the parameters' shapes.

  Returns:
    Number of parameters.
  """
  axes = jax.tree.leaves(
    task.logical_axes, is_leaf=lambda node: isinstance(node, tuple)
  )
  shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
  matrices = [
    (names, math.prod(shape))
    for names, shape in zip(axes, shapes, strict=True)
    if len([name for name in names if name not in ("layers", None)]) >= 2
    and "conditioning" not in names
  ]
  tables = [size for names, size in matrices if names[0] == "vocab"]
  heads = [size for names, size in matrices if names[-1] == "vocab"]
  rest = sum(size for names, size in matrices if "vocab" not in names)
  return rest + (sum(heads) if heads else sum(tables))
