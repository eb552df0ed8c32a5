import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icml26_jax.training import sharding
from icml26_jax.training import step as step_lib

RULES = sharding.DEFAULT_RULES


def _copy(state):
  """A state that survives the donation of the original."""
  copied = jax.tree.map(jnp.copy, dataclasses.replace(state, key=None))
  return dataclasses.replace(copied, key=jax.random.clone(state.key))


def _step(trainer, loss_fn, **options):
  return step_lib.make_train_step(
    loss_fn,
    trainer.optimizer,
    trainer.mesh,
    RULES,
    state_shardings=trainer.shardings,
    **options,
  )


def _losses(trainer, toy, steps, **options):
  step, state = _step(trainer, toy.loss, **options), trainer.state
  losses = []
  for n in range(steps):
    state, metrics = step(state, toy.batch(n))
    losses.append(float(metrics["loss"]))
  return losses, state


def _gradients(toy, batch, **options):
  @jax.jit
  def run(batch):
    return step_lib.accumulated_gradients(
      toy.loss,
      toy.init(jax.random.key(0)),
      batch,
      jax.random.key(1),
      **options,
    )

  return run(batch)


def test_one_step_is_gradient_descent_on_the_loss(make_trainer, toy):
  trainer = make_trainer({}, optimizer=optax.sgd(0.1))
  start = _copy(trainer.state)
  batch = toy.batch(0)
  key = jax.random.fold_in(jax.random.clone(start.key), 0)
  (loss, aux), grads = jax.jit(jax.value_and_grad(toy.loss, has_aux=True))(
    start.params, batch, key
  )
  state, metrics = _step(trainer, toy.loss)(trainer.state, batch)
  # The same float32 program, fused differently.
  np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-6)
  np.testing.assert_allclose(metrics["accuracy"], aux["accuracy"], rtol=1e-6)
  norm = np.sqrt(sum(np.sum(np.square(g)) for g in jax.tree.leaves(grads)))
  np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-5)
  for name, value in state.params.items():
    expected = start.params[name] - 0.1 * grads[name]
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-7)
  assert int(state.step) == 1
  assert bool(metrics["finite"])


@pytest.mark.parametrize(
  "shape", [{"data": 8}, {"data": 4, "model": 2}, {"fsdp": 2, "model": 4}]
)
def test_losses_do_not_depend_on_the_mesh(make_trainer, toy, shape):
  one, _ = _losses(make_trainer({}), toy, 10)
  many, _ = _losses(make_trainer(shape), toy, 10)
  np.testing.assert_allclose(many, one, rtol=1e-5)
  assert one[-1] < one[0]


@pytest.mark.parametrize(
  ("shape", "accumulation"), [({}, 2), ({}, 16), ({"data": 2, "model": 2}, 4)]
)
def test_micro_batches_equal_one_batch(make_trainer, toy, shape, accumulation):
  # Rows have 0 to 5 counted tokens, so a plain mean over micro-batches would
  # be far off. Reference: the whole batch; sums in another order.
  sgd = optax.sgd(0.1)
  whole, state = _losses(make_trainer({}, optimizer=sgd), toy, 3)
  parts, other = _losses(
    make_trainer(shape, optimizer=sgd), toy, 3, accumulation=accumulation
  )
  np.testing.assert_allclose(parts, whole, rtol=2e-6)
  for name, value in state.params.items():
    np.testing.assert_allclose(other.params[name], value, rtol=1e-5, atol=1e-6)


def test_accumulated_metrics_are_means_over_counted_tokens(toy):
  batch = toy.batch(0)
  _, whole, _ = _gradients(toy, batch, accumulation=1)
  _, parts, _ = _gradients(toy, batch, accumulation=4)
  assert float(parts["weight"]) == float(whole["weight"]) == batch["mask"].sum()
  np.testing.assert_allclose(parts["accuracy"], whole["accuracy"], rtol=1e-6)


def test_batch_without_counted_tokens_has_no_gradient(toy):
  batch = toy.batch(0) | {"mask": np.zeros((16, 5), bool)}
  loss, metrics, grads = _gradients(toy, batch, accumulation=2)
  assert float(loss) == float(metrics["weight"]) == 0.0
  assert all(not np.any(g) for g in jax.tree.leaves(grads))


def test_average_follows_its_recursion(make_trainer, toy):
  trainer = make_trainer({}, with_ema=True)
  average = np.asarray(trainer.state.ema_params["up"], np.float64)
  step, state = _step(trainer, toy.loss, ema_decay=0.3), trainer.state
  for n in range(6):
    state, _ = step(state, toy.batch(n))
    rate = min(0.3, (1 + n) / (10 + n))
    average = rate * average + (1 - rate) * np.asarray(state.params["up"])
    np.testing.assert_allclose(
      state.ema_params["up"], average, rtol=1e-5, atol=1e-6
    )


def test_average_decay_grows_to_its_limit():
  values = [float(step_lib.ema_rate(n, 0.9)) for n in (0, 1, 10, 100, 10**6)]
  np.testing.assert_allclose(values, [0.1, 2 / 11, 11 / 20, 0.9, 0.9])


