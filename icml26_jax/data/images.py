"""Grey pictures that come with scikit-image: no download, the same anywhere."""

from __future__ import annotations

import operator

import numpy as np

from icml26_jax import checks

# Those that scikit-image keeps in its wheel.
NAMES = ("brick", "camera", "coins", "grass", "gravel", "moon", "page", "text")


def load(name: str, size: int) -> np.ndarray:
  """A picture's central square, scaled down with anti-aliasing.

  Args:
    name: one of `NAMES`.
    size: pixels on a side, at least 1.

  Returns:
    `[size, size]` float64 in [0, 1].

  Raises:
    ValueError: if there is no such picture or `size` is below 1.
    TypeError: if `size` is not an integer.
  """
  if name not in NAMES:
    raise ValueError(checks.unknown("picture", name, NAMES))
  size = operator.index(size)
  checks.check_range("size", size, low=1)
  # Loads its parts as they are asked for, some of them slowly.
  from skimage import data, transform, util

  picture = util.img_as_float64(getattr(data, name)())
  side = min(picture.shape)
  top, left = ((length - side) // 2 for length in picture.shape)
  square = picture[top : top + side, left : left + side]
  return transform.resize(square, (size, size), anti_aliasing=size < side).clip(
    0.0, 1.0
  )


def silhouette() -> np.ndarray:
  """A horse in black on white, as the share of each pixel that it covers.

  Returns:
    `[height, width]` float64, 1 on the horse and 0 elsewhere, cut to its size.
  """
  from skimage import data

  covered = ~np.asarray(data.horse(), bool)
  rows, columns = (np.flatnonzero(covered.any(axis=axis)) for axis in (1, 0))
  return covered[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].astype(
    np.float64
  )


def as_mass(image: np.ndarray) -> np.ndarray:
  """An image divided by its sum, so that it is a distribution over pixels.

  Args:
    image: array of any shape, non-negative and finite.

  Returns:
    float64 of that shape; sums to 1.

  Raises:
    ValueError: if a pixel is negative or not finite, or all are zero.
  """
  image = np.asarray(image, np.float64)
  checks.check_range("image", image, low=0.0, high=np.inf, open_high=True)
  total = image.sum()
  if total == 0.0:
    raise ValueError("image must have a pixel above zero")
  return image / total
