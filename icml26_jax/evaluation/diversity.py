"""How different samples are, and what several attempts are worth."""

from __future__ import annotations

import math

import numpy as np

from icml26_jax import checks
from icml26_jax.evaluation import rows


def vendi(gram_matrix, *, order: float = 1.0) -> float:
  """Vendi score: the effective number of distinct samples.

  `exp` of the Renyi entropy of the eigenvalues of `K / tr K`. Order 2 is
  `1 / |K / N|_F^2`, the RKE score.

  Args:
    gram_matrix: `[N, N]` similarities of the samples, symmetric and positive
      semi-definite, with a positive diagonal.
    order: order of the entropy, at least 0; 1 for Shannon's, infinity for the
      largest eigenvalue alone.

  Returns:
    A number in [1, N].

  Raises:
    ValueError: if the matrix is not square, not symmetric, not finite, has a
      negative eigenvalue or a trace that is not positive, or the order is
      negative.

  References:
    Friedman, Dieng, "The Vendi Score", TMLR 2023; Pasarkar, Dieng, "Cousins of
    the Vendi Score", AISTATS 2024; Jalali, Li, Farnia, NeurIPS 2023.
  """
  matrix = np.asarray(gram_matrix, np.float64)
  if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
    raise ValueError(f"gram_matrix must be square, got shape {matrix.shape}")
  checks.check_range("order", order, low=0.0)
  trace = np.trace(matrix)
  if not np.all(np.isfinite(matrix)) or trace <= 0:
    raise ValueError(
      f"gram_matrix must be finite with a positive trace, got trace {trace:g}"
    )
  if not np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-5 * trace):
    raise ValueError("gram_matrix must be symmetric")
  spectrum = np.linalg.eigvalsh(matrix / trace)
  # Similarities in float32 leave negative eigenvalues of that size.
  if spectrum[0] < -1e-5:
    raise ValueError(
      "gram_matrix must be positive semi-definite, got eigenvalue"
      f" {spectrum[0] * trace:g}"
    )
  spectrum = spectrum[spectrum > 1e-12]
  spectrum = spectrum / spectrum.sum()
  if order == 1.0:
    entropy = -np.sum(spectrum * np.log(spectrum))
  elif math.isinf(order):
    entropy = -math.log(spectrum[-1])
  else:
    entropy = np.log(np.sum(spectrum**order)) / (1.0 - order)
  return float(np.exp(entropy))


