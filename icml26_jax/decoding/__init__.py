"""Decoding of autoregressive language models."""

from icml26_jax.decoding import autoregressive

__all__ = ["autoregressive"]
