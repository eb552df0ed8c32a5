"""Bounds on the mean distance under noise, against draws of the noise."""

import jax
import numpy as np
import pytest

from icml26_jax.theory import wasserstein_noise
from icml26_jax.theory.wasserstein_noise import exact, pairs

bounds = wasserstein_noise.expected_bounds


def _noise(seed, draws, n):
  """`[draws, n, n]` centred noise, independently of `center_noise`."""
  values = np.random.default_rng(seed).normal(size=(draws, n, n))
  return values - values.mean(axis=(1, 2), keepdims=True)


def _cell_sums(images, level):
  draws, n, _ = images.shape
  side = n >> level
  return images.reshape(draws, n // side, side, n // side, side).sum((2, 4))


def _mean_and_error(values):
  return values.mean(), values.std(ddof=1) / np.sqrt(len(values))


def _distances(images, p):
  zero = np.zeros(images.shape[1:])
  return np.array(
    [wasserstein_noise.signed_wasserstein(x, zero, p) for x in images]
  )


def test_values_of_an_image_of_8_by_8():
  got = bounds(8, 1.0, 1)
  expected = {
    "lower": 3.1665061842,
    "spectral": 6.9677629041,
    "tree": 9.8255147373,
    "dyadic": 11.7264602857,
  }
  for name, value in expected.items():
    assert round(got[name], 10) == value, name
  # The same by hand.
  lower = 8 * np.sqrt(63 / 64) / np.sqrt(2 * np.pi)
  levels = np.sqrt(3) / 8 + np.sqrt(15) / 4 + np.sqrt(63) / 8
  np.testing.assert_allclose(got["lower"], lower, rtol=1e-14)
  np.testing.assert_allclose(got["tree"], 8 / np.sqrt(np.pi) * levels)
  np.testing.assert_allclose(got["dyadic"], 12 * np.sqrt(3 / np.pi))


def test_values_of_an_image_of_32_by_32():
  got = bounds(32, 1.0, 1)
  expected = {
    "lower": 12.76,
    "spectral": 35.1,
    "tree": 72.4,
    "dyadic": 78.2,
    "paper": 189.6,
  }
  for name, value in expected.items():
    assert abs(got[name] - value) < 0.1, name
  got = bounds(32, 1.0, 2)
  assert abs(got["tree"] - 5.50) < 0.005
  assert abs(got["paper"] - 8.50) < 0.005


def test_values_of_the_smallest_image():
  got = bounds(2, 3.0, 1)
  np.testing.assert_allclose(got["tree"], np.sqrt(3 / np.pi) * 3, rtol=1e-14)
  np.testing.assert_allclose(got["tree"], 0.9772050238 * 3, rtol=1e-10)
  np.testing.assert_allclose(got["dyadic"], got["tree"], rtol=1e-14)
  np.testing.assert_allclose(got["spectral"], np.sqrt(5) / 2 * 3, rtol=1e-14)
  # A chi value with three degrees of freedom.
  np.testing.assert_allclose(got["l2"], np.sqrt(8 / np.pi) * 3, rtol=1e-12)
  mean, error = _mean_and_error(_distances(3.0 * _noise(0, 1000, 2), 1))
  assert got["lower"] - 3 * error <= mean <= got["tree"] + 3 * error
  # Without the factor for centring, the paper's lower bound would be missed.
  assert mean + 3 * error < 2 / np.sqrt(2 * np.pi) * 3


def test_mean_distance_lies_between_lower_and_spectral():
  mean, error = _mean_and_error(_distances(_noise(1, 50, 8), 1))
  got = bounds(8, 1.0, 1)
  assert got["lower"] < mean - 3 * error
  assert mean + 3 * error < got["spectral"]
  # Known from 50 other draws.
  assert abs(mean - 4.16) < 4 * np.hypot(error, 0.04)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_mean_distance_obeys_every_bound_at_every_order(n, p):
  mean, error = _mean_and_error(_distances(_noise(2, 60, n), p))
  got = bounds(n, 1.0, p)
  assert got["lower"] <= mean + 3 * error
  for name in ("paper", "tree", "dyadic", "spectral"):
    assert mean - 3 * error <= got[name], name


def test_an_image_below_the_noise_does_not_matter(mass_pair):
  mu, _ = mass_pair(0, 8)
  for p in (1, 2, 3):
    for sigma in (0.001, 0.1):
      values = [
        wasserstein_noise.signed_wasserstein(mu + sigma * eps, mu, p)
        for eps in _noise(3, 30, 8)
      ]
      mean, error = _mean_and_error(np.array(values))
      got = bounds(8, sigma, p)
      assert got["lower"] <= mean + 3 * error
      for name in ("paper", "tree", "dyadic", "spectral"):
        assert mean - 3 * error <= got[name], name


def test_mean_sum_over_cells_has_a_closed_form():
  n, sigma = 8, 2.0
  noise = sigma * _noise(4, 4000, n)
  for level in (1, 2, 3):
    sums = np.abs(_cell_sums(noise, level)).sum(axis=(1, 2))
    mean, error = _mean_and_error(sums)
    expected = sigma * n * 2**level * np.sqrt(2 / np.pi * (1 - 4.0**-level))
    assert abs(mean - expected) < 3 * error, level
  pixels = n**2 * sigma * np.sqrt(2 / np.pi) * np.sqrt(1 - n**-2.0)
  np.testing.assert_allclose(expected, pixels, rtol=1e-14)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_tree_is_the_mean_of_its_samples(p):
  noise = _noise(5, 4000, 8).astype(np.float32)
  sample = jax.vmap(
    lambda x: wasserstein_noise.tree_upper_bound(x, 0 * x, p) ** p
  )
  mean, error = _mean_and_error(np.asarray(sample(noise), np.float64))
  assert abs(mean - 0.5 * bounds(8, 2.0, p)["tree"] ** p) < 3 * error


def test_spectral_is_the_root_mean_square_of_its_samples():
  noise = _noise(6, 4000, 8).astype(np.float32)
  sample = jax.vmap(
    lambda x: wasserstein_noise.spectral_upper_bound(x, 0 * x) ** 2
  )
  mean, error = _mean_and_error(np.asarray(sample(noise), np.float64))
  assert abs(mean - bounds(8, 1.0, 1)["spectral"] ** 2) < 3 * error


def test_dyadic_is_the_mean_cost_of_moving_between_children():
  n = 8
  noise = _noise(7, 4000, n)
  cost = 0.0
  for level in (1, 2, 3):
    parents = _cell_sums(noise, level - 1).repeat(2, axis=1).repeat(2, axis=2)
    moved = np.abs(_cell_sums(noise, level) - parents / 4).sum(axis=(1, 2)) / 2
    cost = cost + np.sqrt(2) * 2.0**-level * moved
  mean, error = _mean_and_error(cost)
  assert abs(mean - bounds(n, 1.0, 1)["dyadic"]) < 3 * error
  # Each draw's distance is below its cost.
  assert np.all(_distances(noise[:20], 1) <= cost[:20])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lower_is_close_to_the_mean_of_its_samples(p):
  noise = _noise(8, 4000, 8)
  sample = (np.abs(noise).sum(axis=(1, 2)) / 2) ** (1 / p) / 8
  mean, error = _mean_and_error(sample)
  got = bounds(8, 1.0, p)["lower"]
  assert got <= mean + 3 * error
  # Hoelder loses a share of the relative variance of ‖eps‖_1, which is
  # (pi/2 - 1)/64 < 0.01.
  assert got >= 0.99 * mean - 3 * error


def test_euclidean_mean_is_exact():
  noise = _noise(9, 4000, 4)
  mean, error = _mean_and_error(np.sqrt((noise**2).sum(axis=(1, 2))))
  assert abs(mean - bounds(4, 1.0, 2)["l2"]) < 3 * error
  # sqrt of E ‖eps‖^2 = n^2 - 1, for an image of many pixels.
  np.testing.assert_allclose(
    bounds(256, 1.0, 1)["l2"], np.sqrt(256**2 - 1), rtol=1e-5
  )


def test_order_of_the_bounds_changes_at_256():
  for n in (4, 8, 16, 32, 64, 128):
    got = bounds(n, 1.0, 1)
    assert got["tree"] < got["dyadic"] < got["paper"]
    assert got["lower"] < got["spectral"] < got["tree"]
  assert bounds(256, 1.0, 1)["dyadic"] < bounds(256, 1.0, 1)["tree"]


def test_paper_bound_follows_from_the_tree_at_second_order():
  for n in (2, 8, 64, 1024):
    assert bounds(n, 1.0, 2)["tree"] < bounds(n, 1.0, 2)["paper"]


@pytest.mark.parametrize("p", [1, 2, 3])
def test_bounds_are_powers_of_sigma(p):
  sigmas = np.array([0.0, 1e-3, 1.0])
  got, unit = bounds(4, sigmas, p), bounds(4, 1.0, p)
  for name, values in got.items():
    power = 1 if name == "l2" else 1 / p
    np.testing.assert_allclose(values, unit[name] * sigmas**power, rtol=1e-14)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.3])
