"""Coherent contextual decoding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import contexts, policies, transforms
from icml26_jax.diffusion import process as process_lib

ROWS, LENGTH, VOCAB = 3, 8, 5


def entropy(p):
  safe = np.where(p > 0, p, 1.0)
  return -np.sum(p * np.log(safe), axis=-1)


def numpy_select(history, masks, b_min, b_max, tau, v_top):
  """One row, the slow obvious way: lists of `[L, V]` and of `[L]`."""
  masked = masks[-1]
  lists = []
  for p, mask in zip(history, masks, strict=True):
    order = sorted(np.flatnonzero(mask), key=lambda i: entropy(p[i]))
    lists.append(set(order[:v_top]))
  mean = np.mean(history, axis=0)
  candidates = [
    i for i in np.flatnonzero(masked) if all(i in chosen for chosen in lists)
  ]
  consistent = sum(entropy(mean[i]) <= tau for i in candidates)
  budget = min(max(consistent, b_min), b_max)
  chosen = sorted(candidates, key=lambda i: entropy(mean[i]))[:budget]
  tokens = {i: mean[i].argmax() for i in chosen}
  others = [i for i in np.flatnonzero(masked) if i not in chosen]
  others.sort(key=lambda i: entropy(history[-1][i]))
  for i in others[: budget - len(chosen)]:
    tokens[i] = history[-1][i].argmax()
  return tokens


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
  ("b_min", "b_max", "tau", "v_top"),
  [(1, 1, 0.0, 3), (2, 2, 9.0, 4), (1, 4, 1.0, 8), (2, 5, 0.9, 5)],
)
def test_selection_equals_lists_and_sorting(seed, b_min, b_max, tau, v_top):
  rng = np.random.default_rng(seed)
  window, steps = 3, 5
  buffer = contexts.init_buffer(ROWS, window, LENGTH, VOCAB)
  history, masks = [], []
  mask = np.ones((ROWS, LENGTH), bool)
  base = rng.dirichlet(np.full(VOCAB, 0.3), size=(ROWS, LENGTH))
  for _ in range(steps):
    noise = rng.dirichlet(np.full(VOCAB, 0.3), size=(ROWS, LENGTH))
    p = (0.7 * base + 0.3 * noise).astype(np.float32)
    history.append(p.astype(np.float64))
    masks.append(mask)
    buffer = contexts.push(buffer, p, jnp.asarray(mask), v_top=v_top)
    commit, tokens = policies.select_ccd(
      buffer, jnp.asarray(mask), b_min, b_max, tau
    )
    for row in range(ROWS):
      expected = numpy_select(
        [p[row] for p in history[-window:]],
        [m[row] for m in masks[-window:]],
        b_min,
        b_max,
        tau,
        v_top,
      )
      assert set(np.flatnonzero(commit[row])) == set(expected)
      for i, token in expected.items():
        assert tokens[row, i] == token
    mask = mask & ~np.asarray(commit)


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("u", [1, 3])
def test_equals_neg_entropy_without_history_or_change(
  decode, network, window, u
):
  # Window 1, or a network whose predictions never change.
  fixed = network(VOCAB)(
    process_lib.Latent(
      jnp.zeros((ROWS, LENGTH), int), jnp.zeros((ROWS, LENGTH), bool)
    ),
    None,
  )
  prompt_mask = np.random.default_rng(0).random((ROWS, LENGTH)) < 0.3
  arguments = dict(vocab_size=VOCAB, prompt_mask=prompt_mask)
  arguments["prompt"] = np.ones((ROWS, LENGTH), int)
  denoise = network(VOCAB) if window == 1 else lambda latent, t: fixed
  got, got_stats = decode(
    policies.ccd(VOCAB, window=window, b_min=u, b_max=u, v_top=LENGTH),
    denoise,
    (ROWS, LENGTH),
    LENGTH,
    **arguments,
  )
  expected, stats = decode(
    policies.neg_entropy(tokens_per_step=u),
    denoise,
    (ROWS, LENGTH),
    LENGTH,
    transform=transforms.top_k(1),
    **arguments,
  )
  np.testing.assert_array_equal(got, expected)
  np.testing.assert_array_equal(got_stats.nfe, stats.nfe)
  np.testing.assert_array_equal(got_stats.committed, stats.committed)


def test_consistent_position_goes_before_a_surer_one_that_changes(make_step):
  # A is .9 sure of another token each time, B is .8 sure of one.
  first = np.log([[[0.9, 0.1], [0.8, 0.2]]]).astype(np.float32)
  second = np.log([[[0.1, 0.9], [0.8, 0.2]]]).astype(np.float32)
  step = make_step(np.zeros((1, 2), bool))
  policy = policies.ccd(2, window=2)
  state = policy.init(step.latent.tokens)
  _, state = policy.select(first, state, step)
  selection, state = policy.select(second, state, step)
  assert selection.commit.tolist() == [[False, True]]
  assert selection.tokens[0, 1] == 0
  mean = contexts.marginal(state)
  np.testing.assert_allclose(
    contexts.entropy(mean)[0], [0.693147, 0.500402], atol=1e-6
  )
  vanilla, _ = policies.neg_entropy(tokens_per_step=1).select(second, (), step)
  assert vanilla.commit.tolist() == [[True, False]]


def test_newcomer_waits_although_it_is_the_surest(make_step):
  # Position 2 is unsure at the first step and the surest at the second.
  def predictions(*top):
    top = np.array(top)
    return np.log(np.stack([top, 1 - top], -1))[None].astype(np.float32)

  step = make_step(np.zeros((1, 3), bool))
  policy = policies.ccd(2, window=2, v_top=2)
  state = policy.init(step.latent.tokens)
  _, state = policy.select(predictions(0.9, 0.8, 0.6), state, step)
  selection, state = policy.select(predictions(0.7, 0.6, 0.99), state, step)
  assert selection.commit.tolist() == [[True, False, False]]
  # Nobody left in all lists: the current prediction decides alone.
  step = make_step([[True, False, False]])
  selection, _ = policy.select(predictions(0.7, 0.6, 0.99), state, step)
  assert selection.commit.tolist() == [[False, False, True]]


@pytest.mark.parametrize("stored", [None, 3])
@pytest.mark.parametrize(("b_min", "b_max"), [(1, 1), (2, 2), (1, 4)])
def test_every_position_is_committed_once_and_the_prompt_stays(
  decode, network, b_min, b_max, stored
):
  rng = np.random.default_rng(1)
  prompt = rng.integers(0, VOCAB, (ROWS, LENGTH))
  mask = np.arange(LENGTH)[None] < np.array([[0], [3], [LENGTH]])
  tokens, stats = decode(
    policies.ccd(
      VOCAB, b_min=b_min, b_max=b_max, tau=0.7, stored_tokens=stored
    ),
    network(VOCAB),
    (ROWS, LENGTH),
    LENGTH,
    vocab_size=VOCAB,
    prompt=prompt,
    prompt_mask=mask,
  )
  hidden = (~mask).sum(axis=1)
  np.testing.assert_array_equal(tokens[mask], prompt[mask])
  np.testing.assert_array_equal(stats.committed.sum(axis=1), hidden)
  assert stats.nfe[2] == 0
  if b_max == 1:
    np.testing.assert_array_equal(stats.nfe, hidden)
  if b_min == b_max == 2:
    np.testing.assert_array_equal(stats.nfe, (hidden + 1) // 2)


def test_steps_too_few_leave_the_rest_to_the_last(decode, network):
  _, stats = decode(
    policies.ccd(VOCAB, b_min=2, b_max=2),
    network(VOCAB),
    (ROWS, LENGTH),
    3,
    vocab_size=VOCAB,
  )
  assert stats.committed.tolist() == [[2, 2, 4]] * ROWS


def test_batch_equals_its_rows(decode, network):
  keys = process_lib.row_keys(jax.random.key(1), ROWS)
  prompt = np.random.default_rng(2).integers(0, VOCAB, (ROWS, LENGTH))
  mask = np.random.default_rng(3).random((ROWS, LENGTH)) < 0.3
  arguments = dict(vocab_size=VOCAB)
  policy = policies.ccd(VOCAB, window=3, b_min=1, b_max=3, tau=0.8)
  tokens, stats = decode(
    policy,
    network(VOCAB),
    (ROWS, LENGTH),
    LENGTH,
    prompt=prompt,
    prompt_mask=mask,
    key=keys,
    **arguments,
  )
  for row in range(ROWS):
    one = slice(row, row + 1)
    again, again_stats = decode(
      policy,
      network(VOCAB),
      (1, LENGTH),
      LENGTH,
      prompt=prompt[one],
      prompt_mask=mask[one],
      key=keys[one],
      **arguments,
    )
    np.testing.assert_array_equal(tokens[one], again)
    np.testing.assert_array_equal(stats.nfe[one], again_stats.nfe)


def test_renaming_tokens_renames_the_output(decode, network):
  order = np.array([3, 0, 4, 2, 1])  # New name i stands for order[i].
  names = np.argsort(order)

  def renamed(latent, t):
    old = process_lib.Latent(jnp.asarray(order)[latent.tokens], latent.revealed)
    old.tokens.at[:].set(jnp.where(latent.revealed, old.tokens, 0))
    return network(VOCAB)(old, t)[..., order]

  policy = policies.ccd(VOCAB, window=3, b_min=1, b_max=3, tau=0.8)
  arguments = dict(shape=(ROWS, LENGTH), steps=LENGTH, vocab_size=VOCAB)
  tokens, stats = decode(policy, network(VOCAB), **arguments)
  got, got_stats = decode(policy, renamed, **arguments)
  np.testing.assert_array_equal(got, names[tokens])
  np.testing.assert_array_equal(got_stats.nfe, stats.nfe)


@pytest.mark.parametrize("u", [1, 3])
def test_certain_network_is_done_in_the_calls_of_the_budget(decode, u):
  logits = jnp.where(jnp.arange(VOCAB) == 2, 0.0, -jnp.inf)

  def certain(latent, t):
    return jnp.broadcast_to(logits, (1, LENGTH, VOCAB))

  tokens, stats = decode(
    policies.ccd(VOCAB, b_min=u, b_max=u),
    certain,
    (1, LENGTH),
    LENGTH,
    vocab_size=VOCAB,
  )
  assert (tokens == 2).all()
  assert stats.nfe.tolist() == [-(-LENGTH // u)]
  _, stats = decode(
    policies.ccd(VOCAB, b_max=LENGTH, v_top=LENGTH, tau=0.0),
    certain,
    (1, LENGTH),
    LENGTH,
    vocab_size=VOCAB,
  )
  assert stats.nfe.tolist() == [1]


def test_not_greedy_draws_from_the_average(decode):
  # Predictions alternate between two tokens; their average knows both.
  def alternating(latent, t):
    del latent
    k = jnp.round((1.0 - t[0]) * 2).astype(jnp.int32)
    first = jnp.log(jnp.array([0.5, 0.5, 0.0, 0.0]))
    return jnp.broadcast_to(jnp.where(k == 0, first, first[::-1]), (400, 2, 4))

  tokens, _ = decode(
    policies.ccd(4, window=2, greedy=False),
    alternating,
    (400, 2),
    2,
    vocab_size=4,
    transform=contexts.coherent_contexts(4, window=2),
  )
  # First come two tokens, then four, each equally often: 100 +- 4 errors.
  assert set(tokens[:, 0]) == {0, 1}
  counts = np.bincount(tokens[:, 1], minlength=4)
  np.testing.assert_allclose(counts, 100, atol=4 * np.sqrt(400 * 0.1875))


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"window": 0}, "window must be"),
    ({"b_min": 0}, "b_min must be"),
    ({"b_min": 3, "b_max": 2}, "b_max must be"),
    ({"b_min": 2, "b_max": 4, "v_top": 3}, "v_top must be"),
    ({"tau": float("nan")}, "tau must be"),
    ({"stored_tokens": 0}, "stored_tokens must be"),
  ],
)
def test_bad_argument_is_an_error(kwargs, message):
  with pytest.raises(ValueError, match=message):
    policies.ccd(VOCAB, **kwargs)


@pytest.mark.parametrize("bad", [np.nan, 0.5])
def test_bad_predictions_are_an_error(make_step, bad):
  step = make_step(np.zeros((1, 2), bool))
  policy = policies.ccd(3)
  log_probs = np.log(np.full((1, 2, 3), 1 / 3)) + np.array([0, 0, bad])
  with pytest.raises(ValueError, match="probs must"):
    policy.select(log_probs, policy.init(step.latent.tokens), step)
