"""The sampler: prompts, memories, policies, counts and the law it samples."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, continuous, mdlm, sampling
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB, STEPS = 4, 6, 5, 20

PROCESSES = {
  "mdlm": mdlm.process(VOCAB),
  "candi": candi.process(VOCAB),
  "continuous": continuous.process(VOCAB),
}
every_process = pytest.mark.parametrize("name", PROCESSES)


def denoise(latent, t):
  """A network that looks at everything a latent shows, row by row."""
  logits = jnp.sin(
    (latent.tokens + 1.0)[..., None] * jnp.arange(1.0, VOCAB + 1)[None, None]
  )
  logits = jnp.where(latent.revealed[..., None], logits, 0.3)
  if latent.values is not None:
    logits = logits + latent.values / latent.sigma[:, None, None]
  context = jnp.mean(logits, axis=1, keepdims=True)
  return logits + jnp.roll(logits, 1, axis=1) + context + t[:, None, None]


def flat(latent, t):
  del t
  return jnp.zeros((*latent.tokens.shape, VOCAB))


def history():
  """Makes a row's next tokens depend on all earlier calls of that row."""

  def update(logits, state, step):
    biased = logits + 3.0 * jnp.cos(state)[:, None]
    hidden = ~step.latent.revealed[..., None]
    mean = jnp.mean(jnp.where(hidden, logits, 0.0), axis=1)
    noise = jax.vmap(lambda key: jax.random.normal(key, (VOCAB,)))(step.keys)
    return biased, state + mean + noise

  return process_lib.LogitTransform(
    lambda tokens: jnp.zeros((tokens.shape[0], VOCAB)), update
  )


def one_by_one():
  """Commits, greedily, the hidden position the network is surest of."""

  def select(log_probs, state, step):
    top = jnp.max(log_probs, axis=-1)
    score = jnp.where(step.latent.revealed, -jnp.inf, top)
    position = jnp.argmax(score, axis=1)
    commit = jnp.arange(log_probs.shape[1])[None] == position[:, None]
    tokens = jnp.argmax(log_probs, axis=-1).astype(jnp.int32)
    return process_lib.Selection(commit, tokens), state + 1

  return process_lib.UnmaskingPolicy(
    lambda tokens: jnp.zeros(tokens.shape[0], jnp.int32), select, True
  )


def left_to_right():
  """Commits one position a step in a fixed order, blind to predictions."""

  def select(log_probs, state, step):
    assert log_probs is None
    length = step.latent.tokens.shape[1]
    commit = jnp.arange(length)[None] == state[:, None]
    return process_lib.Selection(commit), state + 1

  return process_lib.UnmaskingPolicy(
    lambda tokens: jnp.zeros(tokens.shape[0], jnp.int32), select, False
  )


CALLS = []


def counted(latent, t):
  jax.debug.callback(lambda: CALLS.append(1))
  return denoise(latent, t)


@functools.cache
def compiled(name, looks):
  """One program a process and a kind of policy, for many of the tests."""
  return jax.jit(
    lambda keys, times, prompt, mask: sampling.sample(
      keys,
      PROCESSES[name],
      counted,
      prompt.shape,
      times,
      transform=process_lib.chain(history(), history()),
      policy=one_by_one() if looks else None,
      prompt=prompt,
      prompt_mask=mask,
    ),
    # Programs that take seconds to optimise and milliseconds to run.
    compiler_options={"xla_backend_optimization_level": 0},
  )


def run(name, *, looks=False, seed=0, prompt=None, mask=None, keys=None):
  """Samples, and counts the network calls that were really made."""
  if prompt is None:
    prompt, mask = (
      np.zeros((BATCH, LENGTH), int),
      np.zeros((BATCH, LENGTH), bool),
    )
  if keys is None:
    keys = process_lib.row_keys(jax.random.key(seed), prompt.shape[0])
  CALLS.clear()
  tokens, stats = compiled(name, looks)(
    keys,
    jnp.asarray(sampling.time_grid(STEPS)),
    jnp.asarray(prompt, jnp.int32),
    jnp.asarray(mask),
  )
  jax.effects_barrier()
  return np.asarray(tokens), jax.tree.map(np.asarray, stats), len(CALLS)


