"""The causal transformer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import block, rms_norm
from icml26_jax.models import causal

CONFIG = causal.Config(7, d_model=8, num_layers=2, num_heads=2, d_ff=12)


def _params(config, seed=0):
  rng = np.random.default_rng(seed)
  shapes = jax.eval_shape(lambda: causal.init(jax.random.key(0), config))
  return jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) / 3, jnp.float32),
    shapes,
  )


def _tokens(length=6):
  return jax.random.randint(jax.random.key(1), (3, length), 0, 7)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_is_its_parts(qk_norm):
  # Each part is checked against float64 NumPy in the tests of layers.
  config = dataclasses.replace(CONFIG, qk_norm=qk_norm)
  params, tokens = _params(config), _tokens()
  x = params["embedding"][tokens]
  one = block.Block(2, 12, qk_norm, is_causal=True)
  for i in range(2):
    layer = jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"]["blocks"])
    x = one.apply({"params": layer}, x)
  x = rms_norm.RMSNorm().apply({"params": params["norm"]}, x)
  expected = x @ params["output"]
  got = causal.apply(params, tokens, config=config)
  assert (got.shape, got.dtype) == ((3, 6, 7), jnp.float32)
  np.testing.assert_allclose(got, expected, atol=1e-5)


def test_the_future_has_exactly_no_influence():
  params = _params(CONFIG)

  def logits_of(table):
    # One token a position, so that gradients tell positions apart.
    tokens = jnp.broadcast_to(jnp.arange(6), (3, 6))
    return causal.apply({**params, "embedding": table}, tokens, config=CONFIG)

  table = params["embedding"]
  for position in (0, 3, 5):
    grad = jax.grad(lambda e, i=position: jnp.sum(logits_of(e)[:, i] ** 2))(
      table
    )
    np.testing.assert_array_equal(grad[position + 1 :], 0.0)
    assert np.all(np.abs(grad[: position + 1]).max(axis=-1) > 0)


def test_a_prefix_gives_the_same_logits():
  params = _params(CONFIG)
  whole = causal.apply(params, _tokens(), config=CONFIG)
  for length in (1, 4):
    part = causal.apply(params, _tokens()[:, :length], config=CONFIG)
    np.testing.assert_allclose(part, whole[:, :length], atol=1e-5)


def test_padding_on_the_left_changes_nothing():
  params = _params(CONFIG)
  expected = causal.apply(params, _tokens(), config=CONFIG)
  padded = jnp.pad(_tokens(), ((0, 0), (3, 0)))
  mask = jnp.ones((3, 9), bool).at[:, :3].set(False)
  got = causal.apply(params, padded, config=CONFIG, mask=mask)
  np.testing.assert_allclose(got[:, 3:], expected, atol=1e-5)
  assert np.isfinite(got).all()


@pytest.mark.parametrize(
  "change",
  [{"scan_layers": False}, {"remat": "dots"}, {"remat": "context+mlp_out"}],
)
def test_how_it_is_computed_changes_nothing(change):
  params = _params(CONFIG)

  def gradients(config):
    def loss(params):
      return jnp.mean(causal.apply(params, _tokens(), config=config) ** 2)

    return jax.jit(jax.value_and_grad(loss))(params)

  expected = gradients(CONFIG)
  got = gradients(dataclasses.replace(CONFIG, **change))
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    assert np.isfinite(a).all()
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


def test_bfloat16_is_close_to_float32():
  params = causal.init(jax.random.key(0), CONFIG)
  exact = causal.apply(params, _tokens(), config=CONFIG)
  half = dataclasses.replace(CONFIG, dtype="bfloat16")
  got = causal.apply(params, _tokens(), config=half)
  assert got.dtype == jnp.float32
  # About 20 roundings of 2^-9 of values that add up to the logits.
  np.testing.assert_allclose(got, exact, atol=20 * 2**-9 * np.abs(exact).max())


def test_parameters_axes_and_count_agree():
  params = causal.init(jax.random.key(0), CONFIG)
  axes = causal.logical_axes(CONFIG)
  assert jax.tree.structure(params) == jax.tree.structure(
    axes, is_leaf=lambda node: isinstance(node, tuple)
  )
  d, f, v = 8, 12, 7
  expected = 2 * v * d + d + 2 * (4 * d * d + 2 * d * f + 2 * d)
  assert causal.num_params(CONFIG) == expected
  assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected
  np.testing.assert_array_equal(
    causal.embedding_table(params), params["embedding"]
  )


def test_tokens_must_be_integers():
  params = _params(CONFIG)
  with pytest.raises(TypeError, match="integers"):
    causal.apply(params, jnp.ones((1, 3)), config=CONFIG)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"vocab_size": 1}, "vocab_size"),
    ({"num_heads": 3}, "multiple of num_heads"),
    ({"num_heads": 8}, "even"),
    ({"dtype": "float64"}, "dtype"),
    ({"remat": "qkv,context"}, "remat"),
  ],
)
def test_bad_configurations_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **change)
