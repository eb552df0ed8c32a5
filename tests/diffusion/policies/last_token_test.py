"""The token that is committed last."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import policies
from icml26_jax.diffusion import process as process_lib

END = 2


def eager_end(latent, t):
  """Four positions; the last two are surest, and of the end."""
  del t
  logits = jnp.log(
    jnp.array(
      [[0.4, 0.3, 0.3], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8], [0.0, 0.1, 0.9]]
    )
  )
  return jnp.broadcast_to(logits, (*latent.tokens.shape, 3))


def test_end_waits_for_the_other_positions(make_step, choose):
  policy = policies.commit_last(policies.top_prob(tokens_per_step=2), END)
  steps = [
    ([0, 0, 0, 0], [1, 1, 0, 0]),
    ([1, 0, 0, 0], [0, 1, 0, 0]),
    ([1, 1, 0, 0], [0, 0, 1, 1]),
    ([1, 1, 1, 1], [0, 0, 0, 0]),
  ]
  for revealed, expected in steps:
    step = make_step(np.array([revealed], bool))
    log_probs = process_lib.carry_over(
      eager_end(step.latent, None), step.latent.tokens, step.latent.revealed
    )
    got = choose(policy, log_probs, step)
    assert got.tolist() == [[bool(x) for x in expected]]


@pytest.mark.parametrize(
  "inner",
  [
    policies.random(tokens_per_step=1),
    policies.top_prob(tokens_per_step=1),
    policies.ccd(3, window=3),
    policies.agreement(),
  ],
)
def test_no_end_is_committed_before_the_rest(decode, inner):
  # Order of commits is seen through the steps that remain.
  orders = []
  policy = policies.commit_last(inner, END)

  def select(log_probs, state, step):
    selection, state = policy.select(log_probs, state, step)
    jax.debug.callback(
      lambda commit: orders.append(np.asarray(commit)),
      selection.commit,
      ordered=True,
    )
    return selection, state

  tokens, stats = decode(
    policy._replace(select=select),
    eager_end,
    (64, 4),
    4,
    vocab_size=3,
    transform=policies.withhold(END),
  )
  jax.effects_barrier()
  assert stats.committed.tolist() == [[1] * 4] * 64
  order = np.array([commit.argmax(axis=1) for commit in orders])  # [4, 64]
  assert set(order[:2].ravel().tolist()) == {0, 1}
  assert not np.any(tokens[:, :2] == END)


def test_token_of_the_policy_is_not_the_end_too_early(make_step):
  # The average of two steps prefers the end, the current prediction does not.
  def always_end(log_probs, state, step):
    tokens = jnp.full(log_probs.shape[:2], END)
    return process_lib.Selection(~step.latent.revealed, tokens), state

  inner = process_lib.UnmaskingPolicy(lambda tokens: (), always_end, True)
  policy = policies.commit_last(inner, END)
  step = make_step(np.zeros((1, 4), bool))
  selection, _ = policy.select(eager_end(step.latent, None), (), step)
  assert selection.commit.tolist() == [[True, True, False, False]]
  assert selection.tokens[0, :2].tolist() == [0, 1]
  step = make_step(np.array([[True, True, False, False]]))
  selection, _ = policy.select(eager_end(step.latent, None), (), step)
  assert selection.commit.tolist() == [[False, False, True, True]]
  assert selection.tokens[0, 2:].tolist() == [END, END]


def test_withholding_touches_early_positions_only(make_step):
  step = make_step(np.array([[False, True, False, False]]))
  log_probs = eager_end(step.latent, None)
  got, _ = policies.withhold(END).update(log_probs, (), step)
  assert got[0, 0, END] == -jnp.inf
  np.testing.assert_array_equal(got[0, 0, :END], log_probs[0, 0, :END])
  np.testing.assert_array_equal(got[0, 1:], log_probs[0, 1:])


@pytest.mark.parametrize("token", [-1, 3])
def test_token_outside_the_vocabulary_is_an_error(make_step, token):
  step = make_step(np.zeros((1, 4), bool))
  with pytest.raises(ValueError, match="token must be"):
    policies.commit_last(policies.top_prob(), token).select(
      eager_end(step.latent, None), (), step
    )
  with pytest.raises(ValueError, match="token must be"):
    policies.withhold(token).update(eager_end(step.latent, None), (), step)
