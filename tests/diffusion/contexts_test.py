"""Histories of predictions, their mean and the split of its entropy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import contexts
from icml26_jax.diffusion import process as process_lib

ROWS, LENGTH, VOCAB = 2, 3, 6


def numpy_entropy(p):
  return -np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1)


def draw(rng, count, vocab_size=VOCAB):
  """`count` steps of predictions, with exact zeros among them."""
  p = rng.dirichlet(np.full(vocab_size, 0.2), size=(count, ROWS, LENGTH))
  p = np.where(p < 0.02, 0.0, p)
  return (p / p.sum(-1, keepdims=True)).astype(np.float32)


def filled(history, window, **kwargs):
  buffer = contexts.init_buffer(
    ROWS, window, LENGTH, history.shape[-1], **kwargs
  )
  masked = jnp.ones((ROWS, LENGTH), bool)
  for p in history:
    buffer = contexts.push(buffer, jnp.asarray(p), masked)
  return buffer


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_mean_and_latest_are_those_of_the_last_steps(window, count):
  history = draw(np.random.default_rng(count), count)
  buffer = filled(history, window)
  expected = history[-window:].astype(np.float64).mean(axis=0)
  np.testing.assert_allclose(contexts.marginal(buffer), expected, atol=2e-7)
  np.testing.assert_array_equal(contexts.latest(buffer), history[-1])
  assert buffer.count.tolist() == [min(count, window)] * ROWS


def test_rows_may_have_stepped_differently_often():
  history = draw(np.random.default_rng(0), 3)
  buffer = filled(history, 3)
  fewer = dataclasses.replace(buffer, count=jnp.array([1, 3]))
  got = contexts.marginal(fewer)
  np.testing.assert_array_equal(got[0], history[2, 0])
  np.testing.assert_allclose(
    got[1], history[:, 1].astype(np.float64).mean(0), atol=2e-7
  )
  mean, information = contexts.entropy_split(fewer)
  np.testing.assert_allclose(
    mean[0], numpy_entropy(history[2, 0].astype(np.float64)), atol=1e-6
  )
  np.testing.assert_allclose(information[0], 0.0, atol=1e-7)


def test_buffer_without_a_step_has_no_mean_and_no_entropy():
  buffer = contexts.init_buffer(ROWS, 2, LENGTH, VOCAB)
  assert not np.any(contexts.marginal(buffer))
  for part in contexts.entropy_split(buffer):
    np.testing.assert_array_equal(part, 0.0)


@pytest.mark.parametrize("window", [1, 3, 4])
@pytest.mark.parametrize("count", [2, 5])
def test_entropy_of_the_mean_is_mean_entropy_plus_information(window, count):
  history = draw(np.random.default_rng(10 + count), count)
  buffer = filled(history, window)
  mean, information = contexts.entropy_split(buffer)
  recent = history[-window:].astype(np.float64)
  np.testing.assert_allclose(mean, numpy_entropy(recent).mean(0), atol=1e-6)
  np.testing.assert_allclose(
    np.asarray(mean) + np.asarray(information),
    numpy_entropy(recent.mean(0)),
    atol=1e-6,
  )
  bound = np.log(min(window, VOCAB))
  assert np.asarray(information).min() >= 0
  assert np.asarray(information).max() <= bound + 1e-6


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4), (3, 1, 7)])
def test_split_is_exact_in_float64(shape):
  rng = np.random.default_rng(0)
  with jax.enable_x64(True):
    p = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
    p[..., 0, 0] = 0.0
    p /= p.sum(-1, keepdims=True)
    w = rng.dirichlet(np.ones(shape[-2]), size=shape[:-2])
    mean, divergence = contexts.jensen_shannon_split(
      jnp.asarray(p), jnp.asarray(w)
    )
    mixture = np.einsum("...k,...kv->...v", w, p)
    np.testing.assert_allclose(
      mean, np.einsum("...k,...k->...", w, numpy_entropy(p)), atol=1e-14
    )
    np.testing.assert_allclose(
      np.asarray(mean) + np.asarray(divergence),
      numpy_entropy(mixture),
      atol=1e-14,
    )


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_disjoint_certainties_disagree_by_the_log_of_their_number(steps):
  p = jnp.eye(6)[:steps]
  mean, divergence = contexts.jensen_shannon_split(
    p, jnp.full(steps, 1 / steps)
  )
  assert mean == 0.0
  np.testing.assert_allclose(divergence, np.log(steps), atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_divergence_is_zero_only_for_one_distribution(steps):
  rng = np.random.default_rng(steps)
  p = jnp.asarray(rng.dirichlet(np.ones(9)), jnp.float32)
  same = jnp.tile(p[None], (steps, 1))
  _, divergence = contexts.jensen_shannon_split(
    same, jnp.full(steps, 1 / steps)
  )
  # The mixture of equals is off by some eps, and the divergence by its square.
  assert 0.0 <= float(divergence) < 1e-12
  moved = same.at[0, :2].add(jnp.array([1e-2, -1e-2]) * p[1])
  _, divergence = contexts.jensen_shannon_split(
    moved, jnp.full(steps, 1 / steps)
  )
  assert float(divergence) > 1e-8 or steps == 1


@pytest.mark.parametrize("stored", [1, 3, 5])
def test_compressed_history_spreads_what_it_does_not_store(stored):
  history = draw(np.random.default_rng(4), 3).astype(np.float64)
  buffer = filled(history.astype(np.float32), 3, stored_tokens=stored)
  assert buffer.probs.shape == (ROWS, 3, LENGTH, stored)
  kept = np.zeros_like(history)
  for index in np.ndindex(history.shape[:-1]):
    p = history[index]
    top = np.argsort(-p, kind="stable")[:stored]
    kept[index] = (1 - p[top].sum()) / (VOCAB - stored)
    kept[index][top] = p[top]
  mean = kept.mean(axis=0)
  np.testing.assert_allclose(contexts.marginal(buffer), mean, atol=5e-7)
  entropies, information = contexts.entropy_split(buffer)
  np.testing.assert_allclose(
    entropies, numpy_entropy(np.maximum(kept, 0)).mean(0), atol=5e-6
  )
  np.testing.assert_allclose(
    np.asarray(entropies) + np.asarray(information),
    numpy_entropy(np.maximum(mean, 0)),
    atol=5e-6,
  )


@pytest.mark.parametrize("stored", [VOCAB, VOCAB + 3])
def test_all_tokens_stored_is_the_full_history(stored):
  history = draw(np.random.default_rng(5), 2)
  buffer = filled(history, 2, stored_tokens=stored)
  assert buffer.tokens is None
  np.testing.assert_array_equal(
    contexts.marginal(buffer), contexts.marginal(filled(history, 2))
  )


@pytest.mark.parametrize("v_top", [None, 1, 2])
def test_surest_hidden_positions_are_listed(v_top):
  p = jnp.asarray([[[0.9, 0.1], [0.6, 0.4], [0.8, 0.2]]])
  masked = jnp.array([[False, True, True]])
  buffer = contexts.init_buffer(1, 2, 3, 2)
  buffer = contexts.push(buffer, p, masked, v_top=v_top)
  assert buffer.listed[0, 1].tolist() == [False, v_top != 1, True]
  assert not np.any(buffer.listed[0, 0])


@pytest.mark.parametrize("stored", [None, 4])
def test_transform_averages_the_calls_and_keeps_revealed_positions(stored):
  transform = contexts.coherent_contexts(VOCAB, window=2, stored_tokens=stored)
  revealed = jnp.array([[True, False, False]] * ROWS)
  tokens = jnp.full((ROWS, LENGTH), 3) * revealed
  step = process_lib.Step(
    process_lib.row_keys(jax.random.key(0), ROWS),
    process_lib.Latent(tokens, revealed),
    0,
    1.0,
    0.5,
    False,
  )
  rng = np.random.default_rng(6)
  state = transform.init(tokens)
  seen = []
  for _ in range(3):
    log_probs = process_lib.carry_over(
      jnp.asarray(rng.normal(size=(ROWS, LENGTH, VOCAB)), jnp.float32),
      tokens,
      revealed,
    )
    seen.append(np.exp(np.asarray(log_probs, np.float64)))
    got, state = transform.update(log_probs, state, step)
    np.testing.assert_array_equal(got[:, 0], log_probs[:, 0])
    if stored is None:
      np.testing.assert_allclose(
        np.exp(got)[:, 1:], np.mean(seen[-2:], axis=0)[:, 1:], atol=3e-7
      )
    else:
      np.testing.assert_allclose(np.exp(got).sum(-1), 1.0, atol=1e-6)


def test_gradients_are_finite_at_zeros_and_at_equal_predictions():
  def total(p):
    weights = jnp.full(p.shape[0], 1 / p.shape[0])
    return sum(contexts.jensen_shannon_split(p, weights))

  for p in (
    jnp.eye(3),
    jnp.tile(jnp.array([[0.5, 0.5, 0.0]]), (2, 1)),
    jnp.ones((2, 1)),
  ):
    assert np.all(np.isfinite(jax.grad(total)(p)))


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"window": 0}, "window must be"),
    ({"vocab_size": 0}, "vocab_size must be"),
    ({"stored_tokens": 0}, "stored_tokens must be"),
  ],
)
def test_bad_size_is_an_error(kwargs, message):
  arguments = {"batch_size": 1, "window": 2, "length": 3, "vocab_size": 4}
  with pytest.raises(ValueError, match=message):
    contexts.init_buffer(**(arguments | kwargs))
  if "window" in kwargs:
    with pytest.raises(ValueError, match=message):
      contexts.coherent_contexts(4, window=0)


@pytest.mark.parametrize(
  ("probs", "masked", "message"),
  [
    (np.full((1, 3, 4), 0.26), np.ones((1, 3), bool), "sum to 1"),
    (np.full((1, 3, 4), np.nan), np.ones((1, 3), bool), "probs must"),
    (np.full((1, 3, 4), [-0.5, 0.5, 0.5, 0.5]), np.ones((1, 3), bool), "probs"),
    (np.full((1, 3, 5), 0.2), np.ones((1, 3), bool), "must have shape"),
    (np.full((1, 3, 4), 0.25), np.ones((1, 2), bool), "masked"),
  ],
)
def test_bad_predictions_are_an_error(probs, masked, message):
  buffer = contexts.init_buffer(1, 2, 3, 4)
  with pytest.raises(ValueError, match=message):
    contexts.push(buffer, jnp.asarray(probs), jnp.asarray(masked))


def test_sum_off_by_less_than_a_thousandth_passes():
  buffer = contexts.init_buffer(1, 1, 1, 2)
  probs = jnp.array([[[0.5, 0.5005]]])
  assert contexts.push(buffer, probs, jnp.ones((1, 1), bool)).count[0] == 1


def test_bad_list_length_and_weights_are_errors():
  buffer = contexts.init_buffer(1, 1, 1, 2)
  with pytest.raises(ValueError, match="v_top must be"):
    contexts.push(
      buffer, jnp.full((1, 1, 2), 0.5), jnp.ones((1, 1), bool), v_top=0
    )
  with pytest.raises(ValueError, match="weights"):
    contexts.jensen_shannon_split(jnp.ones((2, 3)), jnp.ones(3))
