import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import conservation

# A cosine of two vectors of some hundred float64 numbers.
ROUNDING = 1e-13
MOVES = 1e-3


def data(nets, seed, n=7, d=6, o=4):
  return (
    jnp.asarray(nets.normal((seed, 10), n, d)),
    jnp.asarray(nets.normal((seed, 11), n, o)),
  )


def largest(tree):
  return max(float(jnp.max(x)) for x in jax.tree.leaves(tree))


def relative(law, apply, params, batch, loss):
  return jax.jit(
    lambda params, batch: conservation.relative_rate(
      law, lambda p, b: loss(apply(p, b[0]), b[1]), params, batch
    )
  )(params, batch)


def parts(params):
  return params["A"], params["B"], params["C"]


def columns(*names_and_weights):
  """Law of `sum w ||M[:, i]||^2`; C is transposed."""
  return conservation.norm_law(
    lambda p: [
      (w, p[name].T if name == "C" else p[name])
      for name, w in names_and_weights
    ]
  )


@pytest.mark.parametrize("which", range(3))
@pytest.mark.usefixtures("float64")
def test_swiglu_law_holds_and_that_of_the_gate_does_not(nets, which):
  laws = {
    "law": conservation.swiglu_law(parts),
    "gate": columns(("B", 1), ("C", -1)),
    "all three": columns(("A", 1), ("B", 1), ("C", -1)),
  }
  got = relative(
    conservation.combine(laws),
    nets.swiglu,
    nets.swiglu_params(which),
    data(nets, which),
    nets.losses[which],
  )
  assert largest(got["law"]) < ROUNDING
  assert largest(got["gate"]) > MOVES
  assert largest(got["all three"]) > MOVES


@pytest.mark.usefixtures("float64")
def test_values_equal_sums_of_squares(nets):
  p = {name: np.asarray(v) for name, v in nets.swiglu_params(0).items()}
  a = [sum(p["A"][:, i] ** 2) for i in range(8)]
  b = [sum(p["B"][:, i] ** 2) for i in range(8)]
  c = [sum(p["C"][i] ** 2) for i in range(8)]
  bias = nets.normal(1, 8)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-13, atol=1e-15)
  close(conservation.swiglu_invariant(**p), np.subtract(a, c))
  close(conservation.swiglu_law(parts)(p), np.subtract(a, c))
  close(conservation.relu_invariant(p["A"], p["C"]), np.subtract(a, c))
  close(
    conservation.relu_invariant(p["A"], p["C"], bias, degree=3),
    a + bias**2 - 3 * np.array(c),
  )
  both = conservation.homogeneous_glu_invariants(**p)
  close(both["linear"], np.subtract(a, c))
  close(both["gate"], np.subtract(b, c))
  gram = conservation.linear_invariant(p["A"], p["C"])
  close(gram, p["A"].T @ p["A"] - p["C"] @ p["C"].T, atol=1e-14)
  gain, shift = nets.normal(2, 6), nets.normal(3, 6)
  rows = (p["A"] ** 2).sum(1) + (p["B"] ** 2).sum(1)
  matrices = [p["A"], p["B"]]
  close(conservation.gain_invariant(gain, matrices), gain**2 - rows, atol=1e-14)
  close(
    conservation.gain_invariant(gain, matrices, shift),
    gain**2 + shift**2 - rows,
    atol=1e-14,
  )
  output = conservation.softmax_output_invariants(p["C"], bias[:4])
  close(output["weight"], p["C"].sum(1))
  close(output["bias"], bias[:4].sum())
  close(conservation.normalised_weight_invariant(p["A"]), np.sum(p["A"] ** 2))


