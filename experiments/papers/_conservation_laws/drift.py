"""Part (b): drift of laws under gradient descent at three step sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers._conservation_laws import networks
from icml26_jax.evaluation import intervals
from icml26_jax.report import claims
from icml26_jax.theory import conservation

# From coarse to fine; each a whole number of times the one before.
TAUS = (0.02, 0.01, 0.005)
FEW_STEPS = 20


class Found(NamedTuple):
  """Drift of one quantity of one network, all step sizes and seeds.

  Attributes:
    network: name of the network.
    law: name of the quantity.
    conserved: whether it is a law of the network.
    few: `[seeds, taus]` norm of its drift after `FEW_STEPS` steps.
    end: `[seeds, taus]` the same at the end, which is one time for all.
    largest: `[seeds, taus]` largest component of the drift at the end.
    size: `[seeds]` norm of its value at the start.
    weights: largest parameter, in absolute value, at the start and the end of
      any run.
    steps: number of steps at each step size.
  """

  network: str
  law: str
  conserved: bool
  few: np.ndarray
  end: np.ndarray
  largest: np.ndarray
  size: np.ndarray
  weights: float
  steps: tuple[int, ...]


def run(
  key: jax.Array,
  network: networks.Network,
  *,
  seeds: int,
  time: float,
  batch_size: int | None = None,
  advance: Any = None,
) -> list[Found]:
  """Descends from the same weights with every step size to the same time.

  Args:
    key: typed key of the weights and the batches.
    network: the network.
    seeds: number of initial weights.
    time: how far to follow the flow, a whole number of coarse steps.
    batch_size: rows of a random batch a step; None for all rows.
    advance: called with the number of finished runs, for a progress bar.

  Returns:
    One entry a quantity.
  """
  candidates = {**network.laws, **network.others}
  law = functools.partial(_every, candidates)
  chunk = round(time / TAUS[0])
  init_key, batch_key = jax.random.split(key)
  batch_keys = jax.random.split(batch_key, seeds)
  start = jax.vmap(network.init)(jax.random.split(init_key, seeds))
  follow = _full_batch if batch_size is None else _mini_batch
  program = jax.jit(
    jax.vmap(
      functools.partial(follow, network, law, chunk, batch_size),
      in_axes=(0, 0, 0, None, None),
    )
  )
  none = jax.tree.map(jnp.zeros_like, jax.vmap(law)(start))
  for i in range(round(network.warm_up / time)):
    # Steps are counted from below, so that no batch comes twice.
    start, _, _ = program(
      start,
      none,
      jax.random.clone(batch_keys),
      jnp.float64(TAUS[0]),
      -(i + 1) * chunk,
    )
  begin = jax.vmap(law)(start)
  paths: dict[str, list[np.ndarray]] = {name: [] for name in candidates}
  largest: dict[str, list[np.ndarray]] = {name: [] for name in candidates}
  weights = _largest(start)
  for tau in TAUS:
    params = start
    drift = none
    parts: dict[str, list[np.ndarray]] = {name: [] for name in candidates}
    for i in range(round(TAUS[0] / tau)):
      params, drift, norms = program(
        params, drift, jax.random.clone(batch_keys), jnp.float64(tau), i * chunk
      )
      for name in candidates:
        parts[name].append(np.asarray(norms[name]))
    weights = max(weights, _largest(params))
    for name in candidates:
      paths[name].append(np.concatenate(parts[name], axis=1))
      moved = np.abs(np.asarray(drift[name])).reshape(seeds, -1)
      largest[name].append(moved.max(axis=1))
    if advance is not None:
      advance()
  return [
    Found(
      network=network.name,
      law=name,
      conserved=name in network.laws,
      few=np.stack([path[:, FEW_STEPS - 1] for path in paths[name]], axis=1),
      end=np.stack([path[:, -1] for path in paths[name]], axis=1),
      largest=np.stack(largest[name], axis=1),
      size=np.linalg.norm(np.asarray(begin[name]).reshape(seeds, -1), axis=1),
      weights=weights,
      steps=tuple(path.shape[1] for path in paths[name]),
    )
    for name in candidates
  ]


def slopes(drifts: np.ndarray) -> np.ndarray:
  """Powers of the step size with which drifts grow.

  Args:
    drifts: `[seeds, taus]` norms at each of `TAUS`.

  Returns:
    `[seeds]`.
  """
  return np.array(
    [float(conservation.drift_order(row, np.array(TAUS))) for row in drifts]
  )


def estimate(values: np.ndarray) -> claims.Estimate:
  """Mean over seeds with its interval; without one for a single seed."""
  if len(values) < 2:
    return claims.Estimate(float(values[0]))
  return claims.Estimate(*map(float, intervals.t_interval(values)))


def slope_checks(
  found: Sequence[Found], *, few: float, end: float, radius: float
) -> list[claims.Check]:
  """That drifts of quadratic laws grow with the powers expected.

  Args:
    found: what was measured; linear laws and what is no law are left out.
    few: power after a fixed number of steps.
    end: power at a fixed time.
    radius: largest distance allowed.
  """
  checks = []
  for one in found:
    if one.conserved and one.law != networks.ROUTER:
      for drifts, power, where in (
        (one.few, few, f"k = {FEW_STEPS}"),
        (one.end, end, "fixed T"),
      ):
        checks.append(
          claims.within(
            f"slope at {where} of {one.law} ({one.network})",
            estimate(slopes(drifts)),
            power,
            radius,
          )
        )
  return checks


def rounding(one: Found) -> float:
  """What rounding can move a sum over experts by in all steps.

  Each step rounds E additions of weights, half a unit each, and the gradients
  whose sum over experts is 0: together below 16 E eps max|W|.
  """
  eps = float(np.finfo(np.float64).eps)
  return 16 * networks.NUM_EXPERTS * eps * one.weights * max(one.steps)


def ratio_checks(one: Found, radius: float) -> list[claims.Check]:
  """That a quantity moves by as much whatever the step size.

  Args:
    one: what was measured.
    radius: largest relative difference from the finest step size.
  """
  return [
    claims.within(
      f"drift at tau = {tau:g} over that at {TAUS[-1]:g}",
      estimate(one.end[:, i] / one.end[:, -1]),
      1.0,
      radius,
    )
    for i, tau in enumerate(TAUS[:-1])
  ]


def pick(found: Sequence[Found], network: str, law: str) -> Found:
  """The entry of a network and quantity."""
  (one,) = (x for x in found if (x.network, x.law) == (network, law))
  return one


def _every(candidates: Mapping[str, networks.Law], params: Any):
  return {name: law(params) for name, law in candidates.items()}


def _full_batch(network, law, steps, batch_size, params, drift, key, tau, done):
  del batch_size, key, done
  moved, params = conservation.simulate(
    lambda params: network.loss(params, network.data),
    params,
    law,
    method="euler",
    tau=tau,
    steps=steps,
  )
  return _add(moved, params, drift)


def _mini_batch(network, law, steps, batch_size, params, drift, key, tau, done):
  before = law(params)
  rows = len(jax.tree.leaves(network.data)[0])

  def step(params, i):
    chosen = jax.random.choice(
      jax.random.fold_in(key, done + i), rows, (batch_size,), replace=False
    )
    batch = jax.tree.map(lambda x: x[chosen], network.data)
    grads = jax.grad(network.loss)(params, batch)
    params = jax.tree.map(lambda p, g: p - tau * g, params, grads)
    return params, jax.tree.map(jnp.subtract, law(params), before)

  params, moved = jax.lax.scan(step, params, jnp.arange(steps))
  return _add(moved, params, drift)


def _add(moved, params, drift):
  """Parameters, drift since the start, and its norm after every step."""
  total = jax.tree.map(lambda new, old: new + old[None], moved, drift)
  norms = jax.tree.map(
    lambda x: jnp.linalg.norm(x.reshape(len(x), -1), axis=1), total
  )
  return params, jax.tree.map(lambda x: x[-1], total), norms


def _largest(params):
  return max(float(jnp.max(jnp.abs(x))) for x in jax.tree.leaves(params))
