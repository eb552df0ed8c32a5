"""Step times from cycles: what adds up, what overlaps, what is refused."""

import jax
import jax.numpy as jnp
import pytest

from tpu import estimate, hlo, loops, traffic

CLOCK = 1.5e9
LINK = 90e9  # Both ways round a ring.
GATHERED = 16 * 8 * 128 * 4
GATHER_SECONDS = GATHERED * 15 / 16 / LINK + 8e-6
ROWS = "replica_groups=[16,16]<=[256], dimensions={0}"


def cycles(number):
  return f'backend_config={{"window_config":{{"estimated_cycles":"{number}"}}}}'


def program(*lines, extra=""):
  return hlo.parse(f"""
%work (p: f32[8,1024]) -> f32[8,1024] {{
  %p = f32[8,1024]{{1,0}} parameter(0)
  ROOT %q = f32[8,1024]{{1,0}} negate(%p)
}}
{extra}
ENTRY %main (x: f32[8,1024]) -> f32[8,1024] {{
  %x = f32[8,1024]{{1,0}} parameter(0)
  {chr(10).join("  " + line for line in lines).strip()}
}}
""")


def work(name, number, operand="x", root=False):
  start = "ROOT " if root else ""
  return (
    f"{start}%{name} = f32[8,1024]{{1,0}} fusion(%{operand}), kind=kLoop, "
    f"calls=%work, {cycles(number)}"
  )


def test_cycles_add_up(torus):
  module = program(work("a", 3000), work("b", 6000, "a", root=True))
  result = estimate.estimate(module, torus)
  assert result.seconds == pytest.approx(9000 / CLOCK)
  assert result.exposed("compute") == pytest.approx(result.seconds)


LOOP = f"""
%body (s: (s32[], f32[8,1024])) -> (s32[], f32[8,1024]) {{
  %s = (s32[], f32[8,1024]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %v = f32[8,1024]{{1,0}} get-tuple-element(%s), index=1
  %w = f32[8,1024]{{1,0}} fusion(%v), kind=kLoop, calls=%work, {cycles(1500)}
  ROOT %t = (s32[], f32[8,1024]{{1,0}}) tuple(%next, %w)
}}
%condition (s.1: (s32[], f32[8,1024])) -> pred[] {{
  %s.1 = (s32[], f32[8,1024]{{1,0}}) parameter(0)
  %limit = s32[] constant(COUNT)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}}
"""
LOOP_LINES = (
  "%zero = s32[] constant(0)",
  "%start = (s32[], f32[8,1024]{1,0}) tuple(%zero, %x)",
  "%loop = (s32[], f32[8,1024]{1,0}) while(%start), "
  "condition=%condition, body=%body",
  "ROOT %out = f32[8,1024]{1,0} get-tuple-element(%loop), index=1",
)


@pytest.mark.parametrize("count", [0, 1, 2, 20])
def test_loop_multiplies(torus, count):
  module = program(*LOOP_LINES, extra=LOOP.replace("COUNT", str(count)))
  result = estimate.estimate(module, torus)
  assert result.seconds == pytest.approx(count * 1e-6)
  assert result.exposed("compute") == pytest.approx(count * 1e-6)


def test_conditional_takes_the_slowest_branch(torus):
  branches = "".join(
    f"""
%branch{i} (p{i}: f32[8,1024]) -> f32[8,1024] {{
  %p{i} = f32[8,1024]{{1,0}} parameter(0)
  ROOT %r{i} = f32[8,1024]{{1,0}} fusion(%p{i}), kind=kLoop, calls=%work, {cycles(n)}
}}"""
    for i, n in enumerate((300, 1500, 600))
  )
  module = program(
    "%which = s32[] constant(0)",
    "ROOT %c = f32[8,1024]{1,0} conditional(%which, %x, %x, %x), "
    "branch_computations={%branch0, %branch1, %branch2}",
    extra=branches,
  )
  assert estimate.estimate(module, torus).seconds == pytest.approx(1e-6)


SYNC = (
  f"%g = f32[128,1024]{{1,0}} all-gather(%x), channel_id=1, {ROWS}",
  work("a", 3000, root=True),
)


def test_synchronous_collective_stops_the_core(torus):
  module = program(*(line.replace("[128,1024]", "[128,128]") for line in SYNC))
  result = estimate.estimate(module, torus)
  assert result.seconds == pytest.approx(GATHER_SECONDS + 2e-6)
  assert result.exposed("collective") == pytest.approx(GATHER_SECONDS)
  assert result.costs["g"].bytes == GATHERED
  assert result.costs["g"].group_size == 16


@pytest.mark.parametrize("between", [1500, 15_000, 15_000_000])
def test_asynchronous_collective_overlaps_what_lies_between(torus, between):
  module = program(
    "%s = (f32[8,1024]{1,0}, f32[128,128]{1,0}) all-gather-start(%x), "
    f"channel_id=1, {ROWS}",
    work("a", between),
    "%d = f32[128,128]{1,0} all-gather-done(%s)",
    work("b", 1500, root=True),
  )
  result = estimate.estimate(module, torus)
  compute = between / CLOCK
  assert result.seconds == pytest.approx(max(compute, GATHER_SECONDS) + 1e-6)
  assert result.exposed("collective") == pytest.approx(
    max(0.0, GATHER_SECONDS - compute)
  )
  assert result.busy("collective") == pytest.approx(GATHER_SECONDS)