@pytest.mark.parametrize("num_steps", [1, 7, 49, 103])
def test_time_grid_has_its_ends_and_even_steps(num_steps):
  grid = sampling.time_grid(num_steps, start=0.999, stop=1e-5)
  assert grid.dtype == np.float32
  assert grid.shape == (num_steps + 1,)
  np.testing.assert_array_equal(grid[[0, -1]], np.float32([0.999, 1e-5]))
  np.testing.assert_allclose(
    np.diff(grid.astype(np.float64)), -0.99899 / num_steps, atol=1.2e-7
  )


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
    ({"num_steps": 2, "start": 0.0}, "start=0.0"),
    ({"num_steps": 2, "start": 1.1}, "start=1.1"),
    ({"num_steps": 2, "stop": -0.1}, "stop=-0.1"),
    ({"num_steps": 2, "start": 0.5, "stop": 0.5}, "stop=0.5"),
    ({"num_steps": 2, "start": float("nan")}, "start=nan"),
  ],
)
def test_time_grid_names_a_bad_argument(kwargs, message):
  with pytest.raises(ValueError, match=message):
    sampling.time_grid(**kwargs)


@pytest.mark.parametrize(
  "times",
  [
    [0.0, 1.0],
    [1.0, 0.5, 0.5, 0.0],
    [1.0, 0.2, 0.3],
    [1.1, 0.0],
    [1.0, -0.1],
    [1.0, float("nan"), 0.0],
    [1.0],
    [[1.0, 0.0]],
    # Two times that are one in float32.
    [1.0, 0.5, 0.5 - 1e-12, 0.0],
  ],
)
def test_times_that_do_not_decrease_are_an_error(times):
  with pytest.raises(ValueError, match="times must"):
    sampling.sample(
      jax.random.key(0), PROCESSES["mdlm"], flat, (1, 2), np.array(times)
    )


@every_process
@pytest.mark.parametrize("looks", [False, True])
def test_prompt_stays_and_tokens_are_in_range(name, looks):
  rng = np.random.default_rng(0)
  for seed in range(5):
    mask = rng.random((BATCH, LENGTH)) < 0.4
    # Outside the mask a prompt may hold anything.
    prompt = np.where(mask, rng.integers(0, VOCAB, mask.shape), -7)
    tokens, stats, _ = run(
      name, looks=looks, seed=seed, prompt=prompt, mask=mask
    )
    assert tokens.dtype == np.int32
    np.testing.assert_array_equal(tokens[mask], prompt[mask])
    assert tokens.min() >= 0
    assert tokens.max() < VOCAB
    np.testing.assert_array_equal(
      np.sum(stats.committed, axis=1), (~mask).sum(axis=1)
    )


@every_process
@pytest.mark.parametrize("looks", [False, True])
def test_fully_revealed_prompt_needs_no_call(name, looks):
  prompt = np.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % VOCAB
  tokens, stats, calls = run(
    name, looks=looks, prompt=prompt, mask=np.ones(prompt.shape, bool)
  )
  np.testing.assert_array_equal(tokens, prompt)
  np.testing.assert_array_equal(stats.nfe, np.zeros(BATCH))
  assert calls == stats.calls == 0


@every_process
def test_calls_are_those_made(name):
  # Only the first row has anything hidden, so it alone decides.
  mask = np.ones((BATCH, LENGTH), bool)
  mask[0, :3] = False
  prompt = np.zeros((BATCH, LENGTH), int)
  for seed in range(5):
    _, stats, calls = run(name, seed=seed, prompt=prompt, mask=mask)
    assert calls == stats.calls == stats.nfe[0]
    np.testing.assert_array_equal(stats.nfe[1:], 0)
    committing = np.flatnonzero(stats.committed[0])
    if name == "mdlm":
      assert calls == len(committing)
    else:
      # The latent moves at each step until all is committed.
      assert calls == committing[-1] + 1
    if name == "continuous":
      assert calls == STEPS


