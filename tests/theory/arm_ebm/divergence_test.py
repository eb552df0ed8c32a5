"""Divergences by enumeration, and bounds in trials and closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import arm_ebm

EXACT = 1e-12

# Step by step, most of the time would go into compiling.
exact_kl = jax.jit(arm_ebm.exact_kl, static_argnames="eos")
kl_bounds = jax.jit(arm_ebm.kl_bounds, static_argnames="eos")
arm_log_probs = jax.jit(arm_ebm.arm_log_probs, static_argnames="eos")
rewards_to_logits = jax.jit(arm_ebm.rewards_to_logits, static_argnames="eos")


def enumerated_kl(q, q2, *, eos):
  vocab_size = q[0].shape[1] - eos
  tokens, lengths = arm_ebm.enumerate_sequences(vocab_size, len(q), eos=eos)
  log_p, log_p2 = (
    np.asarray(arm_log_probs(x, tokens, lengths, eos=eos)) for x in (q, q2)
  )
  return np.exp(log_p) @ (log_p - log_p2)


@pytest.mark.parametrize("eos", [False, True])
def test_kl_equals_enumeration(make_tables, eos):
  q, q2 = (make_tables(3, 3, eos=eos, seed=seed) for seed in (0, 1))
  got = exact_kl(q, q2, eos=eos)
  assert abs(got - enumerated_kl(q, q2, eos=eos)) < EXACT
  assert got > 0.1
  assert exact_kl(q, q, eos=eos) == 0.0


@pytest.mark.parametrize("eos", [False, True])
def test_visits_are_sums_over_sequences(make_tables, walk, eos):
  q = make_tables(3, 3, eos=eos)
  tokens, lengths = arm_ebm.enumerate_sequences(3, 3, eos=eos)
  p = np.exp(arm_log_probs(q, tokens, lengths, eos=eos))
  expected = [np.zeros_like(table) for table in q]
  sequences, entries = walk
  for y, probability in zip(sequences(3, 3, eos=eos), p, strict=True):
    for t, row, token in entries(q, y, 3):
      expected[t][row, token] += probability
  visits = arm_ebm.visit_probabilities(q, eos=eos)
  for got, table in zip(visits, expected, strict=True):
    np.testing.assert_allclose(got, table, atol=EXACT)


@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0, 4.0])
def test_bounds_hold_in_both_directions(make_tables, scale, eos):
  for seed in range(5):
    rewards = make_tables(4, 3, eos=eos, seed=seed)
    q_star = rewards_to_logits(rewards, eos=eos)
    noise = make_tables(4, 3, eos=eos, seed=100 + seed, scale=scale)
    q = [
      np.where(np.isfinite(table), table + np.nan_to_num(e), -np.inf)
      for table, e in zip(q_star, noise, strict=True)
    ]
    bounds = kl_bounds(q, q_star, eos=eos)
    eps = max(
      np.abs(
        np.asarray(a)[np.isfinite(a)] - np.asarray(b)[np.isfinite(b)]
      ).max()
      for a, b in zip(q, q_star, strict=True)
    )
    n = 3 - eos
    np.testing.assert_allclose(bounds["linear"], 2 * n * eps, rtol=EXACT)
    np.testing.assert_allclose(bounds["quadratic"], n * eps**2 / 2, rtol=EXACT)
    assert bounds["min"] == min(bounds["linear"], bounds["quadratic"])
    assert bounds["osc"] <= bounds["quadratic"] * (1 + EXACT)
    for one, other in ((q, q_star), (q_star, q)):
      kl = exact_kl(one, other, eos=eos)
      assert 0 < kl <= bounds["min"]
      assert kl <= bounds["osc"]


@pytest.mark.parametrize("eos", [False, True])
def test_a_shift_of_a_state_costs_nothing(make_tables, eos):
  q_star = make_tables(3, 3, eos=eos)
  rng = np.random.default_rng(1)
  q = [table + 3 * rng.normal(size=(len(table), 1)) for table in q_star]
  assert abs(exact_kl(q, q_star, eos=eos)) < EXACT
  bounds = kl_bounds(q, q_star, eos=eos)
  assert bounds["osc"] < EXACT
  assert bounds["min"] > 1.0


@pytest.mark.parametrize("e", [1e-3, 0.1, 1.0, 3.0])
def test_quadratic_bound_is_tight_for_two_tokens(e):
  q_star, q = [np.zeros((1, 2))], [np.array([[e, -e]])]
  kl = float(exact_kl(q_star, q, eos=False))
  reverse = float(exact_kl(q, q_star, eos=False))
  log_cosh = np.log(np.cosh(e))
  assert abs(kl - log_cosh) < 1e-15 + EXACT * log_cosh
  assert abs(reverse - (e * np.tanh(e) - log_cosh)) < EXACT
  bounds = kl_bounds(q, q_star, eos=False)
  np.testing.assert_allclose(bounds["quadratic"], e**2 / 2, rtol=EXACT)
  np.testing.assert_allclose(bounds["osc"], e**2 / 2, rtol=EXACT)
  # log cosh e = e^2 / 2 - e^4 / 12 + ...
  assert 1 - e**2 / 6 <= kl / bounds["quadratic"] + 1e-9 <= 1 + 2e-9


def test_the_forced_end_counts_in_no_bound(make_tables):
  bounds = kl_bounds(
    [np.array([[0.0, 2.0]])], [np.array([[0.0, 5.0]])], eos=True
  )
  assert all(value == 0.0 for value in bounds.values())


def test_what_cannot_be_reached_is_left_out():
  dead = np.array([[-np.inf, -np.inf], [1.0, 2.0]])
  q = [np.array([[-np.inf, 0.0]]), dead]
  other = [np.array([[-np.inf, 0.5]]), dead.copy()]
  # The states differ a lot where nobody comes.
  other[1][0] = [7.0, 9.0]
  with jax.debug_nans(True):
    bounds = arm_ebm.kl_bounds(q, other, eos=False)
    kl = arm_ebm.exact_kl(q, other, eos=False)
  np.testing.assert_allclose(bounds["linear"], 2 * 2 * 0.5)
  assert bounds["osc"] == 0.0
  assert kl == 0.0


def test_another_support_is_infinitely_far():
  q = [np.array([[0.0, 0.0, -np.inf]])]
  narrow = [np.array([[0.0, -np.inf, -np.inf]])]
  with jax.debug_nans(True):
    assert arm_ebm.exact_kl(q, narrow, eos=False) == np.inf
    np.testing.assert_allclose(
      arm_ebm.exact_kl(narrow, q, eos=False), np.log(2.0)
    )
    bounds = arm_ebm.kl_bounds(q, narrow, eos=False)
  assert all(value == np.inf for value in bounds.values())


def test_gradient_of_the_divergence_is_finite(make_tables):
  q, q2 = (
    [jnp.asarray(x) for x in make_tables(2, 3, eos=True, seed=seed)]
    for seed in (0, 1)
  )
  with jax.debug_nans(True):
    gradient = jax.grad(lambda x: arm_ebm.exact_kl(q, x, eos=True))(q2)
  visits = arm_ebm.visit_probabilities(q, eos=True)
  for got, passed, logits in zip(gradient, visits, q2, strict=True):
    mass = passed.sum(axis=1, keepdims=True)
    expected = mass * jax.nn.softmax(logits) - passed
    np.testing.assert_allclose(got, expected, atol=EXACT)


def test_logits_that_lose_mass_are_refused():
  dead = [np.zeros((1, 2)), np.array([[-np.inf, -np.inf], [0.0, 0.0]])]
  fine = [np.zeros((1, 2)), np.zeros((2, 2))]
  for function in (arm_ebm.exact_kl, arm_ebm.kl_bounds):
    for pair in ((dead, fine), (fine, dead)):
      with pytest.raises(ValueError, match=r"\[0\]\[0, 0\] must be -inf"):
        function(*pair, eos=False)


def test_sizes_must_agree(make_tables):
  small, large = make_tables(2, 2, eos=False), make_tables(2, 3, eos=False)
  for function in (arm_ebm.exact_kl, arm_ebm.kl_bounds):
    with pytest.raises(ValueError, match=r"must have one size, got \(V, T\)"):
      function(small, large, eos=False)
