"""Kernel entropy of a sequence of soft embeddings, and its gradient.

`exp(H_2)` of the unit-trace Gram matrix is an effective number of distinct
meanings. The gradient in the embeddings says which way each position must move
for there to be more; its inner product with a token's embedding says what
putting that token there gains.

References:
  Zhang, Lei, Feng, Sun, Farnia, "Exploring More to Solve More: Boosting
  Diversity in Text Diffusion Models via Entropy-Based Guidance", ICML 2026,
  arXiv 2608.00024; the order-2 Renyi kernel entropy score of Jalali, Li,
  Farnia, NeurIPS 2023. The product form of the kernel is our reading.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks

KINDS = ("rbf", "cosine2")
POSITION_KINDS = ("gaussian", "rational")

# A soft embedding shorter than this has no direction.
_NO_DIRECTION = 1e-6
_EXACT = jax.lax.Precision.HIGHEST


def position_kernel(
  positions: jax.Array, ell: float | jax.Array, kind: str = "gaussian"
) -> jax.Array:
  """How much two positions count as near, 1 at the same one.

  `exp(-(i - j)^2 / (2 ell^2))`, or `1 / (1 + |i - j| / ell)`.

  Args:
    positions: `[N]` int.
    ell: length scale in positions, positive; infinity for 1 everywhere.
    kind: "gaussian" or "rational".

  Returns:
    `[N, N]` float, positive semi-definite.

  Raises:
    ValueError: if a concrete `ell` is not positive, or the kind is unknown.
  """
  checks.check_range("ell", ell, low=0.0, open_low=True)
  _check_kind("position_kind", kind, POSITION_KINDS)
  distance = jnp.abs(positions[:, None] - positions[None, :]) / ell
  if kind == "gaussian":
    return jnp.exp(-0.5 * distance**2)
  return 1.0 / (1.0 + distance)


def gram(
  e: jax.Array,
  h: float | jax.Array,
  ell: float | jax.Array,
  kind: str = "rbf",
  *,
  positions: jax.Array | None = None,
  position_kind: str = "gaussian",
) -> jax.Array:
  """Gram matrix of embeddings that stand in a sequence.

  `K_ij = k_s(e_i, e_j) k_p(i - j)` with `K_ii = 1`; `k_s` is
  `exp(-|e_i - e_j|^2 / (2 h^2))` ("rbf") or the squared cosine ("cosine2").

  Args:
    e: `[N, d]` float embeddings.
    h: bandwidth of "rbf", positive; "cosine2" has none.
    ell: length scale of the position kernel, as in `position_kernel`.
    kind: "rbf" or "cosine2".
    positions: `[N]` int places in the sequence; None for 0 to N - 1.
    position_kind: "gaussian" or "rational".

  Returns:
    `[N, N]` float, positive semi-definite. With "cosine2" an embedding shorter
    than 1e-6 has no direction: it is like no other.

  Raises:
    ValueError: if a concrete `h` or `ell` is not positive, or a kind unknown.
  """
  near = _positions(e, ell, positions, position_kind)
  if kind == "rbf":
    similar = _gaussian(e, h)
  else:
    _check_kind("kind", kind, KINDS)
    similar = _cosines(e)[0] ** 2
  diagonal = jnp.eye(e.shape[0], dtype=bool)
  return jnp.where(diagonal, 1.0, similar * near)


def renyi2(gram_matrix: jax.Array) -> jax.Array:
  """Order-2 Renyi entropy of a Gram matrix scaled to unit trace.

  `H_2 = -ln tr(A^2) = 2 ln tr K - ln sum_ij K_ij^2` with `A = K / tr K`.

  Args:
    gram_matrix: `[N, N]` float, positive semi-definite, not 0.

  Returns:
    `[]` float in nats, in [0, ln N]; it does not change with the scale of K.

  Raises:
    ValueError: if the matrix is not square.
  """
  if gram_matrix.ndim != 2 or gram_matrix.shape[0] != gram_matrix.shape[1]:
    raise ValueError(
      f"gram_matrix must be square, got shape {gram_matrix.shape}"
    )
  return 2.0 * jnp.log(jnp.trace(gram_matrix)) - jnp.log(
    jnp.sum(gram_matrix**2)
  )


def entropy_gradient(
  e: jax.Array,
  h: float | jax.Array,
  ell: float | jax.Array,
  kind: str = "rbf",
  *,
  positions: jax.Array | None = None,
  position_kind: str = "gaussian",
) -> jax.Array:
  """Gradient of `renyi2(gram(e))` in the embeddings, in closed form.

  With `S = sum_ij K_ij^2`, for "rbf"
  `g_i = 4 / (S h^2) sum_j K_ij^2 (e_i - e_j)`: a push away from what is near.
  For "cosine2", with directions n and cosines c,
  `g_i = -8 / (S |e_i|) sum_{j != i} K_ij c_ij k_p(i - j) (n_j - c_ij n_i)`.

  Args:
    e: `[N, d]` float embeddings.
    h: bandwidth of "rbf", positive.
    ell: length scale of the position kernel.
    kind: "rbf" or "cosine2".
    positions: `[N]` int places in the sequence; None for 0 to N - 1.
    position_kind: "gaussian" or "rational".

  Returns:
    `[N, d]` float in nats per unit of the embedding; 0 where all embeddings
    are one, and, with "cosine2", where one has no direction. Time and memory
    are `O(N^2 d)` and `O(N^2 + N d)`.

  Raises:
    ValueError: as `gram`.
  """
  matrix = gram(
    e, h, ell, kind, positions=positions, position_kind=position_kind
  )
  total = jnp.sum(matrix**2)
  if kind == "rbf":
    weights = matrix**2
    # About their mean, so that nothing large cancels where all are alike.
    centred = e - jnp.mean(e, axis=0, keepdims=True)
    pull = jnp.matmul(weights, centred, precision=_EXACT)
    push = jnp.sum(weights, axis=1, keepdims=True) * centred
    return 4.0 / (total * h**2) * (push - pull)
  near = _positions(e, ell, positions, position_kind)
  cosines, directions, lengths = _cosines(e)
  weights = jnp.where(
    jnp.eye(e.shape[0], dtype=bool), 0.0, matrix * cosines * near
  )
  towards = jnp.matmul(weights, directions, precision=_EXACT)
  along = jnp.sum(weights * cosines, axis=1, keepdims=True) * directions
  return -8.0 / total * (towards - along) / lengths[:, None]


def token_gain(g: jax.Array, embed: jax.Array, e: jax.Array) -> jax.Array:
  """Entropy gained, to first order, by putting each token at each position.

  `D_i(v) = <g_i, E_v - e_i>`; its mean under the predictions that made e_i is
  0.

  Args:
    g: `[N, d]` float, the gradient.
    embed: `[V, d]` float, the token embeddings E.
    e: `[N, d]` float, the soft embeddings.

  Returns:
    `[N, V]` float in nats.
  """
  tokens = jnp.matmul(g, embed.T, precision=_EXACT)
  return tokens - jnp.sum(g * e, axis=1, keepdims=True)


def local_entropy(gram_matrix: jax.Array) -> jax.Array:
  """How little each position repeats others, the parts of `renyi2`.

  `h_i = -ln((1/N) sum_j K_ij^2)`, for which `exp(-H_2) = mean_i exp(-h_i)`
  exactly if K has a unit diagonal.

  Args:
    gram_matrix: `[N, N]` float with unit diagonal.

  Returns:
    `[N]` float in nats, in [0, ln N].
  """
  return -jnp.log(jnp.mean(gram_matrix**2, axis=1))


def median_distance(embed: jax.Array, *, max_rows: int = 1024) -> jax.Array:
  """Median distance of two tokens' embeddings, the default bandwidth.

  Args:
    embed: `[V, d]` float embeddings.
    max_rows: at most so many rows, evenly strided, are looked at.

  Returns:
    `[]` float, a constant to derivatives; 1 with a single row, which has no
    distance.

  Raises:
    ValueError: if `max_rows` is below 2, or the median of concrete embeddings
      is 0.
  """
  checks.check_range("max_rows", max_rows, low=2)
  count = embed.shape[0]
  if count == 1:
    return jnp.ones((), embed.dtype)
  rows = np.unique(np.linspace(0, count - 1, min(count, max_rows)).astype(int))
  distances = jnp.sqrt(_squared_distances(embed[rows]))
  # Off the diagonal: without its first entry, the flat matrix has the diagonal
  # in the last column of rows one longer. Each pair counts twice.
  size = len(rows)
  pairs = distances.reshape(-1)[1:].reshape(size - 1, size + 1)[:, :-1]
  median = jax.lax.stop_gradient(jnp.median(pairs))
  if checks.is_concrete(median) and median == 0:
    raise ValueError("embed has a median distance of 0: give a bandwidth h")
  return median


def _positions(e, ell, positions, kind):
  """The position kernel of the rows of e, in their type."""
  if e.ndim != 2:
    raise ValueError(f"e must have shape [N, d], got {e.shape}")
  if positions is None:
    positions = jnp.arange(e.shape[0])
  return position_kernel(positions, ell, kind).astype(e.dtype)


def _gaussian(e, h):
  checks.check_range("h", h, low=0.0, open_low=True)
  return jnp.exp(-_squared_distances(e) / (2.0 * h**2))


def _squared_distances(e):
  """`[N, N]` squared distances without an `[N, N, d]` array."""
  centred = e - jnp.mean(e, axis=0, keepdims=True)
  squares = jnp.sum(centred**2, axis=1)
  products = jnp.matmul(centred, centred.T, precision=_EXACT)
  return jnp.maximum(squares[:, None] + squares[None, :] - 2.0 * products, 0.0)


def _cosines(e):
  """`[N, N]` cosines, `[N, d]` directions and `[N]` lengths (1 if none)."""
  squares = jnp.sum(e**2, axis=1)
  has_direction = squares >= _NO_DIRECTION**2
  lengths = jnp.sqrt(jnp.where(has_direction, squares, 1.0))
  directions = jnp.where(has_direction[:, None], e / lengths[:, None], 0.0)
  cosines = jnp.matmul(directions, directions.T, precision=_EXACT)
  return cosines, directions, lengths


def _check_kind(name: str, kind: str, kinds: tuple[str, ...]) -> None:
  if kind not in kinds:
    raise ValueError(f"{name} must be one of {kinds}, got {kind!r}")
