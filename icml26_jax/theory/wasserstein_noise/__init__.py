"""Wasserstein distances of images under pixel noise, and their bounds."""

from icml26_jax.theory.wasserstein_noise.distance import signed_wasserstein
from icml26_jax.theory.wasserstein_noise.expectation import (
  expected_bounds,
  pair_bound,
)
from icml26_jax.theory.wasserstein_noise.grid import torus_cost
from icml26_jax.theory.wasserstein_noise.noise import center_noise
from icml26_jax.theory.wasserstein_noise.pairs import split_signed
from icml26_jax.theory.wasserstein_noise.sample_bounds import (
  mass_lower_bound,
  spectral_upper_bound,
  tree_upper_bound,
)
from icml26_jax.theory.wasserstein_noise.sweep import (
  fit_exponent,
  noise_sweep,
)

__all__ = [
  "center_noise",
  "expected_bounds",
  "fit_exponent",
  "mass_lower_bound",
  "noise_sweep",
  "pair_bound",
  "signed_wasserstein",
  "spectral_upper_bound",
  "split_signed",
  "torus_cost",
  "tree_upper_bound",
]
