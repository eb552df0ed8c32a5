"""Distances under more and more noise."""

import jax
import numpy as np
import pytest

from icml26_jax.theory import wasserstein_noise

sweep = wasserstein_noise.noise_sweep


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("noisy", ["both", "first"])
def test_no_noise_gives_the_clean_distance_exactly(mass_pair, noisy, p):
  mu, nu = mass_pair(0, 4)
  got = sweep(jax.random.key(0), mu, nu, [0.0], 2, p, noisy=noisy)
  clean = wasserstein_noise.signed_wasserstein(mu, nu, p)
  np.testing.assert_array_equal(got["distance"], [clean])
  np.testing.assert_array_equal(got["distance_error"], [0.0])
  np.testing.assert_allclose(got["l2"], [np.linalg.norm(mu - nu)])


def test_curves_are_those_of_a_loop(mass_pair):
  mu, nu = mass_pair(1, 4)
  sigmas, trials, p = [0.01, 0.1], 3, 2
  got = sweep(jax.random.key(1), mu, nu, sigmas, trials, p)
  keys = jax.random.split(jax.random.key(1), (2, trials))
  draws = jax.vmap(
    jax.vmap(
      lambda key, sigma: wasserstein_noise.center_noise(key, 4, sigma),
      in_axes=(0, None),
    ),
    in_axes=(0, None),
  )
  for i, sigma in enumerate(sigmas):
    w, l2 = [], []
    for t in range(trials):
      a, b = (
        image + np.asarray(draws(jax.random.clone(keys), sigma)[i, t])
        for i, image in enumerate((mu, nu))
      )
      w.append(wasserstein_noise.signed_wasserstein(a, b, p))
      l2.append(np.linalg.norm(a - b))
    for name, values in (("distance", w), ("l2", l2)):
      # Noise is float32 here.
      np.testing.assert_allclose(got[name][i], np.mean(values), rtol=1e-5)
      error = np.std(values, ddof=1) / np.sqrt(trials)
      np.testing.assert_allclose(got[f"{name}_error"][i], error, rtol=1e-4)


def test_noise_on_the_first_image_leaves_the_second(mass_pair):
  mu, _ = mass_pair(2, 4)
  got = sweep(jax.random.key(2), mu, mu, [0.3], 4, 1, noisy="first")
  keys = jax.random.split(jax.random.key(2), (2, 4))[0]
  noise = jax.vmap(lambda k: wasserstein_noise.center_noise(k, 4, 0.3))(keys)
  expected = [
    wasserstein_noise.signed_wasserstein(np.asarray(x), np.zeros((4, 4)), 1)
    for x in noise
  ]
  np.testing.assert_allclose(got["distance"], [np.mean(expected)], rtol=1e-5)


def test_the_same_draws_serve_every_sigma_and_order(mass_pair):
  mu, nu = mass_pair(3, 4)
  alone = sweep(jax.random.key(3), mu, nu, [0.2], 3, 2)
  among = sweep(jax.random.key(3), mu, nu, [0.1, 0.2], 3, 2)
  np.testing.assert_array_equal(alone["distance"][0], among["distance"][1])
  first = sweep(jax.random.key(3), mu, nu, [0.2], 3, 1)
  np.testing.assert_array_equal(alone["l2"], first["l2"])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_pure_noise_grows_as_a_root(p):
  zero = np.zeros((8, 8))
  sigmas = np.geomspace(1e-3, 10.0, 4)
  got = sweep(jax.random.key(4), zero, zero, sigmas, 2, p)
  slope = wasserstein_noise.fit_exponent(sigmas, got["distance"])
  np.testing.assert_allclose(slope, 1 / p, rtol=1e-9)
  slope = wasserstein_noise.fit_exponent(sigmas, got["l2"])
  np.testing.assert_allclose(slope, 1.0, rtol=1e-9)


