"""FLOPs against hand counts, traced against compiled, scanned against not."""

import functools

import jax
import jax.numpy as jnp
import pytest

from tpu import flops


def traced(function, *shapes):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return flops.jaxpr_flops(jax.make_jaxpr(function)(*arguments))


def test_product_is_two_a_multiplication():
  assert traced(jnp.matmul, (3, 5), (5, 7)) == 2 * 3 * 5 * 7


def test_batched_product_counts_each_batch():
  product = functools.partial(jnp.einsum, "bqd,bkd->bqk")
  assert traced(product, (4, 3, 5), (4, 6, 5)) == 2 * 4 * 3 * 6 * 5


def test_elementwise_work_counts_nothing():
  assert traced(lambda x: jnp.sum(jnp.exp(x) * x), (8, 8)) == 0


def test_loop_counts_each_turn():
  def looped(x):
    return jax.lax.scan(lambda x, _: (x @ x, None), x, None, length=7)[0]

  assert traced(looped, (5, 5)) == 7 * 2 * 5**3


def test_backward_pass_costs_twice_the_forward():
  def loss(w, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w))

  forward = traced(loss, (8, 8), (4, 8))
  assert forward == 2 * (2 * 4 * 8 * 8)
  # The gradient of the data is needed only behind the first product.
  both = traced(jax.grad(loss), (8, 8), (4, 8))
  assert both == 3 * forward - 2 * 4 * 8 * 8


def test_recomputation_counts():
  def loss(w, x):
    return jnp.sum(jnp.sin(jnp.sin(x @ w) @ w))

  kept = traced(jax.grad(loss), (8, 8), (4, 8))
  again = traced(jax.grad(jax.checkpoint(loss)), (8, 8), (4, 8))
  # sin needs what went into it; the last product's output is needed too.
  assert again == kept + 2 * (2 * 4 * 8 * 8)


def test_dearest_branch_counts():
  def pick(flag, x):
    return jax.lax.cond(flag[0] > 0, lambda x: x @ x @ x, lambda x: x, x)

  assert traced(pick, (1,), (6, 6)) == 2 * 2 * 6**3


def test_while_loop_with_products_is_an_error():
  def endless(x):
    return jax.lax.while_loop(lambda x: x[0, 0] < 1, lambda x: x @ x, x)

  with pytest.raises(ValueError, match=r"while_loop.*trip count"):
    traced(endless, (4, 4))


def test_while_loop_without_products_counts_nothing():
  def count(x):
    return jax.lax.while_loop(lambda x: x[0] < 1, lambda x: x + 1, x)

  assert traced(count, (4,)) == 0


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("low", [0, 1, 4])
@pytest.mark.parametrize("base_dilation", [1, 2])
@pytest.mark.parametrize("window_dilation", [1, 3])
def test_window_taps_equal_counting(
  stride, low, base_dilation, window_dilation
):
  padded = {low + i * base_dilation for i in range(5)}
  expected = sum(
    output * stride + tap * window_dilation in padded
    for output in range(6)
    for tap in range(4)
  )
  assert expected == flops.window_taps(
    5,
    6,
    size=4,
    stride=stride,
    low=low,
    base_dilation=base_dilation,
    window_dilation=window_dilation,
  )


PRODUCTS = {
  "plain": (jnp.matmul, (256, 384), (384, 128)),
  "transposed": (lambda a, b: a.T @ b, (384, 256), (384, 128)),
  "batched": (
    functools.partial(jnp.einsum, "bthd,bshd->bhts"),
    (2, 128, 4, 64),
    (2, 128, 4, 64),
  ),
  "values": (
    functools.partial(jnp.einsum, "bhts,bshd->bthd"),
    (2, 4, 128, 128),
    (2, 128, 4, 64),
  ),
  "three": (
    functools.partial(jnp.einsum, "btd,dchk->cbhtk"),
    (2, 128, 256),
    (256, 3, 4, 64),
  ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_compiled_equals_traced(tpu_slice, name):
  function, *shapes = PRODUCTS[name]
  module = tpu_slice.compile(function, *shapes)
  assert flops.hlo_flops(module) == traced(function, *shapes)


def layers(x, weights, *, is_scanned):
  def layer(x, w):
    return jnp.tanh(x @ w), None

  if is_scanned:
    return jax.lax.scan(layer, x, weights)[0]
  for w in weights:
    x, _ = layer(x, w)
  return x


@pytest.mark.parametrize("is_scanned", [True, False])
def test_scanned_equals_unrolled(tpu_slice, is_scanned):
  def loss(weights, x):
    return jnp.sum(layers(x, weights, is_scanned=is_scanned))

  shapes = (4, 256, 256), (128, 256)
  expected = 3 * 4 * (2 * 128 * 256**2)
  gradient = jax.grad(loss, argnums=(0, 1))
  assert traced(gradient, *shapes) == expected
  assert flops.hlo_flops(tpu_slice.compile(gradient, *shapes)) == expected


def test_cut_over_chips_each_does_its_part(tpu_slice):
  module = tpu_slice.compile(
    jnp.matmul,
    (256, 512),
    (512, 1024),
    specs=[jax.P("data"), jax.P(None, "model")],
    out=jax.P("data", "model"),
  )
  assert flops.hlo_flops(module) == 2 * 256 * 512 * 1024 // 4


def test_forward_formula_by_hand():
  assert (
    flops.forward_flops(
      matmul_params=1000, num_layers=2, d_model=8, attended=16, tokens=32
    )
    == 2 * 1000 * 32 + 2 * (2 * 2 * 16 * 8) * 32
  )
