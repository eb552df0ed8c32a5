"""The attention kernel against the formula, and compiled for every TPU."""

import importlib.util

import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import attention as package
from pallas_kernels.attention import reference
from pallas_kernels.attention import tpu as kernel
from tpu import estimate, flops, hlo, topology

attention = package.attention


def arrays(shape, dtype=jnp.float32, *, seed=0, count=3):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.normal(size=shape), dtype) for _ in range(count)]


def numpy_attention(query, key, value):
  query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
  scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  return weights / weights.sum(-1, keepdims=True) @ value


def interpreted(*inputs):
  return attention(*inputs, implementation="pallas", interpret=True)


# Sums over T weights that add up to 1, of values of order 1.
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 3 * 2.0**-8}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(2, 3, 128, 64), (1, 2, 384, 128)])
def test_kernel_equals_float64(shape, dtype):
  inputs = arrays(shape, dtype)
  got = interpreted(*inputs)
  assert got.dtype == dtype
  np.testing.assert_allclose(
    np.asarray(got, np.float64), numpy_attention(*inputs), atol=TOLERANCE[dtype]
  )


@pytest.mark.parametrize("implementation", ["auto", "xla", "reference"])
def test_plain_paths_equal_float64(implementation):
  inputs = arrays((2, 2, 48, 16))
  got = attention(*inputs, implementation=implementation)
  np.testing.assert_allclose(got, numpy_attention(*inputs), atol=1e-5)


def gradients(implementation, inputs, cotangent, **options):
  def loss(*inputs):
    out = attention(*inputs, implementation=implementation, **options)
    return jnp.sum(out.astype(jnp.float32) * cotangent)

  return jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*inputs)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("length", [128, 256])
def test_gradients_equal_those_of_the_formula(length, dtype):
  *inputs, cotangent = arrays((1, 2, length, 64), count=4)
  exact = gradients("reference", inputs, cotangent)
  rounded = [x.astype(dtype) for x in inputs]
  got = gradients("pallas", rounded, cotangent, interpret=True)
  for a, b in zip(got, exact, strict=True):
    assert a.dtype == dtype
    # Products of rounded weights and values of order 1, summed over T.
    np.testing.assert_allclose(
      np.asarray(a, np.float32), b, atol=4 * TOLERANCE[dtype]
    )


