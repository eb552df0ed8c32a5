"""Diversity of samples, pass@k and fronts."""

import itertools
import math

import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import guidance
from icml26_jax.evaluation import diversity

ORDERS = [0.0, 0.5, 1.0, 2.0, math.inf]


@pytest.mark.parametrize("order", ORDERS)
def test_vendi_of_distinct_equal_and_grouped_samples(order):
  assert math.isclose(diversity.vendi(np.eye(6), order=order), 6.0)
  # Equal up to the rounding of the eigenvalues.
  one = diversity.vendi(np.ones((6, 6)), order=order)
  assert math.isclose(one, 1.0, rel_tol=1e-6)
  groups = np.kron(np.eye(3), np.ones((2, 2)))
  assert math.isclose(diversity.vendi(groups, order=order), 3.0, rel_tol=1e-6)


@pytest.mark.parametrize("order", [0.5, 1.0, 2.0])
def test_vendi_of_unequal_groups(order):
  groups = np.zeros((6, 6))
  for start, stop in ((0, 3), (3, 5), (5, 6)):
    groups[start:stop, start:stop] = 1.0
  share = np.array([3, 2, 1]) / 6
  if order == 1.0:
    expected = np.exp(-np.sum(share * np.log(share)))
  else:
    expected = np.sum(share**order) ** (1 / (1 - order))
  got = diversity.vendi(groups, order=order)
  assert math.isclose(got, expected, rel_tol=1e-5)


def test_vendi_of_order_two_is_the_kernel_entropy():
  e = np.random.default_rng(0).normal(size=(7, 3))
  matrix = guidance.gram(jnp.asarray(e, jnp.float32), 1.0, float("inf"))
  got = diversity.vendi(matrix, order=2.0)
  assert math.isclose(got, math.exp(guidance.renyi2(matrix)), rel_tol=1e-5)
  scores = [diversity.vendi(matrix, order=order) for order in ORDERS]
  assert scores == sorted(scores, reverse=True)
  assert math.isclose(
    diversity.vendi(5 * matrix, order=1.0), scores[2], rel_tol=1e-6
  )


@pytest.mark.parametrize(
  ("matrix", "message"),
  [
    (np.ones((2, 3)), "must be square"),
    (np.zeros((0, 0)), "must be square"),
    (np.zeros((2, 2)), "positive trace"),
    (np.full((2, 2), np.nan), "finite"),
    ([[1.0, 0.5], [0.0, 1.0]], "symmetric"),
    ([[1.0, 2.0], [2.0, 1.0]], "semi-definite"),
  ],
)
def test_bad_gram_matrix_is_an_error(matrix, message):
  with pytest.raises(ValueError, match=message):
    diversity.vendi(matrix)


def test_negative_order_is_an_error():
  with pytest.raises(ValueError, match="order must be"):
    diversity.vendi(np.eye(2), order=-1.0)


@pytest.mark.parametrize(
  ("n", "c", "k", "expected"),
  [(10, 3, 5, 0.916667), (10, 0, 5, 0.0), (5, 3, 3, 1.0), (4, 1, 1, 0.25)],
)
def test_pass_at_k(n, c, k, expected):
  got = diversity.pass_at_k(n, c, k)
  assert math.isclose(got, expected, abs_tol=5e-7)
  hits = [any(i < c for i in s) for s in itertools.combinations(range(n), k)]
  assert math.isclose(got, np.mean(hits), abs_tol=1e-12)


@pytest.mark.parametrize(
  ("n", "c", "k", "name"),
  [
    (0, 0, 1, "n"),
    (3, 4, 1, "c"),
    (3, -1, 1, "c"),
    (3, 1, 4, "k"),
    (3, 1, 0, "k"),
  ],
)
def test_pass_at_k_outside_its_range_is_an_error(n, c, k, name):
  with pytest.raises(ValueError, match=f"{name} must be"):
    diversity.pass_at_k(n, c, k)


