"""The sampler: prompts, memories, policies, counts and the law it samples."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, continuous, mdlm, sampling
from icml26_jax.diffusion import process as process_lib

VOCAB, LENGTH = 5, 6

PROCESSES = {
  "mdlm": mdlm.process(VOCAB),
  "candi": candi.process(VOCAB),
  "candi_mean": candi.process(VOCAB, x0_mode="mean"),
  "candi_release": candi.process(VOCAB, update="release"),
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
def test_prompt_stays_and_tokens_are_in_range(name):
  rng = np.random.default_rng(0)
  mask = rng.random((16, LENGTH)) < 0.4
  # Outside the mask a prompt may hold anything.
  prompt = np.where(mask, rng.integers(0, VOCAB, mask.shape), -7)
  tokens, stats = jax.jit(
    lambda key: sampling.sample(
      key,
      PROCESSES[name],
      denoise,
      mask.shape,
      sampling.time_grid(5),
      prompt=prompt,
      prompt_mask=mask,
    )
  )(jax.random.key(0))
  tokens = np.asarray(tokens)
  assert tokens.dtype == np.int32
  np.testing.assert_array_equal(tokens[mask], prompt[mask])
  assert tokens.min() >= 0
  assert tokens.max() < VOCAB
  np.testing.assert_array_equal(
    np.sum(stats.committed, axis=1), (~mask).sum(axis=1)
  )


@every_process
def test_fully_revealed_prompt_needs_no_call(name):
  calls = []

  def counted(latent, t):
    jax.debug.callback(lambda: calls.append(1))
    return flat(latent, t)

  prompt = jnp.arange(2 * LENGTH).reshape(2, LENGTH) % VOCAB
  tokens, stats = sampling.sample(
    jax.random.key(0),
    PROCESSES[name],
    counted,
    prompt.shape,
    sampling.time_grid(3),
    prompt=prompt,
    prompt_mask=jnp.ones(prompt.shape, bool),
  )
  jax.effects_barrier()
  np.testing.assert_array_equal(tokens, prompt)
  np.testing.assert_array_equal(stats.nfe, [0, 0])
  assert int(stats.calls) == 0
  assert not calls


@every_process
def test_calls_are_those_made(name):
  calls = []

  def counted(latent, t):
    jax.debug.callback(lambda: calls.append(1))
    return flat(latent, t)

  _, stats = sampling.sample(
    jax.random.key(0), PROCESSES[name], counted, (1, 3), sampling.time_grid(24)
  )
  jax.effects_barrier()
  assert int(stats.calls) == len(calls) == int(stats.nfe[0])
  if name == "mdlm":
    assert len(calls) <= 3
  if name == "continuous":
    assert len(calls) == 24


@every_process
@pytest.mark.parametrize("looks", [False, True])
def test_batch_equals_its_rows_one_by_one(name, looks):
  batch, steps = 4, 20
  keys = process_lib.row_keys(jax.random.key(5), batch)
  run = jax.jit(
    lambda keys, prompt, mask: sampling.sample(
      keys,
      PROCESSES[name],
      denoise,
      prompt.shape,
      sampling.time_grid(steps),
      transform=process_lib.chain(history(), history()),
      policy=one_by_one() if looks else None,
      prompt=prompt,
      prompt_mask=mask,
    )
  )
  rng = np.random.default_rng(1)
  prompt = jnp.asarray(rng.integers(0, VOCAB, (batch, LENGTH)), jnp.int32)
  # Rows of very different need, the last of none.
  mask = jnp.arange(LENGTH)[None] < jnp.array([0, 2, 5, LENGTH])[:, None]
  tokens, stats = run(keys, prompt, mask)
  for b in range(batch):
    row = slice(b, b + 1)
    one, one_stats = run(keys[row], prompt[row], mask[row])
    np.testing.assert_array_equal(tokens[row], one)
    np.testing.assert_array_equal(stats.nfe[row], one_stats.nfe)
    np.testing.assert_array_equal(stats.committed[row], one_stats.committed)
    assert int(one_stats.calls) == int(one_stats.nfe[0])
  assert int(stats.calls) >= int(np.max(stats.nfe))


def test_one_key_means_its_row_keys():
  run = jax.jit(
    lambda key: sampling.sample(
      key, PROCESSES["candi"], denoise, (3, LENGTH), sampling.time_grid(4)
    )[0]
  )
  np.testing.assert_array_equal(
    run(jax.random.key(2)), run(process_lib.row_keys(jax.random.key(2), 3))
  )
  assert np.any(
    np.asarray(run(jax.random.key(2))) != np.asarray(run(jax.random.key(3)))
  )


@pytest.mark.parametrize(
  ("num_steps", "mean"), [(16, 15.743), (64, 40.641), (256, 56.725)]
)
def test_masked_sampler_needs_the_expected_number_of_calls(num_steps, mean):
  # A step is needed by a row if any of its L = 64 positions falls in it.
  batch, length = 2048, 64
  process = mdlm.process(2, eps=0.0)
  _, stats = jax.jit(
    lambda key: sampling.sample(
      key,
      process,
      lambda latent, t: jnp.zeros((batch, length, 2)),
      (batch, length),
      sampling.time_grid(num_steps),
    )
  )(jax.random.key(num_steps))
  exact = num_steps * (1 - (1 - 1 / num_steps) ** length)
  assert abs(exact - mean) < 5e-4
  nfe = np.asarray(stats.nfe)
  error = nfe.std(ddof=1) / np.sqrt(batch)
  assert abs(nfe.mean() - exact) < 4 * error
  np.testing.assert_array_equal(np.sum(stats.committed, axis=1), length)
  np.testing.assert_array_equal(nfe, np.sum(np.asarray(stats.committed) > 0, 1))


@every_process
def test_policy_that_looks_commits_one_position_a_step(name):
  tokens, stats = sampling.sample(
    jax.random.key(0),
    PROCESSES[name],
    denoise,
    (2, LENGTH),
    sampling.time_grid(LENGTH + 4),
    policy=one_by_one(),
  )
  expected = np.tile([1] * LENGTH + [0] * 4, (2, 1))
  np.testing.assert_array_equal(stats.committed, expected)
  # The four steps after the last commit call nothing.
  np.testing.assert_array_equal(stats.nfe, [LENGTH, LENGTH])
  assert int(stats.calls) == LENGTH
  assert np.asarray(tokens).min() >= 0


@every_process
def test_last_step_commits_what_the_policy_left(name):
  _, stats = sampling.sample(
    jax.random.key(0),
    PROCESSES[name],
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
  for name in ("mdlm", "candi"):
    tokens, _ = sampling.sample(
      jax.random.key(1),
      PROCESSES[name],
      flat,
      (32, VOCAB),
      sampling.time_grid(VOCAB),
      transform=no_repeat,
      policy=left_to_right(),
    )
    np.testing.assert_array_equal(
      np.sort(tokens, axis=1), np.tile(np.arange(VOCAB), (32, 1))
    )


def test_blind_policy_in_a_fixed_order_costs_one_call_a_position():
  _, stats = sampling.sample(
    jax.random.key(1),
    PROCESSES["mdlm"],
    flat,
    (2, LENGTH),
    sampling.time_grid(2 * LENGTH),
    policy=left_to_right(),
  )
  np.testing.assert_array_equal(stats.nfe, [LENGTH, LENGTH])


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
