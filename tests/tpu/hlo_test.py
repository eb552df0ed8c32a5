"""Reading compiled programs: shapes, loops, branches, what runs how often."""

import jax
import jax.numpy as jnp
import pytest

from tpu import hlo, loops

LOOP = """
HloModule small

%body (state: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %state = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)S(1)}) parameter(0)
  %index = s32[]{:T(128)} get-tuple-element(%state), index=0
  %one = s32[] constant(STEP)
  %next = s32[] add(%index, %one)
  %value = f32[8,128]{1,0:T(8,128)S(1)} get-tuple-element(%state), index=1
  ROOT %out = (s32[], f32[8,128]) tuple(%next, %value)
}

%condition (state.1: (s32[], f32[8,128])) -> pred[] {
  %limit = s32[] constant(LIMIT)
  %state.1 = (s32[], f32[8,128]{1,0}) parameter(0)
  %index.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%index.1, %limit), direction=DIRECTION
}

ENTRY %main (x: f32[8,128]) -> f32[8,128] {
  %x = f32[8,128]{1,0} parameter(0)
  %start = s32[] constant(START)
  %copy = s32[] copy(%start)
  %tuple = (s32[], f32[8,128]) tuple(%copy, %x)
  %loop = (s32[], f32[8,128]) while(%tuple), condition=%condition, body=%body
  ROOT %result = f32[8,128] get-tuple-element(%loop), index=1
}
"""


def loop_text(start=0, limit=4, step=1, direction="LT"):
  text = LOOP.replace("START", str(start)).replace("LIMIT", str(limit))
  return text.replace("STEP", str(step)).replace("DIRECTION", direction)


def trips(text):
  module = hlo.parse(text)
  main = module.computations[module.entry]
  return loops.trip_count(module, main, main.instructions["loop"])


@pytest.mark.parametrize(
  ("start", "limit", "step", "direction"),
  [
    (0, 4, 1, "LT"),
    (2, 11, 3, "LT"),
    (2, 12, 3, "LT"),
    (0, 4, 1, "LE"),
    (9, 2, -2, "GT"),
    (9, 1, -2, "GE"),
    (0, 6, 2, "NE"),
    (5, 5, 1, "LT"),
    (7, 5, 1, "LT"),
  ],
)
def test_trip_count_is_that_of_running_the_loop(start, limit, step, direction):
  holds = {
    "LT": lambda i: i < limit,
    "LE": lambda i: i <= limit,
    "GT": lambda i: i > limit,
    "GE": lambda i: i >= limit,
    "NE": lambda i: i != limit,
  }[direction]
  count, index = 0, start
  while holds(index):
    index += step
    count += 1
  assert trips(loop_text(start, limit, step, direction)) == count


def test_limit_on_the_left_means_the_same():
  text = loop_text(0, 7, 2, "GT").replace(
    "compare(%index.1, %limit)", "compare(%limit, %index.1)"
  )
  assert trips(text) == 4


def test_known_trip_count_of_the_compiler_is_taken():
  text = loop_text().replace(
    "body=%body",
    'body=%body, backend_config={"known_trip_count":{"n":"9"}}',
  )
  assert trips(text) == 9


def test_loop_that_never_ends_is_an_error():
  with pytest.raises(hlo.HloError, match=r"loop.*never ends"):
    trips(loop_text(0, 5, -1, "LT"))


def test_loop_without_a_constant_limit_is_an_error():
  text = loop_text().replace(
    "%limit = s32[] constant(4)", "%limit = s32[] partition-id()"
  )
  with pytest.raises(hlo.HloError, match=r"loop.*no constant trip count"):
    trips(text)


def test_shapes_carry_bytes_and_memory_space():
  module = hlo.parse(loop_text())
  state = module.computations["body"].instructions["state"]
  scalar, matrix = state.arrays
  assert (scalar.dtype, scalar.dims, scalar.bytes) == ("s32", (), 4)
  assert (matrix.dims, matrix.bytes) == ((8, 128), 4096)
  assert (scalar.memory_space, matrix.memory_space) == (hlo.HBM, 1)


def test_attribute_with_line_breaks_belongs_to_its_instruction():
  text = loop_text().replace(
    "%copy = s32[] copy(%start)",
    '%copy = s32[] copy(%start), frontend_attributes={kernel={\n"a": 1\n}},'
    ' backend_config={"window_config":{"estimated_cycles":"12"}}',
  )
  module = hlo.parse(text)
  main = module.computations[module.entry]
  assert main.instructions["copy"].estimated_cycles == 12
  assert main.root.name == "result"


def test_text_without_entry_is_an_error():
  with pytest.raises(hlo.HloError, match="ENTRY"):
    hlo.parse("HloModule empty\n")


def counts(module):
  """How often products run, by their number of output elements."""
  found = {}
  for _, instruction, count in loops.visits(module):
    names = [instruction]
    if instruction.opcode == "fusion":
      names = list(module.called(instruction, "calls"))
    for inner in names:
      if inner.opcode in ("dot", "convolution"):
        size = inner.arrays[0].size
        found[size] = found.get(size, 0) + count
  return found


def test_nested_loops_multiply(tpu_slice):
  def inner(x, _):
    return jnp.tanh(x @ x), None

  def outer(x, _):
    x, _ = jax.lax.scan(inner, x, None, length=5)
    return x + 1.0, None

  module = tpu_slice.compile(
    lambda x: jax.lax.scan(outer, x, None, length=3)[0], (256, 256)
  )
  assert counts(module) == {256 * 256: 15}


def test_loop_from_one_number_to_another(tpu_slice):
  module = tpu_slice.compile(
    lambda x: jax.lax.fori_loop(2, 11, lambda i, y: jnp.tanh(y @ y) + i, x),
    (256, 256),
  )
  assert counts(module) == {256 * 256: 9}


def test_loop_that_ends_by_a_value_is_an_error(tpu_slice):
  module = tpu_slice.compile(
    lambda x: jax.lax.while_loop(
      lambda y: jnp.sum(y) < 100.0, lambda y: jnp.tanh(y @ y), x
    ),
    (256, 256),
  )
  with pytest.raises(hlo.HloError, match="no constant trip count"):
    list(loops.visits(module))


def test_both_branches_of_a_conditional_are_visited(tpu_slice):
  def pick(flag, x):
    return jax.lax.cond(
      flag[0] > 0,
      lambda x: jnp.tanh(x @ x),
      lambda x: jnp.tile(x[:128] @ x[:, :128], (2, 2)),
      x,
    )

  module = tpu_slice.compile(pick, (1,), (256, 256))
  assert "conditional" in [i.opcode for _, i, _ in loops.visits(module)]
  assert counts(module) == {256 * 256: 1, 128 * 128: 1}
