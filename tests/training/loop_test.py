import os
import signal
import types

import numpy as np
import pytest

from icml26_jax.training import loop


class Later:
  """Values of a device: reading them waits until they are computed."""

  def __init__(self, values, run, ready):
    self._values, self._run, self._ready = values, run, ready

  def __array__(self, dtype=None, copy=None):
    self._run.now = max(self._run.now, self._ready)
    return np.array(self._values, dtype=dtype)


class Run:
  """Records what the loop does; the state is only a step number."""

  def __init__(self, *, start=0, bad=None, stop_at=None, seconds=1.0):
    self.events = []
    self.now = self.busy_until = 0.0
    self.bad, self.stop_at, self.seconds = bad, stop_at, seconds
    self.state = types.SimpleNamespace(step=start)

  def hooks(self, vector):
    def batch(step, count):
      return step, count

    def advance(state, batch, count):
      assert batch == (state.step, count)
      steps = np.arange(state.step, state.step + count)
      ready = max(self.now, self.busy_until) + self.seconds * count
      self.busy_until = ready
      metrics = {
        "loss": 10.0 + steps,
        "weight": 1.0 + steps,
        "grad_norm": 2.0 * steps,
        "finite": steps != self.bad,
      }
      if not vector:
        metrics = {name: value[0] for name, value in metrics.items()}
      metrics = {
        name: Later(value, self, ready) for name, value in metrics.items()
      }
      return types.SimpleNamespace(step=state.step + count), metrics

    return loop.Hooks(
      batch=batch,
      advance=advance,
      log=lambda step, scalars: self.events.append(("log", step, scalars)),
      evaluate=lambda state: {"validation_loss": float(state.step)},
      save=lambda state, window: self.events.append(
        ("save", state.step, dict(window))
      ),
      should_stop=lambda step: (
        self.stop_at is not None and step >= self.stop_at
      ),
    )

  def go(self, *, window=None, **plan):
    plan = loop.Plan(**plan)
    return loop.run(
      self.state,
      plan,
      self.hooks(plan.steps_per_call > 1),
      window=window,
      clock=lambda: self.now,
    )

  def of(self, kind):
    return [event[1:] for event in self.events if event[0] == kind]


@pytest.mark.parametrize("steps_per_call", [1, 3, 100])
def test_everything_happens_at_its_step(steps_per_call):
  run = Run()
  outcome = run.go(
    stop=10,
    log_every=4,
    eval_every=5,
    save_every=6,
    steps_per_call=steps_per_call,
  )
  trained = [step for step, scalars in run.of("log") if "loss" in scalars]
  evaluated = [
    s for s, scalars in run.of("log") if "validation_loss" in scalars
  ]
  assert trained == [4, 8, 10]
  assert evaluated == [5, 10]
  assert [step for step, _ in run.of("save")] == [6, 10]
  assert outcome.state.step == 10
  assert not outcome.interrupted


@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_line_is_the_mean_over_the_tokens_since_the_last(steps_per_call):
  run = Run()
  outcome = run.go(stop=8, log_every=4, steps_per_call=steps_per_call)
  for (step, scalars), steps in zip(
    run.of("log"), (range(4), range(4, 8)), strict=True
  ):
    weights = [1 + n for n in steps]
    losses = [10 + n for n in steps]
    expected = np.average(losses, weights=weights)
    assert scalars["loss"] == pytest.approx(expected, rel=1e-12)
    assert scalars["grad_norm"] == 2.0 * (step - 1)
  assert outcome.scalars == run.of("log")[-1][1]


def test_resumed_lines_equal_uninterrupted_ones():
  whole, first = Run(), Run(stop_at=6)
  whole.go(stop=8, log_every=4)
  stopped = first.go(stop=8, log_every=4)
  assert stopped.interrupted
  (step, window) = first.of("save")[-1]
  assert step == stopped.state.step == 6
  second = Run(start=6)
  second.go(stop=8, log_every=4, window=window)
  lines = first.of("log") + second.of("log")
  for (step, scalars), (same, expected) in zip(
    lines, whole.of("log"), strict=True
  ):
    assert step == same
    assert scalars["loss"] == expected["loss"]


def test_speed_leaves_out_the_first_dispatch():
  run = Run(seconds=2.0)
  outcome = run.go(stop=4, log_every=2)
  # Steps 1, 2 and 3 have 2 + 3 + 4 tokens and take two seconds each.
  assert outcome.tokens_per_second == pytest.approx(9 / 6)
  lines = [scalars["tokens_per_second"] for _, scalars in run.of("log")]
  assert lines == pytest.approx([2 / 2, 7 / 4])


def test_speed_of_a_single_dispatch_is_all_there_is():
  run = Run(seconds=2.0)
  assert run.go(stop=1, log_every=5).tokens_per_second == pytest.approx(0.5)
  assert "tokens_per_second" not in run.of("log")[0][1]


@pytest.mark.parametrize("steps_per_call", [1, 4])
def test_step_that_is_not_finite_stops_the_run(steps_per_call):
  run = Run(bad=5)
  with pytest.raises(
    loop.NonFiniteError,
    match=r"not finite at step 5 \(loss 15, gradient norm 10; batch of seed 3,"
    r" step 5\); the update was not applied",
  ):
    run.go(
      stop=20,
      log_every=2,
      save_every=2,
      steps_per_call=steps_per_call,
      seed=3,
    )
  # Nothing after the bad step was saved.
  assert [step for step, _ in run.of("save")] == [2, 4]


def test_nothing_to_do_saves_nothing_new():
  run = Run(start=5)
  outcome = run.go(stop=5, log_every=1)
  assert outcome.state.step == 5
  assert np.isnan(outcome.tokens_per_second)
  assert run.of("log") == []


def test_end_is_saved_without_a_schedule():
  run = Run()
  run.go(stop=3, log_every=10)
  assert [step for step, _ in run.of("save")] == [3]


def test_progress_is_shown():
  shown = []
  bar = types.SimpleNamespace(
    advance=lambda count, **metrics: shown.append((count, metrics["loss"]))
  )
  run = Run()
  loop.run(
    run.state,
    loop.Plan(stop=5, log_every=5, steps_per_call=2),
    run.hooks(vector=True),
    bar=bar,
    clock=lambda: run.now,
  )
  assert shown == [(2, 11.0), (2, 13.0), (1, 14.0)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_asks_to_stop_and_is_given_back(number):
  before = signal.getsignal(number)
  with loop.stop_request() as should_stop:
    assert not should_stop(0)
    os.kill(os.getpid(), number)
    assert should_stop(0)
  assert signal.getsignal(number) is before


def test_second_ctrl_c_interrupts():
  with loop.stop_request():
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
