"""Pairs of signed images of equal mass: checks, and what is moved to what."""

from __future__ import annotations

import numbers

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks

# Images are float32 as a rule: sums of a million pixels agree to this, in
# shares of the sum of absolute values.
_MASS_TOLERANCE = 1e-6


def split_signed(a: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Positive and negative part of an image.

  Args:
    a: real array of any shape.

  Returns:
    `(pos, neg)`, both non-negative, with `a == pos - neg`; at each pixel one
    of them is zero.
  """
  pos = jnp.maximum(a, 0)
  # Not from -a, which wraps around where integers have no sign.
  return pos, pos - a


def floating(image) -> jax.Array:
  """An image as floating-point numbers of at least single precision."""
  image = jnp.asarray(image)
  return image.astype(jnp.promote_types(image.dtype, jnp.float32))


def marginals(a, b, p: float):
  """The two measures whose transport is the signed distance of two images.

  In general a_+ + b_- and b_+ + a_-. At p = 1 mass that both have at a pixel
  stays there in some best plan (moving it on is never shorter, by the triangle
  inequality), so that only the two parts of a - b are moved.

  Args:
    a: `[n, n]` NumPy or JAX array.
    b: array of that shape and equal sum.
    p: order of the distance.

  Returns:
    `(source, target)`, `[n, n]` and non-negative, of equal mass.
  """
  if p == 1:
    return (a - b).clip(min=0), (b - a).clip(min=0)
  return (
    a.clip(min=0) + (-b).clip(min=0),
    b.clip(min=0) + (-a).clip(min=0),
  )


def check_pair(a, b, names: tuple[str, str] = ("a", "b")) -> None:
  """Raises unless two arrays are images that can be moved to each other.

  Args:
    a: `[n, n]` real array; its values are looked at unless it is traced.
    b: the same.
    names: how the arguments are called, for the message.

  Raises:
    ValueError: if they are not square, differ in shape, hold a value that is
      not finite, or differ in their sum by more than 1e-6 of the larger sum of
      absolute values.
    TypeError: if they are not real.
  """
  for name, value in zip(names, (a, b), strict=True):
    check_image(name, value)
  if jnp.shape(a) != jnp.shape(b):
    raise ValueError(
      f"{names[0]} {jnp.shape(a)} and {names[1]} {jnp.shape(b)} must have one"
      " shape"
    )
  if not checks.is_concrete(a, b):
    return
  first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
  sums = first.sum(), second.sum()
  scale = max(np.abs(first).sum(), np.abs(second).sum())
  if abs(sums[0] - sums[1]) > _MASS_TOLERANCE * scale:
    raise ValueError(
      f"{names[0]} and {names[1]} must have equal total mass, got"
      f" {sums[0]:.9g} and {sums[1]:.9g}"
    )


def check_image(name: str, value) -> None:
  """Raises unless an array is a square image of finite real numbers.

  Args:
    name: how the argument is called, for the message.
    value: the array; its values are looked at unless it is traced.

  Raises:
    ValueError: if it is not square or holds a value that is not finite.
    TypeError: if it is not real.
  """
  shape, dtype = jnp.shape(value), jnp.result_type(value)
  if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
    raise ValueError(f"{name} must be a square image [n, n], got shape {shape}")
  if jnp.issubdtype(dtype, jnp.complexfloating):
    raise TypeError(f"{name} must be real, got {dtype}")
  if checks.is_concrete(value):
    array = np.asarray(value, np.float64)
    wrong = ~np.isfinite(array)
    if np.any(wrong):
      place = tuple(int(i) for i in np.argwhere(wrong)[0])
      raise ValueError(
        f"{name} must be finite, got {array[place]} at pixel {place}"
      )


def check_order(p: float) -> None:
  """Raises unless `p` is a number in [1, inf).

  Args:
    p: order of the distance; a Python or NumPy number, as programs are
      compiled for one.

  Raises:
    ValueError: if it is outside.
    TypeError: if it is no number, or traced.
  """
  if not isinstance(p, numbers.Real):
    raise TypeError(f"p must be a number, got {p!r}")
  checks.check_range("p", p, low=1.0, high=float("inf"), open_high=True)
