"""Checksums of arrays, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.training import checksum


def _numpy_checksum(array):
  bits = array.reshape(-1).view(f"uint{8 * array.dtype.itemsize}")
  odd = 2 * np.arange(bits.size, dtype=np.uint64) + 1
  return int(np.sum(bits.astype(np.uint64) * odd) % 2**32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8"])
def test_checksum_is_the_weighted_sum_of_the_bits(dtype):
  values = np.random.default_rng(0).normal(scale=50, size=(3, 5, 7))
  array = jnp.asarray(values).astype(dtype)
  assert checksum.of_leaves({"a": array}) == [
    _numpy_checksum(np.asarray(array))
  ]


def test_checksum_of_keys_scalars_flags_and_nothing():
  key = jax.random.key(3)
  data = np.asarray(jax.random.key_data(key))
  leaves = [key, jnp.float32(1.5), jnp.array([True, False]), jnp.zeros((0, 2))]
  assert checksum.of_leaves(leaves) == [
    _numpy_checksum(data),
    _numpy_checksum(np.float32([1.5])),
    1,
    0,
  ]


def test_checksum_tells_any_changed_or_swapped_element():
  array = np.arange(6, dtype=np.float32)
  swapped = array[[1, 0, 2, 3, 4, 5]]
  changed = array.copy()
  changed[4] = np.nextafter(changed[4], np.float32(9))
  sums = [checksum.of_leaves(jnp.asarray(a)) for a in (array, swapped, changed)]
  assert len({tuple(s) for s in sums}) == 3


def test_checksum_does_not_depend_on_the_mesh(make_trainer):
  one, many = make_trainer({}), make_trainer({"fsdp": 4, "model": 2})
  assert checksum.of_leaves(one.state.params) == checksum.of_leaves(
    many.state.params
  )


def test_checksum_of_wide_elements_is_refused():
  with jax.enable_x64(True), pytest.raises(TypeError, match="got float64"):
    checksum.of_leaves(jnp.zeros(3, jnp.float64))