@pytest.mark.parametrize("p", [1, 2])
def test_ratios_to_the_bounds_are_at_most_one(mass_pair, p):
  mu, nu = mass_pair(5, 8)
  got = sweep(jax.random.key(5), mu, nu, [0.0, 1e-3, 0.1], 5, p)
  names = ["tree_ratio", "lower_ratio"] + ["spectral_ratio"] * (p == 1)
  assert {name for name in got if "ratio" in name} == set(names)
  for name in names:
    assert np.all((got[name] > 0.05) & (got[name] <= 1.0)), name
  same = sweep(jax.random.key(5), mu, mu, [0.0], 1, p)
  for name in names:
    np.testing.assert_array_equal(same[name], [0.0])


@pytest.mark.parametrize("p", [1, 2])
def test_bounds_see_noise_far_below_the_images(mass_pair, p):
  mu, _ = mass_pair(5, 8)
  sigmas = [1e-9, 1e-3]
  got = sweep(jax.random.key(5), mu, mu, sigmas, 2, p, noisy="first")
  for name in ["tree_ratio", "lower_ratio"] + ["spectral_ratio"] * (p == 1):
    assert np.all((got[name] > 0.01) & (got[name] <= 1.0)), name


def test_noise_never_lowers_the_mean_distance_of_first_order(mass_pair):
  mu, nu = mass_pair(6, 4)
  clean = wasserstein_noise.signed_wasserstein(mu, nu, 1)
  got = sweep(jax.random.key(6), mu, nu, [1e-3, 1e-2, 1e-1], 50, 1)
  assert np.all(got["distance"] + 3 * got["distance_error"] >= clean)


def test_a_single_draw_has_no_error(mass_pair):
  mu, nu = mass_pair(7, 4)
  got = sweep(jax.random.key(7), mu, nu, [0.1], 1, 2)
  assert np.isfinite(got["distance"]).all()
  assert np.isnan(got["distance_error"]).all()


def test_exponent_of_a_power_law():
  sigmas = np.array([0.1, 0.2, 0.9])
  slope = wasserstein_noise.fit_exponent(sigmas, 3 * sigmas**-0.7)
  np.testing.assert_allclose(slope, -0.7, rtol=1e-12)
  values = np.array([1.0, 4.0, 2.0])
  expected = np.polyfit(np.log(sigmas), np.log(values), 1)[0]
  got = wasserstein_noise.fit_exponent(sigmas, values)
  np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_bad_sweeps_are_refused(mass_pair):
  mu, nu = mass_pair(8, 4)
  key = jax.random.key(8)
  with pytest.raises(ValueError, match=r"sigmas must be in .* got -0\.1"):
    sweep(key, mu, nu, [0.1, -0.1], 2, 1)
  with pytest.raises(ValueError, match=r"sigmas must be in .* got nan"):
    sweep(key, mu, nu, [np.nan], 2, 1)
  for sigmas in (0.1, [], [[0.1]]):
    with pytest.raises(ValueError, match=r"sigmas must be \[S\]"):
      sweep(key, mu, nu, sigmas, 2, 1)
  with pytest.raises(ValueError, match=r"trials must be .* \[?1\b.*, got 0"):
    sweep(key, mu, nu, [0.1], 0, 1)
  with pytest.raises(ValueError, match="p must be in"):
    sweep(key, mu, nu, [0.1], 2, 0)
  with pytest.raises(ValueError, match="mu and nu must have equal total mass"):
    sweep(key, mu, 2 * nu, [0.1], 2, 1)
  with pytest.raises(ValueError, match="unknown noisy 'second'"):
    sweep(key, mu, nu, [0.1], 2, 1, noisy="second")
  with pytest.raises(ValueError, match="n must be a power of two, got 3"):
    sweep(key, np.eye(3), np.eye(3), [0.1], 2, 1)


def test_bad_power_laws_are_refused():
  fit = wasserstein_noise.fit_exponent
  with pytest.raises(ValueError, match="must have one shape"):
    fit([1.0, 2.0], [1.0])
  with pytest.raises(ValueError, match="must hold two different values"):
    fit([1.0, 1.0], [1.0, 2.0])
  with pytest.raises(ValueError, match=r"values must be in \(0, inf\), got 0"):
    fit([1.0, 2.0], [0.0, 1.0])
  with pytest.raises(ValueError, match="sigmas must be in"):
    fit([-1.0, 2.0], [1.0, 1.0])
