"""Discrete classifier-based guidance (D-CBG): tilts of the predictions.

At each hidden position i the log-probability of token v is raised by
`scale * log p(c | x with position i set to v)`. What x is at the other
positions is a choice. Here the classifier has been trained on clean one-hots
and there is no mask symbol it would know, so the others hold their expected
one-hots, the predicted probabilities. (The authors' classifier is trained on
partly masked sequences with their time; theirs stay masked, and the classifier
thereby also weighs whether to reveal a position at all. Here it chooses tokens
only.)

References:
  Schiff et al., "Simple Guidance Mechanisms for Discrete Diffusion Models",
  ICLR 2025, section 3.2; Nisonoff et al., "Unlocking Guidance for Discrete
  State-Space Diffusion and Flow Models", ICLR 2025.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import classifier

# [B, L, V] expected one-hots -> [B] log-probabilities of the wanted class.
LogProbFn = Callable[[jax.Array], jax.Array]


def token_log_probs(
  log_prob_fn: LogProbFn, one_hots: jax.Array, *, chunk_size: int = 16
) -> jax.Array:
  """Classifier log-probability with each token at each position, exactly.

  `out[b, i, v] = log p(c | one_hots[b] with row i replaced by token v)`, by
  L V calls of the classifier on the batch.

  Args:
    log_prob_fn: `[B, L, V]` expected one-hots to `[B]`, in nats.
    one_hots: `[B, L, V]` float32 expected one-hots.
    chunk_size: calls evaluated at a time; memory grows with it.

  Returns:
    `[B, L, V]` float32 in nats.

  Raises:
    ValueError: if `chunk_size` is not positive, or the classifier does not
      give one number a row.
  """
  if chunk_size < 1:
    raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
  batch_size, length, vocab_size = one_hots.shape

  def with_token(index):
    position, token = index // vocab_size, index % vocab_size
    row = jax.nn.one_hot(token, vocab_size, dtype=one_hots.dtype)
    here = jnp.arange(length)[None, :, None] == position
    log_probs = log_prob_fn(jnp.where(here, row[None, None], one_hots))
    if log_probs.shape != (batch_size,):
      raise ValueError(
        f"log_prob_fn must return one number a row ({batch_size},), got shape"
        f" {log_probs.shape}"
      )
    return log_probs.astype(jnp.float32)

  log_probs = jax.lax.map(
    with_token, jnp.arange(length * vocab_size), batch_size=chunk_size
  )
  return log_probs.T.reshape(batch_size, length, vocab_size)


def token_log_prob_gradient(
  log_prob_fn: LogProbFn, one_hots: jax.Array
) -> jax.Array:
  """First-order `token_log_probs`, but for a constant a position.

  With p the expected one-hots and g the gradient at p, setting row i to e_v
  gives `log p(c | p) + g_i . (e_v - p_i)` to first order; all but `g_iv` is
  the same for each v and falls out when the tilt is normalised. Exact for a
  classifier that is log-linear in the one-hots.

  Args:
    log_prob_fn: `[B, L, V]` expected one-hots to `[B]`, in nats.
    one_hots: `[B, L, V]` float32 expected one-hots p.

  Returns:
    `[B, L, V]` float32, the gradient g.

  Raises:
    ValueError: if the classifier does not give one number a row.
  """
  return jax.grad(lambda x: classifier.total_log_prob(log_prob_fn, x))(one_hots)


def tilt(
  log_probs: jax.Array,
  token_scores: jax.Array,
  scale: jax.Array | float,
  revealed: jax.Array,
) -> jax.Array:
  """Log-probabilities of `p(v) exp(scale * score(v))` at hidden positions.

  Args:
    log_probs: `[B, L, V]` float32 log-probabilities.
    token_scores: `[B, L, V]` float32 in nats.
    scale: `[]` factor of the scores.
    revealed: `[B, L]` bool.

  Returns:
    `[B, L, V]` float32, normalised at hidden positions and unchanged at
    revealed ones. A token of probability 0 keeps it.
  """
  raised = jnp.where(
    log_probs == -jnp.inf, -jnp.inf, log_probs + scale * token_scores
  )
  normalised = raised - jax.nn.logsumexp(raised, axis=-1, keepdims=True)
  return jnp.where(revealed[..., None], log_probs, normalised)


def cbg_exact(
  log_prob_fn: LogProbFn,
  scale: jax.Array | float,
  *,
  chunk_size: int = 16,
) -> process_lib.LogitTransform:
  """D-CBG with every token tried at every position: L V classifier calls.

  Args:
    log_prob_fn: `[B, L, V]` expected one-hots to `[B]`, the log-probability in
      nats of the wanted class, each row by itself.
    scale: factor of the tilt; a Python number 0 gives the identity.
    chunk_size: classifier calls evaluated at a time.

  Returns:
    A transform without memory.

  Raises:
    ValueError: if the scale is not one finite number, or `chunk_size` is not
      positive.
  """
  if chunk_size < 1:
    raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
  return _cbg(
    lambda p: token_log_probs(log_prob_fn, p, chunk_size=chunk_size), scale
  )


def cbg_taylor(
  log_prob_fn: LogProbFn, scale: jax.Array | float
) -> process_lib.LogitTransform:
  """D-CBG to first order: one gradient of the classifier a step.

  Args:
    log_prob_fn: `[B, L, V]` expected one-hots to `[B]`, the log-probability in
      nats of the wanted class, each row by itself.
    scale: factor of the tilt; a Python number 0 gives the identity.

  Returns:
    A transform without memory.

  Raises:
    ValueError: if the scale is not one finite number.
  """
  return _cbg(lambda p: token_log_prob_gradient(log_prob_fn, p), scale)


def _cbg(
  score_fn: LogProbFn, scale: jax.Array | float
) -> process_lib.LogitTransform:
  """The transform that tilts by `scale * score_fn(expected one-hots)`."""
  if classifier.check_scale(scale):
    return process_lib.identity()

  def update(logits, state, step):
    scores = score_fn(jnp.exp(logits))
    return tilt(logits, scores, scale, step.latent.revealed), state

  return process_lib.LogitTransform(lambda tokens: (), update)