@every_process
@pytest.mark.parametrize("looks", [False, True])
def test_row_does_not_feel_the_other_rows(name, looks):
  # Both runs share their row 1 only; in the second nothing else is hidden.
  rng = np.random.default_rng(1)
  keys = process_lib.row_keys(jax.random.key(5), BATCH)
  other_keys = process_lib.row_keys(jax.random.key(6), BATCH).at[1].set(keys[1])
  prompt = rng.integers(0, VOCAB, (BATCH, LENGTH))
  mask = np.arange(LENGTH) < np.array([0, 2, 5, LENGTH])[:, None]
  alone = mask | (np.arange(BATCH) != 1)[:, None]
  tokens, stats, _ = run(name, looks=looks, keys=keys, prompt=prompt, mask=mask)
  again, again_stats, calls = run(
    name, looks=looks, keys=other_keys, prompt=prompt, mask=alone
  )
  np.testing.assert_array_equal(tokens[1], again[1])
  np.testing.assert_array_equal(stats.nfe[1], again_stats.nfe[1])
  np.testing.assert_array_equal(stats.committed[1], again_stats.committed[1])
  assert calls == again_stats.nfe[1]
  assert stats.calls >= stats.nfe.max()


@pytest.mark.parametrize("name", ["mdlm", "candi"])
def test_batch_equals_its_rows_one_by_one(name):
  rng = np.random.default_rng(2)
  keys = process_lib.row_keys(jax.random.key(7), BATCH)
  prompt = rng.integers(0, VOCAB, (BATCH, LENGTH))
  mask = rng.random((BATCH, LENGTH)) < np.linspace(0, 1, BATCH)[:, None]
  tokens, stats, _ = run(name, keys=keys, prompt=prompt, mask=mask)
  for b in range(BATCH):
    row = slice(b, b + 1)
    one, one_stats, calls = run(
      name, keys=keys[row], prompt=prompt[row], mask=mask[row]
    )
    np.testing.assert_array_equal(tokens[row], one)
    np.testing.assert_array_equal(stats.nfe[row], one_stats.nfe)
    np.testing.assert_array_equal(stats.committed[row], one_stats.committed)
    assert calls == one_stats.calls == one_stats.nfe[0]


def test_one_key_means_its_row_keys():
  first, _, _ = run("mdlm", keys=jax.random.key(2))
  rows, _, _ = run("mdlm", keys=process_lib.row_keys(jax.random.key(2), BATCH))
  other, _, _ = run("mdlm", keys=jax.random.key(3))
  np.testing.assert_array_equal(first, rows)
  assert np.any(first != other)


@pytest.mark.parametrize(
  ("num_steps", "mean"), [(16, 15.743), (64, 40.641), (256, 56.725)]
)
def test_masked_sampler_needs_the_expected_number_of_calls(num_steps, mean):
  # A step is needed by a row if any of its L = 64 positions falls in it.
  batch, length = 2048, 64
  process = mdlm.process(2, eps=0.0)

  def select(log_probs, state, step):
    selection, state = process.ancestral.select(log_probs, state, step)
    # Tokens of its own: drawing them would take most of the time.
    return selection._replace(tokens=jnp.ones((batch, length), int)), state

  tokens, stats = jax.jit(
    lambda key: sampling.sample(
      key,
      process,
      lambda latent, t: jnp.zeros((batch, length, 2)),
      (batch, length),
      sampling.time_grid(num_steps),
      policy=process.ancestral._replace(select=select),
    )
  )(jax.random.key(num_steps))
  np.testing.assert_array_equal(tokens, 1)
  exact = num_steps * (1 - (1 - 1 / num_steps) ** length)
  assert abs(exact - mean) < 5e-4
  nfe = np.asarray(stats.nfe)
  error = nfe.std(ddof=1) / np.sqrt(batch)
  assert abs(nfe.mean() - exact) < 4 * error
  np.testing.assert_array_equal(np.sum(stats.committed, axis=1), length)
  np.testing.assert_array_equal(nfe, np.sum(np.asarray(stats.committed) > 0, 1))


@every_process
def test_policy_that_looks_commits_one_position_a_step(name):
  _, stats, calls = run(name, looks=True)
  expected = [1] * LENGTH + [0] * (STEPS - LENGTH)
  np.testing.assert_array_equal(stats.committed, np.tile(expected, (BATCH, 1)))
  # The steps after the last commit call nothing.
  np.testing.assert_array_equal(stats.nfe, np.full(BATCH, LENGTH))
  assert calls == stats.calls == LENGTH


