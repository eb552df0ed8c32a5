"""Networks as pure functions over a tree of parameters."""

from icml26_jax.models import (
  causal,
  dit,
)

__all__ = [
  "causal",
  "dit",
]
