"""Bounds on the distance of two given images."""

import itertools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.test_util import check_grads
import numpy as np
import pytest

from icml26_jax.theory import wasserstein_noise
from icml26_jax.theory.wasserstein_noise import exact

tree = wasserstein_noise.tree_upper_bound
spectral = wasserstein_noise.spectral_upper_bound
lower = wasserstein_noise.mass_lower_bound


def _slow_tree(a, b, p, torus):
  """Matches mass level by level, one cell after the other."""
  n = a.shape[0]
  difference, side, cost = a - b, 1, 0.0
  left = np.abs(difference).sum() / 2
  while side < n:
    side *= 2
    pixels = itertools.product(range(side), repeat=2)
    axis = [[min(x, n - x) if torus else x for x in pixel] for pixel in pixels]
    diameter = max(np.hypot(*x) for x in axis) / n
    sums = [
      difference[i : i + side, j : j + side].sum()
      for i in range(0, n, side)
      for j in range(0, n, side)
    ]
    unmatched = np.abs(sums).sum() / 2
    cost += (left - unmatched) * diameter**p
    left = unmatched
  # What rounding leaves of the sum of all.
  assert left < 1e-12
  return cost ** (1 / p)


def _slow_spectral(a, b):
  """The norm of (a - b) dual to sqrt(sum |gradient|^2), by a linear solve."""
  n = a.shape[0]
  difference = (a - b).ravel()
  laplacian = np.zeros((n * n, n * n))
  for i, j in np.ndindex(n, n):
    here = i * n + j
    for there in (((i + 1) % n) * n + j, i * n + (j + 1) % n):
      edge = np.zeros(n * n)
      edge[here] += n
      edge[there] -= n
      laplacian += np.outer(edge, edge)
  potential = np.linalg.lstsq(laplacian, difference, rcond=None)[0]
  return n * np.sqrt(2 * difference @ potential)


@pytest.mark.parametrize("torus", [True, False])
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_distance_lies_between_its_bounds(signed_pair, n, p, torus):
  for seed in range(3):
    a, b = signed_pair(seed, n)
    distance = wasserstein_noise.signed_wasserstein(a, b, p, torus=torus)
    with jax.enable_x64(True):
      assert lower(a, b, p) <= distance * (1 + 1e-12)
      assert distance <= tree(a, b, p, torus=torus) * (1 + 1e-12)
      if p == 1 and torus:
        assert distance <= spectral(a, b) * (1 + 1e-12)


@hypothesis.given(
  st.lists(st.integers(-3, 3), min_size=16, max_size=16),
  st.sampled_from([1, 2, 3]),
)
def test_bounds_hold_for_few_and_equal_masses(values, p):
  a = np.reshape(values, (4, 4)).astype(np.float32)
  b = np.zeros((4, 4), np.float32)
  b[1, 2] = a.sum()
  distance = wasserstein_noise.signed_wasserstein(a, b, p)
  # Sums of small integers are exact; the rest is float32 of 20 operations.
  slack = 1 + 20 * 2.0**-24
  assert lower(a, b, p) <= distance * slack
  assert distance <= tree(a, b, p) * slack
  if p == 1:
    assert distance <= spectral(a, b) * slack


@pytest.mark.parametrize("torus", [True, False])
@pytest.mark.parametrize("p", [1, 2, 2.5])
@pytest.mark.parametrize("n", [1, 2, 8])
def test_tree_bound_is_that_of_matching_level_by_level(
  signed_pair, n, p, torus
):
  a, b = signed_pair(4, n)
  expected = _slow_tree(a, b, p, torus)
  with jax.enable_x64(True):
    got = tree(a, b, p, torus=torus)
  # At n = 1 only rounding is left of a - b.
  np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_spectral_bound_is_a_dual_norm(signed_pair, n):
  a, b = signed_pair(5, n)
  with jax.enable_x64(True):
    got = spectral(a, b)
  np.testing.assert_allclose(got, _slow_spectral(a, b), rtol=1e-10)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("n", [2, 4, 16])
