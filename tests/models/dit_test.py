"""The bidirectional diffusion transformer."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, continuous, mdlm, schedules
from icml26_jax.diffusion import process as process_lib
from icml26_jax.layers import noise_level
from icml26_jax.models import dit

CONFIG = dit.Config(5, d_model=8, num_layers=2, num_heads=2, d_ff=12)


def _params(config, seed=0):
  """Parameters of which none is 0 or 1."""
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(lambda: dit.init(jax.random.key(0), config))
  return jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 3, jnp.float32),
    shapes,
  )


def _latent(kind="mask", *, batch=3, length=6, config=CONFIG, params=None):
  keys = jax.random.split(jax.random.key(3), batch)
  x0 = jax.random.randint(
    jax.random.key(4), (batch, length), 0, config.vocab_size
  )
  t = jnp.linspace(0.2, 1.0, batch)
  if kind == "embedded":
    table = dit.embedding_table(params)
    process = candi.process(config.vocab_size, embedding=table)
  else:
    make = {
      "mask": mdlm.process,
      "candi": candi.process,
      "continuous": continuous.process,
    }[kind]
    process = make(config.vocab_size)
  return process.corrupt(keys, x0, t), t


def _apply(config):
  return jax.jit(lambda p, latent, t: dit.apply(p, latent, t, config=config))


def _rounding(logits):
  """About 64 roundings to float32 in a row, relative to the largest logit."""
  return 64 * 2**-24 * np.abs(logits).max()


def _rms(x):
  return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def _oracle(params, latent, t, config):
  """The network in float64 NumPy, written out."""
  p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  d, heads = config.d_model, config.num_heads
  half = d // heads // 2
  table = p["embedding"] / np.linalg.norm(
    p["embedding"], axis=-1, keepdims=True
  )
  special = p["special"] / np.linalg.norm(p["special"])
  revealed = np.asarray(latent.revealed)[..., None]
  if latent.values is None:
    x = np.where(revealed, table[np.asarray(latent.tokens)], special)
  else:
    noisy = np.asarray(latent.values, np.float64) @ table
    sigma = np.asarray(latent.sigma, np.float64)[:, None, None]
    mix = config.input_mix
    hidden = mix * special + (1 - mix) * noisy / np.sqrt(1 + sigma**2)
    x = np.where(revealed, noisy, hidden)
  x = x * np.sqrt(d)

  def linear(q, x):
    return x @ q["kernel"] + q["bias"]

  def silu(x):
    return x / (1 + np.exp(-x))

  def gelu(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + np.tanh(inner))

  condition = None
  if config.time_conditioning:
    # Waves of up to 69 radians, whose rounding alone is 4e-6, are checked in
    # the tests of their layer; here both sides see the same.
    level = -jnp.log(schedules.log_linear_alpha(t, eps=config.alpha_eps))
    condition = np.asarray(noise_level.waves(level, 256), np.float64)
    condition = silu(linear(p["noise_level"]["hidden"], condition))
    condition = silu(linear(p["noise_level"]["out"], condition))

  length = x.shape[1]
  angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(half) / half)
  cosine, sine = np.cos(angle), np.sin(angle)

  def rotate(z):
    a, b = z[..., :half], z[..., half:]
    return np.concatenate([a * cosine - b * sine, a * sine + b * cosine], -1)

  def attend(q, x):
    out = 0.0
    for h in range(heads):
      query, key, value = (x @ q["qkv"][:, h, c] for c in range(3))
      if config.qk_norm:
        query = _rms(query) * q["query_norm"]["scale"]
        key = _rms(key) * q["key_norm"]["scale"]
      scores = rotate(query) @ np.swapaxes(rotate(key), 1, 2)
      scores = scores / np.sqrt(2 * half)
      weights = np.exp(scores - scores.max(-1, keepdims=True))
      weights /= weights.sum(-1, keepdims=True)
      out = out + weights @ value @ q["out"][h]
    return out

  def mlp(q, x):
    return gelu(x @ q["up"]["kernel"]) @ q["down"]["kernel"].T

  for i in range(config.num_layers):
    q = jax.tree.map(lambda leaf, i=i: leaf[i], p["layers"]["blocks"])
    if condition is None:
      x = x + attend(q["attention"], _rms(x) * q["attention_norm"]["scale"])
      x = x + mlp(q["mlp"], _rms(x) * q["mlp_norm"]["scale"])
      continue
    vectors = linear(q["modulation"]["linear"], condition)[:, None]
    s1, c1, g1, s2, c2, g2 = np.split(vectors, 6, axis=-1)
    x = x + (1 + g1) * attend(q["attention"], _rms(x) * (1 + c1) + s1)
    x = x + (1 + g2) * mlp(q["mlp"], _rms(x) * (1 + c2) + s2)
  if condition is None:
    x = _rms(x) * p["norm"]["scale"]
  else:
    vectors = linear(p["modulation"]["linear"], condition)[:, None]
    shift, scale = np.split(vectors, 2, axis=-1)
    x = _rms(x) * (1 + scale) + shift
  return x @ p["output"]


@pytest.mark.parametrize("kind", ["mask", "candi", "continuous"])
@pytest.mark.parametrize(
  "change",
  [
    {},
    {"time_conditioning": False, "qk_norm": True},
    {"d_conditioning": 3, "input_mix": 0.2, "scan_layers": False},
  ],
  ids=["default", "plain-qk_norm", "narrow-mix-unrolled"],
)
def test_equals_float64_numpy(kind, change):
  config = dataclasses.replace(CONFIG, **change)
  params = _params(config)
  latent, t = _latent(kind)
  got = _apply(config)(params, latent, t)
  expected = _oracle(params, latent, t, config)
  assert (got.shape, got.dtype) == ((3, 6, 5), jnp.float32)
  np.testing.assert_allclose(got, expected, atol=_rounding(expected))


def test_noise_given_through_the_table_gives_the_same_logits():
  params = _params(CONFIG)
  latent, t = _latent("candi")
  embedded = jnp.matmul(latent.values, dit.embedding_table(params))
  through = dataclasses.replace(latent, values=None, embedded=embedded)
  run = _apply(CONFIG)
  expected = run(params, latent, t)
  np.testing.assert_allclose(
    run(params, through, t), expected, atol=_rounding(expected)
  )
  drawn, t = _latent("embedded", params=params)
  assert np.isfinite(run(params, drawn, t)).all()


def test_a_hidden_token_is_not_seen():
  params = _params(CONFIG)
  latent, t = _latent("mask")
  other = jnp.where(latent.revealed, latent.tokens, 4)
  changed = dataclasses.replace(latent, tokens=other)
  run = _apply(CONFIG)
  np.testing.assert_array_equal(run(params, changed, t), run(params, latent, t))


def test_rows_do_not_mix():
  params = _params(CONFIG)
  latent, t = _latent("candi")
  run = _apply(CONFIG)
  whole = run(params, latent, t)
  for b in range(3):
    row = jax.tree.map(lambda leaf, b=b: leaf[b : b + 1], latent)
    np.testing.assert_allclose(
      run(params, row, t[b : b + 1]), whole[b : b + 1], atol=_rounding(whole)
    )


def test_padding_changes_nothing():
  params = _params(CONFIG)
  latent, t = _latent("mask")
  expected = _apply(CONFIG)(params, latent, t)
  padded = process_lib.Latent(
    jnp.pad(latent.tokens, ((0, 0), (0, 4)), constant_values=2),
    jnp.pad(latent.revealed, ((0, 0), (0, 4)), constant_values=True),
  )
  mask = jnp.zeros((3, 10), bool).at[:, :6].set(True)
  got = dit.apply(params, padded, t, config=CONFIG, mask=mask)
  np.testing.assert_allclose(got[:, :6], expected, atol=_rounding(expected))
  unmasked = dit.apply(params, padded, t, config=CONFIG)
  assert np.abs(unmasked[:, :6] - expected).max() > 1e-3


def test_time_matters_only_with_conditioning():
  latent, t = _latent("mask")
  for conditioned in (True, False):
    config = dataclasses.replace(CONFIG, time_conditioning=conditioned)
    run, params = _apply(config), _params(config)
    change = np.abs(run(params, latent, t / 2) - run(params, latent, t)).max()
    assert (change > 1e-3) == conditioned


def test_conditioning_starts_as_no_change():
  params = dit.init(jax.random.key(0), CONFIG)
  latent, t = _latent("mask")
  run = _apply(CONFIG)
  np.testing.assert_array_equal(
    run(params, latent, t / 2), run(params, latent, t)
  )


def test_predictions_start_near_uniform():
  config = dit.Config(27)
  params = dit.init(jax.random.key(0), config)
  latent, t = _latent("mask", config=config)
  log_probs = jax.nn.log_softmax(dit.apply(params, latent, t, config=config))
  # Logits have variance 0.02^2 x 128 = 0.05.
  assert abs(-float(jnp.mean(log_probs)) - math.log(27)) < 0.1


def test_bfloat16_is_close_to_float32():
  half = dataclasses.replace(CONFIG, dtype="bfloat16")
  # At the start, where logits have not yet grown.
  params = dit.init(jax.random.key(0), CONFIG)
  latent, t = _latent("candi")
  exact = _apply(CONFIG)(params, latent, t)
  got = _apply(half)(params, latent, t)
  assert got.dtype == jnp.float32
  # About 20 roundings of 2^-9 of values that add up to the logits.
  np.testing.assert_allclose(got, exact, atol=20 * 2**-9 * np.abs(exact).max())


@pytest.mark.parametrize(
  "change", [{}, {"dtype": "bfloat16"}, {"qk_norm": True, "remat": "full"}]
)
def test_gradients_are_finite_and_reach_every_parameter(change):
  config = dataclasses.replace(CONFIG, **change)
  params = _params(config)
  latent, t = _latent("candi")

  def loss(params):
    logits = dit.apply(params, latent, t, config=config)
    return jnp.mean(jax.nn.log_softmax(logits)[..., 0])

  grads = jax.jit(jax.grad(loss))(params)
  for path, grad in jax.tree_util.tree_leaves_with_path(grads):
    assert grad.dtype == jnp.float32
    assert np.isfinite(grad).all(), path
    assert np.abs(grad).max() > 0, path


def test_extreme_latents_give_finite_gradients():
  params = _params(CONFIG)
  latent = process_lib.Latent(
    jnp.zeros((2, 4), jnp.int32),
    jnp.array([[True] * 4, [False] * 4]),
    sigma=jnp.array([1e-6, 1e6]),
    values=jnp.full((2, 4, 5), 1e6),
  )

  def loss(params):
    logits = dit.apply(params, latent, jnp.array([0.0, 1.0]), config=CONFIG)
    return jnp.mean(jax.nn.log_softmax(logits)[..., 0])

  for grad in jax.tree.leaves(jax.grad(loss)(params)):
    assert np.isfinite(grad).all()


def test_no_second_trace():
  @jax.jit
  @chex.assert_max_traces(n=1)
  def run(params, latent, t):
    return dit.apply(params, latent, t, config=CONFIG)

  chex.clear_trace_counter()
  params = _params(CONFIG)
  for kind in ("candi", "candi"):
    run(params, *_latent(kind))


def test_vmap_over_parameters_equals_a_loop():
  latent, t = _latent("mask")
  several = [_params(CONFIG, seed) for seed in range(2)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
  got = jax.vmap(lambda p: dit.apply(p, latent, t, config=CONFIG))(stacked)
  for params, logits in zip(several, got, strict=True):
    expected = dit.apply(params, latent, t, config=CONFIG)
    np.testing.assert_allclose(logits, expected, atol=_rounding(expected))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_parameters_axes_and_count_agree(scan_layers):
  config = dataclasses.replace(
    CONFIG, qk_norm=True, scan_layers=scan_layers, d_conditioning=3
  )
  params = dit.init(jax.random.key(0), config)
  axes = dit.logical_axes(config)
  is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
  assert jax.tree.structure(params) == jax.tree.structure(axes, is_leaf=is_axes)
  known = {
    "layers",
    "vocab",
    "embed",
    "heads",
    "head_dim",
    "mlp",
    "conditioning",
    None,
  }
  for leaf, names in zip(
    jax.tree.leaves(params), jax.tree.leaves(axes, is_leaf=is_axes), strict=True
  ):
    assert leaf.dtype == jnp.float32
    assert len(names) == leaf.ndim
    assert set(names) <= known
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  assert dit.num_params(config) == count
  # Counted by hand: tables, noise level, blocks, last modulation.
  d, f, c, v = 8, 12, 3, 5
  block = 4 * d * d + 2 * d * f + 2 * (d // 2) + (c + 1) * 6 * d
  level = 257 * c + (c + 1) * c
  assert count == 2 * v * d + d + level + 2 * block + (c + 1) * 2 * d


def test_embedding_table_has_unit_rows():
  params = _params(CONFIG)
  table = dit.embedding_table(params)
  np.testing.assert_allclose(
    jnp.linalg.norm(table, axis=-1), np.ones(5), rtol=1e-6
  )
  cosine = jnp.sum(table * params["embedding"], axis=-1)
  assert np.all(cosine > 0)


def test_initialisation_depends_on_the_key_only():
  first, again = (dit.init(jax.random.key(1), CONFIG) for _ in range(2))
  other = dit.init(jax.random.key(2), CONFIG)
  for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
    np.testing.assert_array_equal(a, b)
  assert np.abs(first["embedding"] - other["embedding"]).max() > 0.1


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"vocab_size": 1}, "vocab_size"),
    ({"d_model": 9}, "d_model must be a multiple of num_heads 2, got 9"),
    ({"d_model": 6}, "even"),
    ({"num_layers": 0}, "num_layers"),
    ({"num_heads": 0}, "num_heads"),
    ({"d_ff": 0}, "d_ff"),
    ({"d_conditioning": 0}, "d_conditioning"),
    ({"dtype": "float16"}, "dtype must be one of float32, bfloat16"),
    ({"remat": "some"}, "remat must be one of"),
    ({"input_mix": 1.5}, "input_mix"),
    ({"alpha_eps": 0.0}, "alpha_eps"),
    ({"alpha_eps": 1.0}, "alpha_eps"),
  ],
)
def test_bad_configurations_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **change)


def test_alpha_may_reach_zero_without_conditioning():
  dit.Config(5, time_conditioning=False, alpha_eps=0.0)


def test_bad_inputs_are_refused():
  params = _params(CONFIG)
  latent, t = _latent("mask")
  with pytest.raises(ValueError, match="t must have shape"):
    dit.apply(params, latent, t[:2], config=CONFIG)
  with pytest.raises(ValueError, match="one shape"):
    dit.apply(
      params,
      dataclasses.replace(latent, revealed=latent.revealed[:, :3]),
      t,
      config=CONFIG,
    )
  with pytest.raises(ValueError, match="values or embedded"):
    dit.apply(params, dataclasses.replace(latent, sigma=t), t, config=CONFIG)
  with pytest.raises(ValueError, match="values or embedded"):
    dit.apply(
      params,
      dataclasses.replace(latent, values=jnp.zeros((3, 6, 5))),
      t,
      config=CONFIG,
    )
  with pytest.raises(ValueError, match="mask must have shape"):
    dit.apply(params, latent, t, config=CONFIG, mask=jnp.ones((3, 5), bool))


@pytest.mark.parametrize("scan_layers", [False, True])
def test_eight_devices_compute_what_one_does(scan_layers):
  from icml26_jax.training import mesh as mesh_lib
  from icml26_jax.training import sharding

  config = dataclasses.replace(
    CONFIG,
    vocab_size=8,
    num_heads=4,
    d_model=16,
    d_ff=16,
    scan_layers=scan_layers,
  )
  params = _params(config)
  latent, t = _latent("mask", batch=4, config=config)
  expected = _apply(config)(params, latent, t)
  mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 1, "model": 4})
  shardings = sharding.param_shardings(
    mesh, dit.logical_axes(config), sharding.DEFAULT_RULES, params
  )
  rows = sharding.batch_sharding(mesh, sharding.DEFAULT_RULES)
  got = _apply(config)(
    jax.device_put(params, shardings), *jax.device_put((latent, t), rows)
  )
  np.testing.assert_allclose(got, expected, atol=_rounding(expected))
