"""The sampler: prompts, rows, counts of calls, memories and bad arguments."""

import functools

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