def test_tree_bound_is_met_by_the_farthest_pair(n, p):
  a, b = np.zeros((2, n, n))
  a[0, 0] = b[n // 2, n // 2] = 1.0
  distance = wasserstein_noise.signed_wasserstein(a, b, p)
  np.testing.assert_allclose(distance, np.sqrt(0.5), rtol=1e-12)
  np.testing.assert_allclose(tree(a, b, p), np.sqrt(0.5), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lower_bound_is_met_by_neighbours(p):
  a, b = np.zeros((2, 5, 5))
  a[0, ::2] = b[1, ::2] = 1.0
  distance = wasserstein_noise.signed_wasserstein(a, b, p)
  np.testing.assert_allclose(lower(a, b, p), distance, rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_equal_images_have_zero_bounds_and_zero_gradients(p):
  a = jnp.ones((4, 4))
  bounds = [
    lambda x: tree(x, a, p),
    lambda x: lower(x, a, p),
    lambda x: spectral(x, a),
  ]
  with jax.debug_nans(True):
    for bound in bounds:
      value, gradient = jax.value_and_grad(bound)(a)
      assert value == 0.0
      np.testing.assert_array_equal(gradient, np.zeros((4, 4)))


@pytest.mark.parametrize("p", [1, 2])
def test_gradients_are_those_of_differences(signed_pair, p):
  with jax.enable_x64(True):
    a, b = map(jnp.asarray, signed_pair(6, 4))

    def centred(x):
      return x - jnp.mean(x) + jnp.mean(b)

    for bound in (
      lambda x: tree(centred(x), b, p),
      lambda x: lower(centred(x), b, p),
      lambda x: spectral(centred(x), b),
    ):
      check_grads(bound, (a,), order=1, modes=["rev", "fwd"])


def test_one_call_bounds_a_batch(signed_pair):
  pairs = [signed_pair(seed, 8) for seed in range(4)]
  a, b = np.stack(pairs, axis=1).astype(np.float32)
  for bound in (
    lambda x, y: tree(x, y, 2),
    lambda x, y: lower(x, y, 2),
    spectral,
  ):
    got = jax.jit(jax.vmap(bound))(a, b)
    expected = [bound(x, y) for x, y in zip(a, b, strict=True)]
    # Sums of 64 float32 in any order.
    np.testing.assert_allclose(got, np.stack(expected), rtol=64 * 2.0**-24)


def test_a_batch_may_lie_on_many_devices(signed_pair):
  pairs = [signed_pair(seed, 8) for seed in range(8)]
  a, b = np.stack(pairs, axis=1).astype(np.float32)
  mesh = jax.make_mesh(
    (8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  sharding = jax.NamedSharding(mesh, jax.P("batch"))
  both = jax.jit(jax.vmap(lambda x, y: (tree(x, y, 1), spectral(x, y))))
  got = both(*(jax.device_put(x, sharding) for x in (a, b)))
  np.testing.assert_allclose(got, both(a, b), rtol=64 * 2.0**-24)


def test_precision_is_kept_and_at_least_single():
  a, b = np.eye(2), np.eye(2)[::-1]
  half = [jnp.asarray(x, jnp.bfloat16) for x in (a, b)]
  whole = [x.astype(int) for x in (a, b)]
  # Their differences would wrap around.
  unsigned = [x.astype(np.uint8) for x in (a, b)]
  for x, y in (half, whole, unsigned):
    for got in (tree(x, y, 1), spectral(x, y), lower(x, y, 1)):
      assert got.dtype == jnp.float32
    np.testing.assert_allclose(tree(x, y, 1), np.sqrt(2), rtol=1e-6)


def test_sizes_that_are_no_power_of_two_have_no_tree():
  a = np.eye(6)
  with pytest.raises(ValueError, match="n must be a power of two, got 6"):
    tree(a, a, 1)
  # The others take any size, as the distance does.
  b = np.roll(a, 1, axis=0)
  distance = exact.transport_cost(a, b, 1)
  assert lower(a, b, 1) <= distance * (1 + 1e-6)
  assert distance <= spectral(a, b)


def test_bad_arguments_are_refused():
  a = np.eye(4)
  nan = a.copy()
  nan[3, 3] = np.nan
  for bound in (
    lambda x, y: tree(x, y, 1),
    lambda x, y: lower(x, y, 1),
    spectral,
  ):
    with pytest.raises(ValueError, match="equal total mass, got 4 and 8"):
      bound(a, 2 * a)
    with pytest.raises(ValueError, match="must have one shape"):
      bound(a, np.eye(2))
    with pytest.raises(ValueError, match="must be a square image"):
      bound(a[:2], a[:2])
    with pytest.raises(ValueError, match="a must be finite, got nan"):
      bound(nan, a)
    with pytest.raises(ValueError, match="must have one shape"):
      jax.jit(bound)(a, np.eye(2))
  for bound in (tree, lower):
    with pytest.raises(ValueError, match=r"p must be in \[1, inf\), got 0.5"):
      bound(a, a, 0.5)
