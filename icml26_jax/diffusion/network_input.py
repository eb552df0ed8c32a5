"""What a hybrid diffusion model's network is fed.

References:
  Pynadath, Shi, Zhang, "CANDI: Hybrid Discrete-Continuous Diffusion Models",
  ICML 2026, arXiv 2510.22510.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import gaussian
from icml26_jax.diffusion import process as process_lib


class InputParams(NamedTuple):
  """Parameters of the network's input.

  Attributes:
    embedding: `[V, D]` float; its rows are normalised before use.
    special: `[D]` float, vector of a hidden position, normalised before use.
  """

  embedding: jax.Array
  special: jax.Array


def embed_input(
  params: InputParams,
  xt: jax.Array,
  revealed: jax.Array,
  sigma: jax.Array | float,
  *,
  mix: float = 0.5,
) -> jax.Array:
  """The network's input vectors.

  `xt E` at revealed positions; at hidden ones
  `mix u + (1 - mix) xt E / sqrt(1 + sigma^2)`, with the unit vector u.

  Args:
    params: embedding and special vector.
    xt: `[B, L, V]` float32, from `corrupt`.
    revealed: `[B, L]` bool.
    sigma: `[B]` or `[]` float, noise level.
    mix: share of the special vector, in [0, 1].

  Returns:
    `[B, L, D]` float32.

  Raises:
    ValueError: if `mix` is outside [0, 1], a concrete `sigma` is not positive
      or the shapes disagree.
    TypeError: if `revealed` is not bool.
  """
  checks.check_range("mix", mix, low=0.0, high=1.0)
  gaussian.check_sigma("sigma", sigma)
  if revealed.dtype != jnp.bool_:
    raise TypeError(f"revealed must be bool, got {revealed.dtype}")
  if xt.shape[:2] != revealed.shape:
    raise ValueError(
      f"xt {xt.shape} and revealed {revealed.shape} must have the same rows and"
      " positions"
    )
  sigma = process_lib.row_values("sigma", sigma, xt.shape[0])
  embedded = jnp.matmul(xt, _unit(params.embedding))
  scale = (1.0 - mix) / jnp.sqrt(1.0 + sigma**2)
  hidden = (
    mix * _unit(params.special)[None, None] + scale[:, None, None] * embedded
  )
  return jnp.where(revealed[..., None], embedded, hidden)


def _unit(vectors: jax.Array) -> jax.Array:
  """Rows scaled to length 1; one shorter than 1e-12 stays as it is."""
  vectors = vectors.astype(jnp.float32)
  square = jnp.sum(vectors**2, axis=-1, keepdims=True)
  is_long = square > 1e-24
  return vectors * jnp.where(
    is_long, jax.lax.rsqrt(jnp.where(is_long, square, 1.0)), 1.0
  )
