"""Keys, carry-over and chains of transforms."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 3, 4, 5


def make_step(seed=0):
  rng = np.random.default_rng(seed)
  revealed = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.5)
  tokens = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  latent = process_lib.Latent(jnp.where(revealed, tokens, 0), revealed)
  return process_lib.Step(
    keys=process_lib.row_keys(jax.random.key(seed), BATCH),
    latent=latent,
    index=jnp.int32(0),
    time=jnp.float32(0.5),
    next_time=jnp.float32(0.25),
    is_last=jnp.bool_(False),
  )


def make_log_probs(step, seed=1):
  logits = np.random.default_rng(seed).normal(size=(BATCH, LENGTH, VOCAB))
  return process_lib.carry_over(
    jnp.asarray(logits, jnp.float32), step.latent.tokens, step.latent.revealed
  )


def scaled(factor):
  """A transform without memory that leaves its output unnormalised."""
  return process_lib.LogitTransform(
    lambda tokens: (), lambda logits, state, step: (logits * factor, state)
  )


def counting():
  """A transform that counts its calls and adds the count to token 0."""

  def update(logits, state, step):
    del step
    return logits.at[:, :, 0].add(state[:, None]), state + 1.0

  return process_lib.LogitTransform(
    lambda tokens: jnp.zeros(tokens.shape[0]), update
  )


def noisy():
  def update(logits, state, step):
    noise = jax.vmap(lambda key: jax.random.normal(key, logits.shape[1:]))
    return logits + noise(step.keys), state

  return process_lib.LogitTransform(lambda tokens: (), update)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_carry_over_equals_numpy_log_softmax_where_hidden(dtype):
  step = make_step()
  logits = np.random.default_rng(2).normal(size=(BATCH, LENGTH, VOCAB)) * 5
  logits = jnp.asarray(logits, dtype)
  got = process_lib.carry_over(logits, step.latent.tokens, step.latent.revealed)
  x = np.asarray(logits, np.float64)
  expected = x - np.log(np.exp(x).sum(-1, keepdims=True))
  revealed = np.asarray(step.latent.revealed)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(
    np.asarray(got)[~revealed], expected[~revealed], rtol=0, atol=2e-6
  )
  certain = np.where(np.eye(VOCAB, dtype=bool), 0.0, -np.inf)
  np.testing.assert_array_equal(
    np.asarray(got)[revealed],
    certain[np.asarray(step.latent.tokens)[revealed]],
  )


def test_row_key_does_not_depend_on_the_batch_size():
  few = process_lib.row_keys(jax.random.key(3), 2)
  many = process_lib.row_keys(jax.random.key(3), 7)
  data = jax.random.key_data(many)
  np.testing.assert_array_equal(jax.random.key_data(few), data[:2])
  assert len(np.unique(data, axis=0)) == 7


def test_row_keys_pass_through():
  keys = jax.random.split(jax.random.key(0), 4)
  assert process_lib.row_keys(keys, 4) is keys


def test_row_keys_of_another_number_are_an_error():
  with pytest.raises(ValueError, match=r"one a row \(3,\), got shape \(4,\)"):
    process_lib.row_keys(jax.random.split(jax.random.key(0), 4), 3)


@pytest.mark.parametrize("key", [0, np.zeros(2, np.uint32), jnp.zeros(2)])
def test_a_key_that_is_not_typed_is_an_error(key):
  with pytest.raises(TypeError, match="must be a typed key"):
    process_lib.row_keys(key, 2)


def test_folded_rows_differ_from_row_to_row_and_fold_to_fold():
  keys = process_lib.row_keys(jax.random.key(0), 5)
  data = np.concatenate(
    [jax.random.key_data(process_lib.fold_rows(keys, i)) for i in range(4)]
  )
  assert len(np.unique(data, axis=0)) == 20


def test_row_values_repeats_one_number_and_keeps_one_a_row():
  np.testing.assert_array_equal(
    process_lib.row_values("sigma", 0.5, 3), np.full(3, 0.5, np.float32)
  )
  np.testing.assert_array_equal(
    process_lib.row_values("sigma", np.arange(3), 3),
    np.arange(3, dtype=np.float32),
  )


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 1)])
def test_row_values_of_another_shape_are_an_error(shape):
  with pytest.raises(ValueError, match="sigma must be one number or one a row"):
    process_lib.row_values("sigma", np.ones(shape), 3)


def test_identity_and_the_empty_chain_change_nothing():
  step = make_step()
  log_probs = make_log_probs(step)
  for transform in (process_lib.identity(), process_lib.chain()):
    got, state = transform.update(
      log_probs, transform.init(step.latent.tokens), step
    )
    assert got is log_probs
    assert state == ()


def test_chain_applies_its_members_from_left_to_right():
  step = make_step()
  log_probs = make_log_probs(step)
  both = process_lib.chain(scaled(2.0), counting())
  state = both.init(step.latent.tokens)
  _, state = both.update(log_probs, state, step)
  got, state = both.update(log_probs, state, step)
  hidden = ~np.asarray(step.latent.revealed)
  # The second member sees normalised log-probabilities, on its second call.
  x = 2.0 * np.asarray(log_probs, np.float64)
  expected = x - np.log(np.exp(x).sum(-1, keepdims=True))
  expected[..., 0] += 1.0
  np.testing.assert_allclose(
    np.asarray(got)[hidden], expected[hidden], rtol=0, atol=2e-6
  )
  assert state[0] == ()
  np.testing.assert_array_equal(state[1], np.full(BATCH, 2.0))


def test_member_sees_carry_over_even_if_the_one_before_broke_it():
  step = make_step()
  seen = []

  def update(logits, state, step):
    del step
    seen.append(logits)
    return logits, state

  spy = process_lib.LogitTransform(lambda tokens: (), update)
  both = process_lib.chain(scaled(0.0), spy)
  both.update(make_log_probs(step), both.init(step.latent.tokens), step)
  revealed = np.asarray(step.latent.revealed)
  (logits,) = np.asarray(seen)
  certain = np.where(np.eye(VOCAB, dtype=bool), 0.0, -np.inf)
  np.testing.assert_array_equal(
    logits[revealed], certain[np.asarray(step.latent.tokens)[revealed]]
  )
  np.testing.assert_allclose(
    logits[~revealed], -np.log(VOCAB), rtol=0, atol=1e-6
  )


def test_members_of_a_chain_draw_different_numbers():
  step = make_step()
  step = dataclasses.replace(
    step,
    latent=process_lib.Latent(
      step.latent.tokens, jnp.zeros_like(step.latent.revealed)
    ),
  )
  flat = jnp.zeros((BATCH, LENGTH, VOCAB))
  once = process_lib.chain(noisy())
  first, _ = once.update(flat, once.init(step.latent.tokens), step)
  twice = process_lib.chain(process_lib.identity(), noisy())
  second, _ = twice.update(flat, twice.init(step.latent.tokens), step)
  assert np.abs(np.asarray(first) - np.asarray(second)).min() > 1e-6


def test_chain_of_chains_has_nested_memory():
  nested = process_lib.chain(
    counting(), process_lib.chain(counting(), scaled(1.0))
  )
  state = nested.init(jnp.zeros((BATCH, LENGTH), jnp.int32))
  assert len(jax.tree.leaves(state)) == 2
  step = make_step()
  _, state = nested.update(make_log_probs(step), state, step)
  for leaf in jax.tree.leaves(state):
    np.testing.assert_array_equal(leaf, np.ones(BATCH))


def test_step_and_latent_are_pytrees():
  step = make_step()
  doubled = jax.jit(lambda s: dataclasses.replace(s, index=s.index + 1))(step)
  assert int(doubled.index) == 1
  assert doubled.latent.sigma is None
