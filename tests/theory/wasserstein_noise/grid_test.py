"""Distances between pixels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import wasserstein_noise
from icml26_jax.theory.wasserstein_noise import grid


def _slow_distance(first, second, n, torus):
  total = 0.0
  for i, j in zip(first, second, strict=True):
    apart = abs(i - j) / n
    total += (min(apart, 1 - apart) if torus else apart) ** 2
  return total**0.5


@pytest.mark.parametrize("torus", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_cost_is_the_distance_of_each_pair(n, torus):
  pixels = list(np.ndindex(n, n))
  expected = [[_slow_distance(x, y, n, torus) for y in pixels] for x in pixels]
  got = wasserstein_noise.torus_cost(n, torus=torus)
  assert got.shape == (n * n, n * n)
  np.testing.assert_allclose(got, expected, rtol=2e-7)


def test_two_by_two_torus_has_three_distances():
  got = np.unique(np.asarray(wasserstein_noise.torus_cost(2)))
  np.testing.assert_allclose(got, [0.0, 0.5, np.sqrt(0.5)], rtol=1e-7)


def test_cost_has_the_default_precision():
  assert wasserstein_noise.torus_cost(2).dtype == jnp.float32
  with jax.enable_x64(True):
    assert wasserstein_noise.torus_cost(2).dtype == jnp.float64


@pytest.mark.parametrize("torus", [True, False])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16])
def test_diameter_of_a_cell_is_its_largest_distance(n, torus):
  got = grid.cell_diameters(n, torus=torus)
  expected = []
  for level in range(n.bit_length()):
    side = n >> level
    pixels = list(np.ndindex(side, side))
    expected.append(
      max(_slow_distance((0, 0), pixel, n, torus) for pixel in pixels)
    )
  np.testing.assert_allclose(got, expected, rtol=1e-14)
  assert np.all(np.diff(got) <= 0)
  assert got[-1] == 0.0


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_inverse_laplacian_inverts_the_grid_laplacian(n):
  image = np.random.default_rng(n).normal(size=(n, n))
  image -= image.mean()
  laplacian = sum(
    2 * image - np.roll(image, 1, axis) - np.roll(image, -1, axis)
    for axis in (0, 1)
  )
  modes = np.fft.fft2(n**2 * laplacian) * grid.inverse_laplacian(n)
  np.testing.assert_allclose(np.fft.ifft2(modes).real, image, atol=1e-13)


@pytest.mark.parametrize(("n", "value"), [(8, 0.3792947), (32, 0.6003262)])
def test_sum_of_inverse_eigenvalues(n, value):
  assert round(grid.inverse_laplacian(n).sum(), 7) == value


def test_bad_sizes_are_refused():
  with pytest.raises(ValueError, match="n must be at least 1, got 0"):
    wasserstein_noise.torus_cost(0)
  with pytest.raises(TypeError, match=r"n must be an integer, got 2\.0"):
    wasserstein_noise.torus_cost(2.0)
  with pytest.raises(ValueError, match="n must be a power of two, got 6"):
    grid.cell_diameters(6, torus=True)
