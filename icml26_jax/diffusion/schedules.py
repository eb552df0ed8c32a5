"""Noise schedules: how much is masked and how loud the noise is at time t.

Time runs from 1 (noise) to 0 (text).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import identifiability


def log_linear_alpha(
  t: jax.typing.ArrayLike, *, eps: float = 1e-3
) -> jax.Array:
  """Share of revealed positions, `alpha(t) = 1 - (1 - eps) t`.

  Args:
    t: float array of any shape, times in [0, 1]. Checked on the host when
      concrete.
    eps: share still revealed at time 1, in [0, 1).

  Returns:
    float32 of the shape of `t`: 1 at time 0, `eps` at time 1.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    Sahoo et al., "Simple and effective masked diffusion language models",
    NeurIPS 2024, log-linear schedule; CANDI, arXiv 2510.22510.
  """
  time = _check_time(t, eps)
  # 1 - t is exact for t in [1/2, 1], so the value at 1 is eps itself.
  return (1.0 - time) + eps * time


def log_linear_alpha_derivative(
  t: jax.typing.ArrayLike, *, eps: float = 1e-3
) -> jax.Array:
  """Derivative of `log_linear_alpha` in time, `-(1 - eps)`.

  Args:
    t: float array of any shape, times in [0, 1]. Checked on the host when
      concrete.
    eps: share still revealed at time 1, in [0, 1).

  Returns:
    float32 of the shape of `t`, constant.

  Raises:
    ValueError: if an argument is outside its range.
  """
  return jnp.full_like(_check_time(t, eps), -(1.0 - eps))


def rank_linear_sigma(
  t: jax.typing.ArrayLike,
  *,
  r_min: float = 0.01,
  r_max: float = 0.25,
  eps: float = 1e-3,
) -> jax.Array:
  """Noise whose rank degradation is linear in the share of hidden positions.

  `r(t) = r_min + (1 - alpha(t)) (r_max - r_min)` with the log-linear alpha,
  and `sigma(t) = -1 / (sqrt 2 Phi^-1(r(t)))` in closed form.

  Args:
    t: float array of any shape, times in [0, 1]. Checked on the host when
      concrete.
    r_min: rank degradation at time 0, in (0, 1/2).
    r_max: the one reached when all is hidden, in [r_min, 1/2). At 1/2 the
      noise would be infinite.
    eps: share still revealed at time 1, in [0, 1).

  Returns:
    float32 of the shape of `t`, standard deviation of the noise. It does not
    fall in time and is positive at time 0.

  Raises:
    ValueError: if an argument is outside its range.

  References:
    CANDI, arXiv 2510.22510, Gaussian schedule.
  """
  # In float32, where a number just below 1/2 is 1/2 and has no finite noise.
  low, high = float(np.float32(r_min)), float(np.float32(r_max))
  checks.check_range(
    "r_min", low, low=0.0, high=0.5, open_low=True, open_high=True
  )
  checks.check_range("r_max", high, low=low, high=0.5, open_high=True)
  hidden = (1.0 - eps) * _check_time(t, eps)
  return identifiability.sigma_from_rank(r_min + hidden * (r_max - r_min))


def _check_time(t, eps) -> jax.Array:
  """Times as float32; raises unless they and `eps` are in range."""
  checks.check_range("eps", eps, low=0.0, high=1.0, open_high=True)
  checks.check_range("t", t, low=0.0, high=1.0)
  return jnp.asarray(t, jnp.float32)
