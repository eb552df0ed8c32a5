"""Which positions to commit at a step of a diffusion language model.

Each function makes a `process.UnmaskingPolicy`. Confidence is always taken
from the network's own float32 predictions, before any transform, so that a
temperature changes drawn tokens but never the order. `commit_last` holds one
token back, whatever the policy.
"""

from icml26_jax.diffusion.policies.agreeing import AgreementState, agreement
from icml26_jax.diffusion.policies.coherent import ccd, select_ccd
from icml26_jax.diffusion.policies.last_token import commit_last, withhold
from icml26_jax.diffusion.policies.ordered import (
  margin,
  neg_entropy,
  random,
  top_prob,
)
from icml26_jax.diffusion.policies.parallel import factor, threshold

__all__ = [
  "AgreementState",
  "agreement",
  "ccd",
  "commit_last",
  "factor",
  "margin",
  "neg_entropy",
  "random",
  "select_ccd",
  "threshold",
  "top_prob",
  "withhold",
]
