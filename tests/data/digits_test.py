"""Digits of scikit-learn."""

import numpy as np
import pytest
from sklearn import datasets

from icml26_jax.data import digits


def test_equals_the_library_up_to_scale():
  found = digits.load()
  expected = datasets.load_digits()
  np.testing.assert_array_equal(found.images * 16, expected.data)
  np.testing.assert_array_equal(found.labels, expected.target)
  assert found.images.shape == (digits.NUM_IMAGES, digits.NUM_PIXELS)
  assert (found.images.dtype, found.labels.dtype) == (np.float64, np.int32)
  assert (found.images.min(), found.images.max()) == (0.0, 1.0)
  assert set(found.labels) == set(range(digits.NUM_CLASSES))


def test_part_is_the_beginning():
  few, all_of_them = digits.load(20), digits.load()
  np.testing.assert_array_equal(few.images, all_of_them.images[:20])
  np.testing.assert_array_equal(few.labels, np.tile(np.arange(10), 2))


@pytest.mark.parametrize("count", [0, 1798])
def test_count_outside_is_refused(count):
  with pytest.raises(
    ValueError, match=rf"num_images must be in \[1, 1797\], got {count}"
  ):
    digits.load(count)
