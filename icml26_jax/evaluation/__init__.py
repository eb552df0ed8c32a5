"""Measuring text and models: metrics, judges, likelihoods, intervals."""

from icml26_jax.evaluation import (
  intervals,
  likelihood,
  linear_probe,
  markov,
  ngram,
  sample_quality,
  text_metrics,
  token_counts,
)

__all__ = [
  "intervals",
  "likelihood",
  "linear_probe",
  "markov",
  "ngram",
  "sample_quality",
  "text_metrics",
  "token_counts",
]
