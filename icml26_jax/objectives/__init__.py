"""Training objectives."""

from icml26_jax.objectives import next_token

__all__ = ["next_token"]
