import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icml26_jax.theory import conservation

LAW = conservation.swiglu_law(lambda p: (p["A"], p["B"], p["C"]))


def problem(nets, seed, n=20):
  """Full-batch mean squared error of a SwiGLU on random rows."""
  params = nets.swiglu_params(seed)
  x = jnp.asarray(nets.normal((seed, 40), n, 6))
  y = jnp.asarray(nets.normal((seed, 41), n, 4))

  def loss(p):
    return nets.squared_error(nets.swiglu(p, x), y)

  return loss, params


def simulate(loss, params, law=LAW, *, method, tau, steps):
  run = functools.partial(
    conservation.simulate, loss, law=law, method=method, steps=steps
  )
  return jax.jit(lambda params, tau: run(params, tau=tau))(params, tau)


def gradients(loss, params, taus):
  """Gradients along gradient descent, and the last parameters."""

  def step(params, tau):
    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - tau * g, params, grads), grads

  return jax.jit(lambda p, t: jax.lax.scan(step, p, t)[::-1])(
    params, jnp.asarray(taus)
  )


def squares(grads):
  """`||g_A[:, i]||^2` and `||g_C[i, :]||^2`, both `[steps, h]`."""
  return (
    np.sum(np.square(grads["A"]), axis=1),
    np.sum(np.square(grads["C"]), axis=2),
  )


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.usefixtures("float64")
def test_drift_of_gradient_descent_telescopes_exactly(nets, decay):
  loss, params = problem(nets, 0)
  steps = 200
  taus = 0.05 / (1 + np.arange(steps)) if decay else np.full(steps, 0.05)
  grads, last = gradients(loss, params, taus)
  drift, end = simulate(
    loss,
    params,
    method="euler",
    tau=jnp.asarray(taus) if decay else 0.05,
    steps=steps,
  )
  for name in params:
    np.testing.assert_allclose(end[name], last[name], rtol=0, atol=1e-13)
  a, c = squares(grads)
  start = LAW(params)
  expected = np.cumsum(taus[:, None] ** 2 * (a - c), axis=0)
  tolerance = 1e-12 * (1 + np.max(np.abs(start)))
  np.testing.assert_allclose(drift, expected, rtol=0, atol=tolerance)
  assert np.max(np.abs(drift)) > 1e6 * tolerance
  bound = np.cumsum(taus[:, None] ** 2 * np.maximum(a, c), axis=0)
  assert np.all(np.abs(drift) <= bound + tolerance)
  predicted = conservation.euler_drift(
    LAW, grads, jnp.asarray(taus) if decay else 0.05
  )
  np.testing.assert_allclose(predicted, drift[-1], rtol=0, atol=tolerance)
  plain = conservation.euler_drift(
    lambda p: conservation.swiglu_invariant(**p), grads, jnp.asarray(taus)
  )
  np.testing.assert_allclose(plain, predicted, rtol=0, atol=1e-15)


@pytest.mark.usefixtures("float64")
def test_drift_stops_growing_when_steps_shrink(nets):
  loss, params = problem(nets, 1)
  steps = 3000

  def drift_of(tau):
    taus = tau / (1 + np.arange(steps))
    drift, _ = simulate(
      loss, params, method="euler", tau=jnp.asarray(taus), steps=steps
    )
    a, c = squares(gradients(loss, params, taus)[0])
    return np.asarray(drift), np.maximum(a, c)

  drift, largest = drift_of(0.05)
  # sum_{t >= 10} 1 / (t + 1)^2 is below 1 / 10.
  tail = 0.05**2 / 10 * largest[10:].max(axis=0)
  assert np.all(np.abs(drift[-1] - drift[9]) <= tail)
  whole = np.pi**2 / 6 * 0.05**2 * largest.max(axis=0)
  assert np.all(np.abs(drift) <= whole)
  # Quadratic in the first step, up to the change of the path, O(tau).
  twice, _ = drift_of(0.1)
  ratio = np.linalg.norm(twice[-1]) / np.linalg.norm(drift[-1])
  assert 3.6 < ratio < 4.4


