"""Progress in a log and on a terminal."""

import io

import jax.numpy as jnp
import pytest

from icml26_jax.report import progress


class Clock:
  """Seconds that pass only when told to."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_a_log_gets_at_most_one_line_an_interval():
  stream, clock = io.StringIO(), Clock()
  with progress.bar(
    "training", total=100, interval=15.0, stream=stream, clock=clock
  ) as bar:
    for _ in range(100):
      clock.now += 0.5
      bar.advance()
  lines = stream.getvalue().splitlines()
  # 50 seconds: after 15, 30 and 45, and at the end.
  assert len(lines) == 4
  assert lines[0] == "training: 30/100 steps, 0:35 left"
  assert lines[-1] == "training: 100/100 steps, after 0:50"


def test_first_unit_does_not_count_for_the_pace():
  clock = Clock()
  with progress.bar(
    "training", total=11, stream=io.StringIO(), clock=clock
  ) as bar:
    clock.now = 60.0  # compilation
    bar.advance()
    assert bar.remaining() is None
    clock.now = 61.0
    bar.advance()
    assert bar.remaining() == 9.0


def test_metrics_are_read_only_when_shown():
  class Loss:
    reads = 0

    def __float__(self):
      self.reads += 1
      return 0.5

  loss, clock, stream = Loss(), Clock(), io.StringIO()
  with progress.bar("training", total=9, stream=stream, clock=clock) as bar:
    for _ in range(9):
      clock.now += 1.0
      bar.advance(loss=loss)
  assert loss.reads == 1
  assert "loss 0.5" in stream.getvalue()


def test_metrics_are_shown_with_their_units():
  stream, clock = io.StringIO(), Clock()
  with progress.bar("training", total=1, stream=stream, clock=clock) as bar:
    clock.now = 2.0
    bar.advance(loss=jnp.float32(1.25), tokens_per_s=12345.6, state="warm-up")
  assert "loss 1.25, tokens/s 12,346, state warm-up" in stream.getvalue()


def test_short_work_leaves_no_line_in_a_log():
  stream, clock = io.StringIO(), Clock()
  with progress.bar("loading", total=2, stream=stream, clock=clock) as bar:
    clock.now = 0.5
    bar.advance(2)
  assert stream.getvalue() == ""


def test_unknown_total_counts_without_time_left():
  stream, clock = io.StringIO(), Clock()
  with progress.bar("reading", total=None, stream=stream, clock=clock) as bar:
    clock.now = 3700.0
    bar.advance(5000)
  assert stream.getvalue() == "reading: 5,000 steps, after 1:01:40\n"


def test_disabled_bar_writes_nothing():
  stream, clock = io.StringIO(), Clock()
  with progress.bar(
    "training", total=1, stream=stream, clock=clock, enabled=False
  ) as bar:
    clock.now = 100.0
    bar.advance()
  assert bar.done == 1
  assert stream.getvalue() == ""


def test_terminal_shows_nested_bars_in_one_display():
  stream = Terminal()
  with progress.bar("papers", total=2, unit="papers", stream=stream) as outer:
    with progress.bar("training", total=3, stream=stream) as inner:
      inner.advance(3, loss=0.25)
    outer.advance(2)
  text = stream.getvalue()
  assert "papers" in text
  assert "training" in text
  assert "2/2" in text


def test_nothing_goes_to_standard_output(capsys):
  clock = Clock()
  with progress.bar("training", total=1, clock=clock) as bar:
    clock.now = 30.0
    bar.advance()
    print("result")
  captured = capsys.readouterr()
  assert captured.out == "result\n"
  assert "training: 1/1" in captured.err


def test_negative_steps_are_rejected():
  with (
    progress.bar("training", total=1, stream=io.StringIO()) as bar,
    pytest.raises(ValueError, match="steps must be at least 0, got -1"),
  ):
    bar.advance(-1)
