"""One sampler for every corruption process, transform and policy."""

from __future__ import annotations

from typing import NamedTuple

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
  """

  nfe: jax.Array
  calls: jax.Array
  committed: jax.Array


def time_grid(num_steps: int, *, start: float = 1.0, stop: float = 0.0):
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
    times,
    *,
    transform: process_lib.LogitTransform | None = None,
    policy: process_lib.UnmaskingPolicy | None = None,
    prompt: jax.Array | None = None,
    prompt_mask: jax.Array | None = None,
) -> tuple[jax.Array, SampleStats]:
  """Draws sequences by running the process backwards along `times`.

  Each step calls the network, passes its log-probabilities through
  `transform`, asks `policy` which positions to commit, and lets the process
  step. The last step commits whatever is left. If neither the policy nor the
  motion of the latent needs the network, the policy is asked first and the
  call is left out when it selects nothing.

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

  Returns:
    `[B, L]` int32 tokens and the statistics of the run.

  Raises:
    ValueError: if times do not decrease, or prompt and mask do not have
      `shape`, or only one of them is given, or a prompt token is outside the
      vocabulary.
  """
  check_times(times)
  batch_size, length = shape
  tokens, revealed = _prompt(prompt, prompt_mask, shape, process.vocab_size)
  transform = transform or process_lib.identity()
  policy = policy or process.ancestral
  keys = process_lib.row_keys(key, batch_size)
  times = jnp.asarray(times, jnp.float32)
  num_steps = times.shape[0] - 1

  latent = process.prior(
      process_lib.fold_rows(keys, num_steps), tokens, revealed, times[0]
  )
  can_skip = process.is_stationary and not policy.uses_predictions

  def select(log_probs, state, step):
    selection, state = policy.select(log_probs, state, step)
    commit = (selection.commit | step.is_last) & ~step.latent.revealed
    return selection._replace(commit=commit), state

  def body(carry, index):
    latent, transform_state, policy_state = carry
    step_keys = process_lib.fold_rows(keys, index)
    step = process_lib.Step(
        keys=process_lib.fold_rows(step_keys, 0),
        latent=latent,
        index=index,
        time=times[index],
        next_time=times[index + 1],
        is_last=index == num_steps - 1,
    )

    def predict(transform_state):
      logits, extra = process.evaluate(
          denoise_fn, latent, step.time, step.next_time
      )
      log_probs = process_lib.carry_over(
          logits, latent.tokens, latent.revealed
      )
      guided, transform_state = transform.update(
          log_probs,
          transform_state,
          step._replace(keys=process_lib.fold_rows(step_keys, 1)),
      )
      return log_probs, guided, extra, transform_state

    def reverse(guided, extra, selection):
      return process.reverse(
          process_lib.fold_rows(step_keys, 2),
          latent,
          guided,
          extra,
          step.time,
          step.next_time,
          selection,
      )

    if can_skip:
      selection, policy_state = select(None, policy_state, step)
      needed = jnp.any(selection.commit, axis=1)

      def call(transform_state):
        _, guided, extra, transform_state = predict(transform_state)
        return reverse(guided, extra, selection), transform_state

      new_latent, transform_state = jax.lax.cond(
          jnp.any(needed), call, lambda state: (latent, state), transform_state
      )
    else:
      needed = jnp.any(~latent.revealed, axis=1)
      log_probs, guided, extra, transform_state = predict(transform_state)
      selection, policy_state = select(log_probs, policy_state, step)
      new_latent = reverse(guided, extra, selection)
    committed = jnp.sum(selection.commit, axis=1, dtype=jnp.int32)
    return (new_latent, transform_state, policy_state), (needed, committed)

  carry = (latent, transform.init(tokens), policy.init(tokens))
  (latent, _, _), (needed, committed) = jax.lax.scan(
      body, carry, jnp.arange(num_steps, dtype=jnp.int32)
  )
  calls = jnp.any(needed, axis=1) if can_skip else jnp.ones(num_steps, bool)
  stats = SampleStats(
      nfe=jnp.sum(needed, axis=0, dtype=jnp.int32),
      calls=jnp.sum(calls, dtype=jnp.int32),
      committed=committed.T,
  )
  return latent.tokens, stats


def check_times(times) -> None:
  """Raises ValueError unless concrete `times` strictly decrease in [0, 1]."""
  if not checks.is_concrete(times):
    return
  times = np.asarray(times)
  if times.ndim != 1 or times.size < 2:
    raise ValueError(
        f"times must be a vector of at least two times, got shape {times.shape}"
    )
  if not (np.all(np.diff(times) < 0) and times[0] <= 1 and times[-1] >= 0):
    raise ValueError(
        f"times must strictly decrease within [0, 1], got {times.tolist()}"
    )


def _prompt(prompt, prompt_mask, shape, vocab_size):
  """Tokens and revealed positions at the start."""
  if (prompt is None) != (prompt_mask is None):
    raise ValueError("prompt and prompt_mask must be given together")
  if prompt is None:
    return jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)
  for name, value in (("prompt", prompt), ("prompt_mask", prompt_mask)):
    if value.shape != tuple(shape):
      raise ValueError(f"{name} must have shape {shape}, got {value.shape}")
  if prompt_mask.dtype != jnp.bool_:
    raise TypeError(f"prompt_mask must be bool, got {prompt_mask.dtype}")
  checks.check_tokens("prompt", prompt, vocab_size, mask=prompt_mask)
  tokens = jnp.where(prompt_mask, prompt, 0).astype(jnp.int32)
  return tokens, jnp.asarray(prompt_mask)