def test_two_noisy_images_obey_the_pair_bound(mass_pair, p, sigma):
  mu, nu = mass_pair(1, 8)
  clean = wasserstein_noise.signed_wasserstein(mu, nu, 1)
  first, second = sigma * _noise(10, 30, 8), sigma * _noise(11, 30, 8)
  values = [
    wasserstein_noise.signed_wasserstein(mu + x, nu + y, p)
    for x, y in zip(first, second, strict=True)
  ]
  mean, error = _mean_and_error(np.array(values))
  assert mean - 3 * error <= wasserstein_noise.pair_bound(clean, 8, sigma, p)


def test_pair_bound_in_closed_form():
  got = wasserstein_noise.pair_bound(0.125, 4, np.array([0.0, 2.0]), 1)
  constant = (4 * 4 * 2 + 2 * 4) / np.sqrt(np.pi)
  expected = [0.125, 0.125 + np.sqrt(0.5) * constant * 2.0]
  np.testing.assert_allclose(got, expected, rtol=1e-14)
  got = wasserstein_noise.pair_bound(0.125, 4, 0.0, 3)
  np.testing.assert_allclose(got, 0.5 ** (1 / 3) * 0.5, rtol=1e-14)


def test_pair_bound_without_noise_is_met_by_the_farthest_pair():
  a, b = np.zeros((2, 4, 4))
  a[0, 0] = b[2, 2] = 1.0
  source, target = pairs.marginals(a, b, 3)
  w3 = exact.transport_cost(source, target, 3) ** (1 / 3)
  bound = wasserstein_noise.pair_bound(np.sqrt(0.5), 4, 0.0, 3)
  np.testing.assert_allclose(bound, w3, rtol=1e-12)


def test_bad_arguments_are_refused():
  for call in (
    lambda n, sigma, p: bounds(n, sigma, p),
    lambda n, sigma, p: wasserstein_noise.pair_bound(0.1, n, sigma, p),
  ):
    with pytest.raises(ValueError, match="n must be a power of two, got 12"):
      call(12, 1.0, 1)
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
      call(1, 1.0, 1)
    with pytest.raises(TypeError, match="n must be an integer"):
      call("8", 1.0, 1)
    with pytest.raises(ValueError, match=r"sigma must be in .* got -0\.1"):
      call(8, -0.1, 1)
    with pytest.raises(ValueError, match=r"sigma must be in .* got nan"):
      call(8, np.array([0.1, np.nan]), 1)
    with pytest.raises(ValueError, match=r"p must be in \[1, inf\)"):
      call(8, 1.0, 0.9)
  with pytest.raises(ValueError, match=r"w1_clean must be in .* got -1"):
    wasserstein_noise.pair_bound(-1.0, 8, 1.0, 1)
