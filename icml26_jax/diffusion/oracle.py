"""Exact denoisers for text drawn from a Markov chain: nothing to train.

The posterior of each token given everything a latent shows (revealed tokens,
noisy vectors, or nothing) comes from the forward-backward recursion. So
samplers and losses can be judged without a network's error in between.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib

# Smallest entry of a chain for which the scaled recursion is exact: what
# underflows (1e-38) is then below 1e-38 / 1e-24 of what stays.
_SCALED_MIN = 1e-12
# Stands for log 0 where -inf would make gradients NaN. Sums of a few of them
# stay finite, and no possible event comes near.
_LOG_ZERO = -1e30


def markov_denoiser(
  initial: jax.Array, transition: jax.Array
) -> Callable[[jax.Array], jax.Array]:
  """The exact posterior of each token under a Markov chain.

  `p(x_i = k | evidence)` is proportional to the sum, over all sequences with
  x_i = k, of `pi(x_1) prod P(x_j, x_j+1) prod e_j(x_j)`.

  Args:
    initial: `[V]` float, distribution pi of the first token.
    transition: `[V, V]` float, `P[j, k]` the probability of k after j. A chain
      without zeros takes a fast scaled recursion; one with an entry below
      1e-12, or a traced one, takes a slower one in log space, which no
      underflow can mislead.

  Returns:
    A function from evidence `[B, L, V]` float32, the likelihood of each token
    at each position up to a factor per position, to posteriors `[B, L, V]`
    float32. All are NaN in a row whose evidence is impossible under the
    chain. Derivatives in log space treat an evidence of 0 as a constant.

  Raises:
    ValueError: if shapes disagree or a distribution does not sum to 1.

  References:
    Rabiner, "A tutorial on hidden Markov models", 1989, section III.B.
  """
  initial, transition = _check_chain(initial, transition)
  vocab_size = initial.shape[0]

  if _takes_scaled(initial, transition):

    def posteriors(evidence):
      evidence = _batch_last(evidence)
      evidence = evidence / jnp.max(evidence, axis=1, keepdims=True)
      joint = evidence * _scaled_messages(initial, transition, evidence)
      return _batch_first(joint / jnp.sum(joint, axis=1, keepdims=True))
  else:

    def posteriors(evidence):
      return jnp.exp(_log_posteriors(initial, transition, _safe_log(evidence)))

  def denoise(evidence):
    if evidence.ndim != 3 or evidence.shape[-1] != vocab_size:
      raise ValueError(
        f"evidence must have shape [B, L, {vocab_size}], got {evidence.shape}"
      )
    checks.check_range("evidence", evidence, low=0.0, open_high=True)
    return posteriors(evidence.astype(jnp.float32))

  return denoise


def evidence(latent: process_lib.Latent, vocab_size: int) -> jax.Array:
  """What a latent says about each token, its neighbours left aside.

  One-hot at a revealed position. At a hidden one, all ones if the process only
  masks; `exp((y - max y) / sigma^2)` for a noisy one-hot y, which is its
  likelihood up to a factor (`exp(y / sigma^2)` would overflow).

  Args:
    latent: a latent with `values` and `sigma`, or with neither. `sigma` must be
      positive.
    vocab_size: number of tokens V.

  Returns:
    `[B, L, V]` float32, 1 at the most likely token of each position.

  Raises:
    ValueError: if the latent lives in an embedding space, has values without
      sigma or of another vocabulary, or a concrete sigma is not positive.

  References:
    CANDI, arXiv 2510.22510; the independent case is
    `p(k | y) = softmax_k(log pi_k + y_k / sigma^2)`.
  """
  return jnp.exp(_log_evidence(latent, vocab_size))


def denoise_fn(
  initial: jax.Array, transition: jax.Array
) -> process_lib.DenoiseFn:
  """The exact denoiser of a Markov chain, for `sampling.sample` and losses.

  Serves masked, continuous and hybrid processes alike: the latent itself says
  what was seen. The time is not needed.

  Args:
    initial: `[V]` float, distribution of the first token.
    transition: `[V, V]` float, rows sum to 1 (see `markov_denoiser`).

  Returns:
    `(latent, t [B]) -> [B, L, V]` float32 log-posteriors. They stay finite at
    hidden positions however small the noise, unless the chain has zeros.

  Raises:
    ValueError: if shapes disagree or a distribution does not sum to 1; when
      called, as `evidence` does.
  """
  initial, transition = _check_chain(initial, transition)
  vocab_size = initial.shape[0]
  takes_scaled = _takes_scaled(initial, transition)

  def denoise(latent, t):
    del t
    log_evidence = _log_evidence(latent, vocab_size)
    if not takes_scaled:
      return _log_posteriors(initial, transition, log_evidence)
    log_evidence = _batch_last(log_evidence)
    messages = _scaled_messages(initial, transition, jnp.exp(log_evidence))
    log_joint = jnp.log(messages) + log_evidence
    return _batch_first(jax.nn.log_softmax(log_joint, axis=1))

  return denoise


def _check_chain(initial, transition):
  """The chain in float32; raises unless it is one."""
  if initial.ndim != 1 or transition.shape != 2 * initial.shape:
    raise ValueError(
      "initial and transition must have shapes [V] and [V, V], got"
      f" {initial.shape} and {transition.shape}"
    )
  checks.check_probabilities("initial", initial)
  checks.check_probabilities("transition", transition)
  return (
    jnp.asarray(initial, jnp.float32),
    jnp.asarray(transition, jnp.float32),
  )


def _takes_scaled(initial, transition) -> bool:
  """True if no entry of a known chain is so small that underflow matters."""
  if not checks.is_concrete(initial, transition):
    return False
  smallest = min(np.min(initial), np.min(transition))
  return bool(smallest >= _SCALED_MIN)


def _log_evidence(latent, vocab_size):
  """Logarithm of `evidence`, exact where that underflows."""
  if latent.embedded is not None:
    raise ValueError(
      "latent.embedded must be None: the oracle needs values over the"
      " vocabulary"
    )
  shape = (*latent.tokens.shape, vocab_size)
  if latent.values is None:
    hidden = jnp.zeros(shape, jnp.float32)
  else:
    if latent.sigma is None:
      raise ValueError("latent.sigma must be given with values, got None")
    if latent.values.shape != shape:
      raise ValueError(
        f"latent.values must have shape {shape}, got {latent.values.shape}"
      )
    checks.check_range("latent.sigma", latent.sigma, low=0.0, open_low=True)
    values = latent.values.astype(jnp.float32)
    sigma = latent.sigma.astype(jnp.float32)[:, None, None]
    # Divided twice: sigma^2 underflows before the quotient does.
    below_top = values - jnp.max(values, axis=-1, keepdims=True)
    hidden = below_top / sigma / sigma
  is_token = jnp.arange(vocab_size)[None, None] == latent.tokens[..., None]
  certain = jnp.where(is_token, 0.0, -jnp.inf)
  return jnp.where(latent.revealed[..., None], certain, hidden)


def _scaled_messages(initial, transition, evidence):
  """Weight of each token by the evidence at all other positions.

  Args:
    initial: `[V]`, no entry near 0.
    transition: `[V, V]`, no entry near 0.
    evidence: `[L, V, B]`, largest entry of each position 1.

  Returns:
    `[L, V, B]`, up to a factor per position, all positive.
  """
  _, vocab_size, batch_size = evidence.shape

  def step(matrix):
    def body(message, evidence_i):
      belief = message * evidence_i
      belief = belief / jnp.sum(belief, axis=0, keepdims=True)
      next_message = jnp.matmul(
        matrix, belief, precision=jax.lax.Precision.HIGHEST
      )
      return next_message, message

    return body

  start = jnp.broadcast_to(initial[:, None], (vocab_size, batch_size))
  _, forward = jax.lax.scan(step(transition.T), start, evidence)
  end = jnp.ones((vocab_size, batch_size), jnp.float32)
  _, backward = jax.lax.scan(step(transition), end, evidence, reverse=True)
  return forward * backward


def _batch_last(x):
  """`[B, L, V]` to `[L, V, B]`: a small vocabulary fills vectors badly."""
  return jnp.transpose(x, (1, 2, 0))


def _batch_first(x):
  """`[L, V, B]` to `[B, L, V]`."""
  return jnp.transpose(x, (2, 0, 1))


def _log_posteriors(initial, transition, log_evidence):
  """Log-posteriors for any chain, zeros included, wholly in log space.

  Args:
    initial: `[V]`.
    transition: `[V, V]`.
    log_evidence: `[B, L, V]`; -inf or below -1e30 is impossible.

  Returns:
    `[B, L, V]`, -inf for impossible tokens, NaN in impossible rows.
  """
  log_evidence = jnp.maximum(log_evidence, _LOG_ZERO)
  log_transition = _safe_log(transition)
  evidence = jnp.moveaxis(log_evidence, 1, 0)  # [L, B, V]

  def step(log_matrix):
    def body(message, evidence_i):
      belief = message + evidence_i
      top = jnp.max(belief, axis=-1, keepdims=True)
      next_message = jax.nn.logsumexp(
        (belief - top)[:, None, :] + log_matrix[None], axis=-1
      )
      return next_message, (message, top)

    return body

  start = jnp.broadcast_to(_safe_log(initial), evidence.shape[1:])
  _, (forward, tops) = jax.lax.scan(step(log_transition.T), start, evidence)
  end = jnp.zeros(evidence.shape[1:], jnp.float32)
  _, (backward, _) = jax.lax.scan(
    step(log_transition), end, evidence, reverse=True
  )
  joint = jnp.moveaxis(forward + backward, 0, 1) + log_evidence  # [B, L, V]
  log_posteriors = jax.nn.log_softmax(joint, axis=-1)
  log_posteriors = jnp.where(
    log_posteriors < 0.5 * _LOG_ZERO, -jnp.inf, log_posteriors
  )
  is_impossible = jnp.any(tops < 0.5 * _LOG_ZERO, axis=0)[:, None]  # [B, 1, 1]
  return jnp.where(is_impossible, jnp.nan, log_posteriors)


def _safe_log(x):
  """Logarithm with a large negative number, of zero gradient, for log 0."""
  positive = x > 0
  return jnp.where(positive, jnp.log(jnp.where(positive, x, 1.0)), _LOG_ZERO)
