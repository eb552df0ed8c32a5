"""Guidance of diffusion language models: classifiers, prompts, entropy."""

from icml26_jax.diffusion.guidance.classifier import (
  ClassifierGuidance,
  guided_evaluate,
)
from icml26_jax.diffusion.guidance.classifier_free import (
  cfg,
  combine,
  without_prompt,
)
from icml26_jax.diffusion.guidance.discrete import (
  cbg_exact,
  cbg_taylor,
  tilt,
  token_log_prob_gradient,
  token_log_probs,
)
from icml26_jax.diffusion.guidance.kernel_entropy import (
  entropy_gradient,
  gram,
  median_distance,
  renyi2,
  token_gain,
)
from icml26_jax.diffusion.guidance.semantic import (
  guide,
  sake,
  shuffle_embeddings,
)

__all__ = [
  "ClassifierGuidance",
  "cbg_exact",
  "cbg_taylor",
  "cfg",
  "combine",
  "entropy_gradient",
  "gram",
  "guide",
  "guided_evaluate",
  "median_distance",
  "renyi2",
  "sake",
  "shuffle_embeddings",
  "tilt",
  "token_gain",
  "token_log_prob_gradient",
  "token_log_probs",
  "without_prompt",
]
