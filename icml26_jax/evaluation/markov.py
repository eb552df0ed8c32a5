"""Markov chains over tokens: text whose statistics are known exactly."""

from __future__ import annotations

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from icml26_jax import checks
from icml26_jax.diffusion import categorical
from icml26_jax.diffusion import process as process_lib

# A second singular value of P^T - I below this means that the stationary
# distribution is not unique (float64 leaves about 1e-16).
_RANK_TOLERANCE = 1e-12


class MarkovChain(NamedTuple):
  """A first-order chain over a vocabulary.

  Attributes:
    initial: `[V]` float32, distribution of the first token.
    transition: `[V, V]` float32, `transition[j, k]` is the probability of k
      after j.
  """

  initial: jax.Array
  transition: jax.Array


def fit(tokens, vocab_size: int, *, smoothing: float) -> MarkovChain:
  """Chain of the bigram frequencies of a text, started in equilibrium.

  Computed on the host in float64.

  Args:
    tokens: `[N]` or `[B, L]` ints; pairs do not cross rows.
    vocab_size: number of tokens V.
    smoothing: added to each of the V^2 counts, not negative.

  Returns:
    The chain; its initial distribution is the stationary one.

  Raises:
    TypeError: if the tokens are not integers.
    ValueError: if an argument is outside its range, there is no pair, or a
      token has no successor and `smoothing` is 0.
  """
  tokens = np.asarray(tokens)
  vocab_size = operator.index(vocab_size)
  checks.check_range("vocab_size", vocab_size, low=1)
  checks.check_range("smoothing", smoothing, low=0.0, high=1e30)
  checks.check_tokens("tokens", tokens, vocab_size)
  if tokens.ndim not in (1, 2) or tokens.shape[-1] < 2 or not tokens.size:
    raise ValueError(
      "tokens must have shape [N] or [B, L] with two tokens or more, got"
      f" {tokens.shape}"
    )
  pairs = tokens[..., :-1].astype(np.int64) * vocab_size + tokens[..., 1:]
  counts = np.bincount(pairs.ravel(), minlength=vocab_size**2)
  weights = counts.reshape(vocab_size, vocab_size) + float(smoothing)
  totals = weights.sum(axis=1, keepdims=True)
  if not np.all(totals > 0):
    raise ValueError(
      f"smoothing must be positive, got {smoothing}: token"
      f" {int(np.argmin(totals))} has no successor in tokens"
    )
  transition = weights / totals
  return MarkovChain(
    initial=jnp.asarray(stationary(transition), jnp.float32),
    transition=jnp.asarray(transition, jnp.float32),
  )


def stationary(transition) -> np.ndarray:
  """The stationary distribution, `pi P = pi`.

  Computed on the host in float64, as the null vector of `P^T - I`. The chain
  may be periodic or have transient tokens.

  Args:
    transition: `[V, V]` float, rows sum to 1.

  Returns:
    `[V]` float64.

  Raises:
    ValueError: if the rows are not distributions, or the chain falls into
      parts that do not communicate, so that there are several answers.
  """
  transition = np.asarray(transition, np.float64)
  _check_transition(transition)
  # Rows of a float32 matrix sum to 1 up to rounding only, which would leave
  # P^T - I of full rank.
  transition = transition / transition.sum(axis=1, keepdims=True)
  _, singular, rows = np.linalg.svd(transition.T - np.eye(len(transition)))
  if len(singular) > 1 and singular[-2] < _RANK_TOLERANCE:
    raise ValueError(
      "transition must have one stationary distribution, but its chain falls"
      " into parts that do not communicate"
    )
  # Rounding leaves entries of transient tokens at +-1e-17.
  weights = np.maximum(rows[-1] * np.sign(rows[-1].sum()), 0.0)
  return weights / weights.sum()


def entropy_rate(chain: MarkovChain) -> float:
  """Entropy per token of the chain in equilibrium.

  `-sum_j pi_j sum_k P_jk ln P_jk` with the stationary pi, on the host.

  Args:
    chain: the chain; its initial distribution is not used.

  Returns:
    Entropy rate in nats per token.

  Raises:
    ValueError: as `stationary` does.
  """
  transition = np.asarray(chain.transition, np.float64)
  row_entropies = np.sum(scipy.special.entr(transition), axis=1)
  return float(stationary(chain.transition) @ row_entropies)


def sample(
  key: jax.Array, chain: MarkovChain, shape: tuple[int, int]
) -> jax.Array:
  """Draws sequences from a chain.

  Args:
    key: a typed key, or `[B]` of them, one a row.
    chain: the chain.
    shape: `(B, L)`.

  Returns:
    `[B, L]` int32 tokens. A row depends on its own key only.

  Raises:
    ValueError: if the chain's shapes disagree, or it is known and not one.
  """
  _check_chain(chain)
  batch_size, length = shape
  keys = process_lib.row_keys(key, batch_size)
  log_initial = jnp.log(jnp.asarray(chain.initial, jnp.float32))
  log_transition = jnp.log(jnp.asarray(chain.transition, jnp.float32))

  def body(logits, position):
    position_keys = process_lib.fold_rows(keys, position)
    tokens = categorical.draw(position_keys, logits[:, None])[:, 0]
    return log_transition[tokens], tokens

  logits = jnp.broadcast_to(log_initial, (batch_size, log_initial.shape[0]))
  _, tokens = jax.lax.scan(body, logits, jnp.arange(length, dtype=jnp.int32))
  return tokens.T


def nll(chain: MarkovChain, tokens: jax.Array) -> jax.Array:
  """Negative log-likelihood of sequences under a chain.

  Args:
    chain: the chain.
    tokens: `[B, L]` ints in [0, V), L at least 1. Checked on the host when
      concrete.

  Returns:
    `[B]` float32, nats per token; inf for an impossible sequence.

  Raises:
    TypeError: if the tokens are not integers.
    ValueError: if tokens have another shape or range, or the chain's shapes
      disagree, or it is known and not one.
  """
  _check_chain(chain)
  if tokens.ndim != 2 or not tokens.shape[1]:
    raise ValueError(
      f"tokens must have shape [B, L] with L at least 1, got {tokens.shape}"
    )
  checks.check_tokens("tokens", tokens, chain.initial.shape[0])
  first = jnp.log(chain.initial[tokens[:, 0]])
  steps = jnp.log(chain.transition[tokens[:, :-1], tokens[:, 1:]])
  return -(first + jnp.sum(steps, axis=1)) / tokens.shape[1]


def _check_transition(transition):
  if transition.ndim != 2 or transition.shape[0] != transition.shape[1]:
    raise ValueError(
      f"transition must have shape [V, V], got {transition.shape}"
    )
  checks.check_probabilities("transition", transition)


def _check_chain(chain):
  _check_transition(chain.transition)
  if chain.initial.shape != chain.transition.shape[:1]:
    raise ValueError(
      f"initial must have shape {chain.transition.shape[:1]}, got"
      f" {chain.initial.shape}"
    )
  checks.check_probabilities("initial", chain.initial)