def pass_at_k(n: int, c: int, k: int) -> float:
  """Unbiased estimate of the chance that one of k attempts succeeds.

  `1 - C(n - c, k) / C(n, k)`: the share of k-subsets of the n attempts that
  hold a success.

  Args:
    n: attempts made, at least 1.
    c: attempts that succeeded, in [0, n].
    k: attempts allowed, in [1, n].

  Returns:
    The probability, 1 if fewer than k attempts failed.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    Chen et al., "Evaluating Large Language Models Trained on Code", 2021,
    eq. (1).
  """
  checks.check_range("n", n, low=1)
  checks.check_range("c", c, low=0, high=n)
  checks.check_range("k", k, low=1, high=n)
  return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def self_bleu(tokens, vocab_size: int, *, max_n: int = 4, mask=None) -> float:
  """Mean BLEU of each sample against all others: 1 if all are one.

  The geometric mean over n up to `max_n` of the clipped n-gram precision, where
  a count of 0 stands as 1/2 of a hit (Chen and Cherry's first smoothing with
  1/2), times the brevity penalty.

  Args:
    tokens: `[B, L]` integers, at least two rows.
    vocab_size: number of tokens V.
    max_n: longest n-gram, at least 1.
    mask: `[B, L]` bool, positions that count; each row's stand together at
      its start, at least `max_n` of them. None for all.

  Returns:
    A number in (0, 1]; less is more diverse.

  Raises:
    ValueError: if there is one row only, a row is shorter than `max_n` or has a
      gap, or tokens and mask are wrong.
    TypeError: if the tokens are not integers or the mask is not bool.

  References:
    Zhu et al., "Texygen", SIGIR 2018; Papineni et al., "BLEU", ACL 2002.
  """
  checks.check_range("max_n", max_n, low=1)
  tokens, mask = rows.token_rows(tokens, mask, vocab_size)
  if len(tokens) < 2:
    raise ValueError(f"tokens must have at least two rows, got {len(tokens)}")
  if np.any(mask[:, 1:] & ~mask[:, :-1]):
    raise ValueError("mask must hold the first positions of each row")
  lengths = mask.sum(axis=1)
  if lengths.min() < max_n:
    raise ValueError(
      f"rows must hold at least max_n = {max_n} tokens, got {lengths.min()}"
    )
  logs = np.zeros(len(tokens))
  for n in range(1, max_n + 1):
    counts = [
      _ngram_counts(row[:length], n)
      for row, length in zip(tokens, lengths, strict=True)
    ]
    # The two largest counts of a gram over rows: without a row, the largest
    # count of the others is the second if the row holds the first.
    first: dict[tuple[int, ...], tuple[int, int]] = {}
    second: dict[tuple[int, ...], int] = {}
    for b, row in enumerate(counts):
      for gram, count in row.items():
        best = first.get(gram, (0, -1))
        if count > best[0]:
          first[gram], second[gram] = (count, b), best[0]
        else:
          second[gram] = max(second.get(gram, 0), count)
    for b, row in enumerate(counts):
      hits = sum(
        min(count, second[gram] if first[gram][1] == b else first[gram][0])
        for gram, count in row.items()
      )
      logs[b] += math.log(max(hits, 0.5) / (lengths[b] - n + 1)) / max_n
  for b, length in enumerate(lengths):
    others = np.delete(lengths, b)
    # The reference nearest in length, the shorter of two.
    nearest = min(others, key=lambda x: (abs(x - length), x))
    logs[b] += min(0.0, 1.0 - nearest / length)
  return float(np.exp(logs).mean())


def pareto_front(points) -> np.ndarray:
  """Which points no other point beats; more is better on each axis.

  Args:
    points: `[N, D]` finite numbers.

  Returns:
    `[N]` bool: False where another point is at least as good on every axis and
    better on one. Equal points stay or go together.

  Raises:
    ValueError: if the points are not a finite matrix.
  """
  points = _matrix(points)
  at_least = np.all(points[:, None] >= points[None], axis=-1)
  better = np.any(points[:, None] > points[None], axis=-1)
  return ~np.any(at_least & better, axis=0)


def hypervolume(points, reference) -> float:
  """Area that points in the plane dominate, above a reference point.

  Args:
    points: `[N, 2]` finite numbers, more is better on each axis.
    reference: `[2]` finite numbers; points not above it on both axes add
      nothing.

  Returns:
    The area of the union of the rectangles between reference and points; 0
    without a point above it.

  Raises:
    ValueError: if the shapes are wrong or a number is not finite.

  References:
    Zitzler, Thiele, "Multiobjective evolutionary algorithms", IEEE
    Transactions on Evolutionary Computation 3, 1999.
  """
  points, reference = _matrix(points), np.asarray(reference, np.float64)
  if points.shape[1] != 2 or reference.shape != (2,):
    raise ValueError(
      "points must have shape [N, 2] and reference [2], got"
      f" {points.shape} and {reference.shape}"
    )
  if not np.all(np.isfinite(reference)):
    raise ValueError(f"reference must be finite, got {reference.tolist()}")
  gains = points - reference
  gains = gains[np.all(gains > 0, axis=1)]
  gains = gains[np.argsort(-gains[:, 0])]
  area, height = 0.0, 0.0
  for width, top in gains:
    if top > height:
      area += width * (top - height)
      height = top
  return float(area)


def _ngram_counts(row, n):
  """How often each n-gram stands in a row."""
  counts: dict[tuple[int, ...], int] = {}
  for start in range(len(row) - n + 1):
    gram = tuple(row[start : start + n].tolist())
    counts[gram] = counts.get(gram, 0) + 1
  return counts


def _matrix(points):
  points = np.asarray(points, np.float64)
  if points.ndim != 2 or not np.all(np.isfinite(points)):
    raise ValueError(
      f"points must be a finite matrix [N, D], got shape {points.shape}"
    )
  return points
