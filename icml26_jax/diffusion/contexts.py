"""Predictions averaged over the contexts met on a trajectory.

A masked model predicts a position anew at each step, from other visible
tokens each time. The average of its last predictions is nearer to the
prediction without any context, and its entropy is that of the single
predictions plus how much they disagree: `H(mean p) = mean H(p) + JSD`. So a
position scored by the average must be confident and consistent.

References:
  Chen, Liu, Tao et al., "Beyond Confidence: Adaptive and Coherent Decoding for
  Diffusion Language Models", ICML 2026, arXiv 2512.02044, eq. (1).
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion import ranking


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class HistoryBuffer:
  """The predictions of the last steps of each row, the newest last.

  Attributes:
    probs: `[B, d, L, K]` float32 probabilities: of every token, or of the K
      most probable ones. The newest `count` of the d slots are in use.
    tokens: `[B, d, L, K]` int32, which tokens these are; None if K is the
      vocabulary. The mass that is not stored counts as spread evenly over the
      other tokens.
    listed: `[B, d, L]` bool, positions that were among the surest hidden ones
      of their step.
    count: `[B]` int32, steps in use.
    vocab_size: number of tokens V.
  """

  probs: jax.Array
  tokens: jax.Array | None
  listed: jax.Array
  count: jax.Array
  vocab_size: int = dataclasses.field(metadata={"static": True})


def init_buffer(
  batch_size: int,
  window: int,
  length: int,
  vocab_size: int,
  *,
  stored_tokens: int | None = None,
) -> HistoryBuffer:
  """A buffer without predictions.

  Args:
    batch_size: number of rows B.
    window: number of steps d, at least 1.
    length: number of positions L.
    vocab_size: number of tokens V.
    stored_tokens: most probable tokens K kept of each prediction, at least 1,
      for memory `B d L K` in place of `B d L V`; None, or V and more, for all.

  Returns:
    The buffer.

  Raises:
    ValueError: if `window`, `vocab_size` or `stored_tokens` is below 1.
  """
  checks.check_range("window", window, low=1)
  checks.check_range("vocab_size", vocab_size, low=1)
  stored = vocab_size
  if stored_tokens is not None:
    checks.check_range("stored_tokens", stored_tokens, low=1)
    stored = min(stored_tokens, vocab_size)
  shape = (batch_size, window, length, stored)
  return HistoryBuffer(
    probs=jnp.zeros(shape, jnp.float32),
    tokens=None if stored == vocab_size else jnp.zeros(shape, jnp.int32),
    listed=jnp.zeros(shape[:3], bool),
    count=jnp.zeros(batch_size, jnp.int32),
    vocab_size=vocab_size,
  )


def push(
  buffer: HistoryBuffer,
  probs: jax.Array,
  masked: jax.Array,
  *,
  v_top: int | None = None,
) -> HistoryBuffer:
  """Adds the predictions of a step; the oldest ones leave a full buffer.

  Args:
    buffer: the predictions so far.
    probs: `[B, L, V]` float32 probabilities. Checked when concrete.
    masked: `[B, L]` bool, the positions hidden at this step.
    v_top: how many of them, the least entropic ones, are listed as sure; None
      for all.

  Returns:
    The buffer with one step more.

  Raises:
    ValueError: if shapes disagree, `v_top` is below 1, or concrete
      probabilities are negative, NaN, or do not sum to 1 within 1e-3.
  """
  batch_size, _, length, stored = buffer.probs.shape
  expected = (batch_size, length, buffer.vocab_size)
  if probs.shape != expected or masked.shape != expected[:2]:
    raise ValueError(
      f"probs must have shape {expected} and masked {expected[:2]}, got"
      f" {probs.shape} and {masked.shape}"
    )
  _check_distributions(probs)
  probs = probs.astype(jnp.float32)
  if v_top is None:
    listed = masked
  else:
    checks.check_range("v_top", v_top, low=1)
    listed = ranking.best(-entropy(probs), masked, v_top)
  tokens = None
  if buffer.tokens is not None:
    probs, tokens = jax.lax.top_k(probs, stored)
    tokens = _shift(buffer.tokens, tokens)
  return dataclasses.replace(
    buffer,
    probs=_shift(buffer.probs, probs),
    tokens=tokens,
    listed=_shift(buffer.listed, listed),
    count=jnp.minimum(buffer.count + 1, buffer.probs.shape[1]),
  )


def used(buffer: HistoryBuffer) -> jax.Array:
  """Which slots hold a step: `[B, d]` bool."""
  slots = buffer.probs.shape[1]
  return jnp.arange(slots)[None] >= slots - buffer.count[:, None]


def marginal(buffer: HistoryBuffer) -> jax.Array:
  """Mean of the stored predictions, each step weighing the same.

  Args:
    buffer: predictions of at least one step a row.

  Returns:
    `[B, L, V]` float32 probabilities; all 0 in a row without a step.

  References:
    arXiv 2512.02044, eq. (1).
  """
  probs = jnp.where(used(buffer)[..., None, None], buffer.probs, 0.0)
  steps = jnp.maximum(buffer.count, 1).astype(jnp.float32)[:, None, None]
  if buffer.tokens is None:
    return jnp.sum(probs, axis=1) / steps
  rest = jnp.where(used(buffer)[..., None], _rest(buffer), 0.0)
  batch_size, _, length, _ = probs.shape
  dense = jnp.broadcast_to(
    jnp.sum(rest, axis=1)[..., None], (batch_size, length, buffer.vocab_size)
  )
  row = jnp.arange(batch_size)[:, None, None, None]
  position = jnp.arange(length)[None, None, :, None]
  dense = dense.at[row, position, buffer.tokens].add(probs - rest[..., None])
  return dense / steps


def latest(buffer: HistoryBuffer) -> jax.Array:
  """The newest predictions: `[B, L, V]` float32 probabilities."""
  last = dataclasses.replace(
    buffer,
    probs=buffer.probs[:, -1:],
    tokens=None if buffer.tokens is None else buffer.tokens[:, -1:],
    listed=buffer.listed[:, -1:],
    count=jnp.minimum(buffer.count, 1),
  )
  return marginal(last)


def entropy(probs: jax.Array) -> jax.Array:
  """Shannon entropy over the last axis.

  Args:
    probs: `[..., V]` float probabilities.

  Returns:
    `[...]` in nats. A probability of 0 adds 0, with zero slope.
  """
  possible = probs > 0
  logs = jnp.log(jnp.where(possible, probs, 1.0))
  return -jnp.sum(jnp.where(possible, probs * logs, 0.0), axis=-1)


def entropy_split(buffer: HistoryBuffer) -> tuple[jax.Array, jax.Array]:
  """Entropy of the mean prediction as confidence plus consistency.

  `H(marginal) = mean_k H(p_k) + I`, where I is the Jensen-Shannon divergence
  of the stored predictions: the information between the token and a step drawn
  uniformly.

  Args:
    buffer: predictions of at least one step a row.

  Returns:
    `[B, L]` float32 mean entropy, and `[B, L]` float32 mutual information, not
    negative, both in nats; 0 in a row without a step.

  References:
    arXiv 2512.02044, section 3: `H(x|s) = H(x|c,s) + I(x;c|s)`, here for the
    finite window.
  """
  steps = jnp.maximum(buffer.count, 1).astype(jnp.float32)[:, None]
  weights = used(buffer).astype(jnp.float32) / steps  # [B, d]
  if buffer.tokens is None:
    probs = jnp.moveaxis(buffer.probs, 1, 2)  # [B, L, d, V]
    weights = jnp.broadcast_to(weights[:, None], probs.shape[:3])
    return jensen_shannon_split(probs, weights)
  others = buffer.vocab_size - buffer.probs.shape[-1]
  rest = _rest(buffer)
  entropies = entropy(buffer.probs) + others * entropy(rest[..., None])
  mean = jnp.sum(weights[..., None] * entropies, axis=1)
  information = jnp.maximum(entropy(marginal(buffer)) - mean, 0.0)
  return mean, information


def jensen_shannon_split(
  probs: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Splits the entropy of a mixture exactly.

  `H(sum_k w_k p_k) = sum_k w_k H(p_k) + JSD_w(p_1, ..., p_K)`.

  Args:
    probs: `[..., K, V]` float, distributions over the last axis.
    weights: `[..., K]` float, not negative, summing to 1 over the last axis.

  Returns:
    `[...]` mean entropy and `[...]` Jensen-Shannon divergence, both in nats and
    not negative. The divergence is 0 if and only if all distributions of
    positive weight are one, and at most `ln min(K, V)`.

  Raises:
    ValueError: if the shapes disagree.

  References:
    Lin, "Divergence measures based on the Shannon entropy", IEEE Transactions
    on Information Theory 37, 1991, eq. (5.1).
  """
  if probs.shape[:-1] != weights.shape:
    raise ValueError(
      f"probs {probs.shape} must have the axes of weights {weights.shape} and"
      " one more"
    )
  mean_entropy = jnp.sum(weights * entropy(probs), axis=-1)
  mixture = jnp.sum(weights[..., None] * probs, axis=-2, keepdims=True)
  # Terms of the Kullback-Leibler divergence that are each at least 0, with a
  # logarithm exact near 1: small divergences are neither noise nor negative.
  possible = (probs > 0) & (mixture > 0)  # The second: weights may be 0.
  p, m = jnp.where(possible, probs, 1.0), jnp.where(possible, mixture, 1.0)
  excess = (p - m) / m
  near = jnp.abs(excess) < 0.5
  logs = jnp.where(
    near, jnp.log1p(jnp.where(near, excess, 0.0)), jnp.log(p / m)
  )
  terms = jnp.where(possible, p * logs, 0.0) - probs + mixture
  terms = jnp.sum(jnp.maximum(terms, 0.0), axis=-1)
  return mean_entropy, jnp.sum(weights * terms, axis=-1)


