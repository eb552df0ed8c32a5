"""Counts of tokens and pairs against a loop."""

import collections

import numpy as np
import pytest

from icml26_jax.evaluation import token_counts


@pytest.mark.parametrize("shape", [(1, 2), (5, 17), (3, 1), (4, 0)])
def test_counts_equal_a_loop(shape):
  tokens = np.random.default_rng(0).integers(0, 4, shape)
  unigrams = token_counts.unigram_counts(tokens, 4)
  bigrams = token_counts.bigram_counts(tokens, 4)
  for row, one, two in zip(tokens, unigrams, bigrams, strict=True):
    singles = collections.Counter(row.tolist())
    pairs = collections.Counter(
      zip(row.tolist(), row[1:].tolist(), strict=False)
    )
    assert one.tolist() == [singles[v] for v in range(4)]
    assert two.tolist() == [pairs[v, w] for v in range(4) for w in range(4)]


@pytest.mark.parametrize(
  ("tokens", "error"),
  [
    (np.zeros(3, int), ValueError),
    (np.full((2, 2), 4), ValueError),
    (np.full((2, 2), -1), ValueError),
    (np.zeros((2, 2)), TypeError),
  ],
)
def test_wrong_tokens_are_rejected(tokens, error):
  for function in (token_counts.unigram_counts, token_counts.bigram_counts):
    with pytest.raises(error):
      function(tokens, 4)
