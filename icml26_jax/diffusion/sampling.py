"""One sampler for every corruption process, transform and policy."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib


class SampleStats(NamedTuple):
  """What a run cost and did.

  Attributes:
    nfe: `[B]` int32, network calls that the row needed (number of function
      evaluations).
    calls: `[]` int32, batched network calls made; at least `max(nfe)`.
    committed: `[B, N]` int32, positions committed at each step.
    record: what `record` gave after each step, with N as the first axis; None
      without it.
  """

  nfe: jax.Array
  calls: jax.Array
  committed: jax.Array
  record: Any = None


def time_grid(
  num_steps: int, *, start: float = 1.0, stop: float = 0.0
) -> np.ndarray:
  """Evenly spaced sampling times.

  Args:
    num_steps: number of steps N, at least 1.
    start: first time, in (0, 1].
    stop: last time, in [0, start).

  Returns:
    `[N + 1]` float32 NumPy array, decreasing.

  Raises:
    ValueError: if an argument is outside its range.
  """
  if num_steps < 1:
    raise ValueError(f"num_steps must be at least 1, got {num_steps}")
  if not 0.0 <= stop < start <= 1.0:
    raise ValueError(
      f"times must satisfy 0 <= stop < start <= 1, got start={start},"
      f" stop={stop}"
    )
  return np.linspace(start, stop, num_steps + 1, dtype=np.float32)


def sample(
  key: jax.Array,
  process: process_lib.Process,
  denoise_fn: process_lib.DenoiseFn,
  shape: tuple[int, int],
  times: jax.Array | np.ndarray,
  *,
  transform: process_lib.LogitTransform | None = None,
  policy: process_lib.UnmaskingPolicy | None = None,
  prompt: jax.Array | None = None,
  prompt_mask: jax.Array | None = None,
  record: Callable[[process_lib.State, process_lib.State], Any] | None = None,
) -> tuple[jax.Array, SampleStats]:
  """Draws sequences by running the process backwards along `times`.

  Each step calls the network, passes its log-probabilities through
  `transform`, asks `policy` which positions to commit, and lets the process
  step. The last step commits whatever is left.

  A row needs the call as long as it has hidden positions; if the process is
  stationary and the policy does not look at predictions, the policy is asked
  first and a row needs the call only if something was selected in it. A row
  that needs no call keeps its latent and its memories, and a call that no row
  needs is left out. So a batch gives what its rows give one by one, with the
  row keys `process.row_keys(key, B)`.

  Wrap it in `jax.jit`: run eagerly, it compiles anew at each call.

  Args:
    key: a typed key, or `[B]` of them, one a row.
    process: the corruption process.
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]`.
    shape: `(B, L)`.
    times: `[N + 1]` strictly decreasing times in [0, 1]. Checked on the host
      when concrete.
    transform: edits predictions; None for none.
    policy: chooses positions; None for the process's ancestral rule.
    prompt: `[B, L]` int tokens that stay in place where `prompt_mask`.
    prompt_mask: `[B, L]` bool.
    record: `(transform memory, policy memory) -> pytree`, asked after each
      step, for instance for the strength of a guidance. A row that needs no
      call keeps its last memory.

  Returns:
    `[B, L]` int32 tokens and the statistics of the run.

  Raises:
    TypeError: if the key is not typed, the prompt not integer or its mask not
      bool.
    ValueError: if times do not decrease, or prompt and mask do not have
      `shape`, or only one of them is given, or a prompt token is outside the
      vocabulary, or the network's logits do not have shape `[B, L, V]`, or a
      memory does not have the rows as its first axis.
  """
  check_times(times)
  batch_size, length = shape
  tokens, revealed = _prompt(prompt, prompt_mask, shape, process.vocab_size)
  transform = transform or process_lib.identity()
  policy = policy or process.ancestral
  row_keys = process_lib.row_keys(key, batch_size)
  key_impl = jax.random.key_impl(row_keys)
  times = jnp.asarray(times, jnp.float32)
  num_steps = times.shape[0] - 1
  policy_first = not policy.uses_predictions

  def select(log_probs, state, step):
    selection, state = policy.select(log_probs, state, step)
    commit = (selection.commit | step.is_last) & ~step.latent.revealed
    return selection._replace(commit=commit), state

  def body(carry, index):
    latent, transform_state, policy_state = carry
    keys = process_lib.fold_rows(row_keys, index)
    # Keys enter the conditional as plain numbers: under vmap it selects between
    # two copies of what enters, which key-reuse checking takes for a reuse.
    key_data = jax.random.key_data(keys)
    step = process_lib.Step(
      keys=process_lib.fold_rows(keys, 0),
      latent=latent,
      index=index,
      time=times[index],
      next_time=times[index + 1],
      is_last=index == num_steps - 1,
    )
    needed = jnp.any(~latent.revealed, axis=1)
    if policy_first:
      chosen, policy_state = select(None, policy_state, step)
      if process.is_stationary:
        needed = jnp.any(chosen.commit, axis=1)

    def call(carry):
      latent, transform_state, policy_state = carry
      keys = jax.random.wrap_key_data(key_data, impl=key_impl)
      logits, extra = process.evaluate(
        denoise_fn, latent, step.time, step.next_time
      )
      expected = (batch_size, length, process.vocab_size)
      if logits.shape != expected:
        raise ValueError(
          f"denoise_fn must return logits {expected}, got {logits.shape}"
        )
      log_probs = process_lib.carry_over(logits, latent.tokens, latent.revealed)
      guided, new_transform_state = transform.update(
        log_probs,
        transform_state,
        dataclasses.replace(step, keys=process_lib.fold_rows(keys, 1)),
      )
      if policy_first:
        selection, new_policy_state = chosen, policy_state
      else:
        selection, new_policy_state = select(
          log_probs,
          policy_state,
          dataclasses.replace(step, keys=process_lib.fold_rows(keys, 0)),
        )
      new_latent = process.reverse(
        process_lib.fold_rows(keys, 2),
        latent,
        guided,
        extra,
        step.time,
        step.next_time,
        selection,
      )
      new_carry = (new_latent, new_transform_state, new_policy_state)
      if policy_first:
        # Its memory is already that of this step, for every row.
        new_carry = (
          *_keep_rows(needed, new_carry[:2], carry[:2]),
          policy_state,
        )
      else:
        new_carry = _keep_rows(needed, new_carry, carry)
      return new_carry, jnp.sum(selection.commit, axis=1, dtype=jnp.int32)

    def skip(carry):
      return carry, jnp.zeros(batch_size, jnp.int32)

    carry, committed = jax.lax.cond(
      jnp.any(needed), call, skip, (latent, transform_state, policy_state)
    )
    return carry, (needed, committed, record(*carry[1:]) if record else None)

  latent = process.prior(
    process_lib.fold_rows(row_keys, num_steps), tokens, revealed, times[0]
  )
  transform_state, policy_state = transform.init(tokens), policy.init(tokens)
  _check_rows("transform", transform_state, batch_size)
  _check_rows("policy", policy_state, batch_size)
  (latent, _, _), (needed, committed, recorded) = jax.lax.scan(
    body,
    (latent, transform_state, policy_state),
    jnp.arange(num_steps, dtype=jnp.int32),
  )
  stats = SampleStats(
    nfe=jnp.sum(needed, axis=0, dtype=jnp.int32),
    calls=jnp.sum(jnp.any(needed, axis=1), dtype=jnp.int32),
    committed=committed.T,
    record=recorded,
  )
  return latent.tokens, stats


def check_times(times: jax.Array | np.ndarray) -> None:
  """Raises ValueError unless concrete `times` strictly decrease in [0, 1]."""
  if not checks.is_concrete(times):
    return
  times = np.asarray(times, np.float32)
  if times.ndim != 1 or times.size < 2:
    raise ValueError(
      f"times must be a vector of at least two times, got shape {times.shape}"
    )
  if not (np.all(np.diff(times) < 0) and times[0] <= 1 and times[-1] >= 0):
    raise ValueError(
      "times must strictly decrease within [0, 1], got"
      f" {np.array2string(times, threshold=8, max_line_width=10_000)}"
    )


def _prompt(
  prompt: jax.Array | None,
  prompt_mask: jax.Array | None,
  shape: tuple[int, int],
  vocab_size: int,
) -> tuple[jax.Array, jax.Array]:
  """Tokens and revealed positions at the start."""
  if (prompt is None) != (prompt_mask is None):
    raise ValueError("prompt and prompt_mask must be given together")
  if prompt is None or prompt_mask is None:
    return jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)
  for name, value in (("prompt", prompt), ("prompt_mask", prompt_mask)):
    if value.shape != tuple(shape):
      raise ValueError(f"{name} must have shape {shape}, got {value.shape}")
  if prompt_mask.dtype != jnp.bool_:
    raise TypeError(f"prompt_mask must be bool, got {prompt_mask.dtype}")
  checks.check_tokens("prompt", prompt, vocab_size, mask=prompt_mask)
  tokens = jnp.where(prompt_mask, prompt, 0).astype(jnp.int32)
  return tokens, jnp.asarray(prompt_mask)


def _keep_rows(rows: jax.Array, new: Any, old: Any) -> Any:
  """The new tree in the rows where `rows`, the old one elsewhere."""
  return jax.tree.map(
    lambda a, b: jnp.where(rows.reshape((-1,) + (1,) * (a.ndim - 1)), a, b),
    new,
    old,
  )


def _check_rows(name: str, state: process_lib.State, batch_size: int) -> None:
  """Raises ValueError unless each leaf has the rows as its first axis."""
  for path, leaf in jax.tree.leaves_with_path(state):
    if jnp.shape(leaf)[:1] != (batch_size,):
      raise ValueError(
        f"state of the {name} must have {batch_size} rows in each leaf, got"
        f" shape {jnp.shape(leaf)} at {jax.tree_util.keystr(path) or 'its root'}"
      )
