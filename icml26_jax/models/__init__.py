"""Networks as pure functions over a tree of parameters.

`dit`: bidirectional transformer of diffusion language models. `causal`: its
autoregressive twin. `llama`: pretrained models of the Llama family, with a
`kv_cache` for decoding; `prompts` pads them into a batch.
"""

from icml26_jax.models import (
  causal,
  dit,
  kv_cache,
  llama,
  prompts,
)

__all__ = [
  "causal",
  "dit",
  "kv_cache",
  "llama",
  "prompts",
]