def test_collectives_wait_for_one_another(torus):
  starts = [
    f"%s{i} = (f32[8,1024]{{1,0}}, f32[128,128]{{1,0}}) all-gather-start(%x), "
    f"channel_id={i}, {ROWS}"
    for i in (1, 2)
  ]
  dones = [
    f"%d{i} = f32[128,128]{{1,0}} all-gather-done(%s{i})" for i in (1, 2)
  ]
  module = program(*starts, *dones, work("a", 0 + 1500, root=True))
  result = estimate.estimate(module, torus)
  assert result.seconds == pytest.approx(2 * GATHER_SECONDS + 1e-6)


def test_synchronous_collective_shares_the_links(torus):
  module = program(
    "%s = (f32[8,1024]{1,0}, f32[128,128]{1,0}) all-gather-start(%x), "
    f"channel_id=1, {ROWS}",
    f"%g = f32[128,128]{{1,0}} all-gather(%x), channel_id=2, {ROWS}",
    "%d = f32[128,128]{1,0} all-gather-done(%s)",
    work("a", 1500, root=True),
  )
  result = estimate.estimate(module, torus)
  # Both take twice as long as alone, at once.
  assert result.costs["g"].exposed == pytest.approx(2 * GATHER_SECONDS)
  assert result.costs["s"].exposed == pytest.approx(0.0, abs=1e-12)
  assert result.seconds == pytest.approx(2 * GATHER_SECONDS + 1e-6)


def test_copy_runs_beside_the_core(torus):
  module = program(
    "%s = (f32[8,1024]{1,0:S(1)}, f32[8,1024]{1,0}, u32[]{:S(2)}) "
    "copy-start(%x)",
    work("a", 15_000),
    "%d = f32[8,1024]{1,0:S(1)} copy-done(%s)",
    work("b", 1500, root=True),
  )
  result = estimate.estimate(module, torus)
  assert result.seconds == pytest.approx(11e-6)
  assert result.exposed("copy") == 0.0


def test_missing_estimate_is_an_error_that_names_the_operation(torus):
  module = program(
    work("strange", 1, root=True).replace(cycles(1), "metadata={}")
  )
  with pytest.raises(hlo.HloError, match=r"strange.*no estimated_cycles"):
    estimate.estimate(module, torus)


@pytest.mark.parametrize("number", [0, -1])
def test_estimate_that_is_not_positive_is_an_error(torus, number):
  with pytest.raises(hlo.HloError, match=rf"odd.*{number} cycles"):
    estimate.estimate(program(work("odd", number, root=True)), torus)


KERNEL = (
  "ROOT %flash.3 = f32[8,1024]{1,0} custom-call(%x), "
  'custom_call_target="tpu_custom_call"'
)


def test_kernel_without_any_figure_is_an_error(torus):
  with pytest.raises(hlo.HloError, match=r"flash\.3.*no CostEstimate"):
    estimate.estimate(program(KERNEL), torus)


def test_kernel_takes_its_schedule_or_its_roofline(torus):
  cost = (
    ', backend_config={"custom_call_config":{"cost_estimate":'
    '{"flops":"197000000","bytes_accessed":"8"}}}'
  )
  module = program(KERNEL)
  named = estimate.estimate(module, torus, {"flash.3": 3000})
  assert named.seconds == pytest.approx(2e-6)
  # The compiler names equal kernels once.
  alike = estimate.estimate(module, torus, {"flash.1": 3000, "other.3": 9})
  assert alike.seconds == pytest.approx(2e-6)
  roofline = estimate.estimate(program(KERNEL + cost), torus)
  assert roofline.seconds == pytest.approx(1e-6)
  slower = estimate.estimate(program(KERNEL + cost), torus, {"flash.3": 3000})
  assert slower.seconds == pytest.approx(2e-6)


def test_reduce_scatter_made_of_an_all_reduce(torus):
  module = program(
    "ROOT %f = f32[8,64]{1,0} fusion(%x), kind=kCustom, calls=%scatter",
    extra="""
%scatter (p.1: f32[8,1024]) -> f32[8,64] {
  %p.1 = f32[8,1024]{1,0} parameter(0)
  %sum = f32[8,1024]{1,0} all-reduce(%p.1), replica_groups=[16,16]<=[256]
  %where = u32[] partition-id()
  ROOT %part = f32[8,64]{1,0} dynamic-slice(%sum, %where, %where)
}""",
  )
  cost = estimate.estimate(module, torus).costs["f"]
  assert cost.opcode == "reduce-scatter"
  assert cost.busy == pytest.approx(8 * 1024 * 4 * 15 / 16 / LINK + 8e-6)


