"""Distances between the pixels of a square image."""

from __future__ import annotations

import math
import operator

import jax
import jax.numpy as jnp
import numpy as np


def torus_cost(n: int, *, torus: bool = True) -> jax.Array:
  """Distances between all pixels of an `n` by `n` image.

  Pixel (i, j) lies at (i / n, j / n). On the torus each axis counts the
  shorter way round, min(|d|, 1 - |d|), so that no distance exceeds
  sqrt(2) / 2.

  Args:
    n: pixels on a side, at least 1.
    torus: False for the plain Euclidean distance.

  Returns:
    `[n * n, n * n]` float, in sides of the image; pixel (i, j) is row i n + j.

  Raises:
    ValueError: if `n` is below 1.
    TypeError: if `n` is not an integer.

  References:
    Lager, Mordant and Moscovich, "Quantifying the noise sensitivity of the
    Wasserstein metric for images", ICML 2026, arXiv 2510.01015.
  """
  n = checked_size(n)
  table = distance_table(n, torus=torus)
  offset = np.abs(np.arange(n)[:, None] - np.arange(n))
  cost = table[offset[:, None, :, None], offset[None, :, None, :]]
  return jnp.asarray(cost.reshape(n * n, n * n))


def distance_table(n: int, *, torus: bool) -> np.ndarray:
  """`[n, n]` float64: distance of two pixels, by rows and columns apart."""
  axis = axis_distances(n, torus=torus)
  return np.hypot(axis[:, None], axis[None, :])


def axis_distances(n: int, *, torus: bool) -> np.ndarray:
  """`[n]` float64: distance along one axis, by pixels apart."""
  apart = np.arange(n)
  return (np.minimum(apart, n - apart) if torus else apart) / n


def cell_diameters(n: int, *, torus: bool) -> np.ndarray:
  """Largest distance of two pixels in one cell of each dyadic partition.

  Level k has 2^k by 2^k cells. A cell smaller than the image has no way round
  the torus that is shorter.

  Args:
    n: pixels on a side, a power of two.
    torus: which distance.

  Returns:
    `[log2(n) + 1]` float64, from the whole image down to single pixels.
  """
  levels = checked_levels(n)
  diameters = math.sqrt(2) * (0.5 ** np.arange(levels + 1) - 1 / n)
  if torus:
    diameters[0] = distance_table(n, torus=True).max()
  return diameters


def inverse_laplacian(n: int) -> np.ndarray:
  """`[n, n]` float64: 1 / lambda_k of the torus's grid Laplacian, 0 at k = 0.

  lambda_k = 4 n^2 (sin^2(pi k_1 / n) + sin^2(pi k_2 / n)).
  """
  axis = np.sin(np.pi * np.arange(n) / n) ** 2
  eigenvalues = 4 * n**2 * (axis[:, None] + axis[None, :])
  eigenvalues[0, 0] = np.inf
  return 1 / eigenvalues


def checked_levels(n: int) -> int:
  """log2(n).

  Raises:
    ValueError: if `n` is not a power of two.
  """
  n = checked_size(n)
  if n & (n - 1):
    raise ValueError(f"n must be a power of two, got {n}")
  return n.bit_length() - 1


def checked_size(n: int) -> int:
  """`n` as a Python integer.

  Raises:
    ValueError: if it is below 1.
    TypeError: if it is not an integer.
  """
  try:
    size = operator.index(n)
  except TypeError:
    raise TypeError(f"n must be an integer, got {n!r}") from None
  if size < 1:
    raise ValueError(f"n must be at least 1, got {size}")
  return size
