"""Diffusion language models: processes, losses, samplers, guidance.

Processes: `candi`, `mdlm`, `continuous`. One sampler for all of them:
`sampling`, with `transforms` of the predictions, `guidance`, averages over
`contexts` and unmasking `policies`. Exact denoisers to test them with: `oracle`.
"""

from icml26_jax.diffusion import (
  candi,
  categorical,
  confidence,
  contexts,
  continuous,
  gaussian,
  guidance,
  identifiability,
  mdlm,
  network_input,
  objective,
  oracle,
  policies,
  process,
  ranking,
  sampling,
  schedules,
  transforms,
  vocabulary,
)

__all__ = [
  "candi",
  "categorical",
  "confidence",
  "contexts",
  "continuous",
  "gaussian",
  "guidance",
  "identifiability",
  "mdlm",
  "network_input",
  "objective",
  "oracle",
  "policies",
  "process",
  "ranking",
  "sampling",
  "schedules",
  "transforms",
  "vocabulary",
]
