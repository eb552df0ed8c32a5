"""The energy that a language model gives to a sequence it has read.

Nothing is enumerated: one pass of the model over the sequence is enough.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.theory.arm_ebm import tables


def values_after(logits: jax.Array, lengths: jax.Array) -> jax.Array:
  """Soft values of the states after each token.

  Args:
    logits: `[B, T, V]` float; those at t predict token t.
    lengths: `[B]` ints in [1, T], number of tokens of a sequence.

  Returns:
    `[B, T]` float, logsumexp of the logits at t + 1; 0 at the last token of a
    sequence, after which nothing comes, and behind it. At least float32.

  Raises:
    TypeError: if the logits are not floats or the lengths not integers.
    ValueError: if a shape or length is wrong, or a logit that counts is NaN or
      +inf.
  """
  logits, lengths = _checked(logits, lengths)
  values = tables.log_sum_exp(logits)
  following = jnp.pad(values[:, 1:], ((0, 0), (0, 1)))
  has_next = jnp.arange(logits.shape[1])[None] + 1 < lengths[:, None]
  return jnp.where(has_next, following, 0.0)


def sequence_rewards(
  logits: jax.Array,
  next_values: jax.Array,
  tokens: jax.Array,
  lengths: jax.Array,
) -> jax.Array:
  """Rewards of the tokens of sequences, `r = q(s_t, y_t) - V_q(s_t + y_t)`.

  Args:
    logits: `[B, T, V]` float; those at t predict token t.
    next_values: `[B, T]` float, from `values_after` or another estimate of the
      soft value after each token.
    tokens: `[B, T]` ints in [0, V); what stands behind the end does not
      matter.
    lengths: `[B]` ints in [1, T], number of tokens of a sequence.

  Returns:
    `[B, T]` float, at least float32; 0 behind the end. A reward of -inf
    stands for a token that is forbidden, or after which nothing is allowed.
    Under `jit`, a sequence with a token outside the vocabulary gets NaN.

  Raises:
    TypeError: if logits or values are not floats, or tokens or lengths not
      integers.
    ValueError: if a shape, token or length is wrong, or a value that counts is
      NaN or +inf.

  References:
    Blondel et al., arXiv 2512.15605, Proposition 3.2.
  """
  logits, lengths = _checked(logits, lengths)
  tokens, next_values = jnp.asarray(tokens), jnp.asarray(next_values)
  for name, array in (("tokens", tokens), ("next_values", next_values)):
    if array.shape != logits.shape[:2]:
      raise ValueError(
        f"{name} must have shape {logits.shape[:2]}, got {array.shape}"
      )
  if not jnp.issubdtype(next_values.dtype, jnp.floating):
    raise TypeError(f"next_values must be floats, got {next_values.dtype}")
  counts = jnp.arange(logits.shape[1])[None] < lengths[:, None]
  vocab_size = logits.shape[2]
  checks.check_tokens("tokens", tokens, vocab_size, counts)
  next_values = jnp.where(counts, next_values.astype(logits.dtype), 0.0)
  tables.check_scores("next_values", next_values)
  is_token = (tokens >= 0) & (tokens < vocab_size)
  chosen = jnp.take_along_axis(
    logits, jnp.where(is_token, tokens, 0)[..., None], axis=2
  )[..., 0]
  rewards = tables.minus_values(chosen, next_values)
  is_right = jnp.all(is_token | ~counts, axis=1, keepdims=True)
  rewards = jnp.where(is_right, rewards, jnp.nan)
  return jnp.where(counts, rewards, 0.0)


def implicit_energy(
  logits: jax.Array, tokens: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Energies of sequences under the model that wrote the logits.

  `E = -sum_t r(s_t, y_t) = -(log p(y|x) + V_q(x))`: exp(-E) is the weight of a
  sequence, and exp(V_q(x)) the sum of the weights of all.

  Args:
    logits: `[B, T, V]` float; those at t predict token t.
    tokens: `[B, T]` ints in [0, V).
    lengths: `[B]` ints in [1, T], number of tokens of a sequence.

  Returns:
    Energies `[B]` and soft values `[B]` of the states before the first token,
    both in nats and at least float32.

  Raises:
    TypeError: see `sequence_rewards`.
    ValueError: see `sequence_rewards`.

  References:
    Blondel et al., arXiv 2512.15605, Proposition 3.2.
  """
  after = values_after(logits, lengths)
  rewards = sequence_rewards(logits, after, tokens, lengths)
  first = _checked(logits, lengths)[0][:, 0]
  return -jnp.sum(rewards, axis=1), tables.log_sum_exp(first)


def _checked(logits, lengths):
  """Logits of float32 or more, 0 behind the end, and lengths."""
  logits, lengths = jnp.asarray(logits), jnp.asarray(lengths)
  if not jnp.issubdtype(logits.dtype, jnp.floating):
    raise TypeError(f"logits must be floats, got {logits.dtype}")
  if not jnp.issubdtype(lengths.dtype, jnp.integer):
    raise TypeError(f"lengths must be integers, got {lengths.dtype}")
  if logits.ndim != 3 or 0 in logits.shape[1:]:
    raise ValueError(
      "logits must have shape [B, T, V], T and V at least 1, got"
      f" {logits.shape}"
    )
  if lengths.shape != logits.shape[:1]:
    raise ValueError(
      f"lengths must have shape {logits.shape[:1]}, got {lengths.shape}"
    )
  checks.check_range("lengths", lengths, low=1, high=logits.shape[1])
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  counts = jnp.arange(logits.shape[1])[None] < lengths[:, None]
  logits = jnp.where(counts[..., None], logits, 0.0)
  tables.check_scores("logits", logits)
  return logits, lengths