def test_recomputing_gradients_equal_those_of_the_formula():
  *inputs, cotangent = arrays((2, 2, 40, 16), count=4)
  for a, b in zip(
    gradients("auto", inputs, cotangent),
    gradients("reference", inputs, cotangent),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_blocks_of_queries_add_up(monkeypatch):
  *inputs, cotangent = arrays((1, 1, 512, 64), count=4)
  whole = interpreted(*inputs)
  exact = gradients("pallas", inputs, cotangent, interpret=True)
  monkeypatch.setattr(kernel, "_MAX_SCORES", 128 * 512)
  assert kernel.block_size(512) == 128
  jax.clear_caches()
  np.testing.assert_allclose(interpreted(*inputs), whole, atol=1e-6)
  got = gradients("pallas", inputs, cotangent, interpret=True)
  for a, b in zip(got, exact, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_simulated_tpu_agrees_and_finds_no_race():
  inputs = arrays((1, 2, 256, 64))
  got = kernel.forward(
    *inputs, interpret=pltpu.InterpretParams(detect_races=True)
  )
  np.testing.assert_allclose(got, numpy_attention(*inputs), atol=1e-5)
  backward = kernel.backward(
    *inputs, inputs[0], interpret=pltpu.InterpretParams(detect_races=True)
  )
  exact = kernel.backward(*inputs, inputs[0], interpret=True)
  for a, b in zip(backward, exact, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_equal_keys_give_the_mean_of_the_values():
  query, key, value = arrays((1, 1, 128, 64))
  key = jnp.broadcast_to(key[:, :, :1], key.shape)
  got = interpreted(query, key, value)
  expected = np.asarray(value).mean(axis=2, keepdims=True)
  np.testing.assert_allclose(
    got, np.broadcast_to(expected, got.shape), atol=1e-6
  )


def test_huge_scores_pick_one_value():
  query, key, value = arrays((1, 1, 128, 64))
  query = 1e4 * query
  got = interpreted(query, key, value)
  chosen = np.argmax(np.asarray(query @ key.swapaxes(-1, -2)), axis=-1)
  expected = np.take_along_axis(np.asarray(value), chosen[..., None], axis=2)
  np.testing.assert_allclose(got, expected, atol=1e-5)
  derivative = gradients("pallas", [query, key, value], value, interpret=True)
  assert all(np.isfinite(d).all() for d in derivative)


@pytest.mark.parametrize(
  ("length", "expected"),
  [(128, 128), (1024, 1024), (1152, 384), (2048, 512), (8192, 128)],
)
def test_block_divides_the_length_and_fits(length, expected):
  size = kernel.block_size(length)
  assert size == expected
  assert length % size == 0
  assert size * length <= 2**20


def test_lengths_the_kernel_does_not_take():
  assert kernel.supports(1024, 128)
  assert not kernel.supports(100, 128)
  assert not kernel.supports(16384, 128)
  assert not kernel.supports(1024, 96)


def test_wrong_arguments_are_named():
  query, key, value = arrays((1, 2, 128, 64))
  with pytest.raises(ValueError, match="one shape"):
    attention(query, key[:, :1], value)
  with pytest.raises(ValueError, match="one shape"):
    attention(query[0], key[0], value[0])
  with pytest.raises(ValueError, match="implementation must be one of"):
    attention(query, key, value, implementation="cuda")
  with pytest.raises(TypeError, match="float32 or all bfloat16"):
    attention(query, key.astype(jnp.bfloat16), value)
  with pytest.raises(TypeError, match="float16"):
    attention(*(x.astype(jnp.float16) for x in (query, key, value)))
  with pytest.raises(ValueError, match="T = 100"):
    attention(
      *(x[:, :, :100] for x in (query, key, value)), implementation="pallas"
    )
  with pytest.raises(ValueError, match="need a mesh"):
    attention(query, key, value, rows="data")


def test_cut_over_a_mesh_gives_the_same():
  inputs = arrays((4, 4, 64, 16))
  mesh = jax.make_mesh(
    (2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  expected = attention(*inputs)
  with jax.set_mesh(mesh):
    got = jax.jit(lambda *x: attention(*x, rows="data", heads="model"))(*inputs)
  assert not got.sharding.is_fully_replicated
  np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_compiles_for_every_chip_and_stays_cut(name):
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed: pip install 'icml26_jax[test]'")
  topology.prepare_environment()
  devices, torus = topology.describe(name)
  mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("data", "model"))
  cut = jax.NamedSharding(mesh, jax.P("data", "model"))
  shape = (4, 4, 1024, 128)
  inputs = [jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=cut)] * 3

  def loss(*inputs):
    out = attention(*inputs, rows="data", heads="model")
    return jnp.sum(jnp.square(out.astype(jnp.float32)))

  with jax.set_mesh(mesh):
    lowered = jax.jit(
      jax.grad(loss, argnums=(0, 1, 2)), out_shardings=cut
    ).lower(*inputs)
  module = hlo.parse(lowered.compile().as_text())
  costs = estimate.estimate(module, torus).costs
  kernels = [cost for cost in costs.values() if cost.kind == "kernel"]
  assert len(kernels) == 2
  assert not [cost for cost in costs.values() if cost.kind == "collective"]
  # The author's figure: 2 products forward and 5 backward, by each chip.
  products = 7 * 2 * 4 * 4 * 1024**2 * 128 / 4
  least = products / torus.chip.peak_flops
  assert sum(cost.busy for cost in kernels) >= least * (1 - 1e-9)


def test_flops_of_the_kernel_are_its_products():
  inputs = arrays((2, 3, 256, 64))
  traced = jax.make_jaxpr(
    lambda *x: attention(*x, implementation="pallas", interpret=True)
  )(*inputs)
  assert flops.jaxpr_flops(traced) == 2 * 2 * 2 * 3 * 256**2 * 64
  plain = jax.make_jaxpr(reference.attention)(*inputs)
  assert flops.jaxpr_flops(plain) == flops.jaxpr_flops(traced)
