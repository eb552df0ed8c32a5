"""Discrete classifier-free guidance (D-CFG): two predictions, one law.

References:
  Schiff et al., "Simple Guidance Mechanisms for Discrete Diffusion Models",
  ICLR 2025, section 3.1.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib


def combine(
  conditional: jax.Array, unconditional: jax.Array, gamma: jax.Array | float
) -> jax.Array:
  """Log-probabilities of `p_cond^gamma p_uncond^(1 - gamma)`, normalised.

  Args:
    conditional: `[..., V]` float32 log-probabilities.
    unconditional: `[..., V]` float32 log-probabilities.
    gamma: `[]` strength: 0 for the unconditional law, 1 for the conditional
      one, more to lean away from the unconditional one.

  Returns:
    `[..., V]` float32. A token of probability 0 in either stays at 0, whatever
    gamma (above 1 the formula alone would give it +inf); where the two share no
    token, the conditional law.

  Raises:
    ValueError: if the shapes differ.
  """
  if conditional.shape != unconditional.shape:
    raise ValueError(
      f"conditional {conditional.shape} and unconditional"
      f" {unconditional.shape} must have one shape"
    )
  possible = (conditional > -jnp.inf) & (unconditional > -jnp.inf)
  # Zeros stand in for -inf, so that no gradient meets inf - inf.
  mixed = gamma * jnp.where(possible, conditional, 0.0) + (
    1.0 - gamma
  ) * jnp.where(possible, unconditional, 0.0)
  shared = jnp.any(possible, axis=-1, keepdims=True)
  mixed = jnp.where(shared & ~possible, -jnp.inf, mixed)
  return jnp.where(shared, jax.nn.log_softmax(mixed, axis=-1), conditional)


def cfg(
  unconditional_fn: process_lib.DenoiseFn, gamma: jax.Array | float
) -> process_lib.LogitTransform:
  """D-CFG: leans from a network's unconditional predictions to the given ones.

  It calls a second network at each step, so a step costs two calls where the
  sampler counts one.

  Args:
    unconditional_fn: `(latent, t [B]) -> logits [B, L, V]`, a network that does
      not know the condition; `without_prompt` makes one of a prompt.
    gamma: the strength, as in `combine`; a Python number 1 gives the identity
      and leaves the second call out.

  Returns:
    A transform without memory. Revealed positions are unchanged.

  Raises:
    ValueError: if gamma is not one finite number.
  """
  if jnp.shape(gamma) != ():
    raise ValueError(f"gamma must be one number, got shape {jnp.shape(gamma)}")
  checks.check_range("gamma", gamma, open_low=True, open_high=True)
  if checks.is_concrete(gamma) and float(gamma) == 1.0:
    return process_lib.identity()

  def update(logits, state, step):
    latent = step.latent
    times = jnp.broadcast_to(step.time, logits.shape[:1])
    unconditional = jax.nn.log_softmax(
      unconditional_fn(latent, times).astype(jnp.float32), axis=-1
    )
    mixed = combine(logits, unconditional, gamma)
    return jnp.where(latent.revealed[..., None], logits, mixed), state

  return process_lib.LogitTransform(lambda tokens: (), update)


def without_prompt(
  denoise_fn: process_lib.DenoiseFn, prompt_mask: jax.Array
) -> process_lib.DenoiseFn:
  """The denoiser of a masked process when it is not shown the prompt.

  Args:
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]`.
    prompt_mask: `[B, L]` bool, positions that it shall see as hidden.

  Returns:
    The denoiser.

  Raises:
    TypeError: if the mask is not bool.
    ValueError: at the call, if the latent holds noisy vectors (a hidden
      position then needs noise, which a denoiser cannot draw), or if the mask
      has another shape.
  """
  if prompt_mask.dtype != jnp.bool_:
    raise TypeError(f"prompt_mask must be bool, got {prompt_mask.dtype}")

  def denoise(latent, t):
    if latent.values is not None or latent.embedded is not None:
      raise ValueError("latent must be of a process that only masks")
    if prompt_mask.shape != latent.revealed.shape:
      raise ValueError(
        f"prompt_mask must have shape {latent.revealed.shape}, got"
        f" {prompt_mask.shape}"
      )
    hidden = dataclasses.replace(
      latent,
      tokens=jnp.where(prompt_mask, 0, latent.tokens),
      revealed=latent.revealed & ~prompt_mask,
    )
    return denoise_fn(hidden, t)

  return denoise
