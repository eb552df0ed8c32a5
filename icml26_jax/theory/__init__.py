"""Validators of theorems."""

from icml26_jax.theory import (
  arm_ebm,
  conservation,
  wasserstein_noise,
)

__all__ = [
  "arm_ebm",
  "conservation",
  "wasserstein_noise",
]
