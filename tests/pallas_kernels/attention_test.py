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


def inputs_of(shape, dtype=jnp.float32, *, seed=0):
  """Fused queries, keys and values of `[B, T, H, K]`, and tables."""
  batch, length, heads, width = shape
  rng = np.random.default_rng(seed)
  qkv = rng.normal(size=(batch, length, heads * 3 * width))
  angle = np.arange(length)[:, None] / 100.0 ** (
    2 * np.arange(width // 2) / width
  )
  tables = (jnp.asarray(f(angle), jnp.float32) for f in (np.cos, np.sin))
  return jnp.asarray(qkv, dtype), *tables


def cotangent_of(shape, *, seed=1):
  batch, length, heads, width = shape
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=(batch, length, heads * width)), "float32")


def numpy_attention(qkv, cosine, sine, num_heads):
  """Pair by pair and head by head, in float64."""
  qkv, cosine, sine = (np.asarray(x, np.float64) for x in (qkv, cosine, sine))
  batch, length, width = qkv.shape
  size = width // (3 * num_heads)
  out = np.zeros((batch, length, num_heads * size))
  for b in range(batch):
    for h in range(num_heads):
      start = 3 * size * h
      query, key, value = (
        qkv[b, :, start + i * size : start + (i + 1) * size] for i in range(3)
      )
      turned = []
      for x in (query, key):
        z = (x[:, : size // 2] + 1j * x[:, size // 2 :]) * (cosine + 1j * sine)
        turned.append(np.concatenate([z.real, z.imag], axis=1))
      scores = turned[0] @ turned[1].T / np.sqrt(size)
      weights = np.exp(scores - scores.max(axis=1, keepdims=True))
      weights /= weights.sum(axis=1, keepdims=True)
      out[b, :, h * size : (h + 1) * size] = weights @ value
  return out


# Sums over T weights that add up to 1, of values of order 1.
TOLERANCE = {jnp.float32: 1e-5, jnp.bfloat16: 3 * 2.0**-8}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(2, 128, 2, 128), (1, 384, 1, 128)])
def test_kernel_equals_float64(shape, dtype):
  inputs = inputs_of(shape, dtype)
  got = attention(
    *inputs, num_heads=shape[2], implementation="pallas", interpret=True
  )
  assert got.dtype == dtype
  np.testing.assert_allclose(
    np.asarray(got, np.float64),
    numpy_attention(*inputs, shape[2]),
    atol=TOLERANCE[dtype],
  )


@pytest.mark.parametrize("implementation", ["auto", "xla", "reference"])
def test_plain_paths_equal_float64(implementation):
  inputs = inputs_of((2, 24, 3, 16))
  got = attention(*inputs, num_heads=3, implementation=implementation)
  np.testing.assert_allclose(got, numpy_attention(*inputs, 3), atol=1e-5)


def gradient(implementation, inputs, cotangent, num_heads, **options):
  qkv, *tables = inputs

  def loss(qkv):
    out = attention(
      qkv,
      *tables,
      num_heads=num_heads,
      implementation=implementation,
      **options,
    )
    return jnp.sum(out.astype(jnp.float32) * cotangent)

  return jax.jit(jax.grad(loss))(qkv)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("length", [128, 256])
def test_gradient_equals_that_of_the_formula(length, dtype):
  shape = (1, length, 2, 128)
  qkv, *tables = inputs_of(shape)
  cotangent = cotangent_of(shape)
  exact = gradient("reference", (qkv, *tables), cotangent, 2)
  rounded = (qkv.astype(dtype), *tables)
  got = gradient("pallas", rounded, cotangent, 2, interpret=True)
  assert got.dtype == dtype
  # Products of rounded weights and values of order 1, summed over T.
  np.testing.assert_allclose(
    np.asarray(got, np.float32), exact, atol=4 * TOLERANCE[dtype]
  )


def test_recomputing_gradient_equals_that_of_the_formula():
  shape = (2, 24, 3, 16)
  inputs, cotangent = inputs_of(shape), cotangent_of(shape)
  np.testing.assert_allclose(
    gradient("auto", inputs, cotangent, 3),
    gradient("reference", inputs, cotangent, 3),
    atol=1e-5,
  )


def test_blocks_of_queries_add_up(monkeypatch):
  shape = (1, 512, 1, 128)
  inputs, cotangent = inputs_of(shape), cotangent_of(shape)
  options = dict(num_heads=1, implementation="pallas", interpret=True)
  whole = attention(*inputs, **options)
  exact = gradient("pallas", inputs, cotangent, 1, interpret=True)
  monkeypatch.setattr(kernel, "_MAX_SCORES", 128 * 512)
  assert kernel.block_size(512) == 128
  jax.clear_caches()
  np.testing.assert_allclose(attention(*inputs, **options), whole, atol=1e-6)
  got = gradient("pallas", inputs, cotangent, 1, interpret=True)
  np.testing.assert_allclose(got, exact, atol=1e-5)


@pytest.mark.slow  # the simulator of a TPU runs two kernels
def test_simulated_tpu_agrees_and_finds_no_race():
  shape = (1, 128, 2, 128)
  inputs, cotangent = inputs_of(shape), cotangent_of(shape)
  simulated = pltpu.InterpretParams(detect_races=True)
  got = kernel.forward(*inputs, num_heads=2, interpret=simulated)
  np.testing.assert_allclose(got, numpy_attention(*inputs, 2), atol=1e-5)
  backward = kernel.backward(
    *inputs, cotangent, num_heads=2, interpret=simulated
  )
  np.testing.assert_allclose(
    backward, gradient("reference", inputs, cotangent, 2), atol=1e-5
  )


