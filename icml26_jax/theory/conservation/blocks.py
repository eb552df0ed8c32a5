"""Invariants of feed-forward blocks, normalisation gains and output layers.

Rows multiply matrices from the left, `x @ A`: column i of a first matrix and
row i of the one after it belong to hidden unit i. All arrays may have further
axes in front, of layers or experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.theory.conservation import law, rate


def linear_invariant(W1: jax.Array, W2: jax.Array) -> jax.Array:
  """`W1^T W1 - W2 W2^T` of two matrices without anything between.

  Args:
    W1: `[..., d, h]` float.
    W2: `[..., h, o]` float.

  Returns:
    `[..., h, h]`, symmetric; NaN where a weight is.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if the hidden sizes differ.

  References:
    Marcotte, Gribonval and Peyré, "Abide by the Law and Follow the Flow",
    NeurIPS 2023.
  """
  check_matrices(W1=W1, W2=W2)
  check_sizes("W1", W1.shape[-1], "W2", W2.shape[-2], "hidden units")
  return law.gram_balance([(1.0, W1), (-1.0, swap(W2))])


def relu_invariant(
  A: jax.Array, C: jax.Array, b: jax.Array | None = None, degree: float = 1
) -> jax.Array:
  """`||A[:, i]||^2 + b_i^2 - degree ||C[i, :]||^2` of each hidden unit.

  For `act(x @ A + b) @ C` where `act(s u) = s^degree act(u)` for s > 0: ReLU
  and leaky ReLU have degree 1, ReLU squared has 2. The unit keeps its output
  if A_i and b_i grow by s and C_i shrinks by s^degree.

  Args:
    A: `[..., d, h]` float.
    C: `[..., h, o]` float.
    b: `[..., h]` float, hidden bias, or None for none. With a degree other
      than 1 the bias counts likewise.
    degree: of homogeneity, above 0.

  Returns:
    `[..., h]`; NaN where a weight is.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if the hidden sizes differ or the degree is not above 0.

  References:
    Marcotte, Gribonval and Peyré, "Abide by the Law and Follow the Flow",
    NeurIPS 2023, for degree 1.
  """
  check_matrices(A=A, C=C)
  check_sizes("A", A.shape[-1], "C", C.shape[-2], "hidden units")
  checks.check_range("degree", degree, low=0.0, open_low=True)
  if b is not None:
    rate.check_floating("b", b)
    if b.shape != (*A.shape[:-2], A.shape[-1]):
      raise ValueError(
        f"b must have shape {(*A.shape[:-2], A.shape[-1])}, got {b.shape}"
      )
  return law.norm_balance([(1.0, append_row(A, b)), (-float(degree), swap(C))])


def swiglu_invariant(A: jax.Array, B: jax.Array, C: jax.Array) -> jax.Array:
  """`||A[:, i]||^2 - ||C[i, :]||^2` of each hidden unit of a SwiGLU.

  For `((x @ A) * silu(x @ B)) @ C`. These are all the laws there are: none
  involves the gate matrix B.

  Args:
    A: `[..., d, h]` float, the matrix outside the activation ("up").
    B: `[..., d, h]` float, the matrix inside it ("gate").
    C: `[..., h, o]` float ("down").

  Returns:
    `[..., h]`; NaN where a weight of A or C is.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if the shapes do not fit.

  References:
    Tran et al., "Conservation Laws for Modern Neural Architectures", ICML
    2026, theorem 4.2.
  """
  _check_gated(A, B, C)
  return law.norm_balance([(1.0, A), (-1.0, swap(C))])


def swiglu_law(
  select: Callable[[Any], tuple[jax.Array, jax.Array, jax.Array]],
) -> law.Law:
  """`swiglu_invariant` as a law of parameters that hold such a block.

  Args:
    select: picks A, B and C out of the parameters (and out of gradients).

  Returns:
    A law with components `[..., h]`.
  """

  def factors(params):
    A, B, C = select(params)
    _check_gated(A, B, C)
    return [(1.0, A), (-1.0, swap(C))]

  return law.norm_law(factors)


def homogeneous_glu_invariants(
  A: jax.Array, B: jax.Array, C: jax.Array
) -> dict[str, jax.Array]:
  """Laws of a bilinear or ReLU-gated unit, two for each hidden unit.

  For `((x @ A) * act(x @ B)) @ C` with act the identity or ReLU, either of A_i
  and B_i can grow while C_i shrinks.

  Args:
    A: `[..., d, h]` float.
    B: `[..., d, h]` float.
    C: `[..., h, o]` float.

  Returns:
    `linear`, `||A[:, i]||^2 - ||C[i, :]||^2`, and `gate`, `||B[:, i]||^2 -
    ||C[i, :]||^2`, both `[..., h]`.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if the shapes do not fit.
  """
  _check_gated(A, B, C)
  return {
    "linear": law.norm_balance([(1.0, A), (-1.0, swap(C))]),
    "gate": law.norm_balance([(1.0, B), (-1.0, swap(C))]),
  }


def gain_invariant(
  gain: jax.Array,
  matrices: Sequence[jax.Array],
  shift: jax.Array | None = None,
) -> jax.Array:
  """`g_i^2 (+ beta_i^2) - sum_j ||W_j[i, :]||^2` of a normalisation.

  For RMSNorm, `x_hat * g`, or LayerNorm, `x_hat * g + beta`, before the
  matrices: component i may grow while every row that reads it shrinks.

  Args:
    gain: `[..., d]` float.
    matrices: all matrices that read the normalised vector, `[..., d, n_j]`
      float. One left out, and the quantity is no law.
    shift: `[..., d]` float, or None for RMSNorm. LayerNorm with a shift has no
      law without it.

  Returns:
    `[..., d]`.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if the shapes do not fit or there is no matrix.
  """
  if not matrices:
    raise ValueError("matrices must hold at least one matrix, got none")
  rate.check_floating("gain", gain)
  rows = [gain]
  if shift is not None:
    rate.check_floating("shift", shift)
    check_sizes("gain", gain.shape, "shift", shift.shape, "components")
    rows.append(shift)
  for i, matrix in enumerate(matrices):
    check_matrices(**{f"matrices[{i}]": matrix})
    check_sizes(
      "gain",
      gain.shape[-1],
      f"matrices[{i}]",
      matrix.shape[-2],
      "components",
    )
  return law.norm_balance(
    [
      (1.0, jnp.stack(rows, axis=-2)),
      *((-1.0, swap(matrix)) for matrix in matrices),
    ]
  )


def softmax_output_invariants(
  W: jax.Array, b: jax.Array | None = None
) -> dict[str, jax.Array]:
  """Sums over classes, conserved under softmax cross-entropy.

  Unlike all other laws these need that loss, which does not see a number
  added to all logits.

  Args:
    W: `[..., h, K]` float, output matrix.
    b: `[..., K]` float, or None.

  Returns:
    `weight`, `sum_k W[:, k]`, `[..., h]`, and with a bias `bias`, `[...]`.

  Raises:
    TypeError: if an argument is not floating.
    ValueError: if the numbers of classes differ.

  References:
    Kunin et al., "Neural Mechanics", ICLR 2021.
  """
  check_matrices(W=W)
  laws = {"weight": jnp.sum(W, axis=-1)}
  if b is not None:
    rate.check_floating("b", b)
    check_sizes("W", W.shape[-1], "b", b.shape[-1], "classes")
    laws["bias"] = jnp.sum(b, axis=-1)
  return laws


def normalised_weight_invariant(W: jax.Array) -> jax.Array:
  """`||W||_F^2` of a matrix whose output is normalised with epsilon 0.

  With nothing added to the output on the way (no skip) its scale is not seen.
  An epsilon above 0, as in practice, makes the law approximate.

  Args:
    W: `[..., n, m]` float.

  Returns:
    `[...]`.

  Raises:
    TypeError: if W is not floating.
    ValueError: if W is not a matrix.

  References:
    Kunin et al., "Neural Mechanics", ICLR 2021.
  """
  check_matrices(W=W)
  return jnp.sum(jnp.square(W), axis=(-2, -1))


def swap(matrix: jax.Array) -> jax.Array:
  """Transposes the last two axes."""
  return jnp.swapaxes(matrix, -1, -2)


def append_row(matrix: jax.Array, bias: jax.Array | None) -> jax.Array:
  """`[..., n, h]` and `[..., h]` as `[..., n + 1, h]`; None adds nothing."""
  if bias is None:
    return matrix
  return jnp.concatenate([matrix, bias[..., None, :]], axis=-2)


def check_matrices(**matrices: jax.Array) -> None:
  """Raises naming the first argument that is not a floating matrix."""
  for name, matrix in matrices.items():
    rate.check_floating(name, matrix)
    if jnp.ndim(matrix) < 2:
      raise ValueError(
        f"{name} must have at least two axes, got shape {jnp.shape(matrix)}"
      )


def check_sizes(
  first: str, first_size, second: str, second_size, what: str
) -> None:
  """Raises ValueError unless two arguments agree in a size."""
  if first_size != second_size:
    raise ValueError(
      f"{second} must have as many {what} as {first}, {first_size}, got"
      f" {second_size}"
    )


def _check_gated(A, B, C):
  check_matrices(A=A, B=B, C=C)
  if B.shape != A.shape:
    raise ValueError(f"B must have the shape of A, {A.shape}, got {B.shape}")
  check_sizes("A", A.shape[-1], "C", C.shape[-2], "hidden units")
