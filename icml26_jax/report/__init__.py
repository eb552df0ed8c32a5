"""Reports of experiments: claims, tables, plots, progress."""

from icml26_jax.report import (
  claims,
  plots,
  progress,
  render,
  write,
)

__all__ = [
  "claims",
  "plots",
  "progress",
  "render",
  "write",
]
