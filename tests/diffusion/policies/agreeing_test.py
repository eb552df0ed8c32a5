"""The released decoder, step by step."""

import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import policies

LENGTH, VOCAB = 12, 3


def scripted(*, change_at=None, surest_at=None):
  """Certainty falls from left to right; see the tests for what changes."""

  def denoise(latent, t):
    k = jnp.round((1.0 - t[0]) * LENGTH).astype(jnp.int32)
    top = 5.0 - 0.3 * jnp.arange(LENGTH)
    if surest_at is not None:
      step, position = surest_at
      here = jnp.arange(LENGTH) == position
      top = jnp.where(here & (k == step), 9.0, top)
    token = 0 if change_at is None else (k >= change_at).astype(jnp.int32)
    logits = top[:, None] * (jnp.arange(VOCAB) == token)[None]
    return jnp.broadcast_to(logits, (*latent.tokens.shape, VOCAB))

  return denoise


@pytest.mark.parametrize(
  ("dynamic", "script", "committed"),
  [
    (True, {}, [1] * 5 + [2, 3, 2]),
    (False, {}, [1] * 12),
    (True, {"change_at": 5}, [1] * 6 + [3, 3]),
    (True, {"surest_at": (5, 11)}, [1] * 6 + [3, 3]),
  ],
)
def test_hand_computed_steps(decode, dynamic, script, committed):
  tokens, stats = decode(
    policies.agreement(tokens_per_step=1, expand=4, dynamic=dynamic),
    scripted(**script),
    (2, LENGTH),
    LENGTH,
    vocab_size=VOCAB,
  )
  expected = committed + [0] * (LENGTH - len(committed))
  assert stats.committed.tolist() == [expected] * 2
  assert stats.nfe.tolist() == [len(committed)] * 2
  if "change_at" not in script:
    assert not tokens.any()
  else:
    assert tokens[0].tolist() == [0] * 5 + [1] * 7


@pytest.mark.parametrize(
  ("script", "rounds"),
  [
    ({}, [{0}, {1}, {2}, {3}, {4}, {5, 6}, {7, 8, 9}, {10, 11}]),
    (
      {"change_at": 5},
      [{0}, {1}, {2}, {3}, {4}, {5}, {6, 7, 8}, {9, 10, 11}],
    ),
    (
      {"surest_at": (5, 11)},
      [{0}, {1}, {2}, {3}, {4}, {11}, {5, 6, 7}, {8, 9, 10}],
    ),
  ],
)
def test_hand_computed_positions(make_step, script, rounds):
  policy = policies.agreement()
  revealed = np.zeros((1, LENGTH), bool)
  state = policy.init(jnp.zeros((1, LENGTH), jnp.int32))
  for k, expected in enumerate(rounds):
    time = 1 - k / LENGTH
    step = make_step(revealed, time, time - 1 / LENGTH)
    logits = scripted(**script)(step.latent, jnp.full(1, time, jnp.float32))
    log_probs = logits - jnp.log(jnp.sum(jnp.exp(logits), -1, keepdims=True))
    selection, state = policy.select(log_probs, state, step)
    assert set(np.flatnonzero(selection.commit[0]).tolist()) == expected
    revealed = revealed | np.asarray(selection.commit)
  assert revealed.all()


def test_list_is_two_long_when_a_tenth_is_left(make_step):
  # 20 positions, one hidden at step 9 of an otherwise grown list of 7.
  policy = policies.agreement(expand=9)
  state = policy.init(jnp.zeros((1, 20), jnp.int32))
  sizes = []
  revealed = np.zeros((1, 20), bool)
  for count in (20, 19, 18, 17, 16, 15, 14, 3, 2, 1):
    revealed[0] = np.arange(20) >= count
    log_probs = jnp.full((1, 20, 2), jnp.log(0.5))
    _, state = policy.select(log_probs, state, make_step(revealed))
    sizes.append(int(state.size[0]))
  assert sizes == [1, 1, 1, 1, 2, 3, 4, 5, 2, 2]


@pytest.mark.parametrize("u", [1, 2, 3])
def test_list_grows_no_longer_than_the_budget_times_one_plus_expand(
  make_step, u
):
  policy = policies.agreement(tokens_per_step=u, expand=2)
  state = policy.init(jnp.zeros((1, 30), jnp.int32))
  step = make_step(np.zeros((1, 30), bool))
  for _ in range(20):
    log_probs = jnp.full((1, 30, 2), jnp.log(0.5))
    _, state = policy.select(log_probs, state, step)
  assert int(state.size[0]) == 3 * u
  assert int(state.listed.sum()) == 3 * u


@pytest.mark.parametrize("u", [1, 2])
def test_warm_up_commits_the_budget_of_a_certain_network(decode, u):
  logits = jnp.where(jnp.arange(VOCAB) == 1, 0.0, -jnp.inf)
  tokens, stats = decode(
    policies.agreement(tokens_per_step=u),
    lambda latent, t: jnp.broadcast_to(logits, (1, 32, VOCAB)),
    (1, 32),
    32,
    vocab_size=VOCAB,
  )
  assert (tokens == 1).all()
  assert stats.committed[0, :5].tolist() == [u] * 5
  assert stats.nfe[0] < 32 // u


def test_last_step_commits_the_rest(decode):
  _, stats = decode(
    policies.agreement(), scripted(), (1, LENGTH), 3, vocab_size=VOCAB
  )
  assert stats.committed.tolist() == [[1, 1, 10]]


def test_tokens_are_drawn_if_not_greedy(make_step):
  step = make_step(np.zeros((1, 2), bool))
  policy = policies.agreement(greedy=False)
  state = policy.init(step.latent.tokens)
  selection, _ = policy.select(jnp.full((1, 2, 2), -0.7), state, step)
  assert selection.tokens is None


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"tokens_per_step": 0}, "tokens_per_step must be"),
    ({"expand": -1}, "expand must be"),
  ],
)
def test_bad_argument_is_an_error(kwargs, message):
  with pytest.raises(ValueError, match=message):
    policies.agreement(**kwargs)
