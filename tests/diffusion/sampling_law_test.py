"""Which law the sampler draws from, and what transforms and policies change."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.diffusion import candi, mdlm, sampling
from icml26_jax.diffusion import process as process_lib

LENGTH, VOCAB = 6, 5

PROCESSES = {"mdlm": mdlm.process(VOCAB), "candi": candi.process(VOCAB)}


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
