"""Pictures that need no download."""

import numpy as np
import pytest
from skimage import data

from icml26_jax.data import images


@pytest.mark.parametrize("name", images.NAMES)
def test_every_picture_is_there_and_grey(name):
  image = images.load(name, 16)
  assert image.shape == (16, 16)
  assert image.dtype == np.float64
  assert image.min() >= 0.0
  assert image.max() <= 1.0
  assert np.ptp(image) > 0.02


def test_scaling_keeps_the_mean_grey():
  camera = data.camera() / 255
  got = images.load("camera", 32)
  # Blocks of 16 by 16 pixels, smoothed across their edges.
  blocks = camera.reshape(32, 16, 32, 16).mean(axis=(1, 3))
  assert abs(got.mean() - camera.mean()) < 0.01
  assert np.corrcoef(got.ravel(), blocks.ravel())[0, 1] > 0.97


def test_wide_pictures_are_cut_to_their_centre():
  coins = data.coins() / 255
  height, width = coins.shape
  left = (width - height) // 2
  got = images.load("coins", height)
  np.testing.assert_allclose(got, coins[:, left : left + height], atol=1e-12)


def test_horse_is_what_is_black():
  horse = images.silhouette()
  assert set(np.unique(horse)) == {0.0, 1.0}
  assert horse.sum() == np.sum(~data.horse())
  for edge in (horse[0], horse[-1], horse[:, 0], horse[:, -1]):
    assert edge.any()


def test_mass_sums_to_one():
  image = np.arange(6.0).reshape(2, 3)
  np.testing.assert_allclose(images.as_mass(image), image / 15, rtol=1e-15)


def test_bad_pictures_are_refused():
  with pytest.raises(ValueError, match=r"unknown picture 'camra' .*'camera'"):
    images.load("camra", 8)
  with pytest.raises(ValueError, match=r"size must be .* \[?1\b.*, got 0"):
    images.load("camera", 0)
  with pytest.raises(TypeError, match="float"):
    images.load("camera", 8.0)
  with pytest.raises(ValueError, match="image must be in"):
    images.as_mass(np.array([1.0, -1.0]))
  with pytest.raises(ValueError, match="image must have a pixel above zero"):
    images.as_mass(np.zeros((2, 2)))