def test_last_step_commits_what_the_policy_left():
  _, stats = sampling.sample(
    jax.random.key(0),
    PROCESSES["mdlm"],
    denoise,
    (2, LENGTH),
    sampling.time_grid(3),
    policy=one_by_one(),
  )
  np.testing.assert_array_equal(
    stats.committed, np.tile([1, 1, LENGTH - 2], (2, 1))
  )


def test_tokens_of_a_policy_are_written():
  # Greedy, surest first: replayed with NumPy.
  process = PROCESSES["mdlm"]
  tokens, _ = sampling.sample(
    jax.random.key(0),
    process,
    denoise,
    (1, LENGTH),
    sampling.time_grid(LENGTH),
    policy=one_by_one(),
  )
  known = np.full(LENGTH, -1)
  for step in range(LENGTH):
    revealed = known >= 0
    latent = process_lib.Latent(
      jnp.asarray(np.where(revealed, known, 0)[None], jnp.int32),
      jnp.asarray(revealed[None]),
    )
    t = jnp.full(1, 1 - step / LENGTH)
    x = np.asarray(denoise(latent, t)[0], np.float64)
    x = x - np.log(np.exp(x).sum(-1, keepdims=True))
    score = np.where(revealed, -np.inf, x.max(-1))
    known[score.argmax()] = x[score.argmax()].argmax()
  np.testing.assert_array_equal(tokens[0], known)


def test_policy_sees_the_predictions_before_any_transform():
  # A transform that turns the order round must not change who goes first.
  reverse_order = process_lib.LogitTransform(
    lambda tokens: (), lambda logits, state, step: (-5.0 * logits, state)
  )
  runs = [
    sampling.sample(
      jax.random.key(0),
      PROCESSES["mdlm"],
      denoise,
      (1, LENGTH),
      sampling.time_grid(LENGTH),
      policy=one_by_one(),
      transform=transform,
    )[0]
    for transform in (None, reverse_order)
  ]
  np.testing.assert_array_equal(runs[0], runs[1])


def test_memory_of_a_transform_is_carried():
  # Bans, for a row, each token that it has already seen committed in it.
  def update(logits, state, step):
    del state
    shown = jax.nn.one_hot(step.latent.tokens, VOCAB, dtype=bool)
    used = jnp.any(shown & step.latent.revealed[..., None], axis=1)
    return jnp.where(used[:, None], -jnp.inf, logits), used

  no_repeat = process_lib.LogitTransform(
    lambda tokens: jnp.zeros((tokens.shape[0], VOCAB), bool), update
  )
  tokens, _ = sampling.sample(
    jax.random.key(1),
    PROCESSES["candi"],
    flat,
    (32, VOCAB),
    sampling.time_grid(VOCAB),
    transform=no_repeat,
    policy=left_to_right(),
  )
  np.testing.assert_array_equal(
    np.sort(tokens, axis=1), np.tile(np.arange(VOCAB), (32, 1))
  )


def joint_distribution(seed=0):
  """A strongly dependent law of three tokens out of three."""
  weights = np.random.default_rng(seed).random((3, 3, 3)) ** 4
  return weights / weights.sum()


def exact_conditionals(joint):
  """The exact masked denoiser of a law of three tokens, by enumeration."""
  sequences = np.array(list(itertools.product(range(3), repeat=3)))
  log_joint = jnp.asarray(np.log(joint.reshape(-1)), jnp.float32)
  one_hot = jnp.asarray(np.eye(3)[sequences], jnp.float32)  # [27, 3, 3]

  def denoise_exactly(latent, t):
    del t
    agrees = jnp.asarray(sequences)[None] == latent.tokens[:, None]
    agrees = jnp.all(agrees | ~latent.revealed[:, None], axis=2)
    weights = jax.nn.softmax(
      jnp.where(agrees, log_joint[None], -jnp.inf), axis=1
    )
    return jnp.log(jnp.einsum("bs,slv->blv", weights, one_hot))

  return denoise_exactly


def test_one_position_at_a_time_samples_the_exact_joint():
  joint = joint_distribution()
  batch = 20_000
  tokens, _ = jax.jit(
    lambda key: sampling.sample(
      key,
      mdlm.process(3),
      exact_conditionals(joint),
      (batch, 3),
      sampling.time_grid(3),
      policy=left_to_right(),
    )
  )(jax.random.key(0))
  counts = np.zeros((3, 3, 3))
  np.add.at(counts, tuple(np.asarray(tokens).T), 1)
  chi2 = np.sum((counts - batch * joint) ** 2 / (batch * joint))
  # 26 degrees of freedom: the 1e-4 quantile is 62.
  assert chi2 < 62