ACTIVATIONS = {
  "relu": (jax.nn.relu, 1),
  "leaky relu": (functools.partial(jax.nn.leaky_relu, negative_slope=0.2), 1),
  "relu squared": (lambda u: jnp.square(jax.nn.relu(u)), 2),
  "relu cubed": (lambda u: jax.nn.relu(u) ** 3, 3),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("float64")
def test_homogeneous_activations_weigh_outputs_by_their_degree(
  nets, name, bias
):
  act, degree = ACTIVATIONS[name]
  params = nets.swiglu_params(4)
  del params["B"]
  if bias:
    params["b"] = jnp.asarray(nets.normal(5, 8, scale=0.4))
  measure = functools.partial(
    relative,
    apply=lambda p, x: (
      act(x @ p["A"] + p.get("b", jnp.zeros(8))[None]) @ p["C"]
    ),
    params=params,
    batch=data(nets, 4),
    loss=nets.squared_error,
  )

  def law(p, degree=degree, bias=bias):
    return conservation.relu_invariant(
      p["A"], p["C"], p["b"] if bias else None, degree
    )

  assert largest(measure(law)) < ROUNDING
  assert largest(measure(functools.partial(law, degree=degree + 1))) > MOVES
  if degree == 2:
    assert largest(measure(functools.partial(law, degree=1))) > MOVES
  if bias:
    assert largest(measure(functools.partial(law, bias=False))) > MOVES


@pytest.mark.parametrize("act", [jax.nn.gelu, jax.nn.silu])
@pytest.mark.usefixtures("float64")
def test_smooth_activations_have_no_norm_law(nets, act):
  params = nets.swiglu_params(6)
  got = relative(
    columns(("A", 1), ("C", -1)),
    lambda p, x: act(x @ p["A"]) @ p["C"],
    params,
    data(nets, 6),
    nets.squared_error,
  )
  assert largest(got) > MOVES


@pytest.mark.parametrize("act", [lambda u: u, jax.nn.relu])
@pytest.mark.usefixtures("float64")
def test_homogeneous_gates_have_two_laws_a_unit(nets, act):
  got = relative(
    lambda p: conservation.homogeneous_glu_invariants(**p),
    lambda p, x: ((x @ p["A"]) * act(x @ p["B"])) @ p["C"],
    nets.swiglu_params(7),
    data(nets, 7),
    nets.squared_error,
  )
  assert largest(got) < ROUNDING


@pytest.mark.usefixtures("float64")
def test_linear_pair_keeps_every_entry(nets):
  params = nets.swiglu_params(8)
  got = relative(
    conservation.gram_law(lambda p: [(1, p["A"]), (-1, p["C"].T)]),
    lambda p, x: x @ p["A"] @ p["C"],
    params,
    data(nets, 8),
    nets.squared_error,
  )
  assert got.shape == (8, 8)
  assert largest(got) < ROUNDING


def normalised(p, x, *, layer_norm):
  """A normalisation that a SwiGLU reads, with a skip around both."""
  centred = x - jnp.mean(x, axis=-1, keepdims=True) if layer_norm else x
  scale = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
  y = centred / scale * p["gain"][None]
  if layer_norm:
    y = y + p["shift"][None]
  return x + ((y @ p["A"]) * jax.nn.silu(y @ p["B"])) @ p["C"]


@pytest.mark.usefixtures("float64")
def test_gain_law_needs_the_shift_and_every_reader(nets):
  params = nets.swiglu_params(9, o=6)
  for i, name in enumerate(("gain", "shift")):
    params[name] = jnp.asarray(nets.normal((9, i, 0), 6))

  def law(p, shift, readers="AB"):
    return conservation.gain_invariant(
      p["gain"], [p[name] for name in readers], p["shift"] if shift else None
    )

  def rate(layer_norm, **options):
    got = relative(
      functools.partial(law, **options),
      functools.partial(normalised, layer_norm=layer_norm),
      params,
      data(nets, 9, o=6),
      nets.squared_error,
    )
    return largest(got)

  assert rate(layer_norm=True, shift=True) < ROUNDING
  assert rate(layer_norm=True, shift=False) > MOVES
  assert rate(layer_norm=False, shift=False) < ROUNDING
  assert rate(layer_norm=False, shift=False, readers="A") > MOVES


@pytest.mark.usefixtures("float64")
def test_output_sums_need_softmax_cross_entropy(nets):
  params = {
    "W": jnp.asarray(nets.normal(12, 6, 4)),
    "b": jnp.asarray(nets.normal(13, 4)),
  }

  def rate(loss):
    got = relative(
      lambda p: conservation.softmax_output_invariants(p["W"], p["b"]),
      lambda p, x: x @ p["W"] + p["b"][None],
      params,
      data(nets, 12),
      loss,
    )
    return largest(got)

  assert rate(nets.cross_entropy) < ROUNDING
  assert rate(nets.squared_error) > MOVES


@pytest.mark.parametrize(("eps", "skip"), [(0, False), (1, False), (0, True)])
@pytest.mark.usefixtures("float64")
def test_scale_before_a_normalisation_needs_no_epsilon_and_no_skip(
  nets, eps, skip
):
  def apply(p, x):
    y = x @ p["W"] + (x if skip else 0.0)
    return y / jnp.sqrt(jnp.mean(y**2, axis=-1, keepdims=True) + eps)

  got = relative(
    lambda p: conservation.normalised_weight_invariant(p["W"]),
    apply,
    {"W": jnp.asarray(nets.normal(14, 6, 6))},
    data(nets, 14, o=6),
    nets.squared_error,
  )
  if eps or skip:
    assert largest(got) > MOVES
  else:
    assert largest(got) < ROUNDING


def test_nan_weights_give_nan_there_only(nets):
  p = nets.swiglu_params(0)
  got = conservation.swiglu_invariant(
    **{**p, "A": p["A"].at[2, 3].set(jnp.nan)}
  )
  assert np.isnan(got).tolist() == [i == 3 for i in range(8)]


def test_layers_and_experts_may_come_first(nets):
  blocks = [nets.swiglu_params(i) for i in range(6)]
  stacked = jax.tree.map(
    lambda *x: jnp.stack(x).reshape(2, 3, *x[0].shape), *blocks
  )
  got = jax.jit(conservation.swiglu_invariant)(**stacked)
  assert got.shape == (2, 3, 8)
  for i, block in enumerate(blocks):
    # Both are sums of 6 and of 4 squares.
    np.testing.assert_allclose(
      got[i // 3, i % 3],
      conservation.swiglu_invariant(**block),
      rtol=0,
      atol=10 * 2**-23 * 2,
    )


def test_half_precision_weights_are_squared_in_float32():
  A = jnp.full((300, 1), 1.0, jnp.bfloat16)
  got = conservation.swiglu_invariant(A, A, jnp.zeros((1, 2), jnp.bfloat16))
  assert got.dtype == jnp.float32
  assert got[0] == 300  # bfloat16 would stop counting at 256


@pytest.mark.parametrize(
  ("call", "error", "match"),
  [
    (
      lambda A, B, C: conservation.swiglu_invariant(A, B, C[:-1]),
      ValueError,
      "C must have as many hidden units as A",
    ),
    (
      lambda A, B, C: conservation.swiglu_invariant(A, B[1:], C),
      ValueError,
      "B must have the shape of A",
    ),
    (
      lambda A, B, C: conservation.swiglu_invariant(A.astype(int), B, C),
      TypeError,
      "A must be floating",
    ),
    (
      lambda A, B, C: conservation.swiglu_invariant(A[0], B, C),
      ValueError,
      "A must have at least two axes",
    ),
    (
      lambda A, B, C: conservation.relu_invariant(A, C[:-1]),
      ValueError,
      "C must have as many hidden units as A",
    ),
    (
      lambda A, B, C: conservation.relu_invariant(A, C, A),
      ValueError,
      "b must have shape",
    ),
    (
      lambda A, B, C: conservation.relu_invariant(A, C, degree=0),
      ValueError,
      "degree must be ",
    ),
    (
      lambda A, B, C: conservation.linear_invariant(A, C[:-1]),
      ValueError,
      "W2 must have as many hidden units as W1",
    ),
    (
      lambda A, B, C: conservation.homogeneous_glu_invariants(A, B, C[1:]),
      ValueError,
      "C must have as many hidden units",
    ),
    (
      lambda A, B, C: conservation.gain_invariant(A[:, 0], []),
      ValueError,
      "matrices must hold",
    ),
    (
      lambda A, B, C: conservation.gain_invariant(A[:, 0], [A, B[1:]]),
      ValueError,
      r"matrices\[1\] must have as many components as gain",
    ),
    (
      lambda A, B, C: conservation.gain_invariant(A[:, 0], [A], A[1:, 0]),
      ValueError,
      "shift must have as many components",
    ),
    (
      lambda A, B, C: conservation.softmax_output_invariants(A, A[0, :2]),
      ValueError,
      "b must have as many classes",
    ),
    (
      lambda A, B, C: conservation.normalised_weight_invariant(A[0]),
      ValueError,
      "W must have at least two axes",
    ),
  ],
)
def test_bad_arguments_are_named(nets, call, error, match):
  with pytest.raises(error, match=match):
    call(**nets.swiglu_params(0))