def test_collective_carried_on_inside_fusions_counts_once(torus):
  module = program(
    "%s = (f32[8,1024]{1,0}, u32[]) fusion(%x), kind=kCustom, calls=%begin",
    "%g = f32[8,1024]{1,0} get-tuple-element(%s), index=0",
    f"%a = f32[8,1024]{{1,0}} fusion(%g), kind=kLoop, calls=%on, {cycles(300)}",
    "ROOT %d = f32[128,128]{1,0} fusion(%a), kind=kCustom, calls=%end",
    extra=f"""
%begin (p.1: f32[8,128]) -> (f32[8,1024], u32[]) {{
  %p.1 = f32[8,128]{{1,0}} parameter(0)
  %g.1 = f32[128,128]{{1,0}} all-gather(%p.1), channel_id=7, {ROWS}
  ROOT %c.1 = (f32[8,1024]{{1,0}}, u32[]) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}}
%on (p.2: f32[8,1024]) -> f32[8,1024] {{
  %p.2 = f32[8,1024]{{1,0}} parameter(0)
  %g.2 = f32[128,128]{{1,0}} all-gather(%p.2), channel_id=7, {ROWS}
  ROOT %n.2 = f32[8,1024]{{1,0}} negate(%p.2)
}}
%end (p.3: f32[8,1024]) -> f32[128,128] {{
  %p.3 = f32[8,1024]{{1,0}} parameter(0)
  %g.3 = f32[128,128]{{1,0}} all-gather(%p.3), channel_id=7, {ROWS}
  ROOT %c.3 = f32[128,128]{{1,0}} custom-call(%g.3), custom_call_target="AsyncCollectiveDone"
}}""",
  )
  result = estimate.estimate(module, torus)
  assert result.seconds == pytest.approx(GATHER_SECONDS)
  assert result.busy("collective") == pytest.approx(GATHER_SECONDS)
  assert result.exposed("collective") == pytest.approx(GATHER_SECONDS - 2e-7)
  (cost,) = (c for c in result.costs.values() if c.kind == "collective")
  assert (cost.count, cost.bytes, cost.is_async) == (1, GATHERED, True)


def test_product_in_a_loop_costs_what_it_costs_alone(tpu_slice):
  def layer(x, w):
    return jnp.tanh(x @ w), None

  def seconds(function, *shapes):
    module = tpu_slice.compile(
      function, *(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes)
    )
    products = {
      instruction.name
      for _, instruction, _ in loops.visits(module)
      if instruction.opcode == "fusion"
      and any(
        inner.opcode == "convolution"
        for inner in module.called(instruction, "calls")
      )
    }
    costs = estimate.estimate(module, tpu_slice.torus).costs
    return sum(costs[name].exposed for name in products)

  alone = seconds(lambda x, w: layer(x, w)[0], (512, 512), (512, 512))
  stack = seconds(
    lambda x, w: jax.lax.scan(layer, x, w)[0], (512, 512), (6, 512, 512)
  )
  # The tiling of a product differs a little with what surrounds it.
  assert stack == pytest.approx(6 * alone, rel=0.15)


@pytest.mark.parametrize(
  ("function", "specs", "out", "kind"),
  [
    (jnp.matmul, [("data", None), (None, "model")], (), "all-gather"),
    (jnp.matmul, [(None, "model"), ("model", None)], (), "all-reduce"),
    (lambda x, y: x + y, [("model", None)] * 2, (None, "model"), "all-to-all"),
    (
      lambda x, y: jnp.roll(x, 256, axis=0) + y,
      [("model", None)] * 2,
      ("model", None),
      "collective-permute",
    ),
  ],
)
def test_collectives_of_compiled_programs(
  tpu_slice, function, specs, out, kind
):
  module = tpu_slice.compile(
    function,
    (512, 512),
    (512, 512),
    specs=[jax.P(*spec) for spec in specs],
    out=jax.P(*out),
  )
  costs = estimate.estimate(module, tpu_slice.torus).costs
  found = {c.opcode: c for c in costs.values() if c.kind == "collective"}
  assert kind in found
  assert found[kind].busy > 0


def test_bytes_of_a_product_are_operands_and_result(tpu_slice):
  # Too large for VMEM, so each is read or written once in HBM.
  wide = jax.ShapeDtypeStruct((16384, 8192), jnp.bfloat16)
  tall = jax.ShapeDtypeStruct((8192, 16384), jnp.bfloat16)
  module = tpu_slice.compile(jnp.matmul, wide, tall)
  size = (2 * 16384 * 8192 + 16384**2) * 2
  assert traffic.hbm_bytes(module) == size


def test_slice_of_a_stack_moves_the_slice(tpu_slice):
  def layer(x, w):
    return jnp.tanh(x + w), None

  module = tpu_slice.compile(
    lambda x, w: jax.lax.scan(layer, x, w)[0], (1024, 128), (64, 1024, 128)
  )
  stack = 64 * 1024 * 128 * 4
  moved = traffic.hbm_bytes(module)
  # The running sum stays in VMEM, or goes to HBM and back in each turn.
  assert stack <= moved <= 3.1 * stack
