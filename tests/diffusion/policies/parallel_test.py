"""Policies that commit as many positions as the network is sure of."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import policies


def sure(*probabilities):
  """`[1, L, 2]` log-probabilities with these best-token probabilities."""
  p = np.array(probabilities, np.float64)
  with np.errstate(divide="ignore"):
    return np.log(np.stack([p, 1 - p], axis=-1))[None]


def hidden(length):
  return np.zeros((1, length), bool)


@pytest.mark.parametrize(
  ("value", "expected"),
  [
    (0.9, [1, 0, 1, 0]),
    (0.96, [1, 0, 0, 0]),
    (0.999, [1, 0, 0, 0]),
    (0.5, [1, 1, 1, 1]),
    (1.0, [1, 0, 0, 0]),
  ],
)
def test_threshold_commits_all_above_it_and_the_surest(
  make_step, choose, value, expected
):
  log_probs = sure(0.97, 0.6, 0.95, 0.8)
  got = choose(policies.threshold(value), log_probs, make_step(hidden(4)))
  assert got.tolist() == [[bool(x) for x in expected]]


def test_threshold_of_one_commits_all_certain_positions(make_step, choose):
  log_probs = sure(1.0, 0.9, 1.0)
  got = choose(policies.threshold(1.0), log_probs, make_step(hidden(3)))
  assert got.tolist() == [[True, False, True]]


@pytest.mark.parametrize("value", [0.01, 0.3, 1.0, 2.5])
def test_factor_commits_the_largest_allowed_number(make_step, choose, value):
  rng = np.random.default_rng(0)
  confidence = 1 - rng.random((40, 7)) ** 3 / 2
  log_probs = np.log(np.stack([confidence, 1 - confidence], axis=-1))
  revealed = rng.random((40, 7)) < 0.3
  got = choose(policies.factor(value), log_probs, make_step(revealed))
  numbers = set()
  for row in range(40):
    open_ = np.flatnonzero(~revealed[row])
    order = sorted(open_, key=lambda i: -confidence[row, i])
    number = max(
      [min(1, len(order))]
      + [
        n
        for n in range(1, len(order) + 1)
        if (n + 1) * (1 - confidence[row, order[n - 1]]) < value
      ]
    )
    assert sorted(order[:number]) == np.flatnonzero(got[row]).tolist()
    numbers.add(number)
  assert len(numbers) > 1 or value == 0.01


@pytest.mark.parametrize(
  "policy", [policies.threshold(0.9), policies.factor(1.0)]
)
def test_certain_positions_go_at_once_and_uncertain_ones_one_by_one(
  decode, policy
):
  logits = jnp.array([0.0, -jnp.inf, -jnp.inf])
  tokens, stats = decode(
    policy,
    lambda latent, t: jnp.broadcast_to(logits, (1, 9, 3)),
    (1, 9),
    9,
    vocab_size=3,
  )
  assert not tokens.any()
  assert stats.nfe.tolist() == [1]
  _, stats = decode(
    policy, lambda latent, t: jnp.zeros((1, 9, 3)), (1, 9), 9, vocab_size=3
  )
  assert stats.nfe.tolist() == [9]


@pytest.mark.parametrize(
  ("make", "value", "message"),
  [
    (policies.threshold, 0.0, "threshold must be"),
    (policies.threshold, 1.1, "threshold must be"),
    (policies.factor, 0.0, "factor must be"),
    (policies.factor, math.inf, "factor must be"),
    (policies.factor, math.nan, "factor must be"),
  ],
)
def test_bad_value_is_an_error(make, value, message):
  with pytest.raises(ValueError, match=message):
    make(value)
