"""Noise over a vocabulary, seen through a table, without the vocabulary.

For eps standard normal over V tokens, `eps E` is normal with covariance
`E^T E`, so n F has its law, for n standard normal of the table's width D and
`F^T F = E^T E`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# Share of the trace added to the diagonal of E^T E. Rounding errors of the
# factorisation are of this order of the largest eigenvalue, and would turn a
# small one negative where rows of the table are nearly alike.
_JITTER = 1e-6
# The same for a table of zeros.
_TINY = 1e-30


@jax.custom_vjp
def noise_factor(table: jax.Array) -> jax.Array:
  """The factor F of `F^T F = E^T E` that is upper triangular.

  Its gradient is not that of the factorisation but the expected one of noise
  over the vocabulary. Of a function f of `y = eps E`, the gradient in E is
  `eps^T df/dy`, where eps is unknown here: of all eps that give y, the mean
  is `y (E^T E)^-1 E^T`. So for y = n F the gradient is
  `E (E^T E)^-1 y^T df/dy = E F^-1 n^T df/dy`, and `n^T df/dy` is what arrives
  as the gradient of F. It has the same mean over the noise, varies less, and
  costs one triangular solution.

  Args:
    table: `[V, D]` float32, the table E, V at least D.

  Returns:
    `[D, D]` float32; `F^T F` is `E^T E` plus a millionth of its trace on the
    diagonal, so that a table of any rank has a factor.
  """
  return _forward(table)[0]


def _forward(table):
  gram = jnp.matmul(table.T, table, precision="highest")
  size = table.shape[1]
  ridge = _JITTER * jnp.trace(gram) + _TINY
  factor = jnp.linalg.cholesky(gram + ridge * jnp.eye(size)).T
  return factor, (table, factor)


def _backward(saved, gradient):
  table, factor = saved
  weights = jax.scipy.linalg.solve_triangular(factor, gradient)
  return (jnp.matmul(table, weights, precision="high"),)


noise_factor.defvjp(_forward, _backward)
