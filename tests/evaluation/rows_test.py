"""Tokens and mask as metrics take them."""

import numpy as np
import pytest

from icml26_jax.evaluation import rows


def test_vector_is_one_row_and_what_is_masked_reads_0():
  tokens = np.array([1, 99, 2], np.uint8)
  got, mask = rows.token_rows(tokens, np.array([True, False, True]), 3)
  np.testing.assert_array_equal(got, [[1, 0, 2]])
  np.testing.assert_array_equal(mask, [[True, False, True]])
  assert got.dtype == np.int64


def test_matrix_keeps_its_shape_and_all_counts_without_a_mask():
  tokens = np.arange(6).reshape(2, 3)
  got, mask = rows.token_rows(tokens, None, 6)
  np.testing.assert_array_equal(got, tokens)
  assert mask.all()
  assert mask.shape == (2, 3)


@pytest.mark.parametrize(
  ("tokens", "mask", "vocab_size", "error", "message"),
  [
    ([[0, 3]], None, 3, ValueError, r"tokens must be in \[0, 3\), got 3"),
    ([-1], None, 3, ValueError, r"tokens must be in \[0, 3\), got -1"),
    ([0.0], None, 3, TypeError, "tokens must be integers, got float64"),
    ([[[0]]], None, 3, ValueError, r"\[N\] or \[B, L\], got \(1, 1, 1\)"),
    ([0, 1], [True], 3, ValueError, r"\(2,\) and mask \(1,\)"),
    ([0, 1], [1, 0], 3, TypeError, "mask must be bool, got int64"),
    ([0], None, 0, ValueError, r"vocab_size must be in \[1, inf\]"),
  ],
)
def test_bad_arguments_are_named(tokens, mask, vocab_size, error, message):
  with pytest.raises(error, match=message):
    rows.token_rows(tokens, mask, vocab_size)
