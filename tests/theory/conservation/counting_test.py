import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import conservation


def count(nets, shapes, apply, inputs, depth=1):
  params = {
    name: nets.normal((50, i), *shape)
    for i, (name, shape) in enumerate(shapes.items())
  }
  x = nets.normal(51, inputs, next(iter(shapes.values()))[0])
  return conservation.num_laws(apply, params, x, depth=depth)


def gated(act):
  return lambda p, x: ((x @ p["A"]) * act(x @ p["B"])) @ p["C"]


def two_layer(act):
  return lambda p, x: act(x @ p["A"]) @ p["C"]


PAIR = {"A": (3, 2), "C": (2, 3)}
GLU = {"A": (2, 2), "B": (2, 2), "C": (2, 2)}


@pytest.mark.parametrize(
  ("inputs", "depth", "laws"), [(4, 1, 3), (4, 0, 4), (1, 1, 7), (4, 2, 3)]
)
def test_linear_pair(nets, inputs, depth, laws):
  """12 parameters; rank 9, 8 without brackets, 5 with one input only."""
  got = count(nets, PAIR, two_layer(lambda u: u), inputs, depth)
  assert got == laws


@pytest.mark.parametrize(
  ("shapes", "apply", "laws"),
  [
    ({"A": (3, 3), "C": (3, 2)}, two_layer(jax.nn.relu), 3),
    (
      {"A": (3, 3), "C": (3, 2)},
      two_layer(lambda u: jnp.square(jax.nn.relu(u))),
      3,
    ),
    (GLU, gated(jax.nn.silu), 2),
    (GLU, gated(jax.nn.relu), 4),
    (GLU, gated(lambda u: u), 4),
    ({"A": (3, 3), "C": (3, 2)}, two_layer(jax.nn.gelu), 0),
    ({"A": (2, 2), "C": (2, 2)}, two_layer(jax.nn.silu), 0),
  ],
  ids=["relu", "relu2", "swiglu", "reglu", "bilinear", "gelu", "silu"],
)
def test_nets_with_one_hidden_layer(nets, shapes, apply, laws):
  assert count(nets, shapes, apply, 30) == laws


@pytest.mark.parametrize(
  ("frequency", "laws"), [(None, 6), (0.7, 4), (math.pi, 6)]
)
def test_attention_has_the_laws_of_the_theorems_and_no_more(
  nets, frequency, laws
):
  """One head, dk = 2: three for V and O; for Q and K three, one if turned."""
  params = nets.attention_params(52, heads=1, kv_heads=1, d=2, dk=2)
  x = nets.normal(53, 5, 3, 2)
  frequencies = None if frequency is None else np.array([frequency])
  apply = jax.vmap(
    functools.partial(nets.attention, frequencies=frequencies), (None, 0)
  )
  assert conservation.num_laws(apply, params, x) == laws


@pytest.mark.parametrize(
  ("gate", "laws"),
  [(jax.nn.softmax, 2), (jax.nn.sigmoid, 0), ("normalised", 0)],
)
def test_routers_of_sigmoids_have_no_laws(nets, gate, laws):
  if gate == "normalised":

    def gate(z):
      s = jax.nn.sigmoid(z)
      return s / jnp.sum(s, axis=-1, keepdims=True)

  outputs = nets.normal(54, 20, 3, 2)  # of three experts that do not learn

  def apply(p, x):
    return jnp.einsum("ne,neo->no", gate(x @ p["W"]), outputs)

  assert count(nets, {"W": (2, 3)}, apply, 20) == laws


def test_rotations_of_space():
  """Two generators give the third as their bracket; orbits are spheres."""

  def two(theta):
    x, y, z = theta
    zero = jnp.zeros_like(x)
    return jnp.stack([jnp.stack([zero, -z, y]), jnp.stack([z, zero, -x])])

  point = np.array([0.0, 0.0, 1.5])
  assert conservation.lie_rank(two, point, 0) == 2
  on_axis = np.array([1.0, 0.0, 0.0])
  assert conservation.lie_rank(two, on_axis, 0) == 1
  assert conservation.lie_rank(two, on_axis, 1) == 2


def test_depth_of_brackets_counts():
  """d/dx and x^2 d/dy: only the second bracket is d/dy at x = 0."""

  def fields(theta):
    x, _ = theta
    one, zero = jnp.ones_like(x), jnp.zeros_like(x)
    return jnp.stack([jnp.stack([one, zero]), jnp.stack([zero, x**2])])

  got = [conservation.lie_rank(fields, np.zeros(2), d) for d in range(3)]
  assert got == [1, 1, 2]


def test_fields_that_vanish_have_rank_zero():
  assert (
    conservation.lie_rank(lambda t: jnp.zeros((3, len(t))), np.ones(4)) == 0
  )


def test_float32_parameters_are_counted_in_float64(nets):
  params = jax.tree.map(np.float32, nets.swiglu_params(55, 2, 2, 2))
  x = np.float32(nets.normal(56, 30, 2))
  assert conservation.num_laws(nets.swiglu, params, x) == 2


def test_sixty_parameters(nets):
  """The largest block that is promised: a SwiGLU 4-5-4, five laws."""
  shapes = {"A": (4, 5), "B": (4, 5), "C": (5, 4)}
  assert count(nets, shapes, gated(jax.nn.silu), 30) == 5


@pytest.mark.parametrize(
  ("fields", "theta", "depth", "error", "match"),
  [
    (jnp.diag, np.ones(2), -1, ValueError, "depth must be "),
    (jnp.diag, np.ones((2, 2)), 1, ValueError, r"theta must have shape \[D\]"),
    (jnp.diag, np.arange(2), 1, TypeError, "theta must be floating"),
    (lambda t: t, np.ones(2), 1, ValueError, r"field_fn must return \[M, 2\]"),
    (
      lambda t: jnp.diag(t).astype(jnp.float32),
      np.ones(2),
      1,
      TypeError,
      "field_fn must return float64",
    ),
    (
      lambda t: jnp.diag(t) * jnp.nan,
      np.ones(2),
      0,
      ValueError,
      "field_fn must return finite",
    ),
    (
      lambda t: jnp.ones((9000, 2)) * t[None],
      np.ones(2),
      1,
      ValueError,
      "give field_fn fewer inputs",
    ),
  ],
)
def test_bad_arguments_are_named(fields, theta, depth, error, match):
  with pytest.raises(error, match=match):
    conservation.lie_rank(fields, theta, depth)


def test_parameters_must_be_floating():
  with pytest.raises(TypeError, match=r"params\['a'\] must be floating"):
    conservation.num_laws(lambda p, x: x, {"a": np.arange(2)}, np.ones(2))
