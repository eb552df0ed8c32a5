"""Reports of experiments: claims, tables, plots, progress."""

from icml26_jax.report import (
  claims,
  conditions,
  plots,
  progress,
  render,
  write,
)

__all__ = [
  "claims",
  "conditions",
  "plots",
  "progress",
  "render",
  "write",
]
