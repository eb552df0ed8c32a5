"""Ids of a model's output layer that are no tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib


def only_defined(
  denoise_fn: process_lib.DenoiseFn, defined: jax.Array | np.ndarray
) -> process_lib.DenoiseFn:
  """A denoiser that never predicts ids which stand for no token.

  Output layers are padded to a round size, or hold ids that the tokenizer does
  not know, such as a mask symbol. Their logits become -inf before anything
  else happens, so that neither a policy's confidence nor a draw meets them.

  Args:
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]`.
    defined: `[V]` bool, True where the id is a token.

  Returns:
    The denoiser.

  Raises:
    TypeError: if `defined` is not bool.
    ValueError: if it is not a vector, or known to hold no token, or, at the
      call, not as long as the vocabulary.
  """
  if defined.dtype != jnp.bool_:
    raise TypeError(f"defined must be bool, got {defined.dtype}")
  if defined.ndim != 1:
    raise ValueError(f"defined must be a vector, got shape {defined.shape}")
  if checks.is_concrete(defined) and not np.any(defined):
    raise ValueError("defined must hold at least one token, got none")
  keep = jnp.asarray(defined)

  def denoise(latent, t):
    logits = denoise_fn(latent, t)
    if logits.shape[-1:] != keep.shape:
      raise ValueError(
        f"defined must have one entry a logit {logits.shape[-1:]}, got shape"
        f" {keep.shape}"
      )
    return jnp.where(keep[None, None], logits, -jnp.inf)

  return denoise
