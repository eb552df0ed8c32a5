"""Measures of generated text, to be read together.

A likelihood alone can be bought with repetition: a sampler that always takes
the likeliest token scores better than real text. So the likelihood of samples
(`ngram_nll`) stands beside their unigram entropy and beside the divergence of
their bigrams from real ones, and two samplers are compared at equal entropy
(`gen_frontier`).

All are plug-in estimates on the host, in float64 and in nats.
"""

from __future__ import annotations

import numpy as np

from icml26_jax import checks
from icml26_jax.evaluation import ngram
from icml26_jax.evaluation import rows as rows_lib

# A table of pairs takes 8 bytes an entry.
_MAX_PAIRS = 2**26


def unigram_entropy(
  tokens, vocab_size: int, *, mask=None, per_row: bool = False
):
  """Entropy of the distribution of single tokens.

  Over all tokens together, or of each row by itself, as papers on diffusion
  language models report it (a row of L tokens has at most ln L).

  Args:
    tokens: `[N]` or `[B, L]` integers in [0, V).
    vocab_size: number of tokens V.
    mask: bool of that shape, True where a token counts; None for all.
    per_row: True for one entropy a row.

  Returns:
    Nats: a float, or `[B]` float64 if `per_row`. 0 where no token counts.

  Raises:
    ValueError: if a token is outside the vocabulary or the shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  tokens, mask = rows_lib.token_rows(tokens, mask, vocab_size)
  if not per_row:
    return _entropy(np.bincount(tokens[mask], minlength=vocab_size))
  return np.array(
    [
      _entropy(np.unique(row[counted], return_counts=True)[1])
      for row, counted in zip(tokens, mask, strict=True)
    ]
  )


def conditional_entropy(
  tokens, vocab_size: int, *, order: int, mask=None
) -> float:
  """Entropy of a token given the `order` tokens before it.

  H(X_1 .. X_k+1) - H(X_1 .. X_k) over the runs of k + 1 = `order` + 1 tokens.
  As a plug-in estimate it falls below the truth when most runs occur once.

  Args:
    tokens: `[N]` or `[B, L]` integers in [0, V); runs stay within a row.
    vocab_size: number of tokens V.
    order: number of tokens given, k; 0 gives the unigram entropy.
    mask: bool of that shape; a run counts if all of it does. None for all.

  Returns:
    Nats; 0 if there is no run.

  Raises:
    ValueError: if `order` is negative, a token is outside the vocabulary or
      the shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  checks.check_range("order", order, low=0)
  runs = _runs(tokens, mask, vocab_size, order + 1)
  joint = _entropy(_multiplicities(runs))
  return joint - _entropy(_multiplicities(runs[:, :-1]))


def bigram_distribution(
  tokens, vocab_size: int, *, smoothing: float = 0.0, mask=None
) -> np.ndarray:
  """Joint distribution of neighbouring tokens.

  Args:
    tokens: `[N]` or `[B, L]` integers in [0, V); pairs stay within a row.
    vocab_size: number of tokens V, at most 8192.
    smoothing: added to the count of every pair, not negative.
    mask: bool of that shape; a pair counts if both tokens do. None for all.

  Returns:
    `[V, V]` float64 that sums to one, first token by row.

  Raises:
    ValueError: if there is neither a pair nor smoothing, an argument is
      outside its range or the shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  if vocab_size**2 > _MAX_PAIRS:
    raise ValueError(
      f"vocab_size must be at most {int(_MAX_PAIRS**0.5)} for a table of pairs,"
      f" got {vocab_size}"
    )
  checks.check_range("smoothing", smoothing, low=0.0)
  runs = _runs(tokens, mask, vocab_size, 2)
  if not len(runs) and not smoothing:
    raise ValueError("tokens must hold at least one pair that counts, got none")
  pair = runs[:, 0] * vocab_size + runs[:, 1]
  counts = np.bincount(pair, minlength=vocab_size**2) + smoothing
  return (counts / counts.sum()).reshape(vocab_size, vocab_size)


def bigram_kl(tokens, reference, *, mask=None) -> float:
  """Divergence of the bigrams of samples from a reference.

  KL(p || q) = sum_ab p(a, b) ln(p(a, b) / q(a, b)), p being the samples'. With
  n independent pairs from q itself it is not 0 but about (K - 1) / (2 n), K
  being the number of possible pairs.

  Args:
    tokens: samples, `[N]` or `[B, L]` integers in [0, V).
    reference: `[V, V]` joint distribution q: `bigram_distribution` of real
      text, smoothed, or `stationary[:, None] * transition` of a chain.
    mask: bool of the shape of `tokens`; a pair counts if both tokens do.

  Returns:
    Nats; infinite if the samples hold a pair of probability 0.

  Raises:
    ValueError: if `reference` is not a joint distribution, there is no pair,
      or as in `bigram_distribution`.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  q = np.asarray(reference, np.float64)
  if q.ndim != 2 or q.shape[0] != q.shape[1]:
    raise ValueError(f"reference must be [V, V], got shape {q.shape}")
  checks.check_range("reference", q, low=0.0)
  # float32 entries, each off by up to 2^-24 of itself, still pass.
  if abs(q.sum() - 1.0) > 1e-5:
    raise ValueError(f"reference must sum to 1, got {q.sum():.8g}")
  p = bigram_distribution(tokens, len(q), mask=mask)
  seen = p > 0
  with np.errstate(divide="ignore"):
    log_ratio = np.log(p[seen]) - np.log(q[seen])
  return float(np.sum(p[seen] * log_ratio))


