"""The signed distance, exact and by Sinkhorn's iteration."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import ot
import pytest
from scipy import optimize

from icml26_jax.theory import wasserstein_noise
from icml26_jax.theory.wasserstein_noise import exact, sinkhorn

signed = wasserstein_noise.signed_wasserstein


def _cost(n, p, torus=True):
  with jax.enable_x64(True):
    return np.asarray(wasserstein_noise.torus_cost(n, torus=torus)) ** p


def _by_linear_program(a, b, p, torus):
  """W_p(a_+ + b_-, b_+ + a_-) by a general solver, nothing cancelled."""
  n = a.shape[0]
  source = (np.maximum(a, 0) + np.maximum(-b, 0)).ravel()
  target = (np.maximum(b, 0) + np.maximum(-a, 0)).ravel()
  rows = np.kron(np.eye(n * n), np.ones(n * n))
  columns = np.kron(np.ones(n * n), np.eye(n * n))
  # The last condition follows from the others.
  found = optimize.linprog(
    _cost(n, p, torus).ravel(),
    A_eq=np.vstack([rows, columns])[:-1],
    b_eq=np.concatenate([source, target])[:-1],
  )
  assert found.status == 0
  return found.fun ** (1 / p)


def _delta(n, *places):
  image = np.zeros((n, n))
  for row, column, mass in places:
    image[row, column] += mass
  return image


@pytest.mark.parametrize("torus", [True, False])
@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_exact_distance_is_that_of_a_linear_program(signed_pair, n, p, torus):
  a, b = signed_pair(0, n)
  got = signed(a, b, p, torus=torus)
  # HiGHS meets its conditions to 1e-7.
  np.testing.assert_allclose(got, _by_linear_program(a, b, p, torus), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_images_of_mass_have_the_usual_distance(mass_pair, p):
  a, b = mass_pair(0, 8)
  expected = ot.emd2(a.ravel(), b.ravel(), _cost(8, p)) ** (1 / p)
  np.testing.assert_allclose(signed(a, b, p), expected, rtol=1e-9)


@pytest.mark.parametrize("p", [1, 2, 3.5])
@pytest.mark.parametrize(("n", "k"), [(8, 0), (8, 3), (8, 4), (8, 7), (5, 3)])
def test_unit_masses_take_the_shorter_way_round(n, k, p):
  a, b = _delta(n, (0, 1, 1.0)), _delta(n, (k, 1, 1.0))
  np.testing.assert_allclose(signed(a, b, p), min(k, n - k) / n, rtol=1e-12)
  np.testing.assert_allclose(signed(a, b, p, torus=False), k / n, rtol=1e-12)


@pytest.mark.parametrize("p", [1, 2])
def test_distance_is_symmetric_and_zero_only_from_itself(signed_pair, p):
  a, b = signed_pair(1, 6)
  np.testing.assert_allclose(signed(a, b, p), signed(b, a, p), rtol=1e-9)
  assert signed(a, b, p) > 0
  assert signed(a, a, p) == 0.0


@pytest.mark.parametrize("p", [1, 2])
def test_translating_both_images_changes_nothing(signed_pair, p):
  a, b = signed_pair(2, 6)
  moved = [np.roll(image, (1, 2), axis=(0, 1)) for image in (a, b)]
  np.testing.assert_allclose(signed(*moved, p), signed(a, b, p), rtol=1e-9)


def test_first_order_depends_on_the_difference_only(signed_pair):
  a, b = signed_pair(3, 4)
  g = np.random.default_rng(3).normal(size=(4, 4))
  expected = _by_linear_program(a, b, 1, True)
  np.testing.assert_allclose(signed(a + g, b + g, 1), expected, rtol=1e-6)
  np.testing.assert_allclose(signed(a - b, 0 * a, 1), expected, rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_scaling_both_images_scales_by_a_root(signed_pair, p):
  a, b = signed_pair(4, 6)
  expected = 7 ** (1 / p) * signed(a, b, p)
  np.testing.assert_allclose(signed(7 * a, 7 * b, p), expected, rtol=1e-9)


def test_second_order_depends_on_more_than_the_difference():
  a, b = _delta(8, (0, 0, 1.0)), _delta(8, (0, 2, 1.0))
  between = _delta(8, (0, 1, 1.0))
  np.testing.assert_allclose(signed(a, b, 2), 1 / 4, rtol=1e-12)
  # Two steps of 1/8 instead of one of 1/4.
  np.testing.assert_allclose(
    signed(a + between, b + between, 2), np.sqrt(2) / 8, rtol=1e-12
  )


def test_opposite_masses_on_the_smallest_torus():
  a = _delta(2, (0, 0, 1.0), (1, 1, -1.0))
  np.testing.assert_allclose(
    signed(a, np.zeros((2, 2)), 1), np.sqrt(0.5), rtol=1e-12
  )


def test_triangle_inequality_fails_beyond_first_order():
  a = _delta(8, (0, 0, 1.0))
  b = _delta(8, (0, 1, 1.0), (0, 2, -1.0), (0, 3, 1.0))
  c = _delta(8, (0, 4, 1.0))
  got = [signed(*pair, 2) for pair in ((a, c), (a, b), (b, c))]
  np.testing.assert_allclose(got, [1 / 2, np.sqrt(2) / 8, np.sqrt(2) / 8])
  assert got[0] > got[1] + got[2]
  got = [signed(*pair, 1) for pair in ((a, c), (a, b), (b, c))]
  np.testing.assert_allclose(got, [1 / 2, 1 / 4, 1 / 4], rtol=1e-12)


def test_one_pixel_and_no_mass_are_at_distance_zero():
  for solver in ("exact", "sinkhorn"):
    for p in (1, 2, 3):
      one = np.ones((1, 1))
      assert float(signed(one, one, p, solver=solver)) == 0.0
      none = np.zeros((4, 4))
      assert float(signed(none, none, p, solver=solver)) == 0.0


@pytest.mark.parametrize("p", [1, 2])
def test_equal_images_are_at_distance_zero_by_sinkhorn_too(signed_pair, p):
  a, _ = signed_pair(5, 4)
  assert float(signed(a, a, p, solver="sinkhorn")) == 0.0


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_integers_are_images(dtype):
  a, b = np.eye(4, dtype=dtype), np.eye(4, dtype=dtype)[:, ::-1]
  for p in (1, 2):
    exactly = signed(a, b, p)
    got = signed(a, b, p, solver="sinkhorn", epsilon=1e-3)
    assert abs(float(got) - exactly) < 0.01 * exactly


@pytest.mark.parametrize("torus", [True, False])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_sinkhorn_falls_to_the_exact_distance(signed_pair, p, torus):
  a, b = signed_pair(6, 8)
  exactly = signed(a, b, p, torus=torus)
  with jax.enable_x64(True):
    got = [
      float(signed(a, b, p, solver="sinkhorn", epsilon=epsilon, torus=torus))
      for epsilon in (1e-1, 1e-2, 1e-3)
    ]
  assert got[0] > got[1] > got[2] >= exactly * (1 - 1e-12)
  # With a plan's entropy at most log(64^2) the cost exceeds the least one by
  # epsilon log(64^2) largest c^p per mass.
  mass = np.abs(a - b).sum() / 2 if p == 1 else _moved_mass(a, b)
  largest = _cost(8, p, torus).max()
  misplaced = 1e-4 * mass * largest
  slack = 1e-3 * np.log(64**2) * mass * largest + misplaced
  assert got[2] ** p <= exactly**p + slack


def _moved_mass(a, b):
  return np.maximum(a, 0).sum() + np.maximum(-b, 0).sum()


@pytest.mark.parametrize("max_iterations", [1, 3, 30])
@pytest.mark.parametrize("p", [1, 2])
def test_unfinished_sinkhorn_is_not_below_the_exact_cost(
  mass_pair, p, max_iterations
):
  source, target = mass_pair(7, 8)
  least = exact.transport_cost(source, target, p)
  with jax.enable_x64(True):
    got = sinkhorn.transport_cost(
      jnp.asarray(source),
      jnp.asarray(target),
      p,
      epsilon=1e-3,
      max_iterations=max_iterations,
    )
  assert float(got) >= least * (1 - 1e-12)


def test_axes_one_by_one_are_the_dense_iteration(signed_pair):
  a, b = signed_pair(8, 6)
  with jax.enable_x64(True):
    fast = signed(a, b, 2, solver="sinkhorn", epsilon=1e-2)
    # Any power but 2 takes the dense way.
    dense = signed(a, b, 2 + 1e-12, solver="sinkhorn", epsilon=1e-2)
  np.testing.assert_allclose(fast, dense, rtol=1e-9)


@pytest.fixture(scope="module")
def ott_cost():
  """Cost without the entropy term by ott-jax."""
  with warnings.catch_warnings():
    # jaxopt, which it imports, announces its retirement.
    warnings.simplefilter("ignore", DeprecationWarning)
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn as ott_sinkhorn

  def solve(source, target, cost, epsilon):
    problem = linear_problem.LinearProblem(
      geometry.Geometry(cost_matrix=jnp.asarray(cost), epsilon=epsilon),
      jnp.asarray(source.ravel()),
      jnp.asarray(target.ravel()),
    )
    solver = ott_sinkhorn.Sinkhorn(threshold=1e-9, max_iterations=20_000)
    with jax.numpy_rank_promotion("allow"):
      found = solver(problem)
    assert found.converged
    return float(jnp.sum(found.matrix * jnp.asarray(cost)))

  return solve


@pytest.mark.parametrize("epsilon", [1e-1, 1e-2])
@pytest.mark.parametrize("p", [1, 2, 3])
def test_sinkhorn_equals_that_of_ott(mass_pair, ott_cost, p, epsilon):
  source, target = mass_pair(9, 6)
  cost = _cost(6, p)
  with jax.enable_x64(True):
    expected = ott_cost(source, target, cost, epsilon * cost.max())
    got = sinkhorn.transport_cost(
      jnp.asarray(source),
      jnp.asarray(target),
      p,
      epsilon=epsilon,
      tolerance=1e-9,
      max_iterations=20_000,
    )
  np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2])
def test_single_precision_is_near_double(signed_pair, p):
  a, b = signed_pair(10, 8)
  single = signed(
    np.float32(a), np.float32(b), p, solver="sinkhorn", epsilon=1e-2
  )
  assert single.dtype == jnp.float32
  with jax.enable_x64(True):
    double = signed(a, b, p, solver="sinkhorn", epsilon=1e-2)
    # Single precision is kept where double is the default.
    kept = signed(
      np.float32(a),
      np.float32(b),
      p,
      solver="sinkhorn",
      epsilon=np.float64(1e-2),
    )
  assert kept.dtype == jnp.float32
  np.testing.assert_allclose(kept, single, rtol=1e-4)
  # Either stops with up to 1e-4 of the mass misplaced, which is moved by the
  # largest distance then; the mean cost is about a tenth of the largest.
  np.testing.assert_allclose(single, double, rtol=2e-3)


@pytest.mark.parametrize("p", [1, 2])
def test_sinkhorn_over_devices_and_batches_is_a_loop(signed_pair, p):
  pairs = [signed_pair(seed, 4) for seed in range(8)]
  a, b = np.stack(pairs, axis=1).astype(np.float32)
  mesh = jax.make_mesh(
    (8,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  sharding = jax.NamedSharding(mesh, jax.P("batch"))
  solve = jax.jit(
    jax.vmap(lambda x, y: signed(x, y, p, solver="sinkhorn", epsilon=0.05))
  )
  got = solve(jax.device_put(a, sharding), jax.device_put(b, sharding))
  expected = [
    signed(x, y, p, solver="sinkhorn", epsilon=0.05)
    for x, y in zip(a, b, strict=True)
  ]
  # Rounding may end the iteration one step sooner or later, and a step then
  # moves a ten thousandth of the mass.
  np.testing.assert_allclose(got, np.stack(expected), rtol=1e-4)


def test_different_masses_are_refused_with_both_sums():
  a = np.full((2, 2), 0.25)
  for solver in ("exact", "sinkhorn"):
    with pytest.raises(ValueError, match=r"equal total mass, got 1 and 1\.1"):
      signed(a, 1.1 * a, 2, solver=solver)
  with pytest.raises(ValueError, match="equal total mass"):
    signed(a, a * (1 + 2e-6), 2)
  # Rounding is not a difference.
  assert signed(a, a * (1 + 1e-7), 1) < 1e-7
  assert signed(a, a * (1 + 1e-7), 2) < 1e-7


def test_noise_may_be_compared_with_nothing():
  eps = wasserstein_noise.center_noise(jax.random.key(0), 8, 1.0)
  # Its sum is zero to rounding only.
  assert signed(eps, np.zeros((8, 8)), 1) > 0


def test_bad_images_are_refused():
  good = np.eye(2)
  bad = good.copy()
  bad[0, 1] = np.nan
  with pytest.raises(ValueError, match=r"a must be finite, got nan at pixel"):
    signed(bad, good, 1)
  bad[0, 1] = np.inf
  with pytest.raises(ValueError, match="b must be finite, got inf"):
    signed(good, bad, 1)
  with pytest.raises(ValueError, match=r"a must be a square image .*\(2, 3\)"):
    signed(np.ones((2, 3)), good, 1)
  with pytest.raises(ValueError, match=r"b must be a square image .*\(4,\)"):
    signed(good, np.ones(4), 1)
  with pytest.raises(ValueError, match=r"a \(2, 2\) and b \(3, 3\)"):
    signed(good, np.eye(3), 1)
  with pytest.raises(ValueError, match=r"got shape \(0, 0\)"):
    signed(np.ones((0, 0)), np.ones((0, 0)), 1)
  with pytest.raises(TypeError, match="a must be real, got complex"):
    signed(1j * good, good, 1)


def test_bad_settings_are_refused():
  a = np.eye(2)
  for p in (0.5, 0, -1, np.nan, np.inf):
    with pytest.raises(ValueError, match=r"p must be in \[1, inf\)"):
      signed(a, a, p)
  with pytest.raises(TypeError, match="p must be a number, got '2'"):
    signed(a, a, "2")
  with pytest.raises(ValueError, match=r"unknown solver 'sinkhron' .*did you"):
    signed(a, a, 1, solver="sinkhron")
  with pytest.raises(ValueError, match="epsilon must be None if exact"):
    signed(a, a, 1, epsilon=0.1)
  for epsilon in (0.0, -1.0, np.nan, np.inf):
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, inf\)"):
      signed(a, a, 1, solver="sinkhorn", epsilon=epsilon)
  with pytest.raises(TypeError, match="a and b must not be traced if exact"):
    jax.jit(lambda x: signed(x, x, 1))(a)


@pytest.mark.filterwarnings("ignore:numItermax reached:UserWarning")
def test_simplex_that_was_cut_short_is_an_error(mass_pair):
  source, target = mass_pair(11, 8)
  with pytest.raises(RuntimeError, match="within 3 iterations: numItermax"):
    exact.transport_cost(source, target, 2, max_iterations=3)
