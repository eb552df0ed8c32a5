"""Random tables, and the slow obvious way to every probability."""

import itertools

import jax
import numpy as np
import pytest
import scipy.special


@pytest.fixture(autouse=True)
def _float64():
  """The theorems are exact: float64 everywhere."""
  with jax.enable_x64(True):
    yield


@pytest.fixture
def make_tables():
  """Draws tables of normal numbers."""

  def make(vocab_size, num_steps, *, eos, seed=0, scale=1.0):
    rng = np.random.default_rng((seed, vocab_size, num_steps, eos))
    tables = [
      scale * rng.normal(size=(vocab_size**t, vocab_size + eos))
      for t in range(num_steps)
    ]
    if eos:
      tables[-1][:, :-1] = -np.inf
    return tables

  return make


@pytest.fixture
def walk():
  """Sequences as tuples, and the entries of tables that one passes."""

  def sequences(vocab_size, num_steps, *, eos):
    if not eos:
      return list(itertools.product(range(vocab_size), repeat=num_steps))
    return [
      (*body, vocab_size)
      for length in range(num_steps)
      for body in itertools.product(range(vocab_size), repeat=length)
    ]

  def entries(tables, sequence, vocab_size):
    row, found = 0, []
    for t, token in enumerate(sequence):
      found.append((t, row, token))
      row = row * vocab_size + token
    return found

  return sequences, entries


@pytest.fixture
def brute_force(walk):
  """Scores of all sequences, their law, and log Z, by dictionaries."""
  sequences, entries = walk

  def compute(rewards, *, eos):
    vocab_size = rewards[0].shape[1] - eos
    scores = {
      y: sum(
        rewards[t][row, token]
        for t, row, token in entries(rewards, y, vocab_size)
      )
      for y in sequences(vocab_size, len(rewards), eos=eos)
    }
    log_z = scipy.special.logsumexp(list(scores.values()))
    return scores, log_z

  return compute
