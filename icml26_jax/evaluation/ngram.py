"""Interpolated n-gram language model over tokens (Witten-Bell).

With context h, C(h) tokens seen after it of which T(h) differ, and h' the
context without its oldest token,

    p(w | h) = (c(h, w) + T(h) p(w | h')) / (C(h) + T(h)),

down to the uniform distribution over the vocabulary, so that each p(. | h)
sums to one whatever was seen. On the host, in float64: fitting and scoring
are sorts and look-ups in sorted arrays, without a loop over tokens.

References:
  Witten and Bell, "The zero-frequency problem", IEEE Transactions on
  Information Theory 37(4), 1991; in the interpolated form of Chen and
  Goodman, "An empirical study of smoothing techniques", 1998, eq. (16).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icml26_jax import checks
from icml26_jax.evaluation import rows as rows_lib


class Level(NamedTuple):
  """Counts of the n-grams of one length.

  An n-gram is named by its row here; its key is `context * V + token`, the
  context named by its row one level below.

  Attributes:
    keys: `[K]` int64, sorted.
    counts: `[K]` float64, c(h, w).
    totals: `[C]` float64, C(h) for each context.
    distinct: `[C]` float64, T(h) for each context.
  """

  keys: np.ndarray
  counts: np.ndarray
  totals: np.ndarray
  distinct: np.ndarray


class Ngrams(NamedTuple):
  """A fitted model.

  Attributes:
    vocab_size: number of tokens V.
    levels: counts of 1-grams, 2-grams and so on.
  """

  vocab_size: int
  levels: tuple[Level, ...]


def fit(tokens, vocab_size: int, *, order: int = 5, mask=None) -> Ngrams:
  """Counts n-grams.

  Args:
    tokens: `[N]` or `[B, L]` integers in [0, V); n-grams do not reach across
      rows.
    vocab_size: number of tokens V.
    order: length of the longest n-gram, at least 1: each token is predicted
      from the `order - 1` before it.
    mask: bool of the shape of `tokens`; an n-gram counts only if all of it
      does. None for all True.

  Returns:
    The model; without any token it is uniform.

  Raises:
    ValueError: if `order` or `vocab_size` is below 1, a token is outside the
      vocabulary, or the shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  checks.check_range("vocab_size", vocab_size, low=1)
  checks.check_range("order", order, low=1)
  tokens, mask = rows_lib.token_rows(tokens, mask, vocab_size)
  context = np.zeros(tokens.shape, np.int64)
  num_contexts = 1
  levels = []
  for length in range(1, order + 1):
    valid = mask & (context >= 0)
    keys, names, counts = np.unique(
      context[valid] * vocab_size + tokens[valid],
      return_inverse=True,
      return_counts=True,
    )
    owner = keys // vocab_size
    levels.append(
      Level(
        keys=keys,
        counts=counts.astype(np.float64),
        totals=np.bincount(owner, counts, num_contexts),
        distinct=np.bincount(owner, minlength=num_contexts).astype(np.float64),
      )
    )
    if length < order:
      ngram = np.full(tokens.shape, -1, np.int64)
      ngram[valid] = names
      context = _shift(ngram)
      num_contexts = len(keys)
  return Ngrams(vocab_size, tuple(levels))


def nll(model: Ngrams, tokens, mask=None) -> np.ndarray:
  """Negative log-likelihood of each token given those before it in its row.

  Args:
    model: a fitted model.
    tokens: `[N]` or `[B, L]` integers in [0, V). The first tokens of a row
      have fewer before them.
    mask: bool of the shape of `tokens`, False where the token neither counts
      nor is seen by later ones. None for all True.

  Returns:
    float64 of the shape of `tokens`, in nats; 0 where `mask` is False.

  Raises:
    ValueError: if a token is outside the vocabulary or the shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  shape = np.shape(tokens)
  tokens, mask = rows_lib.token_rows(tokens, mask, model.vocab_size)
  probability = np.full(tokens.shape, 1.0 / model.vocab_size)
  context = np.zeros(tokens.shape, np.int64)
  for level in model.levels:
    context = np.where(mask, context, -1)
    ngram = _look_up(level, context, tokens, model.vocab_size)
    probability = _interpolate(level, context, ngram, probability)
    context = _shift(ngram)
  return np.where(mask, -np.log(probability), 0.0).reshape(shape)


def probabilities(model: Ngrams, contexts) -> np.ndarray:
  """Distribution of the next token.

  Args:
    model: a fitted model of order n.
    contexts: `[B, C]` integers in [0, V), the tokens before, newest last; at
      most the last n - 1 matter. C may be 0.

  Returns:
    `[B, V]` float64; each row sums to one.

  Raises:
    ValueError: if a token is outside the vocabulary or `contexts` is not a
      matrix.
    TypeError: if the tokens are not integers.
  """
  contexts = np.asarray(contexts)
  if contexts.ndim != 2:
    raise ValueError(f"contexts must be [B, C], got shape {contexts.shape}")
  checks.check_tokens("contexts", contexts, model.vocab_size)
  batch_size, given = contexts.shape
  vocab = np.broadcast_to(
    np.arange(model.vocab_size), (batch_size, model.vocab_size)
  )
  result = np.full(vocab.shape, 1.0 / model.vocab_size)
  for length in range(min(given, len(model.levels) - 1) + 1):
    # The row of the context of this length, found from its oldest token on.
    context = np.zeros(batch_size, np.int64)
    for level, i in zip(
      model.levels, range(given - length, given), strict=False
    ):
      context = _look_up(level, context, contexts[:, i], model.vocab_size)
    context = np.broadcast_to(context[:, None], vocab.shape)
    level = model.levels[length]
    ngram = _look_up(level, context, vocab, model.vocab_size)
    result = _interpolate(level, context, ngram, result)
  return result


def _shift(ngram: np.ndarray) -> np.ndarray:
  """The n-gram that ends one token earlier, -1 at the start of a row."""
  before = np.full(ngram.shape, -1, np.int64)
  before[:, 1:] = ngram[:, :-1]
  return before


def _look_up(level, context, tokens, vocab_size) -> np.ndarray:
  """Row of each n-gram in a level, -1 if it was never seen."""
  if not len(level.keys):
    return np.full(context.shape, -1, np.int64)
  key = context * vocab_size + tokens
  found = np.searchsorted(level.keys, key)
  found = np.minimum(found, len(level.keys) - 1)
  return np.where((context >= 0) & (level.keys[found] == key), found, -1)


def _interpolate(level, context, ngram, lower) -> np.ndarray:
  """One step of the recursion; `lower` where the context was never seen."""
  counts = np.where(ngram >= 0, _take(level.counts, ngram), 0.0)
  totals = np.where(context >= 0, _take(level.totals, context), 0.0)
  distinct = np.where(context >= 0, _take(level.distinct, context), 0.0)
  seen = totals > 0
  mixed = (counts + distinct * lower) / np.where(seen, totals + distinct, 1.0)
  return np.where(seen, mixed, lower)


def _take(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Entries at rows, anything where a row is -1."""
  if not len(values):
    return np.zeros(rows.shape)
  return values[np.maximum(rows, 0)]
