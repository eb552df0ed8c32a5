"""Handwritten digits that come with scikit-learn: no download."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icml26_jax import checks

NUM_CLASSES = 10
NUM_IMAGES = 1797
NUM_PIXELS = 64

# Ink of a pixel, 0 to 16.
_FULL = 16.0


class Digits(NamedTuple):
  """Pictures of digits and what they show.

  Attributes:
    images: `[N, 64]` float64 in [0, 1], 8 rows of 8 pixels one after the other.
    labels: `[N]` int32, 0 to 9.
  """

  images: np.ndarray
  labels: np.ndarray


def load(num_images: int | None = None) -> Digits:
  """The first pictures of the set, which go through the digits in turn.

  Args:
    num_images: how many, 1 to 1,797; None for all.

  Returns:
    The pictures.

  Raises:
    ValueError: if `num_images` is outside its range.

  References:
    Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI
    Machine Learning Repository, 1998.
  """
  if num_images is not None:
    checks.check_range("num_images", num_images, low=1, high=NUM_IMAGES)
  # Takes a second to import.
  from sklearn import datasets

  images, labels = datasets.load_digits(return_X_y=True)
  return Digits(
    images=np.asarray(images[:num_images], np.float64) / _FULL,
    labels=np.asarray(labels[:num_images], np.int32),
  )
