"""Sharper and safer predictions: temperature, top-k, nucleus and min-p.

Each is a `process.LogitTransform`, so that any chain of them works with any
process and policy.
"""

from __future__ import annotations

from collections.abc import Callable
import math

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib


def temperature(value: float) -> process_lib.LogitTransform:
  """Divides log-probabilities by a temperature and renormalises.

  Args:
    value: the temperature, positive; 1 changes nothing, less sharpens.

  Returns:
    The transform.

  Raises:
    ValueError: if the temperature is not positive and finite.
  """
  checks.check_range(
    "temperature",
    value,
    low=0.0,
    high=float("inf"),
    open_low=True,
    open_high=True,
  )
  return _stateless(lambda log_probs: log_probs / value)


def top_k(k: int) -> process_lib.LogitTransform:
  """Keeps the k most probable tokens of each position.

  Tokens as probable as the k-th stay, so ties may keep more.

  Args:
    k: number of tokens, at least 1; k of at least V changes nothing.

  Returns:
    The transform.

  Raises:
    ValueError: if k is below 1.
  """
  checks.check_range("k", k, low=1)

  def keep(log_probs):
    return _keep_heaviest(log_probs, jnp.ones_like(log_probs, jnp.int32), k)

  return _stateless(keep)


def top_p(p: float) -> process_lib.LogitTransform:
  """Keeps the smallest set of most probable tokens with mass at least p.

  Tokens as probable as the last one kept stay, so ties may keep more.

  Args:
    p: probability mass, in (0, 1]; 1 changes nothing.

  Returns:
    The transform.

  Raises:
    ValueError: if p is outside its range.

  References:
    Holtzman et al., "The Curious Case of Neural Text Degeneration", ICLR 2020,
    section 3.1.
  """
  checks.check_range("p", p, low=0.0, high=1.0, open_low=True)

  def keep(log_probs):
    if p == 1.0:
      return log_probs
    return _keep_heaviest(log_probs, jnp.exp(log_probs), p)

  return _stateless(keep)


def min_p(p: float) -> process_lib.LogitTransform:
  """Keeps the tokens at least `p` times as probable as the best one.

  Args:
    p: the ratio, in [0, 1]; 0 changes nothing, 1 keeps the best token only
      (and those as probable).

  Returns:
    The transform.

  Raises:
    ValueError: if p is outside its range.

  References:
    Nguyen et al., "Turning Up the Heat: Min-p Sampling for Creative and
    Coherent LLM Outputs", ICLR 2025, section 3.
  """
  checks.check_range("p", p, low=0.0, high=1.0)
  ratio = math.log(p) if p > 0 else -math.inf

  def keep(log_probs):
    best = jnp.max(log_probs, axis=-1, keepdims=True)
    return jnp.where(log_probs >= best + ratio, log_probs, -jnp.inf)

  return _stateless(keep)


def _keep_heaviest(
  log_probs: jax.Array, weights: jax.Array, target: float
) -> jax.Array:
  """The most probable tokens that together weigh `target`; -inf elsewhere.

  Bisects the threshold over the bits of a float, which for positive numbers
  are in the order of the numbers: 31 sums in place of a sort, which takes 20
  times as long on a CPU.
  """
  size = jnp.abs(jnp.minimum(log_probs, 0.0).astype(jnp.float32))
  bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(size), jnp.int32)
  weights = jax.lax.stop_gradient(weights)
  infinity = 0x7F800000
  shape = (*bits.shape[:-1], 1)

  def halve(_, ends):
    few, enough = ends
    middle = few + (enough - few) // 2
    heavy = (
      jnp.sum(jnp.where(bits <= middle, weights, 0), axis=-1, keepdims=True)
      >= target
    )
    return jnp.where(heavy, few, middle), jnp.where(heavy, middle, enough)

  ends = (jnp.full(shape, -1, jnp.int32), jnp.full(shape, infinity, jnp.int32))
  _, enough = jax.lax.fori_loop(0, 31, halve, ends)
  return jnp.where(bits <= enough, log_probs, -jnp.inf)


def _stateless(
  edit: Callable[[jax.Array], jax.Array],
) -> process_lib.LogitTransform:
  """A transform without memory that gives log-probabilities again."""

  def update(log_probs, state, step):
    del step
    return jax.nn.log_softmax(edit(log_probs), axis=-1), state

  return process_lib.LogitTransform(lambda tokens: (), update)
