"""Quality of a sample of text, with intervals over its sequences.

Likelihood, unigram entropy and bigram divergence are always read together
(see `text_metrics`). Each is the mean over the S sequences of a score: the
sequence's own NLL, the mean over its tokens of `-ln p(token)`, and the mean
over its pairs of `ln p(pair) / q(pair)`, where p are the frequencies in the
whole sample. Up to a constant the scores are the influence functions of the
measures, so that Student's interval of the scores is that of the measure, to
first order in 1/S.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icml26_jax.evaluation import intervals, token_counts


class Scores(NamedTuple):
  """What each of S sequences contributes to the three measures.

  Attributes:
    nll: `[S]` float64, nats per token under the judge.
    entropy: `[S]` float64; the mean is the unigram entropy in nats.
    kl: `[S]` float64; the mean is the divergence of the sample's bigrams from
      the reference in nats. It is biased upwards by about (number of
      possible pairs) / (2 times the number of pairs), alike for samples of
      one size.
  """

  nll: np.ndarray
  entropy: np.ndarray
  kl: np.ndarray


class Quality(NamedTuple):
  """The three measures, as numbers or as intervals.

  Attributes:
    nll: nats per token under the judge.
    entropy: unigram entropy in nats.
    kl: divergence of the bigrams from the reference in nats.
  """

  nll: float | intervals.Interval
  entropy: float | intervals.Interval
  kl: float | intervals.Interval


def score(tokens, nll, reference) -> Scores:
  """Scores of the sequences of one sample.

  Args:
    tokens: `[S, L]` integers in [0, V), L at least 2.
    nll: `[S]` float, nats per token of each sequence under the judge.
    reference: `[V, V]` joint distribution of neighbouring tokens, positive
      where the sample has a pair.

  Returns:
    The scores.

  Raises:
    ValueError: if a shape is wrong, a token is outside the vocabulary or the
      reference lacks a pair of the sample.
    TypeError: if the tokens are not integers.
  """
  tokens, nll = np.asarray(tokens), np.asarray(nll, np.float64)
  reference = np.asarray(reference, np.float64)
  if reference.ndim != 2 or reference.shape[0] != reference.shape[1]:
    raise ValueError(f"reference must be [V, V], got {reference.shape}")
  if tokens.ndim != 2 or tokens.shape[1] < 2:
    raise ValueError(
      f"tokens must be [S, L] with L at least 2, got {tokens.shape}"
    )
  if nll.shape != tokens.shape[:1]:
    raise ValueError(f"nll must have shape {tokens.shape[:1]}, got {nll.shape}")
  vocab_size = len(reference)
  unigrams = token_counts.unigram_counts(tokens, vocab_size)
  bigrams = token_counts.bigram_counts(tokens, vocab_size)
  pairs = bigrams.sum(axis=0, dtype=np.float64)
  reference = reference.ravel()
  if np.any(reference[pairs > 0] <= 0):
    raise ValueError("reference must be positive where the sample has a pair")
  return Scores(
    nll=nll,
    entropy=-_mean_log(unigrams, unigrams.sum(axis=0, dtype=np.float64)),
    kl=_mean_log(bigrams, pairs)
    - _mean_log(bigrams, np.where(pairs > 0, reference, 0.0), normalise=False),
  )


def measure(scores: Scores) -> Quality:
  """The three measures as floats."""
  return Quality(*(float(np.mean(values)) for values in scores))


def with_intervals(scores: Scores) -> Quality:
  """The three measures with 95% intervals over sequences.

  Args:
    scores: from `score`, at least two sequences.

  Returns:
    Three `intervals.Interval`s.
  """
  return Quality(*map(intervals.t_interval, scores))


def paired_difference(first: Scores, second: Scores) -> Quality:
  """Measures of `first` minus those of `second`, with 95% intervals.

  Args:
    first: scores of a sample.
    second: of a sample of as many sequences; sequence s of both came from the
      same key. The bias of the divergence falls out of the difference.

  Returns:
    Three `intervals.Interval`s.

  Raises:
    ValueError: if the numbers of sequences differ.
  """
  return Quality(
    *(
      intervals.paired_t_interval(*pair)
      for pair in zip(first, second, strict=True)
    )
  )


def _mean_log(counts, weights, *, normalise=True) -> np.ndarray:
  """`[S]` mean of ln(weight) over what each row of `[S, K]` counts holds."""
  if normalise:
    weights = weights / weights.sum()
  logs = np.log(np.where(weights > 0, weights, 1.0))
  return counts @ logs / counts.sum(axis=1)