def coherent_contexts(
  vocab_size: int, *, window: int = 4, stored_tokens: int | None = None
) -> process_lib.LogitTransform:
  """Replaces the predictions by their average over the last steps.

  With the policy `policies.ccd(..., greedy=False)` tokens are then drawn from
  the average that they were chosen by. In a chain it averages what the members
  before it make of the predictions.

  Args:
    vocab_size: number of tokens V.
    window: number of steps d, the current one included; 1 changes nothing.
    stored_tokens: as in `init_buffer`.

  Returns:
    A transform whose memory is a `HistoryBuffer`.

  Raises:
    ValueError: if an argument is below 1.

  References:
    arXiv 2512.02044, eq. (1).
  """
  init_buffer(0, window, 0, vocab_size, stored_tokens=stored_tokens)

  def init(tokens):
    return init_buffer(
      tokens.shape[0],
      window,
      tokens.shape[1],
      vocab_size,
      stored_tokens=stored_tokens,
    )

  def update(logits, state, step):
    hidden = ~step.latent.revealed
    state = push(state, jnp.exp(logits), hidden)
    mean = marginal(state)
    positive = mean > 0
    averaged = jnp.where(
      positive, jnp.log(jnp.where(positive, mean, 1.0)), -jnp.inf
    )
    return jnp.where(hidden[..., None], averaged, logits), state

  return process_lib.LogitTransform(init, update)


def _rest(buffer: HistoryBuffer) -> jax.Array:
  """`[B, d, L]` probability of each token that is not stored."""
  others = buffer.vocab_size - buffer.probs.shape[-1]
  return jnp.maximum(1.0 - jnp.sum(buffer.probs, axis=-1), 0.0) / others


def _shift(slots: jax.Array, newest: jax.Array) -> jax.Array:
  """Slots `[B, d, ...]` without the oldest, the newest `[B, ...]` last."""
  return jnp.concatenate([slots[:, 1:], newest[:, None]], axis=1)


def _check_distributions(probs: jax.Array) -> None:
  """Raises ValueError unless concrete `probs` are distributions."""
  if not checks.is_concrete(probs):
    return
  array = np.asarray(probs, np.float64)
  checks.check_range("probs", array, low=0.0)
  sums = array.sum(axis=-1)
  wrong = np.abs(sums - 1.0) > 1e-3
  if np.any(wrong):
    raise ValueError(
      f"probs must sum to 1 along the last axis, got {sums[wrong].flat[0]:g}"
    )
