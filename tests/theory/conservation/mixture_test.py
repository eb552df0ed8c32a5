import fractions
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import conservation

ROUNDING = 1e-13
MOVES = 1e-3
EPS = 2.0**-52


def select(p):
  return p["W"], {name: p[name] for name in "ABC"}


def setup(nets, gate, k=None):
  x = jnp.asarray(nets.normal(30, 6, 5))
  y = jnp.asarray(nets.normal(31, 6, 2))

  def loss(p, batch):
    x, y = batch
    return nets.squared_error(nets.moe(p, x, gate, k), y)

  return nets.moe_params(32), loss, (x, y)


def relative(gate, params, loss, batch):
  law = conservation.moe_law(select, gate)
  return jax.jit(lambda p, b: conservation.relative_rate(law, loss, p, b))(
    params, batch
  )


# Gate of the network, how many it selects, and which law describes it.
NETWORKS = {
  "dense": ("softmax", None, "softmax"),
  "top 2": ("softmax", 2, "topk_softmax"),
  "top 2 of all": ("unnormalised_topk", 2, "softmax"),
  "top 1 of all": ("unnormalised_topk", 1, "softmax"),
  "top 1": ("softmax", 1, "top1"),
  "sigmoid": ("sigmoid", None, "sigmoid"),
  "normalised sigmoid": ("normalized_sigmoid", None, "normalized_sigmoid"),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.usefixtures("float64")
def test_laws_hold_for_their_gates(nets, name):
  gate, k, law = NETWORKS[name]
  got = relative(law, *setup(nets, gate, k))
  assert jnp.max(got["experts"]) < ROUNDING
  if law in ("sigmoid", "normalized_sigmoid"):
    assert "router" not in got
  else:
    assert jnp.max(got["router"]) < ROUNDING


@pytest.mark.parametrize(
  ("name", "law"),
  [
    ("sigmoid", "softmax"),
    ("normalised sigmoid", "softmax"),
    ("top 2", "top1"),
    ("top 1 of all", "top1"),
  ],
)
@pytest.mark.usefixtures("float64")
def test_no_more_is_conserved(nets, name, law):
  got = relative(law, *setup(nets, *NETWORKS[name][:2]))
  assert jnp.max(got["router"]) > MOVES


@pytest.mark.usefixtures("float64")
def test_router_of_the_only_one_selected_has_no_gradient(nets):
  params, loss, batch = setup(nets, "softmax", 1)
  assert not np.any(jax.jit(jax.grad(loss))(params, batch)["W"])


@pytest.mark.parametrize("name", ["dense", "top 2", "top 2 of all"])
@pytest.mark.usefixtures("float64")
def test_sum_over_experts_moves_a_step_by_rounding(nets, name):
  params, loss, batch = setup(nets, *NETWORKS[name][:2])
  tau = 0.1
  W, grad = params["W"], jax.jit(jax.grad(loss))(params, batch)["W"]
  moved = jnp.sum(W - tau * grad, axis=1) - jnp.sum(W, axis=1)
  largest = jnp.max(jnp.abs(W)) + tau * jnp.max(jnp.abs(grad))
  assert jnp.max(jnp.abs(grad)) > MOVES
  assert jnp.max(jnp.abs(moved)) < 16 * W.shape[1] * EPS * largest


@pytest.mark.usefixtures("float64")
def test_values_are_sums_of_the_router_and_laws_of_the_experts(nets):
  p = nets.moe_params(33)
  W, experts = select(p)
  for gate, router in {
    "softmax": np.sum(p["W"], axis=1),
    "topk_softmax": np.sum(p["W"], axis=1),
    "top1": p["W"],
    "sigmoid": None,
    "normalized_sigmoid": None,
  }.items():
    got = conservation.moe_invariants(W, experts, gate)
    law = conservation.moe_law(select, gate)(p)
    assert ("router" in got) == ("router" in law) == (router is not None)
    if router is not None:
      np.testing.assert_allclose(got["router"], router, rtol=0, atol=8 * EPS)
      np.testing.assert_allclose(law["router"], router, rtol=0, atol=8 * EPS)
    own = [
      conservation.swiglu_invariant(*(p[name][e] for name in "ABC"))
      for e in range(4)
    ]
    np.testing.assert_allclose(got["experts"], own, rtol=0, atol=1e-14)
    np.testing.assert_allclose(law["experts"], own, rtol=0, atol=1e-14)


@pytest.mark.usefixtures("float64")
def test_normalised_sigmoid_moves_the_sum_over_experts():
  got = conservation.normalized_sigmoid_counterexample()
  # The chain rule in exact fractions.
  one = fractions.Fraction(1)
  s = [one / 2, 3 * one / 4]
  total = sum(s)
  gates = [a / total for a in s]
  slopes = [a * (1 - a) for a in s]  # of the sigmoids
  error = gates[1]  # output minus target, all from the second expert
  logit = [
    error * -s[1] / total**2 * slopes[0],
    error * s[0] / total**2 * slopes[1],
  ]
  assert gates == [one * 2 / 5, one * 3 / 5]
  assert logit == [-one * 9 / 125, one * 9 / 250]
  assert -sum(logit) == one * 9 / 250
  close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-15)
  close(got.gates, [2 / 5, 3 / 5])
  close(got.logit_gradient, [-9 / 125, 9 / 250])
  close(got.router_rate, [9 / 250, 0, 0])


@pytest.mark.usefixtures("float64")
def test_softmax_does_not_move_it():
  got = conservation.normalized_sigmoid_counterexample("softmax")
  np.testing.assert_allclose(got.gates, [1 / 4, 3 / 4], rtol=0, atol=1e-15)
  np.testing.assert_allclose(got.router_rate, 0, rtol=0, atol=1e-15)
  assert abs(got.logit_gradient[0]) > 0.1


def test_bad_arguments_are_named(nets):
  W, experts = select(nets.moe_params(0))
  with pytest.raises(ValueError, match=r"unknown gate 'softmaxx'.*'softmax'"):
    conservation.moe_invariants(W, experts, "softmaxx")
  with pytest.raises(ValueError, match="unknown gate"):
    conservation.moe_law(select, "topk")
  with pytest.raises(ValueError, match="unknown gate"):
    conservation.normalized_sigmoid_counterexample("sigmoid")
  with pytest.raises(ValueError, match="experts must hold A, B and C"):
    conservation.moe_invariants(W, {"A": W}, "softmax")
  with pytest.raises(ValueError, match="as many experts as W, 3, got 4"):
    conservation.moe_invariants(W[:, 1:], experts, "softmax")
  one = {name: value[0] for name, value in experts.items()}
  with pytest.raises(ValueError, match="axis of experts"):
    conservation.moe_invariants(W, one, "softmax")
  with pytest.raises(TypeError, match="W must be floating"):
    conservation.moe_invariants(W.astype(jnp.int32), experts, "softmax")
