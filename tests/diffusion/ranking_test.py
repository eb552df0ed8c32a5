"""Ranks of positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import ranking


@pytest.mark.parametrize("seed", range(3))
def test_ranks_equal_sorting_with_ties(seed):
  rng = np.random.default_rng(seed)
  # Few values, so that many tie.
  score = rng.integers(0, 4, (5, 9)).astype(np.float32)
  candidates = rng.random((5, 9)) < 0.6
  got = jax.jit(ranking.ranks)(score, candidates)
  for row in range(5):
    order = sorted(
      range(9), key=lambda i: (not candidates[row, i], -score[row, i], i)
    )
    assert np.argsort(got[row]).tolist() == order


def test_no_score_lifts_a_position_that_is_no_candidate():
  score = jnp.array([[jnp.inf, -jnp.inf, jnp.nan, -jnp.inf, 0.0]])
  candidates = jnp.array([[False, True, True, True, False]])
  # Without an order, NaN comes after every candidate that has one.
  assert ranking.ranks(score, candidates).tolist() == [[3, 0, 2, 1, 4]]
  assert ranking.best(score, candidates, 2).tolist() == [
    [False, True, False, True, False]
  ]


@pytest.mark.parametrize(
  ("count", "expected"), [(0, 0), (-1, 0), (1, 1), (2, 2), (9, 3)]
)
def test_best_takes_at_most_the_candidates(count, expected):
  candidates = jnp.array([[True, True, False, True]])
  assert ranking.best(jnp.zeros((1, 4)), candidates, count).sum() == expected


def test_each_row_has_its_number():
  chosen = ranking.best(
    jnp.arange(8.0).reshape(2, 4), jnp.ones((2, 4), bool), jnp.array([1, 3])
  )
  assert chosen.tolist() == [
    [False, False, False, True],
    [False, True, True, True],
  ]
