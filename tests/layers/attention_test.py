"""Scaled dot-product attention."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest

from icml26_jax.layers import attention


def _draw(seed, *, batch=2, heads=2, queries=5, keys=5, width=4):
  rng = np.random.default_rng(seed)
  shape = (batch, heads, queries, width)
  query = rng.normal(size=shape).astype(np.float32)
  shape = (batch, heads, keys, width)
  key = rng.normal(size=shape).astype(np.float32)
  value = rng.normal(size=shape).astype(np.float32)
  return query, key, value


def _oracle(query, key, value, mask=None, is_causal=False):
  """Attention in float64, one query at a time."""
  out = np.zeros(query.shape)
  batch, heads, length, width = query.shape
  for b, h, t in np.ndindex(batch, heads, length):
    seen = np.ones(key.shape[2], bool) if mask is None else mask[b].copy()
    if is_causal:
      seen[t + 1 :] = False
    if not seen.any():
      continue
    keys = key[b, h, seen].astype(np.float64)
    scores = keys @ query[b, h, t].astype(np.float64) / np.sqrt(width)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    out[b, h, t] = weights @ value[b, h, seen].astype(np.float64)
  return out


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("length", [1, 5])
def test_equals_numpy(is_causal, masked, length):
  query, key, value = _draw(0, queries=length, keys=length)
  mask = None
  if masked:
    mask = np.random.default_rng(1).random((2, length)) < 0.5
    mask[0] = False  # A row without any key to look at.
  got = jax.jit(attention.attention, static_argnames="is_causal")(
    query, key, value, mask=mask, is_causal=is_causal
  )
  expected = _oracle(query, key, value, mask, is_causal)
  # float32 sums of a few terms of order one.
  np.testing.assert_allclose(got, expected, atol=2e-6)


def test_equals_jax():
  query, key, value = _draw(0, queries=3, keys=7)
  batch_first = (jnp.swapaxes(z, 1, 2) for z in (query, key, value))
  expected = jax.nn.dot_product_attention(*batch_first)
  got = attention.attention(query, key, value)
  np.testing.assert_allclose(jnp.swapaxes(got, 1, 2), expected, atol=2e-6)


@hypothesis.given(
  seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([0.0, 1.0, 1e4])
)
def test_output_lies_within_the_values(seed, scale):
  query, key, value = _draw(seed)
  got = np.asarray(attention.attention(scale * query, key, value))
  low, high = value.min(axis=2, keepdims=True), value.max(axis=2, keepdims=True)
  assert np.all(got >= low - 1e-5)
  assert np.all(got <= high + 1e-5)


def test_equal_scores_average():
  _, key, value = _draw(0)
  got = attention.attention(jnp.zeros_like(key), key, value)
  expected = np.broadcast_to(value.mean(axis=2, keepdims=True), value.shape)
  np.testing.assert_allclose(got, expected, atol=1e-6)


def test_nan_behind_the_mask_is_not_looked_at():
  query, key, value = _draw(0)
  mask = np.array([[True, True, False, False, True], [True] * 5])
  clean = attention.attention(query, key, value, mask=mask)
  hole = ~mask[:, None, :, None]
  dirty_key, dirty_value = (
    np.where(hole, np.nan, key),
    np.where(hole, np.nan, value),
  )
  np.testing.assert_array_equal(
    attention.attention(query, dirty_key, dirty_value, mask=mask), clean
  )

  def loss(query, key, value):
    return jnp.sum(attention.attention(query, key, value, mask=mask) ** 2)

  grads = jax.grad(loss, argnums=(0, 1, 2))(query, dirty_key, dirty_value)
  for grad in grads:
    assert np.isfinite(grad).all()
  for grad in grads[1:]:
    behind = np.broadcast_to(hole, grad.shape)
    np.testing.assert_array_equal(np.asarray(grad)[behind], 0.0)


def test_a_row_of_padding_has_no_output_and_finite_gradients():
  query, key, value = _draw(0)
  mask = np.zeros((2, 5), bool)

  def total(*inputs):
    return jnp.sum(attention.attention(*inputs, mask=mask, is_causal=True))

  value_and_grads = jax.value_and_grad(total, argnums=(0, 1, 2))
  out, grads = value_and_grads(query, key, value)
  assert out == 0.0
  assert all(np.isfinite(grad).all() for grad in grads)


def test_a_later_key_has_no_influence_at_all():
  query, key, value = _draw(0)

  def earlier(key, value):
    out = attention.attention(query, key, value, is_causal=True)
    return jnp.sum(out[:, :, :3] ** 2)

  for grad in jax.grad(earlier, argnums=(0, 1))(key, value):
    np.testing.assert_array_equal(grad[:, :, 3:], 0.0)
    assert np.abs(grad[:, :, :3]).max() > 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients(is_causal):
  with jax.enable_x64(True):
    inputs = [jnp.asarray(z, jnp.float64) for z in _draw(0)]
    mask = jnp.asarray([[True, True, True, False, True], [True] * 5])
    check_grads(
      lambda *z: attention.attention(*z, mask=mask, is_causal=is_causal),
      inputs,
      order=2,
      modes=("fwd", "rev"),
    )


def test_bfloat16_has_float32_scores():
  inputs = [jnp.asarray(z, jnp.bfloat16) for z in _draw(0, queries=9, keys=9)]
  got = attention.attention(*inputs)
  assert got.dtype == jnp.bfloat16
  expected = _oracle(*(np.asarray(z, np.float32) for z in inputs))
  # Roundings to bfloat16 (2^-9 relative): queries' scale, weights, output.
  np.testing.assert_allclose(
    got.astype(jnp.float32), expected, atol=4 * 2**-9 * np.abs(inputs[2]).max()
  )


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"key": (2, 2, 5, 6), "value": (2, 2, 5, 6)}, "do not fit"),
    ({"key": (2, 3, 5, 4), "value": (2, 3, 5, 4)}, "do not fit"),
    ({"value": (2, 2, 4, 4)}, "do not fit"),
    ({"query": (2, 5, 4)}, "do not fit"),
    ({"query": (2, 2, 3, 4), "is_causal": True}, "is_causal"),
    ({"mask": (2, 4)}, "mask must have shape"),
  ],
)
def test_shapes_that_disagree_are_refused(change, message):
  shapes = {name: (2, 2, 5, 4) for name in ("query", "key", "value")}
  is_causal = change.pop("is_causal", False)
  mask = change.pop("mask", None)
  inputs = {n: jnp.zeros(s) for n, s in (shapes | change).items()}
  if mask is not None:
    inputs["mask"] = jnp.ones(mask, bool)
  with pytest.raises(ValueError, match=message):
    attention.attention(**inputs, is_causal=is_causal)


def test_mask_must_be_bool():
  query, key, value = _draw(0)
  with pytest.raises(TypeError, match="bool"):
    attention.attention(query, key, value, mask=jnp.ones((2, 5)))
