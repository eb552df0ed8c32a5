"""Enumeration, and probabilities against sums written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import arm_ebm

EXACT = 1e-12

# Step by step, most of the time would go into compiling.
arm_log_probs = jax.jit(arm_ebm.arm_log_probs, static_argnames="eos")
ebm_log_probs = jax.jit(arm_ebm.ebm_log_probs, static_argnames="eos")
sequence_scores = jax.jit(arm_ebm.sequence_scores, static_argnames="eos")


@pytest.mark.parametrize(
  ("vocab_size", "num_steps", "eos"),
  [(3, 3, False), (3, 3, True), (1, 4, True), (1, 4, False), (2, 1, True)],
)
def test_enumeration_is_that_of_itertools(walk, vocab_size, num_steps, eos):
  sequences, _ = walk
  expected = sequences(vocab_size, num_steps, eos=eos)
  tokens, lengths = arm_ebm.enumerate_sequences(vocab_size, num_steps, eos=eos)
  assert tokens.dtype == lengths.dtype == np.int32
  assert tokens.shape == (len(expected), num_steps)
  for row, length, sequence in zip(tokens, lengths, expected, strict=True):
    assert tuple(row[:length]) == sequence
    assert np.all(row[length:] == vocab_size)


@pytest.mark.parametrize(("eos", "count"), [(True, 585), (False, 4096)])
def test_counts_and_total_probability(make_tables, eos, count):
  tokens, lengths = arm_ebm.enumerate_sequences(8, 4, eos=eos)
  assert len(tokens) == count
  tables = make_tables(8, 4, eos=eos)
  for function in (arm_log_probs, ebm_log_probs):
    total = jnp.exp(function(tables, tokens, lengths, eos=eos)).sum()
    assert abs(total - 1.0) < EXACT


@pytest.mark.parametrize("eos", [False, True])
def test_scores_and_laws_equal_brute_force(make_tables, brute_force, eos):
  rewards = make_tables(3, 3, eos=eos)
  scores, log_z = brute_force(rewards, eos=eos)
  expected = np.array(list(scores.values()))
  tokens, lengths = arm_ebm.enumerate_sequences(3, 3, eos=eos)
  arguments = (jnp.asarray(tokens), jnp.asarray(lengths))
  got = sequence_scores(rewards, *arguments, eos=eos)
  np.testing.assert_allclose(got, expected, atol=EXACT)
  got = ebm_log_probs(rewards, *arguments, eos=eos)
  np.testing.assert_allclose(got, expected - log_z, atol=EXACT)
  logits = arm_ebm.rewards_to_logits(rewards, eos=eos)
  got = arm_log_probs(logits, *arguments, eos=eos)
  np.testing.assert_allclose(got, expected - log_z, atol=EXACT)


def test_sizes_grow_as_the_paper_counts_them():
  shapes = [jnp.zeros((8**t, 8)) for t in range(6)]
  logits = jax.eval_shape(
    lambda r: arm_ebm.rewards_to_logits(r, eos=False), shapes
  )
  assert sum(table.size for table in logits) == 299_592
  tokens, _ = arm_ebm.enumerate_sequences(8, 6, eos=False)
  assert len(tokens) == 262_144


def test_one_token_of_fixed_length_is_certain(make_tables):
  tokens, lengths = arm_ebm.enumerate_sequences(1, 5, eos=False)
  assert len(tokens) == 1
  tables = make_tables(1, 5, eos=False)
  for function in (arm_log_probs, ebm_log_probs):
    got = function(tables, tokens, lengths, eos=False)
    np.testing.assert_allclose(got, 0.0, atol=EXACT)


def test_log_probabilities_through_a_dead_state_are_minus_infinity():
  logits = [np.zeros((1, 2)), np.array([[-np.inf, -np.inf], [1.0, 2.0]])]
  tokens, lengths = arm_ebm.enumerate_sequences(2, 2, eos=False)
  with jax.debug_nans(True):
    got = arm_ebm.arm_log_probs(logits, tokens, lengths, eos=False)
    scores = arm_ebm.ebm_log_probs(logits, tokens, lengths, eos=False)
  np.testing.assert_array_equal(got[:2], -np.inf)
  np.testing.assert_array_equal(scores[:2], -np.inf)
  # What goes into the dead state is lost to the autoregressive model alone.
  np.testing.assert_allclose(np.exp(got[2:]).sum(), 0.5, rtol=EXACT)
  np.testing.assert_allclose(np.exp(scores[2:]).sum(), 1.0, rtol=EXACT)


@pytest.mark.parametrize("eos", [False, True])
def test_gradients_by_logits_and_scores_are_those_of_the_paper(
  make_tables, walk, eos
):
  """ARM: mass(s) pi(y|s) - count(s, y). EBM: p(y) - rho(y)."""
  logits = make_tables(2, 3, eos=eos)
  tokens, lengths = arm_ebm.enumerate_sequences(2, 3, eos=eos)
  rho = np.random.default_rng(7).dirichlet(np.ones(len(tokens)))

  def arm_nll(q):
    return -rho @ arm_log_probs(q, tokens, lengths, eos=eos)

  gradient = jax.grad(arm_nll)([jnp.asarray(q) for q in logits])
  counts = [np.zeros_like(table) for table in logits]
  sequences, entries = walk
  for y, weight in zip(sequences(2, 3, eos=eos), rho, strict=True):
    for t, row, token in entries(logits, y, 2):
      counts[t][row, token] += weight
  for t, table in enumerate(logits):
    mass = counts[t].sum(axis=1, keepdims=True)
    expected = mass * np.asarray(jax.nn.softmax(table)) - counts[t]
    np.testing.assert_allclose(gradient[t], expected, atol=EXACT)

  def ebm_nll(score):
    return jax.nn.logsumexp(score) - rho @ score

  scores = sequence_scores(
    arm_ebm.logits_to_rewards(logits, eos=eos), tokens, lengths, eos=eos
  )
  p = np.exp(arm_log_probs(logits, tokens, lengths, eos=eos))
  np.testing.assert_allclose(jax.grad(ebm_nll)(scores), p - rho, atol=EXACT)
  assert abs(ebm_nll(scores) - arm_nll(logits)) < EXACT


@pytest.mark.parametrize("eos", [False, True])
def test_both_optima_are_the_entropy_of_the_target(make_tables, eos):
  target = make_tables(3, 3, eos=eos, seed=8, scale=2.0)
  tokens, lengths = arm_ebm.enumerate_sequences(3, 3, eos=eos)
  log_rho = np.asarray(arm_log_probs(target, tokens, lengths, eos=eos))
  rho = np.exp(log_rho)
  entropy = -rho @ log_rho
  rewards = arm_ebm.logits_to_rewards(target, eos=eos)
  got = -rho @ ebm_log_probs(rewards, tokens, lengths, eos=eos)
  assert abs(got - entropy) < EXACT
  # Whatever else the logits are, the loss is above.
  for seed in range(9, 14):
    other = make_tables(3, 3, eos=eos, seed=seed)
    for function in (arm_log_probs, ebm_log_probs):
      assert -rho @ function(other, tokens, lengths, eos=eos) > entropy


def test_zero_probability_is_approached_but_not_attained():
  """Target (1/2, 1/2, 0): the loss log(2 + e^-c) falls to log 2."""
  tokens, lengths = arm_ebm.enumerate_sequences(3, 1, eos=False)
  rho, losses = np.array([0.5, 0.5, 0.0]), []
  for c in (1.0, 5.0, 20.0):
    log_p = arm_log_probs(
      [np.array([[0.0, 0.0, -c]])], tokens, lengths, eos=False
    )
    losses.append(float(-rho @ log_p))
    assert abs(losses[-1] - np.log(2 + np.exp(-c))) < EXACT
  assert losses[0] > losses[1] > losses[2] > np.log(2.0)


def test_padding_does_not_matter(make_tables):
  tables = make_tables(3, 3, eos=True)
  first = np.array([[1, 3, 3], [3, 3, 3]], np.int32)
  second = np.array([[1, 3, 0], [3, 2, 1]], np.int32)
  lengths = np.array([2, 1], np.int32)
  np.testing.assert_array_equal(
    arm_ebm.arm_log_probs(tables, first, lengths, eos=True),
    arm_ebm.arm_log_probs(tables, second, lengths, eos=True),
  )


@pytest.mark.parametrize(
  ("tokens", "lengths", "eos", "message"),
  [
    ([[0, 3]], [2], False, r"tokens must be in \[0, 3\), got 3"),
    ([[-1, 0]], [2], False, r"tokens must be in \[0, 3\), got -1"),
    ([[0, 1]], [3], False, r"lengths must be in \[2, 2\], got 3"),
    ([[0, 1]], [1], False, r"lengths must be in \[2, 2\], got 1"),
    ([[2, 2]], [0], True, r"lengths must be in \[1, 2\], got 0"),
    ([[0, 1]], [2], True, r"tokens\[0\] must end in its only EOS \(token 2\)"),
    ([[2, 2]], [2], True, r"tokens\[0\] must end in its only EOS"),
    ([[0, 2]], [2], False, r"tokens\[0\] must not hold EOS"),
    ([[0, 1, 0]], [2], False, r"tokens must have shape \[N, 2\]"),
    ([[0, 1]], [2, 2], False, r"lengths must have shape \(1,\)"),
  ],
)
def test_what_is_no_sequence_is_refused(
  make_tables, tokens, lengths, eos, message
):
  tables = make_tables(2, 2, eos=eos)
  with pytest.raises(ValueError, match=message):
    arm_ebm.arm_log_probs(tables, np.array(tokens), np.array(lengths), eos=eos)


def test_what_is_no_sequence_is_nan_under_jit(make_tables):
  tables = make_tables(2, 2, eos=True)
  tokens = jnp.array([[0, 2], [0, 1], [5, 2], [-1, 2], [2, 2]])
  got = jax.jit(
    lambda tokens: arm_ebm.arm_log_probs(
      tables, tokens, jnp.array([2, 2, 2, 2, 3]), eos=True
    )
  )(tokens)
  np.testing.assert_array_equal(np.isnan(got), [False, True, True, True, True])


def test_tokens_must_be_integers(make_tables):
  with pytest.raises(TypeError, match="tokens must be integers, got float64"):
    arm_ebm.sequence_scores(
      make_tables(2, 1, eos=False), np.zeros((1, 1)), np.ones(1, int), eos=False
    )


def test_too_many_sequences_are_refused_with_their_number():
  with pytest.raises(ValueError, match="give 33,554,432 sequences"):
    arm_ebm.enumerate_sequences(2, 25, eos=False)
  with pytest.raises(ValueError, match="vocab_size must be"):
    arm_ebm.enumerate_sequences(0, 2, eos=False)
  with pytest.raises(ValueError, match="num_steps must be"):
    arm_ebm.enumerate_sequences(2, 0, eos=True)
