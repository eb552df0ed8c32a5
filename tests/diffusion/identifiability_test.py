"""Identity corruption and rank degradation against float64 quadrature."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from icml26_jax.diffusion import identifiability

# Rounding 1/sigma to float32 moves rho by up to half an ulp of it times a
# slope below 1/2, and the pairwise sum of 1024 terms rounds ten times.
ATOL = 2.0**-22
VOCAB_SIZES = (2, 3, 27, 1000, 50_257, 1_000_000)


def quadrature(vocab_size, sigma, integrand):
  """Integral of phi(z) integrand(z) on a grid far finer than needed."""
  z = np.linspace(-14.0, 14.0, 20_001)
  density = scipy.stats.norm.pdf(z) * (z[1] - z[0])
  ahead = z + 1.0 / np.float64(sigma)
  return np.sum(density * integrand(ahead, vocab_size - 1, np.float64(sigma)))


def corruption(vocab_size, sigma):
  return quadrature(
    vocab_size,
    sigma,
    lambda x, n, s: -np.expm1(n * scipy.special.log_ndtr(x)),
  )


def corruption_slope(vocab_size, sigma):
  return quadrature(
    vocab_size,
    sigma,
    lambda x, n, s: (
      n
      * np.exp((n - 1) * scipy.special.log_ndtr(x))
      * scipy.stats.norm.pdf(x)
      / s**2
    ),
  )


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_identity_corruption_equals_float64_quadrature(vocab_size):
  sigma = np.geomspace(0.05, 50.0, 60).astype(np.float32).reshape(4, 15)
  got = jax.jit(lambda s: identifiability.identity_corruption(vocab_size, s))(
    sigma
  )
  expected = [[corruption(vocab_size, s) for s in row] for row in sigma]
  assert got.shape == sigma.shape
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("vocab_size", [2, 27, 1_000_000])
def test_small_corruption_keeps_its_relative_precision(vocab_size):
  sigma = np.geomspace(0.08, 0.11, 8).astype(np.float32)
  got = identifiability.identity_corruption(vocab_size, sigma)
  expected = [corruption(vocab_size, s) for s in sigma]
  assert max(expected) < 1e-4
  # A half ulp of 1/sigma = 12 and of exp(-x^2/2) at x = 10, times x.
  np.testing.assert_allclose(got, expected, rtol=3e-5)


@pytest.mark.parametrize(
  ("vocab_size", "sigma", "expected"),
  [
    (27, 0.5, 0.490465),
    (50_257, 0.3, 0.806403),
    (1000, 1.0, 0.983396),
  ],
)
def test_known_identity_corruption(vocab_size, sigma, expected):
  got = identifiability.identity_corruption(vocab_size, sigma)
  np.testing.assert_allclose(got, expected, atol=5e-7)


def test_known_rank_degradation():
  got = identifiability.rank_degradation(jnp.array([0.5, 1.0, 2.0]))
  np.testing.assert_allclose(got, [0.0786496, 0.2397501, 0.3618368], atol=1e-7)


def test_with_two_tokens_corruption_is_rank_degradation():
  sigma = jnp.geomspace(0.1, 100.0, 50)
  np.testing.assert_allclose(
    identifiability.identity_corruption(2, sigma),
    identifiability.rank_degradation(sigma),
    atol=ATOL,
  )


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_limits_of_no_noise_and_of_all_noise(vocab_size):
  for tiny in (1e-30, 1e-3):
    assert identifiability.identity_corruption(vocab_size, tiny) == 0.0
    assert identifiability.rank_degradation(tiny) == 0.0
  for huge in (1e8, np.inf):
    np.testing.assert_allclose(
      identifiability.identity_corruption(vocab_size, huge),
      1.0 - 1.0 / vocab_size,
      atol=ATOL,
    )
    np.testing.assert_allclose(
      identifiability.rank_degradation(huge), 0.5, atol=1e-7
    )


@hypothesis.given(
  index=st.integers(0, len(VOCAB_SIZES) - 2),
  sigma=st.floats(0.05, 100.0),
  factor=st.floats(1.0, 4.0),
)
def test_bounds_and_monotony(index, sigma, factor):
  vocab_size, larger = VOCAB_SIZES[index : index + 2]
  r = float(identifiability.rank_degradation(sigma))
  rho = float(identifiability.identity_corruption(vocab_size, sigma))
  assert r - ATOL <= rho <= min(1.0, (vocab_size - 1) * r * 1.00001) + ATOL
  in_larger = identifiability.identity_corruption(larger, sigma)
  in_louder = identifiability.identity_corruption(vocab_size, sigma * factor)
  assert in_larger >= rho - ATOL
  assert in_louder >= rho - ATOL


@pytest.mark.parametrize(("vocab_size", "sigma"), [(5, 1.0), (27, 0.5)])
def test_monte_carlo_agrees_within_four_standard_errors(vocab_size, sigma):
  rng = np.random.default_rng(0)
  num_draws = 200_000
  noisy = sigma * rng.standard_normal((num_draws, vocab_size), np.float32)
  noisy[:, 0] += 1.0
  is_corrupted = np.argmax(noisy, axis=1) != 0
  share_ahead = np.mean(noisy[:, 1:] > noisy[:, :1], axis=1)
  for observed, expected in (
    (is_corrupted, identifiability.identity_corruption(vocab_size, sigma)),
    (share_ahead, identifiability.rank_degradation(sigma)),
  ):
    error = np.mean(observed) - float(expected)
    assert abs(error) < 4 * np.std(observed) / np.sqrt(num_draws)


def test_normalising_by_the_vocabulary_counts_the_true_token_too():
  sigma = jnp.array([0.3, 1.0])
  per_wrong = identifiability.rank_degradation(sigma)
  per_vocab = identifiability.rank_degradation(
    sigma, normalise="vocab", vocab_size=27
  )
  np.testing.assert_allclose(per_vocab * 27, per_wrong * 26, rtol=1e-6)


def test_known_sigma_from_rank():
  got = identifiability.sigma_from_rank(jnp.array([0.01, 0.05, 0.25, 0.45]))
  expected = [0.3039557, 0.4298904, 1.0483581, 5.6270826]
  np.testing.assert_allclose(got, expected, rtol=5e-7)


@hypothesis.given(r=st.floats(1e-20, 0.499))
def test_sigma_from_rank_inverts_rank_degradation(r):
  sigma = identifiability.sigma_from_rank(r)
  # At r = 1e-20 the gap is 9.3, so half an ulp of it moves r by 9.3^2 ulps.
  np.testing.assert_allclose(
    identifiability.rank_degradation(sigma), r, rtol=2e-5
  )


@pytest.mark.parametrize(
  ("vocab_size", "expected", "rank"),
  [(27, 0.50677, 0.0815), (1000, 0.30900, 0.0111), (50_257, 0.23648, 0.00139)],
)
def test_noise_that_loses_half_the_tokens(vocab_size, expected, rank):
  sigma = identifiability.sigma_at_identity(vocab_size, 0.5)
  np.testing.assert_allclose(sigma, expected, atol=5e-6)
  np.testing.assert_allclose(
    identifiability.rank_degradation(sigma), rank, rtol=5e-3
  )


@pytest.mark.parametrize("vocab_size", [2, 27, 1_000_000])
def test_sigma_at_identity_inverts_identity_corruption(vocab_size):
  top = 1.0 - 1.0 / vocab_size
  rho = np.float32(top) * np.array([[1e-6, 1e-2, 0.2], [0.5, 0.8, 0.95]])
  solve = jax.jit(
    lambda rho: identifiability.sigma_at_identity(vocab_size, rho)
  )
  sigma = solve(rho)
  assert sigma.shape == rho.shape
  np.testing.assert_allclose(
    identifiability.identity_corruption(vocab_size, sigma),
    rho,
    rtol=1e-5,
    atol=ATOL,
  )
  np.testing.assert_allclose(jax.vmap(solve)(rho), sigma, rtol=1e-6)


@pytest.mark.parametrize(
  ("vocab_size", "sigma"), [(2, 1.0), (27, 0.5), (1_000_000, 0.25)]
)
def test_derivatives_equal_float64_quadrature(vocab_size, sigma):
  slope = corruption_slope(vocab_size, sigma)
  got = jax.grad(lambda s: identifiability.identity_corruption(vocab_size, s))(
    sigma
  )
  np.testing.assert_allclose(got, slope, rtol=1e-5)
  inverse_slope = jax.grad(
    lambda rho: identifiability.sigma_at_identity(vocab_size, rho)
  )(corruption(vocab_size, sigma))
  np.testing.assert_allclose(inverse_slope, 1.0 / slope, rtol=1e-4)
  rank_slope = jax.grad(identifiability.rank_degradation)(sigma)
  gap = np.sqrt(0.5) / sigma
  expected = scipy.stats.norm.pdf(gap) * gap / sigma
  np.testing.assert_allclose(rank_slope, expected, rtol=1e-5)


@pytest.mark.parametrize("sigma", [1e-30, 1e-3, 0.02, 1.0, 1e6, 1e30, np.inf])
def test_derivatives_are_finite_at_any_noise(sigma):
  with jax.debug_nans(True):
    for function in (
      lambda s: identifiability.identity_corruption(1_000_000, s),
      identifiability.rank_degradation,
    ):
      assert np.isfinite(jax.grad(function)(sigma))


def test_no_second_trace():
  traces = []

  @jax.jit
  def both(sigma):
    traces.append(sigma.shape)
    rho = identifiability.identity_corruption(27, sigma)
    return identifiability.sigma_at_identity(27, rho)

  sigma = jnp.array([0.3, 0.6])
  np.testing.assert_allclose(both(sigma), sigma, rtol=1e-5)
  np.testing.assert_allclose(both(2.0 * sigma), 2.0 * sigma, rtol=1e-5)
  assert len(traces) == 1


@pytest.mark.parametrize("sigma", [0.0, -1.0, np.nan, [0.5, 0.0]])
def test_noise_that_is_not_positive_is_an_error(sigma):
  sigma = np.asarray(sigma)
  with pytest.raises(ValueError, match="sigma must be in"):
    identifiability.identity_corruption(27, sigma)
  with pytest.raises(ValueError, match="sigma must be in"):
    identifiability.rank_degradation(sigma)


@pytest.mark.parametrize("vocab_size", [1, 0, -3])
def test_vocabulary_below_two_is_an_error(vocab_size):
  with pytest.raises(ValueError, match=rf"vocab_size .* got {vocab_size}"):
    identifiability.identity_corruption(vocab_size, 0.5)
  with pytest.raises(ValueError, match=rf"vocab_size .* got {vocab_size}"):
    identifiability.sigma_at_identity(vocab_size, 0.25)
  with pytest.raises(ValueError, match=rf"vocab_size .* got {vocab_size}"):
    identifiability.rank_degradation(
      0.5, normalise="vocab", vocab_size=vocab_size
    )


def test_vocabulary_that_is_not_an_integer_is_an_error():
  with pytest.raises(TypeError, match="vocab_size must be an integer"):
    identifiability.identity_corruption(27.5, 0.5)


def test_unknown_or_incomplete_normalisation_is_an_error():
  with pytest.raises(ValueError, match=r"normalise must be .* got 'all'"):
    identifiability.rank_degradation(0.5, normalise="all")
  with pytest.raises(ValueError, match="needs vocab_size"):
    identifiability.rank_degradation(0.5, normalise="vocab")


@pytest.mark.parametrize("r", [0.0, 0.5, 0.499999999, 0.7, -0.1, np.nan])
def test_rank_outside_its_range_is_an_error(r):
  with pytest.raises(ValueError, match="r must be in"):
    identifiability.sigma_from_rank(r)


@pytest.mark.parametrize("rho", [0.0, 0.75, 0.9, np.nan])
def test_corruption_outside_its_range_is_an_error(rho):
  with pytest.raises(ValueError, match="rho must be in"):
    identifiability.sigma_at_identity(4, rho)
