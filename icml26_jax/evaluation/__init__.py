"""Measuring text and models: metrics, judges, likelihoods, intervals."""

from icml26_jax.evaluation import (
  diversity,
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
  "diversity",
  "intervals",
  "likelihood",
  "linear_probe",
  "markov",
  "ngram",
  "sample_quality",
  "text_metrics",
  "token_counts",
]
