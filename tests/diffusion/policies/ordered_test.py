"""Policies that commit a given number of positions, the surest first."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import policies, transforms

MAKERS = {
  "top_prob": policies.top_prob,
  "neg_entropy": policies.neg_entropy,
  "margin": policies.margin,
  "random": policies.random,
}
BY_SCORE = [name for name in MAKERS if name != "random"]
every_policy = pytest.mark.parametrize("name", MAKERS)


def numpy_score(name, p):
  """Float64 score of one distribution."""
  if name == "top_prob":
    return p.max()
  if name == "margin":
    second, best = np.sort(p)[-2:]
    return best - second
  return np.sum(p * np.log(p))


def predictions(shape=(6, 9), vocab_size=5, seed=0):
  rng = np.random.default_rng(seed)
  p = rng.dirichlet(np.ones(vocab_size), size=shape)
  return p, np.log(p).astype(np.float32), rng.random(shape) < 0.4


@pytest.mark.parametrize("name", BY_SCORE)
@pytest.mark.parametrize(
  ("t", "s"), [(1.0, 0.75), (0.75, 0.5), (0.3, 0.2), (0.5, 0.0)]
)
def test_share_of_time_commits_the_best_by_sorting(
  make_step, choose, name, t, s
):
  p, log_probs, revealed = predictions()
  got = choose(MAKERS[name](), log_probs, make_step(revealed, t, s))
  for row in range(6):
    hidden = np.flatnonzero(~revealed[row])
    count = math.ceil(round(len(hidden) * (t - s) / t, 6))
    best = sorted(hidden, key=lambda i: -numpy_score(name, p[row, i]))[:count]
    assert sorted(best) == np.flatnonzero(got[row]).tolist()


@pytest.mark.parametrize("name", BY_SCORE)
@pytest.mark.parametrize("count", [1, 3, 50])
def test_number_a_step_commits_the_best_by_sorting(
  make_step, choose, name, count
):
  p, log_probs, revealed = predictions(seed=1)
  policy = MAKERS[name](tokens_per_step=count)
  got = choose(policy, log_probs, make_step(revealed))
  for row in range(6):
    hidden = np.flatnonzero(~revealed[row])
    best = sorted(hidden, key=lambda i: -numpy_score(name, p[row, i]))[:count]
    assert sorted(best) == np.flatnonzero(got[row]).tolist()


def test_rules_differ_where_they_should(make_step, choose):
  p = [
    [0.50, 0.49, 0.005, 0.005],  # the most probable token
    [0.46, 0.18, 0.18, 0.18],  # the clearest lead
    [0.499, 0.499, 0.001, 0.001],  # the least entropy
  ]
  step = make_step(np.zeros((1, 3), bool))
  chosen = {
    name: choose(MAKERS[name](tokens_per_step=1), np.log([p]), step)[0].tolist()
    for name in BY_SCORE
  }
  assert chosen == {
    "top_prob": [True, False, False],
    "margin": [False, True, False],
    "neg_entropy": [False, False, True],
  }


@pytest.mark.parametrize("name", BY_SCORE)
def test_first_of_equally_confident_positions_are_committed(
  make_step, choose, name
):
  log_probs = jnp.full((1, 4, 2), math.log(0.5))
  step = make_step([[True, False, False, False]])
  got = choose(MAKERS[name](), log_probs, step)
  assert got.tolist() == [[False, True, True, False]]


@every_policy
def test_nothing_hidden_commits_nothing(make_step, choose, name):
  step = make_step(np.ones((2, 3), bool), 0.5, 0.0)
  assert not choose(MAKERS[name](), jnp.zeros((2, 3, 4)), step).any()


@pytest.mark.parametrize("count", [None, 2])
def test_random_commits_every_position_at_the_same_rate(
  make_step, choose, count
):
  step = make_step(np.zeros((4000, 4), bool), 1.0, 0.5)
  got = choose(policies.random(tokens_per_step=count), None, step)
  np.testing.assert_array_equal(got.sum(axis=1), 2)
  # Four standard errors of a rate of 1/2 over 4,000 rows.
  error = math.sqrt(0.25 / 4000)
  np.testing.assert_allclose(got.mean(axis=0), 0.5, atol=4 * error)


@every_policy
def test_even_times_commit_evenly(decode, name):
  logits = jnp.log(jnp.array([0.2, 0.3, 0.5]))
  _, stats = decode(
    MAKERS[name](),
    lambda latent, t: jnp.broadcast_to(logits, (*latent.tokens.shape, 3)),
    (2, 12),
    4,
    vocab_size=3,
  )
  assert stats.committed.tolist() == [[3, 3, 3, 3]] * 2


@every_policy
def test_number_a_step_ends_early_and_leaves_the_rest_to_the_last(decode, name):
  def flat(latent, t):
    return jnp.zeros((*latent.tokens.shape, 3))

  policy = MAKERS[name](tokens_per_step=5)
  _, early = decode(policy, flat, (2, 12), 6, vocab_size=3)
  assert early.committed.tolist() == [[5, 5, 2, 0, 0, 0]] * 2
  assert early.nfe.tolist() == [3, 3]
  _, short = decode(policy, flat, (2, 12), 2, vocab_size=3)
  assert short.committed.tolist() == [[5, 7]] * 2


@pytest.mark.parametrize("name", BY_SCORE)
def test_temperature_changes_tokens_but_not_the_order(decode, name):
  # At a temperature of 1e-3 the tempered probabilities are all 1 in float32,
  # and an order taken from them would be left to right.
  sure = jnp.array([0.3, 0.9, 0.5, 0.7, 0.4, 0.8])
  logits = jnp.stack([jnp.zeros(6), sure, -jnp.ones(6)], axis=-1)
  drawn, orders = [], []
  for value in (1.0, 1e-3):
    order = []
    inner = MAKERS[name](tokens_per_step=1)

    def select(log_probs, state, step, inner=inner, order=order):
      selection, state = inner.select(log_probs, state, step)
      jax.debug.callback(
        lambda commit: order.append(int(np.argmax(commit[0]))),
        selection.commit,
        ordered=True,
      )
      return selection, state

    tokens, _ = decode(
      inner._replace(select=select),
      lambda latent, t: logits[None],
      (1, 6),
      6,
      vocab_size=3,
      transform=transforms.temperature(value),
    )
    jax.effects_barrier()
    drawn.append(tokens.tolist())
    orders.append(order)
  assert orders == [[1, 5, 3, 2, 4, 0]] * 2
  assert drawn[1] == [[1] * 6]
  assert drawn[0] != drawn[1]


@every_policy
def test_number_below_one_is_an_error(name):
  with pytest.raises(ValueError, match="tokens_per_step must be"):
    MAKERS[name](tokens_per_step=0)