def distinct_n(tokens, vocab_size: int, *, n: int, mask=None) -> float:
  """Share of n-grams that differ from each other.

  Args:
    tokens: `[N]` or `[B, L]` integers in [0, V); n-grams stay within a row.
    vocab_size: number of tokens V.
    n: length, at least 1.
    mask: bool of that shape; an n-gram counts if all of it does.

  Returns:
    Number of different n-grams over number of n-grams, in (0, 1]; falls with
    the number of tokens, so that only samples of one size compare. 0 if there
    is no n-gram.

  Raises:
    ValueError: if `n` is below 1, a token is outside the vocabulary or the
      shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.

  References:
    Li et al., "A diversity-promoting objective function for neural
    conversation models", NAACL 2016, section 5.2.
  """
  checks.check_range("n", n, low=1)
  runs = _runs(tokens, mask, vocab_size, n)
  return len(_multiplicities(runs)) / len(runs) if len(runs) else 0.0


def ngram_nll(model: ngram.Ngrams, tokens, *, mask=None) -> float:
  """Mean negative log-likelihood of a token under a fitted n-gram model.

  The model is to be fitted on text that neither the sampler nor anything that
  guided it has seen. Never to be read without the unigram entropy.

  Args:
    model: from `ngram.fit`.
    tokens: `[N]` or `[B, L]` integers in [0, V).
    mask: bool of that shape, True where a token counts; None for all.

  Returns:
    Nats per token that counts; 0 if none does.

  Raises:
    ValueError: if a token is outside the vocabulary or the shapes differ.
    TypeError: if the tokens are not integers or the mask is not bool.
  """
  total = np.sum(ngram.nll(model, tokens, mask))
  count = np.size(tokens) if mask is None else np.sum(mask)
  return float(total / max(count, 1))


def gen_frontier(nll, entropy) -> np.ndarray:
  """The settings that no other beats at both likelihood and entropy.

  For a sweep (over temperature, say): one point lies on the frontier if no
  other has an entropy at least as high and an NLL at least as low, and either
  of them better. Of equal points the first stays.

  Args:
    nll: `[K]` NLL of the samples of each setting, lower is better.
    entropy: `[K]` unigram entropy of the same samples, higher is better.

  Returns:
    `[M]` int, rows of the frontier by increasing entropy, hence by increasing
    NLL.

  Raises:
    ValueError: if the arguments are not vectors of one length, or not finite.
  """
  nll, entropy = _points(nll, entropy)
  # From the highest entropy down; of equal entropies the lowest NLL first.
  downwards = np.lexsort((np.arange(len(nll)), nll, -entropy))
  best = np.minimum.accumulate(nll[downwards])
  better = np.ones(len(nll), np.bool_)
  better[1:] = best[1:] < best[:-1]
  return downwards[better][::-1]


def frontier_nll(nll, entropy, at):
  """NLL that a sweep reaches at given entropies, along its frontier.

  Args:
    nll: `[K]` NLL of the samples of each setting.
    entropy: `[K]` unigram entropy of the same samples.
    at: entropies at which to compare, any shape.

  Returns:
    float64 of the shape of `at`, interpolated linearly; NaN outside the
    frontier's range: nothing is extrapolated.

  Raises:
    ValueError: as in `gen_frontier`.
  """
  rows = gen_frontier(nll, entropy)
  nll, entropy = _points(nll, entropy)
  if not len(rows):
    return np.full(np.shape(at), np.nan)
  return np.interp(at, entropy[rows], nll[rows], left=np.nan, right=np.nan)


def _runs(tokens, mask, vocab_size, length):
  """`[M, length]` int64: runs of neighbouring tokens that all count."""
  tokens, mask = rows_lib.token_rows(tokens, mask, vocab_size)
  if tokens.shape[1] < length:
    return np.zeros((0, length), np.int64)
  view = np.lib.stride_tricks.sliding_window_view
  whole = np.all(view(mask, length, axis=1), axis=-1)
  return view(tokens, length, axis=1)[whole]


def _multiplicities(runs):
  """How often each different row of `[M, n]` occurs, in some order."""
  key = np.zeros(len(runs), np.int64)
  size = 1  # all keys are below it
  for column in runs.T:
    base = int(column.max(initial=0)) + 1
    if size * base > np.iinfo(np.int64).max:
      _, key = np.unique(key, return_inverse=True)
      size = len(runs)
    key = key * base + column
    size *= base
  return np.unique(key, return_counts=True)[1]


def _entropy(counts) -> float:
  """Nats of the distribution that counts are proportional to."""
  counts = counts[counts > 0].astype(np.float64)
  if not len(counts):
    return 0.0
  share = counts / counts.sum()
  return float(-np.sum(share * np.log(share)) + 0.0)


def _points(nll, entropy):
  """Checked vectors of one length."""
  nll = np.asarray(nll, np.float64)
  entropy = np.asarray(entropy, np.float64)
  if nll.ndim != 1 or nll.shape != entropy.shape:
    raise ValueError(
      f"nll {nll.shape} and entropy {entropy.shape} must be vectors of one"
      " length"
    )
  if not (np.all(np.isfinite(nll)) and np.all(np.isfinite(entropy))):
    raise ValueError("nll and entropy must be finite")
  return nll, entropy
