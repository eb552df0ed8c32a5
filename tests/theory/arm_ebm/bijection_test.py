"""The map both ways: closed forms, enumeration, what is forbidden."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from icml26_jax.theory import arm_ebm

# Sums of a few dozen numbers of size 10 in float64.
EXACT = 1e-12


def assert_tables_close(got, expected):
  for one, other in zip(got, expected, strict=True):
    assert one.dtype == jnp.float64
    np.testing.assert_allclose(one, other, atol=EXACT, rtol=0)


@pytest.mark.parametrize("eos", [False, True])
def test_the_map_and_its_inverse_undo_each_other(make_tables, eos):
  tables = make_tables(8, 4, eos=eos, scale=2.0)
  logits = arm_ebm.rewards_to_logits(tables, eos=eos)
  assert_tables_close(arm_ebm.logits_to_rewards(logits, eos=eos), tables)
  rewards = arm_ebm.logits_to_rewards(tables, eos=eos)
  assert_tables_close(arm_ebm.rewards_to_logits(rewards, eos=eos), tables)


@pytest.mark.parametrize("eos", [False, True])
def test_both_models_are_the_same_law(make_tables, brute_force, walk, eos):
  rewards = make_tables(3, 4, eos=eos)
  scores, log_z = brute_force(rewards, eos=eos)
  logits = arm_ebm.rewards_to_logits(rewards, eos=eos)
  policy = [scipy.special.log_softmax(np.asarray(q), axis=1) for q in logits]
  _, entries = walk
  for y, score in scores.items():
    got = sum(policy[t][row, token] for t, row, token in entries(policy, y, 3))
    assert abs(got - (score - log_z)) < EXACT
  assert abs(arm_ebm.log_partition(rewards, eos=eos) - log_z) < EXACT
  value = scipy.special.logsumexp(np.asarray(logits[0]))
  assert abs(value - log_z) < EXACT


def test_constant_reward_is_uniform():
  vocab_size, num_steps, c = 5, 3, 0.7
  rewards = [np.full((vocab_size**t, vocab_size), c) for t in range(num_steps)]
  expected = num_steps * (c + np.log(vocab_size))
  assert abs(arm_ebm.log_partition(rewards, eos=False) - expected) < EXACT
  for logits in arm_ebm.rewards_to_logits(rewards, eos=False):
    np.testing.assert_allclose(
      jax.nn.softmax(logits), 1 / vocab_size, rtol=EXACT
    )


def test_no_reward_with_an_end_counts_the_sequences():
  vocab_size, num_steps = 8, 4
  rewards = [
    np.zeros((vocab_size**t, vocab_size + 1)) for t in range(num_steps)
  ]
  count = sum(vocab_size**k for k in range(num_steps))
  assert count == 585
  log_z = arm_ebm.log_partition(rewards, eos=True)
  assert abs(log_z - np.log(count)) < EXACT
  first = arm_ebm.rewards_to_logits(rewards, eos=True)[0]
  assert abs(jax.nn.softmax(first)[0, -1] - 1 / count) < EXACT


def test_what_stands_beside_the_forced_end_does_not_matter(make_tables):
  rewards = make_tables(3, 3, eos=True)
  noisy = [table.copy() for table in rewards]
  noisy[-1][:, :-1] = 5.0
  for function in (arm_ebm.rewards_to_logits, arm_ebm.logits_to_rewards):
    assert_tables_close(function(noisy, eos=True), function(rewards, eos=True))


def test_independent_steps_look_ahead_by_a_constant():
  rng = np.random.default_rng(0)
  u = rng.normal(size=(4, 3))
  rewards = [np.tile(u[t], (3**t, 1)) for t in range(4)]
  values = scipy.special.logsumexp(u, axis=1)
  logits = arm_ebm.rewards_to_logits(rewards, eos=False)
  for t, found in enumerate(logits):
    expected = np.tile(u[t] + values[t + 1 :].sum(), (3**t, 1))
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("eos", [False, True])
def test_one_step_needs_no_lookahead(make_tables, eos):
  tables = make_tables(4, 1, eos=eos)
  assert_tables_close(arm_ebm.rewards_to_logits(tables, eos=eos), tables)
  assert_tables_close(arm_ebm.logits_to_rewards(tables, eos=eos), tables)


def test_one_token_with_an_end_chooses_a_length():
  rng = np.random.default_rng(1)
  rewards = [rng.normal(size=(1, 2)) for _ in range(4)]
  # The score of stopping after k tokens.
  scores = [
    sum(rewards[t][0, 0] for t in range(k)) + rewards[k][0, 1] for k in range(4)
  ]
  expected = scipy.special.softmax(scores)
  logits = arm_ebm.rewards_to_logits(rewards, eos=True)
  policy = [np.asarray(jax.nn.softmax(table))[0] for table in logits]
  got = [
    np.prod([policy[t][0] for t in range(k)]) * policy[k][1] for k in range(4)
  ]
  np.testing.assert_allclose(got, expected, rtol=EXACT)


@pytest.mark.parametrize("eos", [False, True])
def test_shaping_moves_logits_but_not_the_policy(make_tables, eos):
  rewards = make_tables(3, 4, eos=eos)
  rng = np.random.default_rng(2)
  potentials = [rng.normal(size=3**t) for t in range(4)] + [np.zeros(3**4)]
  shaped = []
  for t, table in enumerate(rewards):
    following = potentials[t + 1].reshape(-1, 3)
    if eos:
      following = np.pad(following, ((0, 0), (0, 1)))
    shaped.append(table + following - potentials[t][:, None])
  before = arm_ebm.rewards_to_logits(rewards, eos=eos)
  after = arm_ebm.rewards_to_logits(shaped, eos=eos)
  moved = [
    np.asarray(table) - potential[:, None]
    for table, potential in zip(before, potentials[:-1], strict=True)
  ]
  assert_tables_close(after, moved)
  log_z = arm_ebm.log_partition(rewards, eos=eos) - potentials[0][0]
  assert abs(arm_ebm.log_partition(shaped, eos=eos) - log_z) < EXACT


@pytest.mark.parametrize("eos", [False, True])
def test_a_score_of_sequences_is_a_reward_of_the_last_step(brute_force, eos):
  rng = np.random.default_rng(3)
  width = 3 + eos
  rewards = [np.zeros((3**t, width)) for t in range(3)]
  if eos:
    for table in rewards:
      table[:, -1] = rng.normal(size=len(table))
    rewards[-1][:, :-1] = -np.inf
    all_scores = np.concatenate([table[:, -1] for table in rewards])
  else:
    rewards[-1] = rng.normal(size=(9, 3))
    all_scores = rewards[-1].ravel()
  scores, log_z = brute_force(rewards, eos=eos)
  np.testing.assert_allclose(sorted(scores.values()), sorted(all_scores))
  assert abs(log_z - scipy.special.logsumexp(all_scores)) < EXACT
  assert abs(arm_ebm.log_partition(rewards, eos=eos) - log_z) < EXACT


@pytest.mark.parametrize("eos", [False, True])
def test_value_is_between_the_best_score_and_a_count_more(
  make_tables, brute_force, eos
):
  for seed in range(3):
    rewards = make_tables(3, 4, eos=eos, seed=seed, scale=3.0)
    scores, _ = brute_force(rewards, eos=eos)
    best = max(scores.values())
    value = float(arm_ebm.log_partition(rewards, eos=eos))
    assert best <= value <= best + np.log(len(scores))


@pytest.mark.parametrize("eos", [False, True])
def test_the_law_maximises_reward_and_entropy(make_tables, brute_force, eos):
  rewards = make_tables(2, 3, eos=eos)
  scores, log_z = brute_force(rewards, eos=eos)
  scores = np.array(list(scores.values()))

  def value(p):
    return p @ scores + scipy.special.entr(p).sum()

  assert abs(value(np.exp(scores - log_z)) - log_z) < EXACT
  rng = np.random.default_rng(4)
  for p in rng.dirichlet(np.ones(len(scores)), 50):
    assert value(p) <= log_z


def test_the_optimum_of_a_regularised_reward_tilts_the_reference(make_tables):
  reference = make_tables(3, 3, eos=False, seed=5)
  bonus, beta = np.random.default_rng(6).normal(size=27), 0.5
  policy = [scipy.special.log_softmax(table, axis=1) for table in reference]
  rewards = [*policy[:-1], policy[-1] + bonus.reshape(9, 3) / beta]
  tokens, lengths = arm_ebm.enumerate_sequences(3, 3, eos=False)
  p_ref = np.exp(arm_ebm.arm_log_probs(reference, tokens, lengths, eos=False))
  tilted = p_ref * np.exp(bonus / beta)
  p = np.exp(arm_ebm.ebm_log_probs(rewards, tokens, lengths, eos=False))
  np.testing.assert_allclose(p, tilted / tilted.sum(), rtol=EXACT)
  value = p @ bonus - beta * p @ np.log(p / p_ref)
  got = beta * arm_ebm.log_partition(rewards, eos=False)
  assert abs(value - got) < EXACT


@pytest.mark.parametrize("eos", [False, True])
def test_gradient_of_the_partition_is_the_probability_of_passing(
  make_tables, brute_force, walk, eos
):
  rewards = make_tables(3, 3, eos=eos)
  scores, log_z = brute_force(rewards, eos=eos)
  expected = [np.zeros_like(table) for table in rewards]
  _, entries = walk
  for y, score in scores.items():
    for t, row, token in entries(rewards, y, 3):
      expected[t][row, token] += np.exp(score - log_z)
  gradient = jax.jit(jax.grad(lambda r: arm_ebm.log_partition(r, eos=eos)))(
    [jnp.asarray(table) for table in rewards]
  )
  for got, table in zip(gradient, expected, strict=True):
    np.testing.assert_allclose(got, table, atol=EXACT)


def test_a_state_without_an_end_is_dead_and_never_nan():
  rewards = [np.zeros((1, 2)), np.array([[-np.inf, -np.inf], [1.0, 2.0]])]
  rewards[0][0, 0] = 0.5
  with jax.debug_nans(True):
    logits = arm_ebm.rewards_to_logits(rewards, eos=False)
    back = arm_ebm.logits_to_rewards(logits, eos=False)
    gradient = jax.grad(lambda r: arm_ebm.log_partition(r, eos=False))(
      [jnp.asarray(table) for table in rewards]
    )
  assert logits[0][0, 0] == -np.inf
  # The finite reward that stood there is not recovered.
  assert back[0][0, 0] == -np.inf
  np.testing.assert_allclose(back[0][0, 1], 0.0, atol=EXACT)
  np.testing.assert_array_equal(back[1], rewards[1])
  np.testing.assert_array_equal(gradient[0], [[0.0, 1.0]])
  np.testing.assert_allclose(
    gradient[1], [[0.0, 0.0], scipy.special.softmax([1.0, 2.0])], atol=EXACT
  )


def test_logits_into_a_dead_state_have_no_finite_reward():
  logits = [np.zeros((1, 2)), np.array([[-np.inf, -np.inf], [1.0, 2.0]])]
  rewards = arm_ebm.logits_to_rewards(logits, eos=False)
  assert rewards[0][0, 0] == -np.inf
  assert np.isfinite(rewards[0][0, 1])


def test_tables_are_float32_unless_they_are_wider():
  tables = [np.zeros((1, 2), np.float32), np.zeros((2, 2), np.float32)]
  for table in arm_ebm.rewards_to_logits(tables, eos=False):
    assert table.dtype == jnp.float32


def with_entry(value):
  return [np.zeros((1, 2)), np.array([[0.0, value], [0.0, 0.0]])]


@pytest.mark.parametrize(
  "function",
  [arm_ebm.rewards_to_logits, arm_ebm.logits_to_rewards, arm_ebm.log_partition],
)
@pytest.mark.parametrize(
  ("tables", "eos", "message"),
  [
    ([], False, "T at least 1, got none"),
    ([np.zeros(2)], False, r"\[0\] must have shape \(1, V\)|got \(2,\)"),
    ([np.zeros((1, 0))], False, r"V at least 1, got \(1, 0\)"),
    ([np.zeros((1, 1))], True, r"V at least 1, got \(1, 1\)"),
    (
      [np.zeros((1, 2)), np.zeros((3, 2))],
      False,
      r"\[1\] must have shape \(2, 2\) for V=2 and eos=False, got \(3, 2\)",
    ),
    (
      [np.zeros((1, 3)), np.zeros((3, 3))],
      True,
      r"\[1\] must have shape \(2, 3\)",
    ),
    (with_entry(np.nan), False, r"\[1\] must be finite or -inf, got nan"),
    (with_entry(np.inf), False, r"\[1\] must be finite or -inf, got inf"),
    ([np.full((1, 2), -np.inf)], False, "empty support"),
    # Every first token leads into a dead state.
    ([np.zeros((1, 2)), np.full((2, 2), -np.inf)], False, "empty support"),
    ([np.array([[0.0, -np.inf]])], True, "empty support"),
  ],
)
def test_bad_tables_are_refused(function, tables, eos, message):
  with pytest.raises(ValueError, match=message):
    function(tables, eos=eos)


def test_tables_of_integers_are_refused():
  with pytest.raises(TypeError, match=r"r\[0\] must be floats, got int64"):
    arm_ebm.rewards_to_logits([np.zeros((1, 2), int)], eos=False)
