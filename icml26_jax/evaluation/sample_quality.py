"""Quality of a sample of text, with intervals over its sequences.

Likelihood, unigram entropy and bigram divergence are always read together
(see `text_metrics`). The last two are not means over sequences, so that their
intervals come from resampling whole sequences; what a sequence contributes is
counted once, and a resample is a weighted sum of the counts.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from icml26_jax.evaluation import intervals, token_counts

_RESAMPLES = 2000


class SequenceCounts(NamedTuple):
  """What each of S sequences contributes.

  Attributes:
    nll: `[S]` float64, nats per token.
    unigrams: `[S, V]` float32, how often each token occurs.
    bigrams: `[S, V * V]` float32, how often each pair of neighbours occurs.
  """

  nll: np.ndarray
  unigrams: np.ndarray
  bigrams: np.ndarray


class Quality(NamedTuple):
  """Three measures, as numbers or as intervals.

  Attributes:
    nll: nats per token under the judge.
    entropy: unigram entropy in nats.
    kl: divergence of the bigrams from the reference, in nats. Upwards biased
      by about (number of possible pairs) / (2 times the pairs counted), alike
      for samples of one size.
  """

  nll: float | intervals.Interval
  entropy: float | intervals.Interval
  kl: float | intervals.Interval


def count(tokens, nll, vocab_size: int) -> SequenceCounts:
  """Counts tokens and pairs of each sequence.

  Args:
    tokens: `[S, L]` integers in [0, V), L at least 2.
    nll: `[S]` float, nats per token of each sequence under the judge.
    vocab_size: number of tokens V.

  Returns:
    The counts.

  Raises:
    ValueError: if a shape is wrong or a token is outside the vocabulary.
    TypeError: if the tokens are not integers.
  """
  tokens, nll = np.asarray(tokens), np.asarray(nll, np.float64)
  if tokens.ndim != 2 or tokens.shape[1] < 2:
    raise ValueError(
      f"tokens must be [S, L] with L at least 2, got {tokens.shape}"
    )
  if nll.shape != tokens.shape[:1]:
    raise ValueError(f"nll must have shape {tokens.shape[:1]}, got {nll.shape}")
  return SequenceCounts(
    nll=nll,
    unigrams=token_counts.unigram_counts(tokens, vocab_size),
    bigrams=token_counts.bigram_counts(tokens, vocab_size),
  )


def measure(counts: SequenceCounts, reference) -> Quality:
  """The three measures of a sample.

  Args:
    counts: from `count`.
    reference: `[V, V]` joint distribution of neighbouring tokens, positive
      where the sample has a pair.

  Returns:
    Three floats.
  """
  weights = np.ones((1, len(counts.nll)), np.float32)
  values = _measures(counts, reference, weights)[:, 0]
  return Quality(*(float(value) for value in values))


def with_intervals(
  counts: SequenceCounts,
  reference,
  key: jax.Array,
  *,
  num_resamples: int = _RESAMPLES,
) -> Quality:
  """The three measures with 95% bootstrap intervals over sequences.

  Args:
    counts: from `count`, at least two sequences.
    reference: `[V, V]` joint distribution of neighbouring tokens.
    key: typed key of the resampling.
    num_resamples: number of resamples.

  Returns:
    Three `intervals.Interval`s.
  """
  return _bootstrap(
    lambda weights: _measures(counts, reference, weights),
    len(counts.nll),
    key,
    num_resamples,
  )


def paired_difference(
  first: SequenceCounts,
  second: SequenceCounts,
  reference,
  key: jax.Array,
  *,
  num_resamples: int = _RESAMPLES,
) -> Quality:
  """Measures of `first` minus those of `second`, sequence by sequence.

  Both samples are resampled with the same rows: row s of both came from the
  same key. The bias of the divergence falls out of the difference.

  Args:
    first: from `count`.
    second: from `count`, as many sequences.
    reference: `[V, V]` joint distribution of neighbouring tokens.
    key: typed key of the resampling.
    num_resamples: number of resamples.

  Returns:
    Three `intervals.Interval`s.

  Raises:
    ValueError: if the numbers of sequences differ.
  """
  if len(first.nll) != len(second.nll):
    raise ValueError(
      f"first and second must have as many sequences: {len(first.nll)} and"
      f" {len(second.nll)}"
    )
  return _bootstrap(
    lambda weights: (
      _measures(first, reference, weights)
      - _measures(second, reference, weights)
    ),
    len(first.nll),
    key,
    num_resamples,
  )


def pool(parts: list[SequenceCounts]) -> SequenceCounts:
  """Several samples as one."""
  return SequenceCounts(
    *(np.concatenate(fields) for fields in zip(*parts, strict=True))
  )


def _bootstrap(statistic, size, key, num_resamples) -> Quality:
  """Intervals of a statistic of `[R, S]` weights."""

  def of_rows(rows, axis):
    del axis
    return statistic(
      token_counts.row_counts(np.atleast_2d(rows).astype(np.int64), size)
    )

  found = intervals.bootstrap_interval(
    np.arange(size), key, num_resamples=num_resamples, statistic=of_rows
  )
  # The estimate comes from one resample, each row once.
  estimate = found.estimate[:, 0]
  return Quality(
    *(
      intervals.Interval(*values)
      for values in zip(estimate, found.low, found.high, strict=True)
    )
  )


def _measures(counts, reference, weights) -> np.ndarray:
  """`[3, R]` measures for `[R, S]` weights of the sequences."""
  totals = weights.sum(axis=1)
  nll = weights @ counts.nll / totals
  unigrams = _normalised(weights @ counts.unigrams)
  bigrams = _normalised(weights @ counts.bigrams)
  entropy = -np.sum(_xlogy(unigrams, unigrams), axis=1)
  log_reference = np.log(np.asarray(reference, np.float64).reshape(1, -1))
  kl = np.sum(_xlogy(bigrams, bigrams), axis=1) - np.sum(
    np.where(bigrams > 0, bigrams * log_reference, 0.0), axis=1
  )
  return np.stack([nll, entropy, kl])


def _normalised(counts) -> np.ndarray:
  counts = counts.astype(np.float64)
  return counts / counts.sum(axis=1, keepdims=True)


def _xlogy(x, y) -> np.ndarray:
  return np.where(x > 0, x * np.log(np.where(x > 0, y, 1.0)), 0.0)
