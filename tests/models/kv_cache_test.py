import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.models import kv_cache

SIZES = dict(num_layers=2, batch_size=3, num_heads=2, num_slots=5, head_dim=4)


def empty():
  return kv_cache.init(**SIZES, dtype=jnp.float32)


def piece(length, seed=0):
  shape = (2, 3, 2, length, 4)
  keys, values = np.random.default_rng(seed).normal(size=(2, *shape))
  return keys.astype(np.float32), values.astype(np.float32)


def test_pieces_lie_one_after_the_other():
  first, second = piece(2), piece(1, seed=1)
  mask_1 = jnp.array([[True, True], [False, True], [True, False]])
  mask_2 = jnp.array([[True], [False], [True]])
  cache = kv_cache.append(empty(), *first, mask_1)
  cache = jax.jit(kv_cache.append)(cache, *second, mask_2)
  for got, (one, two) in (
    (cache.keys, (first[0], second[0])),
    (cache.values, (first[1], second[1])),
  ):
    expected = np.zeros((2, 3, 2, 5, 4), np.float32)
    expected[:, :, :, :2], expected[:, :, :, 2:3] = one, two
    np.testing.assert_array_equal(got, expected)
  expected_valid = np.zeros((3, 5), bool)
  expected_valid[:, :2], expected_valid[:, 2:3] = mask_1, mask_2
  np.testing.assert_array_equal(cache.valid, expected_valid)
  assert int(cache.next_slot) == 3
  np.testing.assert_array_equal(cache.next_position, [3, 1, 2])


def test_full_cache_refuses_more():
  cache = kv_cache.append(empty(), *piece(4), jnp.ones((3, 4), bool))
  with pytest.raises(ValueError, match=r"2 tokens do not fit.*4 of its 5"):
    kv_cache.append(cache, *piece(2), jnp.ones((3, 2), bool))


def test_under_jit_a_full_cache_holds_nan():
  append = jax.jit(kv_cache.append)
  cache = append(empty(), *piece(4), jnp.ones((3, 4), bool))
  assert np.isfinite(cache.values).all()
  cache = append(cache, *piece(2), jnp.ones((3, 2), bool))
  assert np.isnan(cache.values).any(axis=(0, 2, 3, 4)).all()


def test_narrow_cache_stays_narrow():
  cache = kv_cache.init(**SIZES, dtype=jnp.bfloat16)
  cache = kv_cache.append(cache, *piece(1), jnp.ones((3, 1), bool))
  assert cache.keys.dtype == cache.values.dtype == jnp.bfloat16


def test_logical_axes_name_every_axis():
  axes = kv_cache.logical_axes()
  is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
  ranks = jax.tree.map(len, axes, is_leaf=is_axes)
  assert ranks == jax.tree.map(jnp.ndim, empty())


@pytest.mark.parametrize("name", SIZES)
def test_size_below_one_is_named(name):
  with pytest.raises(ValueError, match=f"{name} must be in"):
    kv_cache.init(**SIZES | {name: 0}, dtype=jnp.float32)