def test_one_step_samples_the_product_of_marginals():
  joint = joint_distribution()
  marginals = [joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1))]
  product = np.einsum("i,j,k->ijk", *marginals)
  batch = 20_000
  tokens, stats = jax.jit(
    lambda key: sampling.sample(
      key,
      mdlm.process(3),
      exact_conditionals(joint),
      (batch, 3),
      sampling.time_grid(1),
    )
  )(jax.random.key(0))
  counts = np.zeros((3, 3, 3))
  np.add.at(counts, tuple(np.asarray(tokens).T), 1)
  chi2 = np.sum((counts - batch * product) ** 2 / (batch * product))
  assert chi2 < 62
  np.testing.assert_array_equal(stats.nfe, np.ones(batch))


def test_second_call_of_the_same_shape_is_not_traced():
  @jax.jit
  @chex.assert_max_traces(n=1)
  def run(key, times, prompt, mask):
    return sampling.sample(
      key,
      PROCESSES["candi"],
      denoise,
      (2, LENGTH),
      times,
      prompt=prompt,
      prompt_mask=mask,
    )[0]

  times = jnp.asarray(sampling.time_grid(4))
  prompt = jnp.zeros((2, LENGTH), jnp.int32)
  mask = jnp.zeros((2, LENGTH), bool)
  run(jax.random.key(0), times, prompt, mask)
  run(jax.random.key(1), times * 0.5, prompt + 1, ~mask)


def test_empty_batch_gives_no_rows():
  tokens, stats = sampling.sample(
    jax.random.key(0), PROCESSES["candi"], flat, (0, 3), sampling.time_grid(2)
  )
  assert tokens.shape == (0, 3)
  assert stats.nfe.shape == (0,)


@pytest.mark.parametrize(
  ("prompt", "mask", "error", "message"),
  [
    (np.zeros((2, 3), int), None, ValueError, "given together"),
    (None, np.ones((2, 3), bool), ValueError, "given together"),
    (np.zeros((2, 4), int), np.ones((2, 3), bool), ValueError, "prompt must"),
    (
      np.zeros((2, 3), int),
      np.ones((3,), bool),
      ValueError,
      "prompt_mask must",
    ),
    (np.zeros((2, 3), int), np.ones((2, 3), int), TypeError, "must be bool"),
    (np.zeros((2, 3)), np.ones((2, 3), bool), TypeError, "must be integers"),
    (np.full((2, 3), 5), np.ones((2, 3), bool), ValueError, r"\[0, 5\), got 5"),
    (np.full((2, 3), -1), np.ones((2, 3), bool), ValueError, "got -1"),
  ],
)
def test_bad_prompt_is_an_error(prompt, mask, error, message):
  with pytest.raises(error, match=message):
    sampling.sample(
      jax.random.key(0),
      PROCESSES["mdlm"],
      flat,
      (2, 3),
      sampling.time_grid(2),
      prompt=prompt,
      prompt_mask=mask,
    )


def test_logits_of_another_shape_are_an_error():
  with pytest.raises(ValueError, match=r"logits \(2, 3, 5\), got \(2, 3, 6\)"):
    sampling.sample(
      jax.random.key(0),
      PROCESSES["mdlm"],
      lambda latent, t: jnp.zeros((2, 3, VOCAB + 1)),
      (2, 3),
      sampling.time_grid(2),
    )


@pytest.mark.parametrize("what", ["transform", "policy"])
def test_memory_without_rows_is_an_error(what):
  transform = history()
  policy = one_by_one()
  if what == "transform":
    transform = transform._replace(init=lambda tokens: {"count": jnp.zeros(())})
  else:
    policy = policy._replace(init=lambda tokens: {"count": jnp.zeros(7)})
  with pytest.raises(ValueError, match=f"state of the {what} must have 2 rows"):
    sampling.sample(
      jax.random.key(0),
      PROCESSES["mdlm"],
      flat,
      (2, 3),
      sampling.time_grid(2),
      transform=transform,
      policy=policy,
    )