@pytest.mark.parametrize(
  ("method", "tau", "ratio", "within"),
  [("euler", 0.01, 2, 0.1), ("rk4", 0.0125, 16, 1.5)],
)
@pytest.mark.usefixtures("float64")
def test_drift_at_a_fixed_time_has_the_order_of_the_method(
  nets, method, tau, ratio, within
):
  loss, params = problem(nets, 2)
  sizes = []
  for step in (tau, tau / 2):
    drift, _ = simulate(
      loss, params, method=method, tau=step, steps=round(2 / step)
    )
    sizes.append(np.linalg.norm(drift[-1]))
  assert abs(sizes[0] / sizes[1] - ratio) < within
  order = conservation.drift_order(
    jnp.asarray(sizes), jnp.asarray([tau, tau / 2])
  )
  np.testing.assert_allclose(order, np.log2(sizes[0] / sizes[1]), rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_midpoint_keeps_quadratic_laws(nets):
  loss, params = problem(nets, 3)
  drift, end = simulate(loss, params, method="midpoint", tau=0.1, steps=20)
  assert np.max(np.abs(drift)) < 1e-13
  # It did follow the flow: to second order where rk4 goes to fourth.
  _, exact = simulate(loss, params, method="rk4", tau=0.01, steps=200)
  gap = optax.tree.norm(jax.tree.map(jnp.subtract, end, exact))
  moved = optax.tree.norm(jax.tree.map(jnp.subtract, params, exact))
  assert gap < 0.1**2 * moved


def test_unsolvable_midpoint_is_nan():
  drift, end = simulate(
    lambda p: 50 * jnp.sum(p**2),
    jnp.ones(2),
    lambda p: p,
    method="midpoint",
    tau=1.0,
    steps=2,
  )
  assert np.all(np.isnan(drift))
  assert np.all(np.isnan(end))


@pytest.mark.usefixtures("float64")
def test_weight_decay_alone_shrinks_quadratic_laws(nets):
  decay, tau, steps = 0.3, 0.1, 25
  params = nets.swiglu_params(4)
  drift, _ = simulate(
    lambda p: decay / 2 * sum(jnp.sum(v**2) for v in p.values()),
    params,
    method="euler",
    tau=tau,
    steps=steps,
  )
  start = LAW(params)
  left = (1 - tau * decay) ** (2 * np.arange(1, steps + 1))
  # Rounding of each step, of terms as large as the two norms.
  size = 4 * np.max(jnp.sum(params["A"] ** 2, 0) + jnp.sum(params["C"] ** 2, 1))
  np.testing.assert_allclose(
    drift + start[None],
    left[:, None] * start[None],
    rtol=0,
    atol=steps * 2.0**-52 * size,
  )


@pytest.mark.usefixtures("float64")
def test_weight_decay_beside_data_shrinks_them_exponentially(nets):
  data_loss, params = problem(nets, 5)
  decay, time = 0.2, 2.0
  drift, _ = simulate(
    lambda p: data_loss(p) + decay / 2 * optax.tree.norm(p, squared=True),
    params,
    method="rk4",
    tau=0.01,
    steps=200,
  )
  start = LAW(params)
  expected = np.exp(-2 * decay * time) * start
  # rk4 drifts by a few tau^4 = 1e-8.
  np.testing.assert_allclose(drift[-1] + start, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", ["euler", "rk4", "midpoint"])
@pytest.mark.usefixtures("float64")
def test_linear_laws_are_kept_by_every_method(nets, method):
  params = {"W": jnp.asarray(nets.normal(44, 5, 4))}
  x = jnp.asarray(nets.normal(42, 6, 5))
  outputs = jnp.asarray(nets.normal(43, 4, 2))  # of experts that do not learn
  law = conservation.sum_law(lambda p: p["W"])
  drift, end = simulate(
    lambda p: jnp.sum((jax.nn.softmax(x @ p["W"]) @ outputs) ** 2),
    params,
    law,
    method=method,
    tau=0.1,
    steps=30,
  )
  assert np.max(np.abs(end["W"] - params["W"])) > 1e-3
  size = np.max(np.abs(params["W"])) + np.max(np.abs(end["W"]))
  assert np.max(np.abs(drift)) < 30 * 16 * 4 * 2.0**-52 * size


def test_linear_laws_have_no_predicted_drift():
  grads = {"W": jnp.ones((5, 3, 2))}
  drift = conservation.euler_drift(lambda p: jnp.sum(p["W"], 1) + 1, grads, 0.1)
  np.testing.assert_array_equal(drift, 0)


def test_jit_does_not_change_the_drift(nets):
  loss, params = problem(nets, 7)
  arguments = dict(method="euler", tau=0.05, steps=3)
  drift, _ = simulate(loss, params, **arguments)
  eager, _ = conservation.simulate(loss, params, LAW, **arguments)
  assert drift.shape == (3, 8)
  # Differences of numbers near 1, in float32.
  np.testing.assert_allclose(drift, eager, rtol=0, atol=16 * 2**-23)


def test_relative_drift_is_the_mean_over_laws():
  before = {"a": np.array([2.0, -4.0]), "b": np.array([[3.0, 4.0]])}
  after = {"a": np.array([3.0, -4.0]), "b": np.array([[3.0, 4.5]])}
  got = conservation.relative_drift(before, after)
  np.testing.assert_allclose(got, (0.5 + 0 + 0.1) / 3, rtol=1e-6)
  rows = conservation.relative_drift(before["b"], after["b"], law_axes=2)
  np.testing.assert_allclose(rows, (0 + 0.125) / 2, rtol=1e-6)
  whole = conservation.relative_drift(before["a"], after["a"], law_axes=0)
  np.testing.assert_allclose(whole, 1 / np.sqrt(20), rtol=1e-6)
  zeros = np.zeros(2)
  assert conservation.relative_drift(zeros, zeros) == 0
  assert np.isinf(conservation.relative_drift(zeros, zeros + 1))
  assert np.isnan(conservation.relative_drift(zeros, zeros * np.nan))


@pytest.mark.parametrize("power", [1, 2, 4])
@pytest.mark.usefixtures("float64")
def test_drift_order_is_the_power(power):
  taus = np.array([0.02, 0.01, 0.005])
  drifts = taus[:, None, None] ** power * np.array([[3.0, -1.0], [0, 2]])
  got = jax.jit(conservation.drift_order)(drifts, taus)
  np.testing.assert_allclose(got, power, rtol=1e-12)


@pytest.mark.parametrize(
  ("options", "error", "match"),
  [
    (dict(tau=0.0), ValueError, "tau must be "),
    (dict(tau=-0.1), ValueError, "tau must be "),
    (dict(tau=np.full(3, 0.1)), ValueError, r"shape \(2,\), got \(3,\)"),
    (dict(steps=0), ValueError, "steps must be "),
    (dict(method="adam"), ValueError, "Euclidean gradient flow only"),
    (dict(method=optax.sgd(0.1)), ValueError, "Euclidean gradient flow only"),
    (dict(params=jnp.arange(3)), TypeError, "params must be floating"),
  ],
)
def test_bad_arguments_of_simulate_are_named(options, error, match):
  arguments = dict(
    loss=lambda p: jnp.sum(p**2),
    params=jnp.ones(3),
    law=lambda p: p,
    method="euler",
    tau=0.1,
    steps=2,
  )
  with pytest.raises(error, match=match):
    conservation.simulate(**(arguments | options))


def test_other_bad_arguments_are_named():
  grads, one = jnp.ones((3, 2)), jnp.ones(2)
  with pytest.raises(ValueError, match="tau must be "):
    conservation.euler_drift(lambda p: p, grads, 0.0)
  with pytest.raises(ValueError, match=r"shape \(3,\), got \(2,\)"):
    conservation.euler_drift(lambda p: p, grads, 0.1 * one)
  with pytest.raises(TypeError, match="grads must be floating"):
    conservation.euler_drift(lambda p: p, jnp.arange(3), 0.1)
  with pytest.raises(ValueError, match="grads must hold"):
    conservation.euler_drift(lambda p: p, {}, 0.1)
  with pytest.raises(ValueError, match="one shape"):
    conservation.relative_drift(one, grads)
  with pytest.raises(ValueError, match="one structure"):
    conservation.relative_drift(one, [one])
  with pytest.raises(ValueError, match="law_axes must be at most 1"):
    conservation.relative_drift(one, one, law_axes=2)
  with pytest.raises(TypeError, match="hk must be floating"):
    conservation.relative_drift(one, jnp.arange(2))
  with pytest.raises(ValueError, match="one row for each of taus"):
    conservation.drift_order(grads, one)
  with pytest.raises(ValueError, match="two different step sizes"):
    conservation.drift_order(one, one)
  with pytest.raises(ValueError, match="norm of drifts must be "):
    conservation.drift_order(jnp.asarray([1.0, 0]), jnp.asarray([1.0, 2]))
