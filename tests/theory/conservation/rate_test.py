import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import conservation

LAW = conservation.swiglu_law(lambda p: (p["A"], p["B"], p["C"]))

# Every closed form there is, of the parameters of a SwiGLU.
LAWS = {
  "norm": conservation.norm_law(lambda p: [(1, p["A"]), (-3, p["C"].T)]),
  "gram": conservation.gram_law(
    lambda p: [(1, p["A"]), (2, p["B"]), (-0.5, p["C"].T)]
  ),
  "sum": conservation.sum_law(lambda p: p["B"]),
  "entry": conservation.entry_law(lambda p: p["C"]),
}


def problem(nets, seed=0):
  batch = (
    jnp.asarray(nets.normal((seed, 60), 5, 6)),
    jnp.asarray(nets.normal((seed, 61), 5, 4)),
  )

  def loss(p, batch):
    return nets.squared_error(nets.swiglu(p, batch[0]), batch[1])

  return loss, nets.swiglu_params(seed), batch


@jax.jit
def closed_form_and_differentiated(params, grads):
  law = conservation.combine(LAWS)
  return (
    conservation.rates(law, params, grads),
    # A function without norms of its own.
    conservation.rates(lambda p: law(p), params, grads),
  )


@hypothesis.given(seed=st.integers(0, 2**32), exponent=st.integers(-20, 20))
def test_closed_forms_equal_differentiation(nets, seed, exponent):
  with jax.enable_x64(True):
    params = nets.swiglu_params((seed, 0))
    grads = nets.swiglu_params((seed, 1), scale=10.0**exponent)
    closed, slow = closed_form_and_differentiated(params, grads)
    for name in LAWS:
      np.testing.assert_array_equal(closed.rate[name], slow.rate[name])
      np.testing.assert_allclose(
        closed.relative[name], slow.relative[name], rtol=1e-12
      )
      # Cauchy and Schwarz.
      assert np.all(np.asarray(closed.relative[name]) <= 1 + 1e-12)


@pytest.mark.usefixtures("float64")
def test_rates_equal_sums_by_hand(nets):
  loss, params, batch = problem(nets)
  grads = jax.grad(loss)(params, batch)
  p, g = ({n: np.asarray(v) for n, v in t.items()} for t in (params, grads))

  def law(p):
    """Of unit 2 alone, B in place of A: it does move."""
    return jnp.sum(p["B"][:, 2] ** 2) - jnp.sum(p["C"][2] ** 2)

  slope = np.concatenate([2 * p["B"][:, 2], -2 * p["C"][2]])
  support = np.concatenate([g["B"][:, 2], g["C"][2]])
  rate = -slope @ support
  cosine = abs(rate) / np.linalg.norm(slope) / np.linalg.norm(support)
  assert cosine > 1e-3
  close = functools.partial(np.testing.assert_allclose, rtol=1e-12)
  close(conservation.conservation_rate(law, loss, params, batch), rate)
  close(conservation.relative_rate(law, loss, params, batch), cosine)


@pytest.mark.usefixtures("float64")
def test_rate_is_the_derivative_along_the_flow(nets):
  loss, params, batch = problem(nets)
  law = conservation.norm_law(lambda p: [(1, p["B"]), (-1, p["C"].T)])
  rate = conservation.conservation_rate(law, loss, params, batch)
  tau = 1e-4
  drift, _ = conservation.simulate(
    lambda p: loss(p, batch), params, law, method="rk4", tau=tau, steps=1
  )
  # The next term of the series is tau / 2 times a second derivative near 1.
  np.testing.assert_allclose(drift[0] / tau, rate, rtol=0, atol=tau)


def test_units_that_are_nearly_dead_are_judged_like_others(nets):
  """Squares of their gradients are 0 in float32."""
  params = jax.tree.map(jnp.float32, nets.swiglu_params(1))
  grads = jax.tree.map(jnp.float32, nets.swiglu_params(2))
  tiny = jax.tree.map(lambda g: jnp.float32(2.0**-100) * g, grads)
  expected = conservation.rates(LAW, params, grads).relative
  got = conservation.rates(LAW, params, tiny).relative
  np.testing.assert_array_equal(got, expected)


def test_no_gradient_is_no_rate(nets):
  params = nets.swiglu_params(3)
  got = conservation.rates(LAW, params, jax.tree.map(jnp.zeros_like, params))
  np.testing.assert_array_equal(got.relative, np.zeros(8))
  plain = conservation.rates(
    lambda p: LAW(p), params, jax.tree.map(jnp.zeros_like, params)
  )
  np.testing.assert_array_equal(plain.relative, np.zeros(8))


def test_nan_shows_in_its_component_only(nets):
  params, grads = nets.swiglu_params(4), nets.swiglu_params(5)
  grads["C"] = grads["C"].at[3, 1].set(jnp.nan)
  got = conservation.rates(LAW, params, grads)
  wanted = [i == 3 for i in range(8)]
  assert np.isnan(got.relative).tolist() == wanted
  assert np.isnan(got.rate).tolist() == wanted


@pytest.mark.usefixtures("float64")
def test_a_wrong_gradient_breaks_the_law(nets):
  loss, params, batch = problem(nets)

  def detached(p, batch):
    return loss({**p, "C": jax.lax.stop_gradient(p["C"])}, batch)

  def tied(p, batch):
    return loss({**p, "B": p["A"]}, batch)

  def largest(loss):
    got = conservation.relative_rate(LAW, loss, params, batch)
    return jnp.max(got)

  assert largest(loss) < 1e-13
  assert largest(detached) > 1e-3
  assert largest(tied) > 1e-3


def test_measure_takes_one_gradient(nets):
  loss, params, batch = problem(nets)
  calls = []

  def counted(p, batch):
    calls.append(1)
    return loss(p, batch)

  got = conservation.measure(LAWS, counted, params, batch)
  assert calls == [1]
  grads = jax.grad(loss)(params, batch)
  for name in ("norm", "sum"):
    expected = conservation.rates(LAWS[name], params, grads)
    np.testing.assert_array_equal(got[name].rate, expected.rate)
    np.testing.assert_array_equal(got[name].relative, expected.relative)
  jitted = jax.jit(lambda p, b: conservation.measure(LAWS, loss, p, b))(
    params, batch
  )
  for name in LAWS:
    # Cosines, of sums of some ten float32 products.
    np.testing.assert_allclose(
      jitted[name].relative, got[name].relative, rtol=0, atol=50 * 2**-23
    )


def test_wide_block_forms_no_jacobian():
  """1,536 units of width 576: nothing larger than the weights is made."""
  shapes = {"A": (576, 1536), "B": (576, 1536), "C": (1536, 576)}
  params = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
  jaxpr = jax.make_jaxpr(lambda p, g: conservation.rates(LAW, p, g).relative)(
    params, params
  )
  sizes = [
    np.prod(variable.aval.shape)
    for equation in jaxpr.jaxpr.eqns
    for variable in equation.outvars
  ]
  assert max(sizes) == 576 * 1536


def test_parameters_must_be_floating(nets):
  loss, params, batch = problem(nets)
  whole = {**params, "A": jnp.ones((6, 8), jnp.int32)}
  for function in (conservation.conservation_rate, conservation.relative_rate):
    with pytest.raises(TypeError, match=r"params\['A'\] must be floating"):
      function(LAW, loss, whole, batch)
  with pytest.raises(TypeError, match=r"params\['A'\] must be floating"):
    conservation.measure(LAWS, loss, whole, batch)
  with pytest.raises(TypeError, match=r"grads\['A'\] must be floating"):
    conservation.rates(LAW, params, whole)