def _poisoned(toy, bad_step):
  """The toy's loss, infinite in the gradient or value at one step."""

  def loss_fn(params, batch, key):
    loss, metrics = toy.loss(params, batch, key)
    return loss * jnp.where(batch["index"][0] == -1, jnp.nan, 1.0), metrics

  def batch(n):
    made = toy.batch(n)
    if n == bad_step:
      made["index"][0] = -1
    return made

  return loss_fn, batch


def test_step_that_is_not_finite_changes_nothing(make_trainer, toy):
  trainer = make_trainer({"data": 2, "model": 2}, with_ema=True)
  loss_fn, batch = _poisoned(toy, bad_step=1)
  step = _step(trainer, loss_fn, ema_decay=0.9)
  state, metrics = step(trainer.state, batch(0))
  assert bool(metrics["finite"])
  before = _copy(state)
  state, metrics = step(state, batch(1))
  assert not bool(metrics["finite"])
  assert int(state.step) == 1
  old, new = (
    dataclasses.replace(before, key=None),
    dataclasses.replace(state, key=None),
  )
  for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
    np.testing.assert_array_equal(a, b)


def test_infinite_gradient_of_a_finite_loss_is_caught(make_trainer, toy):
  def loss_fn(params, batch, key):
    loss, metrics = toy.loss(params, batch, key)
    # The root's slope at 0 is infinite.
    return loss + jnp.sqrt(jnp.sum(params["up"] - params["up"])), metrics

  trainer = make_trainer({})
  _, metrics = _step(trainer, loss_fn)(trainer.state, toy.batch(0))
  assert np.isfinite(float(metrics["loss"]))
  assert not bool(metrics["finite"])


def test_state_is_donated_and_traced_once(make_trainer, toy):
  trainer = make_trainer({"data": 2})
  traced = chex.assert_max_traces(toy.loss, n=1)
  step, state = _step(trainer, traced), trainer.state
  for n in range(3):
    old = state
    state, _ = step(state, toy.batch(n))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.params))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(old.opt_state))
  with pytest.raises(RuntimeError, match="deleted"):
    np.asarray(old.params["up"])


def _multi(trainer, loss_fn, **options):
  return step_lib.make_multi_step(
    loss_fn,
    trainer.optimizer,
    trainer.mesh,
    RULES,
    state_shardings=trainer.shardings,
    **options,
  )


def _stack(batches):
  return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


@pytest.mark.parametrize("shape", [{}, {"data": 2, "model": 2}])
def test_cutting_a_run_into_dispatches_does_not_change_a_bit(
  make_trainer, toy, shape
):
  finals = []
  for cuts in ([4, 4], [1, 3, 2, 2]):
    trainer = make_trainer(shape, with_ema=True)
    step, state, losses = (
      _multi(trainer, toy.loss, ema_decay=0.9),
      trainer.state,
      [],
    )
    n = 0
    for count in cuts:
      batches = _stack([toy.batch(min(n + i, n + count - 1)) for i in range(4)])
      state, metrics = step(state, batches, count)
      assert np.asarray(metrics["taken"]).tolist() == [
        i < count for i in range(4)
      ]
      losses.extend(np.asarray(metrics["loss"])[:count].tolist())
      n += count
    assert int(state.step) == 8
    finals.append((losses, state))
  (losses_a, a), (losses_b, b) = finals
  assert losses_a == losses_b
  for left, right in zip(
    jax.tree.leaves((a.params, a.ema_params, a.opt_state)),
    jax.tree.leaves((b.params, b.ema_params, b.opt_state)),
    strict=True,
  ):
    np.testing.assert_array_equal(left, right)
  # One step at a time is another program: equal up to rounding.
  single, _ = _losses(make_trainer(shape, with_ema=True), toy, 8, ema_decay=0.9)
  np.testing.assert_allclose(losses_a, single, rtol=1e-5)


def test_dispatch_stops_at_a_step_that_is_not_finite(make_trainer, toy):
  trainer = make_trainer({})
  loss_fn, batch = _poisoned(toy, bad_step=1)
  state, metrics = _multi(trainer, loss_fn)(
    trainer.state, _stack([batch(n) for n in range(4)]), 4
  )
  assert np.asarray(metrics["taken"]).tolist() == [True, True, False, False]
  assert np.asarray(metrics["finite"]).tolist() == [True, False, False, False]
  assert int(state.step) == 1


def test_loss_function_without_weight_is_refused(make_trainer, toy):
  trainer = make_trainer({})
  step = _step(trainer, lambda params, batch, key: (jnp.float32(0), {"n": 1.0}))
  with pytest.raises(ValueError, match=r"must report metrics\['weight'\]"):
    step(trainer.state, toy.batch(0))


def test_rows_that_do_not_divide_are_refused(toy):
  with pytest.raises(ValueError, match="batch of 16 rows is not divisible"):
    _gradients(toy, toy.batch(0), accumulation=3)


@pytest.mark.parametrize(
  ("options", "with_ema", "message"),
  [
    ({"ema_decay": 1.0}, True, r"ema_decay must be in \[0, 1\), got 1.0"),
    ({"ema_decay": 0.9}, False, "must both be given or both be None"),
    ({}, True, "must both be given or both be None"),
    ({"accumulation": 0}, False, "accumulation must be at least 1, got 0"),
  ],
)
def test_bad_option_is_refused(make_trainer, toy, options, with_ema, message):
  trainer = make_trainer({}, with_ema=with_ema)
  with pytest.raises(ValueError, match=message):
    _step(trainer, toy.loss, **options)
