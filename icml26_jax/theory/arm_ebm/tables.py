"""Tables over all states of a small sequence model; see the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks


class Tables(NamedTuple):
  """Tables that were looked at.

  Attributes:
    steps: T arrays, `steps[t]` of shape `[V**t, V]`, or `[V**t, V + 1]` with
      EOS; of the last one with EOS all other columns are -inf.
    vocab_size: number of ordinary tokens V.
  """

  steps: list[jax.Array]
  vocab_size: int

  def children(self, t: int, values: jax.Array) -> jax.Array:
    """`[V**t, V]`: what `values` `[V**(t + 1)]` says of the next states."""
    return values.reshape(-1, self.vocab_size)


def check(name: str, tables: Sequence[jax.Array], *, eos: bool) -> Tables:
  """Tables as arrays, after their shapes and known values were looked at.

  Args:
    name: how the argument is called, for messages.
    tables: T float arrays.
    eos: whether the last column is EOS.

  Returns:
    The tables, of one dtype.

  Raises:
    TypeError: if a table is not of floats.
    ValueError: if there is no table, a size is wrong, a value is NaN or +inf,
      or no finished sequence has a finite score.
  """
  if not len(tables):
    raise ValueError(f"{name} must hold a table a step, T at least 1, got none")
  steps = [jnp.asarray(table) for table in tables]
  width = steps[0].shape[-1] if steps[0].ndim else 0
  vocab_size = width - int(eos)
  if vocab_size < 1:
    raise ValueError(
      f"{name}[0] must have shape {'(1, V + 1)' if eos else '(1, V)'} with V at"
      f" least 1, got {steps[0].shape}"
    )
  for t, table in enumerate(steps):
    if table.shape != (vocab_size**t, width):
      raise ValueError(
        f"{name}[{t}] must have shape {(vocab_size**t, width)} for"
        f" V={vocab_size} and eos={eos}, got {table.shape}"
      )
    if not jnp.issubdtype(table.dtype, jnp.floating):
      raise TypeError(f"{name}[{t}] must be floats, got {table.dtype}")
    check_scores(f"{name}[{t}]", table)
  dtype = jnp.result_type(*steps)
  steps = [table.astype(dtype) for table in steps]
  if eos:
    steps[-1] = steps[-1].at[:, :-1].set(-jnp.inf)
  found = Tables(steps, vocab_size)
  if checks.is_concrete(*steps):
    alive = _finite_continuations(found)
    if not alive[0].any():
      raise ValueError(
        f"{name} has empty support: no finished sequence has a finite score"
      )
  return found


def check_pair(
  names: tuple[str, str],
  first: Sequence[jax.Array],
  second: Sequence[jax.Array],
  *,
  eos: bool,
) -> tuple[Tables, Tables]:
  """Two sets of tables over the same states; see `check`.

  Raises:
    ValueError: also if their sizes differ.
  """
  one = check(names[0], first, eos=eos)
  other = check(names[1], second, eos=eos)
  if [x.shape for x in one.steps] != [x.shape for x in other.steps]:
    sizes = [(x.vocab_size, len(x.steps)) for x in (one, other)]
    raise ValueError(
      f"{names[0]} and {names[1]} must have one size, got (V, T) of {sizes[0]}"
      f" and {sizes[1]}"
    )
  return one, other


def check_law(name: str, tables: Tables) -> None:
  """Raises ValueError if known logits lose mass in a state without an end.

  A finite logit into such a state gives a probability to sequences that never
  finish, so that the finished ones sum to less than 1.
  """
  if not checks.is_concrete(*tables.steps):
    return
  alive = _finite_continuations(tables)
  reached = np.ones(1, bool)
  for t, step in enumerate(tables.steps):
    allowed = np.isfinite(np.asarray(step)) & reached[:, None]
    lost = allowed & ~alive[t]
    if lost.any():
      row, token = (int(i) for i in np.argwhere(lost)[0])
      raise ValueError(
        f"{name}[{t}][{row}, {token}] must be -inf, got"
        f" {float(step[row, token])}: no sequence can finish from there"
      )
    reached = allowed[:, : tables.vocab_size].reshape(-1)


def check_scores(name: str, array: jax.Array) -> None:
  """Raises ValueError if a known value is NaN or +inf."""
  if checks.is_concrete(array):
    values = np.asarray(array)
    wrong = ~(values < np.inf)
    if wrong.any():
      raise ValueError(
        f"{name} must be finite or -inf, got {values[wrong].flat[0]}"
      )


def log_sum_exp(logits: jax.Array) -> jax.Array:
  """Log of the sum of exponentials over the last axis.

  Like `jax.nn.logsumexp`, but where all are -inf the gradient is 0, not NaN.
  """
  top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
  is_empty = top == -jnp.inf
  top = jnp.where(is_empty, 0.0, top)
  total = jnp.sum(jnp.exp(logits - top[..., None]), axis=-1)
  return jnp.where(
    is_empty, -jnp.inf, jnp.log(jnp.where(is_empty, 1.0, total)) + top
  )


def minus_values(scores: jax.Array, values: jax.Array) -> jax.Array:
  """`scores - values`, and -inf where either is -inf."""
  is_dead = (scores == -jnp.inf) | (values == -jnp.inf)
  return jnp.where(is_dead, -jnp.inf, scores - jnp.where(is_dead, 0.0, values))


def log_policy(logits: jax.Array) -> jax.Array:
  """Log of pi(y|s); -inf in a state where nothing is allowed."""
  return minus_values(logits, log_sum_exp(logits)[..., None])


def _finite_continuations(tables: Tables) -> list[np.ndarray]:
  """Bool tables: whether a finished sequence of finite score goes that way."""
  found: list[np.ndarray] = []
  for step in reversed(tables.steps):
    alive = np.isfinite(np.asarray(step))
    if found:
      next_alive = found[-1].any(axis=1).reshape(-1, tables.vocab_size)
      alive[:, : tables.vocab_size] &= next_alive
    found.append(alive)
  return found[::-1]
