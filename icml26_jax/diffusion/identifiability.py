"""Token identity and continuous geometry under Gaussian noise on one-hots.

A token k becomes `y = e_k + sigma * eps` with `eps ~ N(0, I_V)`. Two things
can go wrong. The nearest one-hot may be a wrong one (identity corruption,
which grows with the vocabulary), and wrong tokens may come nearer than the
true one (rank degradation, which does not depend on the vocabulary).

References:
  Pynadath, Shi, Zhang, "CANDI: hybrid discrete-continuous diffusion models",
  arXiv 2510.22510, section on token identifiability and temporal dissonance.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks

# Below 1/64 both measures are under 1e-400, hence 0 in any float; the bound
# keeps 1/sigma and its derivative finite.
_MIN_SIGMA = 1.0 / 64.0
_GRID_POINTS = 1024
_GRID_END = 10.0
# Halvings of the bracket [0, 1/_MIN_SIGMA] down to float32 resolution.
_BISECTIONS = 48


def identity_corruption(
  vocab_size: int, sigma: jax.typing.ArrayLike
) -> jax.Array:
  """Probability that some wrong token is the nearest one-hot.

  `rho(V, sigma) = 1 - integral phi(z) Phi(z + 1/sigma)^(V-1) dz`, by the
  trapezoid rule on 1024 points of [-10, 10] (Gauss-Hermite nodes miss the
  sharp front at large V). The integrand is written with `expm1` and `log1p`,
  so nothing cancels at small `sigma` nor at V = 1e6.

  Args:
    vocab_size: number of tokens V, at least 2.
    sigma: float array of any shape, standard deviation of the noise, positive
      (`inf` is allowed). Checked on the host when concrete.

  Returns:
    float32 of the shape of `sigma`, in [0, 1 - 1/V], right to about 1e-7. It
    tends to 0 as `sigma` tends to 0 and to 1 - 1/V as it tends to infinity.

  Raises:
    TypeError: if `vocab_size` is not an integer.
    ValueError: if `vocab_size` is below 2, or `sigma` is not positive.

  References:
    CANDI, arXiv 2510.22510, discrete identity corruption.
  """
  others = _check_vocab_size(vocab_size) - 1
  sigma = jnp.asarray(sigma, jnp.float32)
  checks.check_range("sigma", sigma, low=0.0, open_low=True)
  return _corruption_at_gap(others, 1.0 / jnp.maximum(sigma, _MIN_SIGMA))


def rank_degradation(
  sigma: jax.typing.ArrayLike,
  *,
  normalise: Literal["wrong", "vocab"] = "wrong",
  vocab_size: int | None = None,
) -> jax.Array:
  """Expected share of wrong tokens that are nearer than the true one.

  `r(sigma) = Phi(-1 / (sigma sqrt 2))`, the share of the V - 1 wrong tokens,
  whatever V is. Their expected number is `(V - 1) r`.

  Args:
    sigma: float array of any shape, standard deviation of the noise, positive
      (`inf` is allowed). Checked on the host when concrete.
    normalise: "wrong" divides the expected number by V - 1, "vocab" by V, as
      the authors' release does.
    vocab_size: number of tokens V, needed by "vocab" only.

  Returns:
    float32 of the shape of `sigma`, from 0 at `sigma` 0 to 1/2 (for "vocab",
    (V - 1) / (2 V)) at infinity.

  Raises:
    TypeError: if `vocab_size` is not an integer.
    ValueError: if an argument is outside its range, or "vocab" comes without
      a vocabulary.

  References:
    CANDI, arXiv 2510.22510, continuous rank degradation.
  """
  if normalise not in ("wrong", "vocab"):
    raise ValueError(f"normalise must be 'wrong' or 'vocab', got {normalise!r}")
  if normalise == "vocab" and vocab_size is None:
    raise ValueError("normalise='vocab' needs vocab_size, got None")
  sigma = jnp.asarray(sigma, jnp.float32)
  checks.check_range("sigma", sigma, low=0.0, open_low=True)
  gap = math.sqrt(0.5) / jnp.maximum(sigma, _MIN_SIGMA)
  share = jax.scipy.special.ndtr(-gap)
  if vocab_size is not None:
    vocab_size = _check_vocab_size(vocab_size)
    if normalise == "vocab":
      share = share * ((vocab_size - 1) / vocab_size)
  return share


def sigma_from_rank(r: jax.typing.ArrayLike) -> jax.Array:
  """Noise at which a share `r` of the wrong tokens is nearer.

  The inverse of `rank_degradation`: `sigma = -1 / (sqrt 2 Phi^-1(r))`.

  Args:
    r: float array of any shape, in (0, 1/2) after rounding to float32.
      Checked on the host when concrete.

  Returns:
    float32 of the shape of `r`, increasing in it.

  Raises:
    ValueError: if `r` is outside (0, 1/2); at 1/2 the noise is infinite.

  References:
    CANDI, arXiv 2510.22510, Gaussian schedule.
  """
  r = jnp.asarray(r, jnp.float32)
  checks.check_range("r", r, low=0.0, high=0.5, open_low=True, open_high=True)
  return -math.sqrt(0.5) / jax.scipy.special.ndtri(r)


def sigma_at_identity(vocab_size: int, rho: jax.typing.ArrayLike) -> jax.Array:
  """Noise at which the nearest token is wrong with probability `rho`.

  The inverse of `identity_corruption` in `sigma`, by bisection on 1/sigma.
  At `rho` = 1/2 it falls with V like `1 / sqrt(2 ln V)` while rank
  degradation depends on `sigma` alone: the temporal dissonance of Gaussian
  noise on one-hots.

  Args:
    vocab_size: number of tokens V, at least 2.
    rho: float array of any shape, in (0, 1 - 1/V). Checked on the host when
      concrete. Close to the upper end the answer is ill-conditioned.

  Returns:
    float32 of the shape of `rho`, increasing in it. Its derivative is that of
    the implicit function.

  Raises:
    TypeError: if `vocab_size` is not an integer.
    ValueError: if `vocab_size` is below 2, or `rho` is outside its range.

  References:
    CANDI, arXiv 2510.22510, temporal dissonance.
  """
  vocab_size = _check_vocab_size(vocab_size)
  checks.check_range(
    "rho",
    rho,
    low=0.0,
    high=1.0 - 1.0 / vocab_size,
    open_low=True,
    open_high=True,
  )
  gap = _gap_at_corruption(vocab_size - 1, jnp.asarray(rho, jnp.float32))
  return 1.0 / gap


def _corruption_at_gap(others, gap):
  """Identity corruption as a function of gap = 1/sigma, for V - 1 others."""
  z, weights = _grid()
  leading = range(gap.ndim)
  log_ahead = _log_ndtr(gap[..., None] + jnp.expand_dims(z, leading))
  terms = -jnp.expm1(others * log_ahead) * jnp.expand_dims(weights, leading)
  # Pairwise, so that rounding stays at a few ulps in whatever order the
  # compiler would add.
  while (width := terms.shape[-1]) > 1:
    terms = terms[..., : width // 2] + terms[..., width // 2 :]
  return terms[..., 0]


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _gap_at_corruption(others, rho):
  """1/sigma at which identity corruption equals rho."""

  def halve(_, bracket):
    low, high = bracket
    middle = 0.5 * (low + high)
    # Corruption falls as the gap grows.
    above = _corruption_at_gap(others, middle) > rho
    return jnp.where(above, middle, low), jnp.where(above, high, middle)

  low = jnp.zeros_like(rho)
  high = jnp.full_like(rho, 1.0 / _MIN_SIGMA)
  low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))
  return 0.5 * (low + high)


@_gap_at_corruption.defjvp
def _gap_at_corruption_jvp(others, primals, tangents):
  (rho,), (rho_dot,) = primals, tangents
  gap = _gap_at_corruption(others, rho)
  _, slope = jax.jvp(
    functools.partial(_corruption_at_gap, others), (gap,), (jnp.ones_like(gap),)
  )
  return gap, rho_dot / slope


def _log_ndtr(x):
  """log Phi(x), keeping the relative precision of 1 - Phi(x) for x > 0.

  `jax.scipy.special.log_ndtr` takes the logarithm of a number close to 1 for
  x in (0, 5), which is 0.06 off once multiplied by V - 1 = 1e6.
  """
  positive = x > 0
  above = jnp.log1p(-jax.scipy.special.ndtr(-jnp.where(positive, x, 1.0)))
  below = jax.scipy.special.log_ndtr(jnp.where(positive, -1.0, x))
  return jnp.where(positive, above, below)


@functools.cache
def _grid():
  """Abscissae and weights phi(z) dz of the trapezoid rule, float32."""
  z, step = np.linspace(-_GRID_END, _GRID_END, _GRID_POINTS, retstep=True)
  z = z.astype(np.float32)
  weights = np.exp(-0.5 * z.astype(np.float64) ** 2) / math.sqrt(2 * math.pi)
  return z, (weights * step).astype(np.float32)


def _check_vocab_size(vocab_size) -> int:
  """The vocabulary size as an int; raises unless it is one, at least 2."""
  try:
    vocab_size = operator.index(vocab_size)
  except TypeError as error:
    raise TypeError(
      f"vocab_size must be an integer, got {vocab_size!r}"
    ) from error
  checks.check_range("vocab_size", vocab_size, low=2)
  return vocab_size
