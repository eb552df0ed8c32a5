"""Transfer matrices against NumPy products, enumeration and tables."""

import itertools

import jax
import numpy as np
import pytest
import scipy.special

from icml26_jax.theory import arm_ebm

EXACT = 1e-12


def random_energy(vocab_size, num_steps, seed=0):
  rng = np.random.default_rng((seed, vocab_size, num_steps))
  unary = rng.normal(size=(num_steps, vocab_size))
  pairwise = rng.normal(size=(num_steps - 1, vocab_size, vocab_size))
  return unary, pairwise


def as_tables(unary, pairwise):
  """Rewards of all states, of the last token only."""
  num_steps, vocab_size = unary.shape
  rewards = [unary[:1]]
  for t in range(1, num_steps):
    step = pairwise[t - 1] + unary[t]
    rewards.append(np.tile(step, (vocab_size ** (t - 1), 1)))
  return rewards


@pytest.mark.parametrize(("vocab_size", "num_steps"), [(3, 4), (2, 6), (4, 1)])
def test_partition_equals_matrix_products_and_enumeration(
  vocab_size, num_steps
):
  unary, pairwise = random_energy(vocab_size, num_steps)
  weights = np.exp(unary[0])
  for t in range(1, num_steps):
    weights = weights @ np.exp(pairwise[t - 1] + unary[t])
  scores = [
    sum(unary[t, y[t]] for t in range(num_steps))
    + sum(pairwise[t, y[t], y[t + 1]] for t in range(num_steps - 1))
    for y in itertools.product(range(vocab_size), repeat=num_steps)
  ]
  got = arm_ebm.markov_log_partition(unary, pairwise)
  assert got.shape == ()
  assert abs(got - np.log(weights.sum())) < EXACT
  assert abs(got - scipy.special.logsumexp(scores)) < EXACT


def test_logits_are_those_of_the_tables():
  unary, pairwise = random_energy(3, 4)
  expected = arm_ebm.rewards_to_logits(as_tables(unary, pairwise), eos=False)
  got = arm_ebm.markov_rewards_to_logits(unary, pairwise)
  assert got.shape == (4, 3, 3)
  np.testing.assert_allclose(got[0], np.tile(expected[0], (3, 1)), atol=EXACT)
  for t in range(1, 4):
    # The last token of row i is i mod 3.
    np.testing.assert_allclose(
      np.tile(got[t], (3 ** (t - 1), 1)), expected[t], atol=EXACT
    )


def test_one_step_is_the_sum_of_its_weights():
  unary = np.array([[0.3, -1.0, 2.0]])
  got = arm_ebm.markov_log_partition(unary, np.zeros((0, 3, 3)))
  assert abs(got - scipy.special.logsumexp(unary)) < EXACT


def test_a_long_chain_of_equal_steps_grows_by_the_largest_eigenvalue():
  unary, pairwise = random_energy(4, 2)
  num_steps = 2000
  long_unary = np.tile(unary[1], (num_steps, 1))
  long_pairwise = np.tile(pairwise[0], (num_steps - 1, 1, 1))
  got = jax.jit(arm_ebm.markov_log_partition)(long_unary, long_pairwise)
  matrix = np.exp(pairwise[0] + unary[1])
  rate = np.log(np.abs(np.linalg.eigvals(matrix)).max())
  # The ends add a constant.
  assert abs(got / num_steps - rate) < 10 / num_steps


def test_gradient_is_the_marginal_of_each_token():
  unary, pairwise = random_energy(3, 4, seed=1)
  gradient = jax.grad(arm_ebm.markov_log_partition)(unary, pairwise)
  tokens, lengths = arm_ebm.enumerate_sequences(3, 4, eos=False)
  log_p = arm_ebm.ebm_log_probs(
    as_tables(unary, pairwise), tokens, lengths, eos=False
  )
  expected = [np.bincount(tokens[:, t], np.exp(log_p)) for t in range(4)]
  np.testing.assert_allclose(gradient, expected, atol=EXACT)


def test_forbidden_pairs_are_never_passed():
  unary = np.zeros((3, 2))
  pairwise = np.tile([[-np.inf, 0.0], [0.0, 0.0]], (2, 1, 1))
  # Of eight sequences 101, 110, 111, 010 and 011 have no 00.
  with jax.debug_nans(True):
    got = arm_ebm.markov_log_partition(unary, pairwise)
    gradient = jax.grad(arm_ebm.markov_log_partition)(unary, pairwise)
  assert abs(got - np.log(5)) < EXACT
  np.testing.assert_allclose(gradient[0], [0.4, 0.6], atol=EXACT)


@pytest.mark.parametrize(
  ("unary", "pairwise", "message"),
  [
    (np.zeros(3), np.zeros((0, 3, 3)), r"unary must have shape \[T, V\]"),
    (np.zeros((0, 3)), np.zeros((0, 3, 3)), "T and V at least 1"),
    (np.zeros((2, 3)), np.zeros((2, 3, 3)), r"pairwise must have shape \(1, 3"),
    (np.full((1, 2), np.nan), np.zeros((0, 2, 2)), "unary must be finite or"),
    (np.zeros((2, 1)), np.full((1, 1, 1), np.inf), "pairwise must be finite"),
    (np.zeros((2, 1)), np.full((1, 1, 1), -np.inf), "empty support"),
  ],
)
def test_bad_energies_are_refused(unary, pairwise, message):
  for function in (
    arm_ebm.markov_log_partition,
    arm_ebm.markov_rewards_to_logits,
  ):
    with pytest.raises(ValueError, match=message):
      function(unary, pairwise)


def test_integers_are_refused():
  with pytest.raises(TypeError, match="unary must be floats, got int64"):
    arm_ebm.markov_log_partition(np.zeros((1, 2), int), np.zeros((0, 2, 2)))