def numpy_bleu(row, others, max_n):
  """BLEU by lists, a gram at a time."""
  log = 0.0
  for n in range(1, max_n + 1):
    grams = [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]
    hits = 0
    for gram in set(grams):
      best = max(
        sum(tuple(x[i : i + n]) == gram for i in range(len(x) - n + 1))
        for x in others
      )
      hits += min(grams.count(gram), best)
    log += math.log(max(hits, 0.5) / len(grams)) / max_n
  nearest = min((len(x) for x in others), key=lambda x: (abs(x - len(row)), x))
  return math.exp(log + min(0.0, 1 - nearest / len(row)))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("max_n", [1, 2, 4])
def test_self_bleu_equals_lists(seed, max_n):
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, 3, (5, 9))
  lengths = rng.integers(4, 10, 5)
  mask = np.arange(9) < lengths[:, None]
  texts = [r[:n].tolist() for r, n in zip(tokens, lengths, strict=True)]
  expected = np.mean(
    [
      numpy_bleu(text, texts[:b] + texts[b + 1 :], max_n)
      for b, text in enumerate(texts)
    ]
  )
  tokens[~mask] = -1
  got = diversity.self_bleu(tokens, 3, max_n=max_n, mask=mask)
  assert math.isclose(got, expected, rel_tol=1e-9)


def test_self_bleu_of_copies_and_of_strangers():
  row = np.arange(8)
  assert diversity.self_bleu(np.stack([row, row, row]), 8) == 1.0
  apart = diversity.self_bleu(np.arange(16).reshape(2, 8), 16)
  grams = [0.5 / (8 - n + 1) for n in range(1, 5)]
  assert math.isclose(apart, math.prod(grams) ** 0.25, rel_tol=1e-9)


@pytest.mark.parametrize(
  ("tokens", "mask", "message"),
  [
    (np.zeros((1, 5), int), None, "at least two rows"),
    (np.zeros((2, 3), int), None, "max_n = 4"),
    (np.zeros((2, 5), int), [[1, 0, 1, 1, 1], [1] * 5], "first positions"),
  ],
)
def test_bad_rows_are_an_error(tokens, mask, message):
  mask = None if mask is None else np.array(mask, bool)
  with pytest.raises(ValueError, match=message):
    diversity.self_bleu(tokens, 2, mask=mask)


def test_front_equals_comparing_all_pairs():
  rng = np.random.default_rng(0)
  points = rng.integers(0, 6, (30, 2)).astype(float)
  expected = [
    not any(np.all(q >= p) and np.any(q > p) for q in points) for p in points
  ]
  assert diversity.pareto_front(points).tolist() == expected
  assert diversity.pareto_front([[1.0, 1.0], [1.0, 1.0]]).all()


def test_hypervolume_by_hand_and_by_counting():
  assert diversity.hypervolume([[2.0, 1.0], [1.0, 3.0]], [0.0, 0.0]) == 4.0
  assert diversity.hypervolume([[2.0, 1.0]], [3.0, 0.0]) == 0.0
  assert diversity.hypervolume(np.zeros((0, 2)), [0.0, 0.0]) == 0.0
  points = np.random.default_rng(1).integers(0, 9, (12, 2))
  # Unit squares above the reference that some point covers.
  covered = sum(
    any(p[0] > x and p[1] > y for p in points)
    for x in range(2, 9)
    for y in range(3, 9)
  )
  assert diversity.hypervolume(points, [2, 3]) == covered


def test_bad_points_are_an_error():
  with pytest.raises(ValueError, match="finite matrix"):
    diversity.pareto_front([[np.nan, 1.0]])
  with pytest.raises(ValueError, match=r"shape \[N, 2\]"):
    diversity.hypervolume(np.ones((2, 3)), [0.0, 0.0])
  with pytest.raises(ValueError, match="reference must be finite"):
    diversity.hypervolume(np.ones((2, 2)), [0.0, np.inf])
