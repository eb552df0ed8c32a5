"""The Gaussian channel of a hybrid diffusion: spaces, noise, reverse updates.

A hidden position carries the one-hot of its token plus Gaussian noise, either
as a vector over the vocabulary, `y = e + sigma eps`, or seen through an
embedding table, `y E`, which for a large vocabulary is far smaller.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import noise_factor

# A table with more than this many rows per column is seen through a factor of
# E^T E, which is then well-conditioned; below it the noise over the vocabulary
# is no larger than a layer's activations.
_MAX_EXPLICIT_RATIO = 4


class Space(NamedTuple):
  """Where noisy positions live: F numbers each.

  Attributes:
    field: name of the attribute of `process.Latent` that holds them.
    clean: `tokens [B, L] -> [B, L, F]` float32, noiseless vectors.
    noise: `(keys [B], length) -> [B, L, F]` float32, noise of sigma 1.
    from_one_hots: `[B, L, V] -> [B, L, F]`, the linear map into this space.
    ascend: `[B, L, F] -> [B, L, F]`, takes a gradient in this space to the
      move that the same step along the gradient over one-hots would make.
  """

  field: str
  clean: Callable[[jax.Array], jax.Array]
  noise: Callable[[jax.Array, int], jax.Array]
  from_one_hots: Callable[[jax.Array], jax.Array]
  ascend: Callable[[jax.Array], jax.Array]


def one_hot_space(vocab_size: int) -> Space:
  """Vectors over the vocabulary, F = V."""
  return Space(
    field="values",
    # In a narrow dtype of tokens the vocabulary would wrap around.
    clean=lambda tokens: jax.nn.one_hot(
      tokens.astype(jnp.int32), vocab_size, dtype=jnp.float32
    ),
    noise=lambda keys, length: _row_normal(keys, (length, vocab_size)),
    from_one_hots=lambda values: values,
    ascend=lambda gradient: gradient,
  )


def embedding_space(embedding: jax.Array) -> Space:
  """Vectors seen through an embedding table, F = D, never forming `[B, L, V]`.

  The noise has the law of `eps E`, eps standard normal over the vocabulary:
  mean 0 and covariance `E^T E`. For V > 4 D it is `n F`, n standard normal of
  size D and F as in `noise_factor`. (For V <= 4 D, where `E^T E` may be
  singular, eps itself is drawn.)

  Args:
    embedding: `[V, D]` float, the table E.

  Returns:
    The space.

  Raises:
    ValueError: if the table is not a matrix.
    TypeError: if it is not of a float type.
  """
  if embedding.ndim != 2:
    raise ValueError(f"embedding must be [V, D], got shape {embedding.shape}")
  if not jnp.issubdtype(embedding.dtype, jnp.floating):
    raise TypeError(f"embedding must be float, got {embedding.dtype}")
  table = jnp.asarray(embedding, jnp.float32)
  vocab_size, size = table.shape
  if vocab_size > _MAX_EXPLICIT_RATIO * size:
    factor = noise_factor.noise_factor(table)
  else:
    factor = table

  def ascend(gradient):
    gram = jnp.matmul(table.T, table, precision="highest")
    return jnp.matmul(gradient, gram)

  def noise(keys, length):
    normal = _row_normal(keys, (length, factor.shape[0]))
    return jnp.matmul(normal, factor, precision="high")

  return Space(
    field="embedded",
    clean=lambda tokens: jnp.take(table, tokens.astype(jnp.int32), axis=0),
    noise=noise,
    from_one_hots=lambda values: jnp.matmul(values, table),
    ascend=ascend,
  )


def pf_ode_update(
  y: jax.Array,
  x0_hat: jax.Array,
  sigma: jax.Array,
  next_sigma: jax.Array,
  guidance: jax.Array | None = None,
) -> jax.Array:
  """Euler step of the probability-flow equation `dy/dsigma = (y - x0) / sigma`.

  `x0 + (next_sigma / sigma) (y - x0)`, exact while x0 is constant. With
  guidance the score `(x0 - y) / sigma^2` gains a term, which adds
  `(sigma - next_sigma) sigma guidance`.

  Args:
    y: `[B, L, F]` float32, noisy vectors.
    x0_hat: `[B, L, F]` float32, predicted noiseless ones.
    sigma: `[B]` float32, noise level of `y`, positive.
    next_sigma: `[B]` float32, noise level to step to.
    guidance: `[B, L, F]` float32, term added to the score; None for none.

  Returns:
    `[B, L, F]` float32 vectors at the next noise level.

  Raises:
    ValueError: if a concrete `sigma` is not positive, or `next_sigma` below 0.

  References:
    Pynadath et al., "CANDI: Hybrid Discrete-Continuous Diffusion Models",
    arXiv 2510.22510; Song et al., "Score-Based Generative Modeling through
    Stochastic Differential Equations", ICLR 2021, eq. (13).
  """
  check_sigma("sigma", sigma)
  checks.check_range("next_sigma", next_sigma, low=0.0)
  moved = x0_hat + _per_row(next_sigma / sigma) * (y - x0_hat)
  if guidance is None:
    return moved
  return moved + _per_row((sigma - next_sigma) * sigma) * guidance


def release_update(
  y: jax.Array,
  x0_hat: jax.Array,
  sigma: jax.Array,
  next_sigma: jax.Array,
  guidance: jax.Array | None = None,
  *,
  step_size: float = 1.0,
) -> jax.Array:
  """The step of the authors' code, which moves too far towards `x0_hat`.

  `y + step_size (sigma - next_sigma) (x0 - y) / next_sigma^2`: the difference
  of noise levels times the score at the next level, without the factor sigma
  of the probability flow. Guidance is added to that score, so it adds
  `step_size (sigma - next_sigma) guidance`. The authors' code feeds
  `next_sigma` to the network as well.

  Args:
    y: as in `pf_ode_update`, like all the rest.
    x0_hat: predicted noiseless vectors.
    sigma: noise level of `y`.
    next_sigma: noise level to step to, positive.
    guidance: term added to the score; None for none.
    step_size: multiplies the step.

  Returns:
    `[B, L, F]` float32 vectors.

  Raises:
    ValueError: if a concrete noise level is not positive.

  References:
    github.com/patrickpynadath1/candi-diffusion, `_continuous_step_cache`.
  """
  check_sigma("sigma", sigma)
  check_sigma("next_sigma", next_sigma)
  step = step_size * (sigma - next_sigma)
  moved = x0_hat + _per_row(1.0 - step / next_sigma**2) * (y - x0_hat)
  if guidance is None:
    return moved
  return moved + _per_row(step) * guidance


UPDATES: dict[str, Callable[..., jax.Array]] = {
  "pf_ode": pf_ode_update,
  "release": release_update,
}


def check_sigma(name: str, sigma: jax.Array | float) -> None:
  """Raises ValueError unless concrete noise levels are positive and finite."""
  checks.check_range(
    name, sigma, low=0.0, high=math.inf, open_low=True, open_high=True
  )


def _per_row(values: Any) -> jax.Array:
  """One number a row, against `[B, L, F]`."""
  return jnp.reshape(values, (-1, 1, 1))


def _row_normal(keys: jax.Array, shape: tuple[int, int]) -> jax.Array:
  """Standard normal numbers, `[B, *shape]`, each row from its own key."""
  return jax.vmap(lambda key: jax.random.normal(key, shape, jnp.float32))(keys)
