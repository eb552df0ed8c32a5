"""Energies of sequences that a model has read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from icml26_jax.theory import arm_ebm

EXACT = 1e-12


def batch(seed=0, shape=(3, 4, 5)):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=shape)
  tokens = rng.integers(0, shape[2], shape[:2])
  return logits, tokens, np.array([4, 2, 1])


def test_rewards_and_energies_equal_loops():
  logits, tokens, lengths = batch()
  after = arm_ebm.values_after(logits, lengths)
  rewards = arm_ebm.sequence_rewards(logits, after, tokens, lengths)
  energies, first = arm_ebm.implicit_energy(logits, tokens, lengths)
  values = scipy.special.logsumexp(logits, axis=2)
  expected = np.zeros((3, 4))
  for b, length in enumerate(lengths):
    log_p = 0.0
    for t in range(length):
      following = values[b, t + 1] if t + 1 < length else 0.0
      expected[b, t] = logits[b, t, tokens[b, t]] - following
      log_p += logits[b, t, tokens[b, t]] - values[b, t]
    assert abs(energies[b] + log_p + values[b, 0]) < EXACT
  np.testing.assert_allclose(rewards, expected, atol=EXACT)
  np.testing.assert_allclose(energies, -expected.sum(axis=1), atol=EXACT)
  np.testing.assert_allclose(first, values[:, 0], atol=EXACT)


def test_model_and_tables_agree(make_tables):
  q = make_tables(3, 3, eos=False)
  tokens, lengths = arm_ebm.enumerate_sequences(3, 3, eos=False)
  rows = np.arange(27)
  logits = np.stack([q[t][rows // 3 ** (3 - t)] for t in range(3)], axis=1)
  energies, first = arm_ebm.implicit_energy(logits, tokens, lengths)
  rewards = arm_ebm.logits_to_rewards(q, eos=False)
  scores = arm_ebm.sequence_scores(rewards, tokens, lengths, eos=False)
  np.testing.assert_allclose(energies, -scores, atol=EXACT)
  log_z = arm_ebm.log_partition(rewards, eos=False)
  np.testing.assert_allclose(first, log_z, atol=EXACT)
  # The energies are those of a normalised law.
  total = scipy.special.logsumexp(-np.asarray(energies))
  assert abs(total - log_z) < EXACT


def test_what_stands_behind_the_end_does_not_matter():
  logits, tokens, lengths = batch()
  expected = arm_ebm.implicit_energy(logits, tokens, lengths)
  for b, length in enumerate(lengths):
    logits[b, length:] = np.nan
    tokens[b, length:] = -7
  got = arm_ebm.implicit_energy(logits, tokens, lengths)
  gradient = jax.grad(
    lambda x: arm_ebm.implicit_energy(x, tokens, lengths)[0].sum()
  )(jnp.asarray(logits))
  for one, other in zip(got, expected, strict=True):
    np.testing.assert_array_equal(one, other)
  assert np.all(np.isfinite(gradient))
  assert np.all(gradient[2, 1:] == 0)


def test_forbidden_tokens_have_infinite_energy():
  logits = np.array([[[-np.inf, 0.0], [0.0, 0.0]]] * 3)
  # A forbidden token, an allowed one, and one that nothing may follow.
  logits[2, 1] = -np.inf
  tokens = np.array([[0, 0], [1, 0], [1, 0]])
  with jax.debug_nans(True):
    energies, first = arm_ebm.implicit_energy(
      logits, tokens, np.array([2, 2, 2])
    )
  np.testing.assert_allclose(energies, [np.inf, np.log(2.0), np.inf])
  np.testing.assert_array_equal(first, 0.0)


def test_half_precision_is_summed_in_float32():
  logits, tokens, lengths = batch()
  small = jnp.asarray(logits, jnp.bfloat16)
  got, first = arm_ebm.implicit_energy(small, tokens, lengths)
  assert got.dtype == first.dtype == jnp.float32
  expected, _ = arm_ebm.implicit_energy(
    np.asarray(small, np.float64), tokens, lengths
  )
  # Eight float32 roundings of numbers of size 8.
  np.testing.assert_allclose(got, expected, atol=8 * 8 * 2.0**-24)


def test_jit_is_eager_and_marks_tokens_outside():
  logits, tokens, lengths = batch()
  compiled = jax.jit(arm_ebm.implicit_energy)
  for one, other in zip(
    compiled(logits, tokens, lengths),
    arm_ebm.implicit_energy(logits, tokens, lengths),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, atol=EXACT)
  tokens[0, 1] = 5
  energies, _ = compiled(logits, tokens, lengths)
  np.testing.assert_array_equal(np.isnan(energies), [True, False, False])


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"lengths": np.array([5, 2, 1])}, r"lengths must be in \[1, 4\], got 5"),
    ({"lengths": np.array([4, 2, 0])}, r"lengths must be in \[1, 4\], got 0"),
    ({"lengths": np.array([4, 2])}, r"lengths must have shape \(3,\)"),
    ({"tokens": np.full((3, 4), 5)}, r"tokens must be in \[0, 5\), got 5"),
    ({"tokens": np.zeros((3, 3), int)}, r"tokens must have shape \(3, 4\)"),
    ({"logits": np.full((3, 4, 5), np.nan)}, "logits must be finite or -inf"),
    ({"logits": np.full((3, 4, 5), np.inf)}, "logits must be finite or -inf"),
    ({"logits": np.zeros((3, 0, 5))}, "T and V at least 1"),
  ],
)
def test_bad_batches_are_refused(change, message):
  logits, tokens, lengths = batch()
  arguments = {
    "logits": logits,
    "tokens": tokens,
    "lengths": lengths,
    **change,
  }
  with pytest.raises(ValueError, match=message):
    arm_ebm.implicit_energy(**arguments)


def test_bad_values_are_refused():
  logits, tokens, lengths = batch()
  with pytest.raises(ValueError, match=r"next_values must have shape \(3, 4\)"):
    arm_ebm.sequence_rewards(logits, np.zeros(3), tokens, lengths)
  with pytest.raises(ValueError, match="next_values must be finite or -inf"):
    arm_ebm.sequence_rewards(logits, np.full((3, 4), np.nan), tokens, lengths)
  with pytest.raises(TypeError, match="next_values must be floats"):
    arm_ebm.sequence_rewards(logits, np.zeros((3, 4), int), tokens, lengths)
  with pytest.raises(TypeError, match="logits must be floats"):
    arm_ebm.values_after(np.zeros((3, 4, 5), int), lengths)
  with pytest.raises(TypeError, match="lengths must be integers"):
    arm_ebm.values_after(logits, lengths.astype(float))
