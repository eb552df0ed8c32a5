"""Centred noise, and the two parts of a signed image."""

import jax
import numpy as np
import pytest

from icml26_jax.theory import wasserstein_noise


def test_noise_sums_to_zero():
  got = wasserstein_noise.center_noise(jax.random.key(0), 32, 3.0)
  assert got.shape == (32, 32)
  # 1024 values of size 3, rounded to 2^-24 each.
  assert abs(np.sum(np.asarray(got, np.float64))) < 1024 * 3 * 2.0**-23


def test_noise_has_the_variance_of_centred_noise():
  n, sigma, draws = 4, 2.0, 4000
  keys = jax.random.split(jax.random.key(1), draws)
  eps = jax.vmap(lambda key: wasserstein_noise.center_noise(key, n, sigma))(
    keys
  )
  squares = np.sum(np.asarray(eps, np.float64) ** 2, axis=(1, 2))
  # sigma^2 times chi-square with n^2 - 1 degrees of freedom.
  error = sigma**2 * np.sqrt(2 * (n**2 - 1) / draws)
  assert abs(squares.mean() - sigma**2 * (n**2 - 1)) < 3 * error


def test_noise_is_proportional_to_sigma():
  key = jax.random.key(2)
  unit = wasserstein_noise.center_noise(key, 8, 1.0)
  scaled = wasserstein_noise.center_noise(jax.random.clone(key), 8, 0.25)
  np.testing.assert_array_equal(scaled, unit / 4)


def test_no_noise_is_zero():
  none = wasserstein_noise.center_noise(jax.random.key(0), 4, 0.0)
  np.testing.assert_array_equal(none, np.zeros((4, 4)))
  single = wasserstein_noise.center_noise(jax.random.key(0), 1, 1.0)
  np.testing.assert_array_equal(single, [[0.0]])


def test_sigma_may_be_traced():
  draw = jax.jit(
    lambda sigma: wasserstein_noise.center_noise(jax.random.key(3), 4, sigma)
  )
  expected = wasserstein_noise.center_noise(jax.random.key(3), 4, 0.5)
  np.testing.assert_allclose(draw(0.5), expected, rtol=1e-6, atol=1e-7)


def test_bad_noise_is_refused():
  with pytest.raises(ValueError, match=r"sigma must be in \[0, inf\), got -1"):
    wasserstein_noise.center_noise(jax.random.key(0), 4, -1.0)
  with pytest.raises(ValueError, match="sigma must be in"):
    wasserstein_noise.center_noise(jax.random.key(0), 4, np.nan)
  with pytest.raises(ValueError, match="n must be at least 1"):
    wasserstein_noise.center_noise(jax.random.key(0), 0, 1.0)


def test_parts_add_up_and_do_not_overlap():
  a = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
  a[0, 0] = 0.0
  pos, neg = wasserstein_noise.split_signed(a)
  np.testing.assert_array_equal(pos - neg, a)
  np.testing.assert_array_equal(pos * neg, np.zeros_like(a))
  np.testing.assert_array_equal(pos, np.where(a > 0, a, 0))


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_parts_of_integers_are_integers(dtype):
  a = np.array([[0, 3], [250, 1]], dtype)
  pos, neg = wasserstein_noise.split_signed(a)
  assert pos.dtype == neg.dtype == dtype
  np.testing.assert_array_equal(pos, a)
  np.testing.assert_array_equal(neg, np.zeros_like(a))


def test_image_without_negative_pixels_is_its_positive_part():
  a = np.arange(4.0).reshape(2, 2)
  pos, neg = wasserstein_noise.split_signed(a)
  np.testing.assert_array_equal(pos, a)
  np.testing.assert_array_equal(neg, np.zeros((2, 2)))
