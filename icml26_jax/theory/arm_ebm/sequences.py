"""Scores and probabilities of sequences, given tables."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.theory.arm_ebm import bijection, tables

# The most sequences that are written out.
_MOST = 2**24


def enumerate_sequences(
  vocab_size: int, num_steps: int, *, eos: bool
) -> tuple[np.ndarray, np.ndarray]:
  """All sequences, by length and then in the order of the tables' rows.

  >>> enumerate_sequences(2, 2, eos=True)[0].tolist()
  [[2, 2], [0, 2], [1, 2]]

  Args:
    vocab_size: number of ordinary tokens V, at least 1.
    num_steps: T, at least 1.
    eos: whether there is an end token, which is token V.

  Returns:
    Tokens `[N, T]` int32, V behind the end, and lengths `[N]` int32, EOS
    included. N is V^T, or the sum of V^k over k < T with EOS.

  Raises:
    ValueError: if a size is below 1, or N is above 2^24.
  """
  checks.check_range("vocab_size", vocab_size, low=1)
  checks.check_range("num_steps", num_steps, low=1)
  # Lengths of what comes before EOS.
  bodies = range(num_steps) if eos else (num_steps,)
  count = sum(vocab_size**k for k in bodies)
  if count > _MOST:
    raise ValueError(
      f"vocab_size {vocab_size} and num_steps {num_steps} give {count:,}"
      f" sequences, more than the {_MOST:,} that are written out"
    )
  parts, lengths = [], []
  for k in bodies:
    numbers = np.arange(vocab_size**k)
    part = np.full((len(numbers), num_steps), vocab_size, np.int32)
    for t in range(k):
      part[:, t] = numbers // vocab_size ** (k - 1 - t) % vocab_size
    parts.append(part)
    lengths.append(np.full(len(numbers), k + int(eos), np.int32))
  return np.concatenate(parts), np.concatenate(lengths)


def sequence_scores(
  r: Sequence[jax.Array], tokens: jax.Array, lengths: jax.Array, *, eos: bool
) -> jax.Array:
  """Scores `R(x, y) = sum_t r(s_t, y_t)` of sequences.

  Args:
    r: T float tables, see `rewards_to_logits`.
    tokens: `[N, T]` ints, the last of a sequence being EOS (V) if there is
      one; what follows it, in [0, V], does not matter.
    lengths: `[N]` ints, number of tokens, EOS included; T without EOS.
    eos: whether there is an end token.

  Returns:
    `[N]` float; -inf for a forbidden sequence. Under `jit`, where tokens
    cannot be looked at, what is no sequence gives NaN.

  Raises:
    TypeError: if a table is not of floats, or tokens or lengths not integers.
    ValueError: if a table, a shape, a token or a length is wrong.
  """
  found = tables.check("r", r, eos=eos)
  return _sums(found, found.steps, tokens, lengths, eos)


def arm_log_probs(
  q: Sequence[jax.Array], tokens: jax.Array, lengths: jax.Array, *, eos: bool
) -> jax.Array:
  """Log-probabilities of sequences under an autoregressive model.

  `log p_q(y|x) = sum_t (q(s_t, y_t) - V_q(s_t))`.

  Args:
    q: T float tables, see `logits_to_rewards`.
    tokens: `[N, T]` ints, see `sequence_scores`.
    lengths: `[N]` ints.
    eos: whether there is an end token.

  Returns:
    `[N]` float, in nats; -inf through a state where nothing is allowed.

  Raises:
    TypeError: see `sequence_scores`.
    ValueError: see `sequence_scores`.
  """
  found = tables.check("q", q, eos=eos)
  policy = [tables.log_policy(step) for step in found.steps]
  return _sums(found, policy, tokens, lengths, eos)


def ebm_log_probs(
  r: Sequence[jax.Array], tokens: jax.Array, lengths: jax.Array, *, eos: bool
) -> jax.Array:
  """Log-probabilities of sequences under an energy-based model, `R - log Z`.

  Args:
    r: T float tables, see `rewards_to_logits`.
    tokens: `[N, T]` ints, see `sequence_scores`.
    lengths: `[N]` ints.
    eos: whether there is an end token.

  Returns:
    `[N]` float, in nats; -inf for a forbidden sequence.

  Raises:
    TypeError: see `sequence_scores`.
    ValueError: see `sequence_scores`.
  """
  scores = sequence_scores(r, tokens, lengths, eos=eos)
  return scores - bijection.log_partition(r, eos=eos)


def _sums(found, steps, tokens, lengths, eos):
  """Sums of the entries of `steps` that sequences pass."""
  vocab_size, num_steps = found.vocab_size, len(steps)
  tokens, lengths = jnp.asarray(tokens), jnp.asarray(lengths)
  for name, value in (("tokens", tokens), ("lengths", lengths)):
    if not jnp.issubdtype(value.dtype, jnp.integer):
      raise TypeError(f"{name} must be integers, got {value.dtype}")
  if tokens.ndim != 2 or tokens.shape[1] != num_steps:
    raise ValueError(
      f"tokens must have shape [N, {num_steps}], got {tokens.shape}"
    )
  if lengths.shape != tokens.shape[:1]:
    raise ValueError(
      f"lengths must have shape {tokens.shape[:1]}, got {lengths.shape}"
    )
  is_sequence = _is_sequence(tokens, lengths, vocab_size, eos)
  _check_sequences(tokens, lengths, is_sequence, vocab_size, eos)
  total = jnp.zeros(lengths.shape, steps[0].dtype)
  row = jnp.zeros(lengths.shape, jnp.int32)
  for t, step in enumerate(steps):
    is_open = is_sequence & (t < lengths)
    token = jnp.where(is_open, tokens[:, t], 0).astype(jnp.int32)
    total += jnp.where(is_open, step[row, token], 0.0)
    goes_on = is_sequence & (t + 1 < lengths)
    row = jnp.where(goes_on, row * vocab_size + token, 0)
  return jnp.where(is_sequence, total, jnp.nan)


def _is_sequence(tokens, lengths, vocab_size, eos):
  """`[N]` bool: whether EOS stands at the end, and nowhere else before it."""
  num_steps = tokens.shape[1]
  is_token = jnp.all((tokens >= 0) & (tokens <= vocab_size), axis=1)
  shortest = 1 if eos else num_steps
  has_length = (lengths >= shortest) & (lengths <= num_steps)
  position = jnp.arange(num_steps)[None]
  body = lengths[:, None] - int(eos)
  before = jnp.all((position >= body) | (tokens < vocab_size), axis=1)
  ends = jnp.ones_like(before)
  if eos:
    ends = jnp.all((position != body) | (tokens == vocab_size), axis=1)
  return is_token & has_length & before & ends


def _check_sequences(tokens, lengths, is_sequence, vocab_size, eos):
  """Raises ValueError if what is known now is no sequence."""
  if not checks.is_concrete(tokens, lengths):
    return
  checks.check_tokens("tokens", tokens, vocab_size + 1)
  num_steps = tokens.shape[1]
  low = 1 if eos else num_steps
  checks.check_range("lengths", lengths, low=low, high=num_steps)
  right = np.asarray(is_sequence)
  if not right.all():
    i = int(np.argmin(right))
    rule = "must end in its only EOS" if eos else "must not hold EOS"
    raise ValueError(
      f"tokens[{i}] {rule} (token {vocab_size}), got"
      f" {np.asarray(tokens)[i].tolist()} of length {int(lengths[i])}"
    )
