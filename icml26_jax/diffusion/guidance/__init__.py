"""Guidance of diffusion language models by classifiers."""

from icml26_jax.diffusion.guidance.classifier import (
  ClassifierGuidance,
  guided_evaluate,
)
from icml26_jax.diffusion.guidance.discrete import (
  cbg_exact,
  cbg_taylor,
  tilt,
  token_log_prob_gradient,
  token_log_probs,
)

__all__ = [
  "ClassifierGuidance",
  "cbg_exact",
  "cbg_taylor",
  "guided_evaluate",
  "tilt",
  "token_log_prob_gradient",
  "token_log_probs",
]
