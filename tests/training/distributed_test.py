"""What a single process does; two real ones are in experiments/train_test."""

import pytest

from icml26_jax.training import distributed


def test_alone_nothing_happens(monkeypatch):
  monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
  distributed.initialize()
  distributed.check_agreement("the corpus", "ab" * 32)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"num_processes": 2}, "coordinator_address and process_id missing"),
    (
      {"coordinator_address": "a:1", "num_processes": 0, "process_id": 0},
      "num_processes must be at least 1, got 0",
    ),
    (
      {"coordinator_address": "a:1", "num_processes": 2, "process_id": 2},
      r"process_id must be in \[0, 2\), got 2",
    ),
    (
      {"coordinator_address": "a:1", "num_processes": 2, "process_id": -1},
      r"process_id must be in \[0, 2\), got -1",
    ),
  ],
)
def test_bad_argument_is_refused(monkeypatch, arguments, message):
  monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
  with pytest.raises(ValueError, match=message):
    distributed.initialize(**arguments)


def test_first_process_acts_and_its_error_is_raised():
  done = []
  distributed.on_first_process("do it", lambda: done.append(1))
  assert done == [1]

  def fail():
    raise ValueError("no room")

  with pytest.raises(ValueError, match="no room"):
    distributed.on_first_process("do it", fail)
