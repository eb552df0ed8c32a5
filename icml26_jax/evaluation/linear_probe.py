"""Logistic regression on how often tokens occur: a linear text classifier.

Linear in the one-hots of a text, so that it is defined on the expected
one-hots that guidance feeds it. On pairs of tokens it is a judge that sees
order.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special

from icml26_jax import checks


class LinearProbe(NamedTuple):
  """Log-odds of a class, `bias + weights . features`.

  Attributes:
    weights: `[F]` float32, one a feature.
    bias: `[]` float32.
  """

  weights: jax.Array
  bias: jax.Array


def fit(features, labels, *, l2: float) -> LinearProbe:
  """Fits a logistic regression, on the host in float64.

  Minimises the mean of `log(1 + exp(-+ logit))` plus `l2 / 2 |weights|^2`,
  which has one minimum for `l2 > 0`. The bias is not penalised.

  Args:
    features: `[N, F]` float, for instance from `token_counts`.
    labels: `[N]` bool, True for the class; both must occur.
    l2: penalty, positive.

  Returns:
    The probe.

  Raises:
    ValueError: if shapes disagree, a feature is not finite, only one class
      occurs, `l2` is not positive or the minimum is not found.
    TypeError: if the labels are not bool.
  """
  features, labels = np.asarray(features, np.float64), np.asarray(labels)
  checks.check_range("l2", l2, low=0.0, open_low=True)
  if features.ndim != 2 or labels.shape != features.shape[:1]:
    raise ValueError(
      f"features {features.shape} must be [N, F] and labels {labels.shape} [N]"
    )
  if labels.dtype != np.bool_:
    raise TypeError(f"labels must be bool, got {labels.dtype}")
  if not np.all(np.isfinite(features)):
    raise ValueError("features must be finite")
  if labels.all() or not labels.any():
    raise ValueError("labels must hold both classes")
  sign = np.where(labels, 1.0, -1.0)

  def objective(parameters):
    weights, bias = parameters[:-1], parameters[-1]
    margin = sign * (features @ weights + bias)
    value = np.mean(np.logaddexp(0.0, -margin)) + 0.5 * l2 * weights @ weights
    slope = -sign * scipy.special.expit(-margin) / len(sign)
    gradient = np.append(features.T @ slope + l2 * weights, slope.sum())
    return value, gradient

  found = scipy.optimize.minimize(
    objective,
    np.zeros(features.shape[1] + 1),
    jac=True,
    method="L-BFGS-B",
    options={"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-8},
  )
  if np.max(np.abs(found.jac)) > 1e-5:
    raise ValueError(f"no minimum found: {found.message}")
  return LinearProbe(
    weights=jnp.asarray(found.x[:-1], jnp.float32),
    bias=jnp.asarray(found.x[-1], jnp.float32),
  )


def log_odds(probe: LinearProbe, features) -> np.ndarray:
  """Log-odds of the class.

  Args:
    probe: from `fit`.
    features: `[N, F]` float.

  Returns:
    `[N]` float64, positive where the class is the likelier one.
  """
  weights = np.asarray(probe.weights, np.float64)
  return np.asarray(features, np.float64) @ weights + float(probe.bias)


def log_prob_fn(probe: LinearProbe):
  """The probe on unigrams as a classifier of expected one-hots.

  Args:
    probe: fitted on `token_counts.unigram_counts`.

  Returns:
    A differentiable function from `[B, L, V]` one-hots, or expected ones, to
    `[B]` float32, the log-probability of the class in nats; for
    `diffusion.guidance`.
  """

  def log_prob(one_hots):
    counts = jnp.sum(one_hots, axis=1)
    return jax.nn.log_sigmoid(counts @ probe.weights + probe.bias)

  return log_prob
