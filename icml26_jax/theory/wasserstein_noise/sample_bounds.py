"""Bounds on the signed distance of two given images, in closed form."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax.theory.wasserstein_noise import grid, pairs


def tree_upper_bound(
  a: jax.Array, b: jax.Array, p: float, *, torus: bool = True
) -> jax.Array:
  """Upper bound on W_p^± by matching mass inside small cells first.

  With D = a - b, cells Q of the dyadic partition at level k (2^k by 2^k cells)
  and their diameters d_k:

    W_p^±(a, b)^p <= 1/2 sum_{k=1}^{log2 n} (d_{k-1}^p - d_k^p) sum_Q |D(Q)|

  Whatever is left of D at level k, 1/2 sum_Q |D(Q)|, is matched further up;
  what is matched at level k - 1 moves by d_{k-1} at most. O(n^2).

  Args:
    a: `[n, n]` real, n a power of two.
    b: `[n, n]` real with the sum of `a`.
    p: order, a Python number of at least 1.
    torus: False for the plain distance; see `torus_cost`.

  Returns:
    `[]` float; 0, with zero gradient, if a = b. Differentiable wherever no
    cell of D sums to zero.

  Raises:
    ValueError: if n is not a power of two, or as `signed_wasserstein`.
    TypeError: if an image is complex or `p` no number.
  """
  pairs.check_order(p)
  pairs.check_pair(a, b)
  diameters = grid.cell_diameters(jnp.shape(a)[0], torus=torus) ** p
  cells = _difference(a, b)
  cost = jnp.zeros((), cells.dtype)
  for weight in (diameters[:-1] - diameters[1:])[::-1]:
    cost += float(weight) / 2 * jnp.sum(_magnitude(cells))
    half = cells.shape[0] // 2
    cells = cells.reshape(half, 2, half, 2).sum(axis=(1, 3))
  return _root(cost, p)


def spectral_upper_bound(a: jax.Array, b: jax.Array) -> jax.Array:
  """Upper bound on W_1^± on the torus by Fourier coefficients.

  A 1-Lipschitz f changes by 1/n at most to either neighbour, so that
  sum_k lambda_k |f_k|^2 <= 2 n^2, and Cauchy-Schwarz on sum f D gives

    W_1^±(a, b) <= n sqrt(2 sum_{k != 0} |F_k|^2 / lambda_k)

  with F the unitary two-dimensional Fourier transform of D = a - b and
  lambda_k = 4 n^2 (sin^2(pi k_1 / n) + sin^2(pi k_2 / n)).

  Args:
    a: `[n, n]` real, any n.
    b: `[n, n]` real with the sum of `a`.

  Returns:
    `[]` float; 0, with zero gradient, if a = b.

  Raises:
    ValueError: as `signed_wasserstein`.
    TypeError: if an image is complex.
  """
  pairs.check_pair(a, b)
  n = jnp.shape(a)[0]
  modes = jnp.fft.fft2(_difference(a, b), norm="ortho")
  power = jnp.square(modes.real) + jnp.square(modes.imag)
  weights = jnp.asarray(grid.inverse_laplacian(n), power.dtype)
  return n * _root(2 * jnp.sum(power * weights), 2)


def mass_lower_bound(a: jax.Array, b: jax.Array, p: float) -> jax.Array:
  """Lower bound on W_p^±: what moves at all moves one pixel at least.

  W_p^±(a, b)^p >= n^-p ‖a - b‖_1 / 2.

  Args:
    a: `[n, n]` real, any n.
    b: `[n, n]` real with the sum of `a`.
    p: order, a Python number of at least 1.

  Returns:
    `[]` float; 0, with zero gradient, if a = b.

  Raises:
    ValueError: as `signed_wasserstein`.
    TypeError: if an image is complex or `p` no number.
  """
  pairs.check_order(p)
  pairs.check_pair(a, b)
  moved = jnp.sum(_magnitude(_difference(a, b))) / 2
  return _root(moved, p) / jnp.shape(a)[0]


def _difference(a, b) -> jax.Array:
  return pairs.floating(a) - pairs.floating(b)


def _magnitude(x: jax.Array) -> jax.Array:
  """|x| with gradient 0 at 0, where that of `jnp.abs` is 1."""
  return x * jnp.sign(x)


def _root(x: jax.Array, p: float) -> jax.Array:
  """x^(1/p), with gradient 0 instead of infinity at 0."""
  if p == 1:
    return x
  return jnp.where(x > 0, jnp.where(x > 0, x, 1) ** (1 / p), 0)