def test_without_keys_to_prefer_the_values_are_averaged():
  qkv, cosine, sine = inputs_of((1, 128, 1, 128))
  qkv = qkv.at[:, :, 128:256].set(0.0)
  got = attention(
    qkv, cosine, sine, num_heads=1, implementation="pallas", interpret=True
  )
  expected = np.asarray(qkv)[:, :, 256:].mean(axis=1, keepdims=True)
  np.testing.assert_allclose(
    got, np.broadcast_to(expected, got.shape), atol=1e-6
  )


def test_only_differences_of_positions_matter():
  qkv, cosine, sine = inputs_of((1, 128, 1, 128))
  phase = np.arctan2(np.asarray(sine), np.asarray(cosine)) + 0.7
  shifted = (jnp.asarray(f(phase), jnp.float32) for f in (np.cos, np.sin))
  options = dict(num_heads=1, implementation="pallas", interpret=True)
  np.testing.assert_allclose(
    attention(qkv, *shifted, **options),
    attention(qkv, cosine, sine, **options),
    atol=1e-5,
  )


def test_huge_scores_pick_one_value():
  shape = (1, 128, 1, 128)
  qkv, *tables = inputs_of(shape)
  qkv = qkv.at[:, :, :128].multiply(1e6)
  options = dict(num_heads=1, implementation="pallas", interpret=True)
  got = np.asarray(attention(qkv, *tables, **options))[0]
  values = np.asarray(qkv)[0, :, 256:]
  distance = np.abs(got[:, None] - values[None]).max(axis=2)
  # Scores lie 1e5 apart, rounded to about 1: each row is one of the values.
  np.testing.assert_allclose(distance.min(axis=1), 0.0, atol=1e-6)
  derivative = gradient(
    "pallas", (qkv, *tables), cotangent_of(shape), 1, interpret=True
  )
  assert np.isfinite(derivative).all()


@pytest.mark.parametrize(
  ("length", "expected"),
  [(128, 128), (1024, 1024), (1152, 384), (2048, 512), (4096, 256)],
)
def test_block_divides_the_length_and_fits(length, expected):
  size = kernel.block_size(length)
  assert size == expected
  assert length % size == 0
  assert size * length <= 2**20


def test_shapes_the_kernel_does_not_take():
  assert kernel.supports(1024, 128)
  assert not kernel.supports(100, 128)
  assert not kernel.supports(8192, 128)
  assert not kernel.supports(1024, 64)


def test_wrong_arguments_are_named():
  qkv, cosine, sine = inputs_of((1, 128, 2, 64))
  with pytest.raises(ValueError, match="H = 3 and K even"):
    attention(qkv, cosine, sine, num_heads=3)
  with pytest.raises(ValueError, match="H = 2 and K even"):
    attention(qkv[0], cosine, sine, num_heads=2)
  with pytest.raises(ValueError, match=r"must have shape \(128, 32\)"):
    attention(qkv, cosine[:64], sine[:64], num_heads=2)
  with pytest.raises(ValueError, match="implementation must be one of"):
    attention(qkv, cosine, sine, num_heads=2, implementation="cuda")
  with pytest.raises(TypeError, match="float16"):
    attention(qkv.astype(jnp.float16), cosine, sine, num_heads=2)
  with pytest.raises(TypeError, match="cosine and sine must be float32"):
    attention(qkv, cosine.astype(jnp.bfloat16), sine, num_heads=2)
  with pytest.raises(ValueError, match="K = 64"):
    attention(qkv, cosine, sine, num_heads=2, implementation="pallas")
  with pytest.raises(ValueError, match="need a mesh"):
    attention(qkv, cosine, sine, num_heads=2, rows="data")


def test_cut_over_a_mesh_gives_the_same():
  inputs = inputs_of((4, 32, 4, 16))
  mesh = jax.make_mesh(
    (2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
  )
  expected = attention(*inputs, num_heads=4)
  with jax.set_mesh(mesh):
    got = jax.jit(
      lambda *x: attention(*x, num_heads=4, rows="data", heads="model")
    )(*inputs)
  assert not got.sharding.is_fully_replicated
  np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_compiles_for_every_chip_and_stays_cut(name):
  if importlib.util.find_spec("libtpu") is None:
    pytest.skip("libtpu is not installed: pip install 'icml26_jax[test]'")
  topology.prepare_environment()
  devices, torus = topology.describe(name)
  mesh = jax.sharding.Mesh(np.array(devices).reshape(2, 2), ("data", "model"))
  cut = jax.NamedSharding(mesh, jax.P("data", None, "model"))
  whole = jax.NamedSharding(mesh, jax.P())
  table = jax.ShapeDtypeStruct((1024, 64), jnp.float32, sharding=whole)
  qkv = jax.ShapeDtypeStruct((4, 1024, 4 * 384), jnp.bfloat16, sharding=cut)

  def loss(*inputs):
    out = attention(*inputs, num_heads=4, rows="data", heads="model")
    return jnp.sum(jnp.square(out.astype(jnp.float32)))

  with jax.set_mesh(mesh):
    lowered = jax.jit(jax.grad(loss), out_shardings=cut).lower(
      qkv, table, table
    )
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
  inputs = inputs_of((2, 256, 3, 128))
  traced = jax.make_jaxpr(
    lambda *x: attention(
      *x, num_heads=3, implementation="pallas", interpret=True
    )
  )(*inputs)
  assert flops.jaxpr_flops(traced) == 2 * 2 * 2 * 3 * 256**2 * 128
  plain = jax.make_jaxpr(lambda *x: reference.attention(*x, num_heads=3))(
    *inputs
  )
  assert flops.jaxpr_flops(plain) == flops.jaxpr_flops(traced)
