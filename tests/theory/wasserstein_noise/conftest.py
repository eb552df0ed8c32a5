"""Images to measure distances of."""

import numpy as np
import pytest


@pytest.fixture
def signed_pair():
  """`(seed, n)` to two signed images of equal sum."""

  def make(seed, n):
    a, b = np.random.default_rng((seed, n)).normal(size=(2, n, n))
    return a, b + (a.sum() - b.sum()) / n**2

  return make


@pytest.fixture
def mass_pair():
  """`(seed, n)` to two distributions over pixels, some of them empty."""

  def make(seed, n):
    rng = np.random.default_rng((seed, n))
    pair = rng.exponential(size=(2, n, n)) * (rng.random((2, n, n)) < 0.7)
    pair[:, 0, 0] += 0.1
    return tuple(pair / pair.sum(axis=(1, 2), keepdims=True))

  return make
