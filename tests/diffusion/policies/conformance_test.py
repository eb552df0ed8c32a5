"""What every unmasking policy must do; a row of POLICIES a policy."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, mdlm, policies, sampling, transforms
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB, STEPS = 4, 6, 5, 4
UNOPTIMISED = {"xla_backend_optimization_level": 0}

# Made for a vocabulary, so that a vocabulary of one token can be tried.
POLICIES = {
  "ancestral": lambda v: mdlm.ancestral_policy(lambda t: 1.0 - t),
  "random": lambda v: policies.random(),
  "top_prob": lambda v: policies.top_prob(),
  "neg_entropy": lambda v: policies.neg_entropy(),
  "margin": lambda v: policies.margin(tokens_per_step=2),
  "threshold": lambda v: policies.threshold(0.5),
  "factor": lambda v: policies.factor(1.0),
  "ccd_uniform": lambda v: policies.ccd(v, b_min=2, b_max=2),
  "ccd_adaptive": lambda v: policies.ccd(v, window=2, b_max=3, tau=1.0),
  "ccd_compressed": lambda v: policies.ccd(v, window=3, stored_tokens=2),
  "agreement": lambda v: policies.agreement(),
  "agreement_uniform": lambda v: policies.agreement(
    tokens_per_step=2, dynamic=False, greedy=False
  ),
  "commit_last": lambda v: policies.commit_last(policies.top_prob(), v - 1),
  "commit_last_random": lambda v: policies.commit_last(
    policies.random(), v - 1
  ),
}
# These may leave a step without a commit.
IDLE = {"ancestral"}
every_policy = pytest.mark.parametrize("name", POLICIES)


def inputs(seed=0):
  """Keys, which positions are revealed, and the logits of all steps."""
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(STEPS, BATCH, LENGTH, VOCAB), scale=2)
  # Steps that agree in part, so that memories matter.
  logits[1:] = 0.6 * logits[1:] + 0.8 * logits[:1]
  return (
    process_lib.row_keys(jax.random.key(seed), BATCH),
    jnp.asarray(rng.random((BATCH, LENGTH)) < 0.3),
    jnp.asarray(logits, jnp.float32),
  )


def make_step(keys, revealed, *, index=0):
  return process_lib.Step(
    keys,
    process_lib.Latent(jnp.zeros(revealed.shape, jnp.int32), revealed),
    jnp.int32(index),
    jnp.float32(1.0 - index / STEPS),
    jnp.float32(1.0 - (index + 1) / STEPS),
    jnp.bool_(False),
  )


def run(keys, revealed, logits, *, policy):
  """Steps on given logits: `[N, B, L]` commits, tokens where it gives them."""
  state = policy.init(jnp.zeros(revealed.shape, jnp.int32))
  commits, tokens = [], []
  for i in range(STEPS):
    step = make_step(process_lib.fold_rows(keys, i), revealed, index=i)
    log_probs = process_lib.carry_over(
      logits[i], step.latent.tokens, step.latent.revealed
    )
    selection, state = policy.select(
      log_probs if policy.uses_predictions else None, state, step
    )
    commit = selection.commit & ~revealed
    revealed = revealed | commit
    commits.append(commit)
    written = selection.tokens
    tokens.append(
      jnp.zeros_like(commit, jnp.int32)
      if written is None
      else jnp.where(commit, written, 0)
    )
  return jnp.stack(commits), jnp.stack(tokens)


TRACES = collections.Counter()


@functools.cache
def compiled(name):
  policy = POLICIES[name](VOCAB)

  def counted(*arguments):
    TRACES[name] += 1
    return run(*arguments, policy=policy)

  return jax.jit(counted, compiler_options=UNOPTIMISED)


def assert_same(got, expected):
  jax.tree.map(np.testing.assert_array_equal, got, expected)


@every_policy
def test_state_comes_from_shapes_and_keeps_its_types(name):
  policy = POLICIES[name](VOCAB)
  keys, revealed, logits = inputs()
  start = jax.eval_shape(
    policy.init, jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
  )
  selection, end = jax.eval_shape(
    policy.select, logits[0], start, make_step(keys, revealed)
  )
  assert jax.tree.structure(start) == jax.tree.structure(end)
  for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(end), strict=True):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert a.shape[0] == BATCH
  assert selection.commit.shape == (BATCH, LENGTH)
  assert selection.commit.dtype == jnp.bool_
  if selection.tokens is not None:
    assert selection.tokens.dtype == jnp.int32


@every_policy
@pytest.mark.parametrize(
  ("shape", "vocab_size", "share"),
  [
    ((40, LENGTH), VOCAB, 0.5),
    ((BATCH, LENGTH), VOCAB, 1.0),
    ((BATCH, LENGTH), VOCAB, 0.0),
    ((BATCH, 1), VOCAB, 1.0),
    ((BATCH, LENGTH), 1, 1.0),
  ],
  ids=["some", "all_masked", "none_masked", "one_position", "one_token"],
)
def test_only_hidden_positions_and_at_least_one(name, shape, vocab_size, share):
  rng = np.random.default_rng(1)
  hidden = rng.random(shape) < share
  keys = process_lib.row_keys(jax.random.key(0), shape[0])
  step = make_step(keys, jnp.asarray(~hidden))
  log_probs = process_lib.carry_over(
    jnp.asarray(rng.normal(size=(*shape, vocab_size)), jnp.float32),
    step.latent.tokens,
    step.latent.revealed,
  )
  policy = POLICIES[name](vocab_size)
  selection, _ = policy.select(log_probs, policy.init(step.latent.tokens), step)
  commit = np.asarray(selection.commit)
  assert not np.any(commit & ~hidden)
  if name not in IDLE:
    np.testing.assert_array_equal(commit.any(axis=1), hidden.any(axis=1))
  if selection.tokens is not None:
    tokens = np.asarray(selection.tokens)
    assert tokens.min() >= 0
    assert tokens.max() < vocab_size


@every_policy
def test_second_call_is_not_traced_and_jit_equals_eager(name):
  got = compiled(name)(*inputs(3))
  compiled(name)(*inputs(4))
  assert TRACES[name] == 1
  assert_same(got, run(*inputs(3), policy=POLICIES[name](VOCAB)))


@every_policy
def test_vmap_equals_a_loop(name):
  many = [inputs(seed) for seed in (5, 6)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
  got = jax.jit(
    jax.vmap(functools.partial(run, policy=POLICIES[name](VOCAB))),
    compiler_options=UNOPTIMISED,
  )(*stacked)
  for i, arguments in enumerate(many):
    assert_same(
      jax.tree.map(lambda leaf, i=i: leaf[i], got), compiled(name)(*arguments)
    )


@every_policy
def test_batch_equals_its_rows(name):
  keys, revealed, logits = inputs(7)
  got = compiled(name)(keys, revealed, logits)
  for b in (0, BATCH - 1):
    row = slice(b, b + 1)
    alone = run(
      keys[row], revealed[row], logits[:, row], policy=POLICIES[name](VOCAB)
    )
    assert_same(jax.tree.map(lambda leaf, row=row: leaf[:, row], got), alone)


def denoise(latent, t):
  known = jax.nn.one_hot(latent.tokens, VOCAB) * latent.revealed[..., None]
  if latent.values is not None:
    known = known + latent.values / (1.0 + latent.sigma)[:, None, None]
  mixed = jnp.roll(known, 1, axis=1) + jnp.mean(known, axis=1, keepdims=True)
  weights = jnp.sin(jnp.arange(1.0, VOCAB**2 + 1)).reshape(VOCAB, VOCAB)
  return 3.0 * jnp.matmul(1.0 + mixed, weights) + t[:, None, None]


@pytest.mark.parametrize(
  ("name", "process"),
  [(name, mdlm.process(VOCAB)) for name in POLICIES]
  + [(name, candi.process(VOCAB)) for name in ("ccd_adaptive", "agreement")],
)
def test_all_is_committed_and_the_prompt_stays(name, process):
  rng = np.random.default_rng(2)
  prompt = rng.integers(0, VOCAB, (BATCH, LENGTH))
  mask = rng.random((BATCH, LENGTH)) < np.linspace(0, 1, BATCH)[:, None]

  @functools.partial(jax.jit, compiler_options=UNOPTIMISED)
  def sample(key):
    return sampling.sample(
      key,
      process,
      denoise,
      prompt.shape,
      sampling.time_grid(STEPS),
      transform=transforms.top_p(0.9),
      policy=POLICIES[name](VOCAB),
      prompt=jnp.asarray(prompt),
      prompt_mask=jnp.asarray(mask),
    )

  tokens, stats = jax.tree.map(np.asarray, sample(jax.random.key(0)))
  np.testing.assert_array_equal(tokens[mask], prompt[mask])
  np.testing.assert_array_equal(
    stats.committed.sum(axis=1), (~mask).sum(axis=1)
  )
  assert tokens.min() >= 0
  assert tokens.max() < VOCAB
