"""Classifier guidance of Gaussian latents by adding a gradient to the score."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import gaussian
from icml26_jax.diffusion import process as process_lib


class ClassifierGuidance(NamedTuple):
  """An off-the-shelf classifier and how hard to follow it.

  The classifier has been trained on clean one-hots and is fed the expected
  one-hots `x0_hat(y) = softmax(logits(y))` of the network, before any logit
  transform. Guidance moves noisy positions only, so it acts from the second
  network call on: with one sampling step it changes nothing.

  Attributes:
    log_prob_fn: `[B, L, V]` float32 expected one-hots to `[B]`, the
      log-probability in nats of the wanted class, each row by itself.
    scale: the factor gamma of the gradient. A Python number 0 leaves guidance
      out of the program; a traced 0 gives the same up to rounding.
    straight_through: take the gradient with respect to `x0_hat` as the
      gradient with respect to y, instead of going through the network.
  """

  log_prob_fn: Callable[[jax.Array], jax.Array]
  scale: jax.Array | float
  straight_through: bool = False


def check_scale(scale: jax.Array | float) -> bool:
  """Checks a guidance scale and says whether it can be left out.

  Args:
    scale: a number, possibly traced.

  Returns:
    True if it is known now to be 0.

  Raises:
    ValueError: if it is not one number, or known not to be finite.
  """
  if jnp.shape(scale) != ():
    raise ValueError(f"scale must be one number, got shape {jnp.shape(scale)}")
  if not checks.is_concrete(scale):
    return False
  if not np.isfinite(scale):
    raise ValueError(f"scale must be finite, got {scale}")
  return float(scale) == 0.0


def total_log_prob(
  log_prob_fn: Callable[[jax.Array], jax.Array], one_hots: jax.Array
) -> jax.Array:
  """Sum over rows of a classifier's log-probabilities.

  Args:
    log_prob_fn: as in `ClassifierGuidance`.
    one_hots: `[B, L, V]` float32 expected one-hots.

  Returns:
    `[]` float32; its gradient holds each row's own.

  Raises:
    ValueError: if the classifier does not give one number a row.
  """
  log_probs = log_prob_fn(one_hots)
  if log_probs.shape != one_hots.shape[:1]:
    raise ValueError(
      f"log_prob_fn must return one number a row {one_hots.shape[:1]}, got"
      f" shape {log_probs.shape}"
    )
  return jnp.sum(log_probs.astype(jnp.float32))


def guided_evaluate(
  guidance: ClassifierGuidance,
  space: gaussian.Space,
  denoise_fn: process_lib.DenoiseFn,
  latent: process_lib.Latent,
  times: jax.Array,
) -> tuple[jax.Array, jax.Array]:
  """One network call and the guidance term that comes with it.

  The term is `scale * d/dy log p(c | x0_hat(y))`, by one forward and one
  backward pass of the network (forward only if straight-through). In an
  embedding space it is the same move seen through the table, given that the
  network looks at y only through the table.

  Args:
    guidance: the classifier.
    space: where the noisy positions live.
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]`.
    latent: what the network sees.
    times: `[B]` float32.

  Returns:
    `[B, L, V]` logits, as the network alone would give them, and `[B, L, F]`
    float32, the term to add to the score, 0 at revealed positions.
  """

  def logits_of(noisy):
    changed = dataclasses.replace(latent, **{space.field: noisy})
    return denoise_fn(changed, times)

  def expected_one_hots(logits):
    probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    known = jax.nn.one_hot(latent.tokens, logits.shape[-1], dtype=jnp.float32)
    return jnp.where(latent.revealed[..., None], known, probs)

  noisy = getattr(latent, space.field)
  if guidance.straight_through:
    logits = logits_of(noisy)
    gradient = space.from_one_hots(
      jax.grad(lambda x: total_log_prob(guidance.log_prob_fn, x))(
        expected_one_hots(logits)
      )
    )
  else:
    logits, pull_back = jax.vjp(logits_of, noisy)
    cotangent = jax.grad(
      lambda x: total_log_prob(guidance.log_prob_fn, expected_one_hots(x))
    )(logits)
    (gradient,) = pull_back(cotangent)
    gradient = space.ascend(gradient)
  gradient = jnp.where(latent.revealed[..., None], 0.0, gradient)
  return logits, guidance.scale * gradient
