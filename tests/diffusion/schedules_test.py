"""Schedules: closed forms, ends, and bad input."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from icml26_jax.diffusion import identifiability, schedules


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.25])
def test_alpha_runs_from_one_to_eps_exactly(eps):
  ends = schedules.log_linear_alpha(jnp.array([0.0, 1.0]), eps=eps)
  np.testing.assert_array_equal(ends, np.float32([1.0, eps]))


@hypothesis.given(t=st.floats(0.0, 1.0, width=32))
def test_alpha_is_linear_with_its_derivative(t):
  eps = 1e-3
  alpha = float(schedules.log_linear_alpha(t, eps=eps))
  slope = float(schedules.log_linear_alpha_derivative(t, eps=eps))
  np.testing.assert_allclose(alpha, 1.0 + slope * t, atol=2.0**-23)
  assert slope == np.float32(-(1.0 - eps))


def test_derivative_is_what_autodiff_finds():
  slope = jax.grad(lambda t: schedules.log_linear_alpha(t, eps=1e-3))(0.3)
  np.testing.assert_allclose(
    slope, schedules.log_linear_alpha_derivative(0.3, eps=1e-3), rtol=1e-6
  )


@pytest.mark.parametrize(("r_min", "r_max"), [(0.01, 0.25), (0.05, 0.45)])
def test_sigma_equals_scipy_in_float64(r_min, r_max):
  t = np.linspace(0.0, 1.0, 24, dtype=np.float32).reshape(4, 6)
  got = jax.jit(
    lambda t: schedules.rank_linear_sigma(t, r_min=r_min, r_max=r_max, eps=1e-3)
  )(t)
  rank = r_min + (1.0 - 1e-3) * t.astype(np.float64) * (r_max - r_min)
  expected = -1.0 / (np.sqrt(2.0) * scipy.stats.norm.ppf(rank))
  assert got.shape == t.shape
  assert got.dtype == jnp.float32
  # Rounding r to float32 (half an ulp of 0.45) moves sigma by less than this.
  np.testing.assert_allclose(got, expected, rtol=2e-6)


def test_rank_of_the_noise_is_linear_in_the_hidden_share():
  t = jnp.linspace(0.0, 1.0, 11)
  sigma = schedules.rank_linear_sigma(t, r_min=0.05, r_max=0.25, eps=1e-3)
  hidden = 1.0 - schedules.log_linear_alpha(t, eps=1e-3)
  np.testing.assert_allclose(
    identifiability.rank_degradation(sigma), 0.05 + 0.2 * hidden, rtol=2e-6
  )


def test_noise_at_time_zero_is_that_of_r_min():
  got = schedules.rank_linear_sigma(0.0, r_min=0.01, r_max=0.25, eps=1e-3)
  np.testing.assert_allclose(got, 0.3039557, rtol=5e-7)


def test_equal_ranks_give_constant_noise():
  sigma = schedules.rank_linear_sigma(
    jnp.array([0.0, 0.5, 1.0]), r_min=0.25, r_max=0.25, eps=1e-3
  )
  np.testing.assert_allclose(sigma, 1.0483581, rtol=5e-7)


def test_jit_equals_eager_and_traces_once():
  traces = []

  def sigma(t):
    traces.append(t.shape)
    return schedules.rank_linear_sigma(t, r_min=0.01, r_max=0.25, eps=1e-3)

  t = jnp.linspace(0.0, 1.0, 7)
  jitted = jax.jit(sigma)
  first = jitted(t)
  jitted(t[::-1])
  assert len(traces) == 1
  np.testing.assert_allclose(first, sigma(t), rtol=1e-6)
  np.testing.assert_allclose(jax.vmap(sigma)(t), first, rtol=1e-6)


def test_derivatives_are_finite_at_both_ends():
  with jax.debug_nans(True):
    for t in (0.0, 1.0):
      slope = jax.grad(
        lambda t: schedules.rank_linear_sigma(
          t, r_min=0.01, r_max=0.25, eps=1e-3
        )
      )(t)
      assert np.isfinite(slope)
      assert slope > 0


@pytest.mark.parametrize("t", [-0.1, 1.5, np.nan])
def test_time_outside_the_unit_interval_is_an_error(t):
  for schedule in (
    schedules.log_linear_alpha,
    schedules.log_linear_alpha_derivative,
    schedules.rank_linear_sigma,
  ):
    with pytest.raises(ValueError, match="t must be in"):
      schedule(t)


@pytest.mark.parametrize("eps", [-1e-3, 1.0, np.nan])
def test_eps_outside_its_range_is_an_error(eps):
  for schedule in (
    schedules.log_linear_alpha,
    schedules.log_linear_alpha_derivative,
    schedules.rank_linear_sigma,
  ):
    with pytest.raises(ValueError, match="eps must be in"):
      schedule(0.5, eps=eps)


@pytest.mark.parametrize(
  ("r_min", "r_max", "name"),
  [
    (0.0, 0.25, "r_min"),
    (0.5, 0.5, "r_min"),
    (np.nan, 0.25, "r_min"),
    (0.25, 0.01, "r_max"),
    (0.01, 0.5, "r_max"),
    (0.01, 0.499999999, "r_max"),
    (0.01, np.nan, "r_max"),
  ],
)
def test_ranks_outside_their_range_are_an_error(r_min, r_max, name):
  with pytest.raises(ValueError, match=f"{name} must be in"):
    schedules.rank_linear_sigma(0.5, r_min=r_min, r_max=r_max)
