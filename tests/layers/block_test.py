"""One transformer block, and the stack of them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import (
  block,
  mlp,
  remat,
  rms_norm,
  rotary,
  self_attention,
  stack,
)


def _random(params, seed=0):
  """The same tree with every parameter drawn, none 0 or 1."""
  leaves, tree = jax.tree.flatten(nn.meta.unbox(params))
  rng = np.random.default_rng(seed)
  drawn = [
    jnp.asarray(rng.normal(size=leaf.shape) / 3, jnp.float32) for leaf in leaves
  ]
  return jax.tree.unflatten(tree, drawn)


def _inputs(length=6, width=8, seed=0):
  keys = jax.random.split(jax.random.key(seed))
  x = jax.random.normal(keys[0], (2, length, width))
  return x, jax.random.normal(keys[1], (2, 5))


def _attention_oracle(params, x, heads, *, qk_norm, is_causal):
  """Self-attention in float64 NumPy."""
  p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  x = np.asarray(x, np.float64)
  length, head_dim = x.shape[1], x.shape[2] // heads
  half = head_dim // 2
  angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(half) / half)
  out = np.zeros_like(x)
  for h in range(heads):
    query, key, value = (x @ p["qkv"][:, h, c] for c in range(3))
    if qk_norm:
      query, key = (
        z / np.sqrt(np.mean(z**2, -1, keepdims=True) + 1e-6) * p[name]["scale"]
        for z, name in ((query, "query_norm"), (key, "key_norm"))
      )
    query, key = (
      np.concatenate(
        [
          z[..., :half] * np.cos(angle) - z[..., half:] * np.sin(angle),
          z[..., :half] * np.sin(angle) + z[..., half:] * np.cos(angle),
        ],
        axis=-1,
      )
      for z in (query, key)
    )
    scores = query @ np.swapaxes(key, 1, 2) / np.sqrt(head_dim)
    if is_causal:
      scores[:, ~np.tri(length, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out += weights @ value @ p["out"][h]
  return out


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("is_causal", [False, True])
def test_self_attention_equals_numpy(qk_norm, is_causal):
  module = self_attention.SelfAttention(2, qk_norm, is_causal)
  x, _ = _inputs()
  params = _random(module.init(jax.random.key(1), x))["params"]
  expected = _attention_oracle(
    params, x, 2, qk_norm=qk_norm, is_causal=is_causal
  )
  got = module.apply({"params": params}, x)
  np.testing.assert_allclose(got, expected, atol=5e-6)


def test_only_relative_positions_matter():
  # The same words later in a longer text, the rest of which is not looked at.
  module = self_attention.SelfAttention(2)
  x, _ = _inputs()
  params = _random(module.init(jax.random.key(1), x))
  padded = jnp.pad(x, ((0, 0), (3, 2), (0, 0)))
  mask = jnp.zeros((2, 11), bool).at[:, 3:9].set(True)
  np.testing.assert_allclose(
    module.apply(params, padded, mask)[:, 3:9],
    module.apply(params, x),
    atol=5e-6,
  )
  # Order does matter: this is no bag of words.
  reverse = module.apply(params, x[:, ::-1])[:, ::-1]
  assert np.abs(reverse - module.apply(params, x)).max() > 1e-3


def _split(params, name):
  return {"params": params["params"][name]}


def test_block_without_condition_is_its_parts():
  module = block.Block(2, 12)
  x, _ = _inputs()
  params = _random(module.init(jax.random.key(1), x))
  attend, transform = self_attention.SelfAttention(2), mlp.Mlp(12)
  norm = rms_norm.RMSNorm()
  y = norm.apply(_split(params, "attention_norm"), x)
  expected = x + attend.apply(_split(params, "attention"), y)
  y = norm.apply(_split(params, "mlp_norm"), expected)
  expected = expected + transform.apply(_split(params, "mlp"), y)
  np.testing.assert_allclose(module.apply(params, x), expected, atol=1e-5)


def test_block_with_condition_is_its_parts():
  module = block.Block(2, 12)
  x, condition = _inputs()
  params = _random(module.init(jax.random.key(1), x, condition))
  linear = params["params"]["modulation"]["linear"]
  vectors = condition @ linear["kernel"] + linear["bias"][None]
  shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (
    z[:, None] for z in np.split(np.asarray(vectors), 6, axis=-1)
  )
  attend, transform = self_attention.SelfAttention(2), mlp.Mlp(12)
  y = rms_norm.rms_normalise(x) * (1 + scale_1) + shift_1
  expected = x + (1 + gate_1) * attend.apply(_split(params, "attention"), y)
  y = rms_norm.rms_normalise(expected) * (1 + scale_2) + shift_2
  expected = expected + (1 + gate_2) * transform.apply(_split(params, "mlp"), y)
  np.testing.assert_allclose(
    module.apply(params, x, condition), expected, atol=1e-5
  )


def _stack(**options):
  module = stack.Stack(num_layers=3, num_heads=2, d_ff=12, **options)
  x, condition = _inputs()
  params = _random(module.init(jax.random.key(1), x, condition))

  def loss(params, x):
    return jnp.sum(module.apply(params, x, condition) ** 2)

  return params, jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(params, x)


def test_stack_is_its_blocks():
  module = stack.Stack(num_layers=3, num_heads=2, d_ff=12)
  x, condition = _inputs()
  params = _random(module.init(jax.random.key(1), x, condition))
  expected = x
  for i in range(3):
    layer = jax.tree.map(lambda leaf, i=i: leaf[i], params["params"]["blocks"])
    expected = block.Block(2, 12).apply({"params": layer}, expected, condition)
  np.testing.assert_allclose(
    module.apply(params, x, condition), expected, rtol=1e-4, atol=1e-4
  )


def test_every_parameter_of_a_stack_has_an_axis_of_layers():
  module = stack.Stack(num_layers=3, num_heads=2, d_ff=12, qk_norm=True)
  boxed = module.init(jax.random.key(1), *_inputs())
  boxes = jax.tree.leaves(
    boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)
  )
  assert len(boxes) == 8
  for box in boxes:
    assert box.names[0] == "layers"
    assert len(box.names) == box.unbox().ndim
    assert box.unbox().shape[0] == 3


def test_layers_start_different():
  module = stack.Stack(num_layers=2, num_heads=2, d_ff=12)
  params = nn.meta.unbox(module.init(jax.random.key(1), *_inputs()))["params"]
  qkv = params["blocks"]["attention"]["qkv"]
  assert np.abs(qkv[0] - qkv[1]).max() > 0.1


@pytest.mark.parametrize(
  ("scan", "policy"),
  [(False, "none"), (True, "dots"), (False, "full"), (True, "qkv+mlp_hidden")],
)
def test_neither_scan_nor_remat_changes_values_or_gradients(scan, policy):
  params, expected = _stack(scan=True)
  same, got = _stack(scan=scan, remat=policy)
  assert jax.tree.structure(params) == jax.tree.structure(same)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    # The same products in another order of summation.
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 * np.abs(b).max())


def test_names_of_kept_values_are_those_of_the_policies():
  assert set(remat.NAMES) == {
    "qkv",
    "context",
    "attention_out",
    "mlp_hidden",
    "mlp_out",
  }


def test_rotation_is_by_halves():
  # What the oracle above assumes, in the words of the rotary layer.
  x = jnp.arange(4.0)[None]
  turned = rotary.rotate(x, jnp.zeros((1, 2)), jnp.ones((1, 2)), pairing="half")
  np.testing.assert_array_equal(turned, [[-2.0, -3.0, 0.0, 1.0]])
