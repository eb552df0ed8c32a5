"""Windows of tokens."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from icml26_jax.data import windows

_TOKENS = np.arange(1000, dtype=np.int32)


def _batch(**changes):
  arguments = {"seed": 3, "step": 5, "batch_size": 8} | changes
  return windows.TokenWindows(_TOKENS, 16).batch(**arguments)


@hypothesis.given(
  seed=st.integers(0, 2**32),
  step=st.integers(0, 10**7),
  count=st.sampled_from([1, 2, 3, 4, 8]),
  rows=st.integers(1, 4),
)
def test_processes_together_see_what_one_sees(seed, step, count, rows):
  arguments = {"seed": seed, "step": step, "batch_size": count * rows}
  whole = _batch(**arguments)
  parts = [
    _batch(**arguments, process_index=index, process_count=count)
    for index in range(count)
  ]
  for name, values in whole.items():
    np.testing.assert_array_equal(
      values, np.concatenate([part[name] for part in parts])
    )
    assert all(len(part[name]) == rows for part in parts)


def test_batch_has_the_agreed_shapes_and_types():
  batch = _batch(process_index=1, process_count=2)
  facts = {name: (x.shape, x.dtype.name) for name, x in batch.items()}
  assert facts == {
    "tokens": ((4, 16), "int32"),
    "mask": ((4, 16), "bool"),
    "index": ((4,), "int32"),
    "stratum": ((4,), "float32"),
  }
  assert batch["mask"].all()
  assert batch["index"].tolist() == [4, 5, 6, 7]
  assert batch["stratum"].tolist() == [0.5, 0.625, 0.75, 0.875]


def test_rows_are_stretches_of_the_text():
  tokens = _batch(batch_size=64)["tokens"]
  np.testing.assert_array_equal(np.diff(tokens, axis=1), 1)


def test_batch_follows_seed_and_step_only():
  first = _batch()["tokens"]
  np.testing.assert_array_equal(first, _batch()["tokens"])
  assert np.any(first != _batch(seed=4)["tokens"])
  assert np.any(first != _batch(step=6)["tokens"])
  # Seed and step are not added up.
  assert np.any(first != _batch(seed=5, step=3)["tokens"])


def test_every_start_is_drawn_equally_often():
  data = windows.TokenWindows(np.arange(12), 3)
  starts = data.batch(seed=0, step=0, batch_size=20_000)["tokens"][:, 0]
  counts = np.bincount(starts, minlength=10)
  assert len(counts) == 10
  # 2000 each, with a standard deviation of 42.
  assert np.all(np.abs(counts - 2000) < 4 * 42.5)


def test_corpus_of_one_window_gives_that_window():
  batch = windows.TokenWindows(np.arange(5), 5).batch(
    seed=0, step=0, batch_size=3
  )
  np.testing.assert_array_equal(batch["tokens"], [np.arange(5)] * 3)


def test_mapped_file_gives_the_same_batches(tmp_path):
  _TOKENS.tofile(tmp_path / "tokens")
  mapped = np.memmap(tmp_path / "tokens", np.int32, mode="r")
  batch = windows.TokenWindows(mapped, 16).batch(seed=3, step=5, batch_size=8)
  np.testing.assert_array_equal(batch["tokens"], _batch()["tokens"])
  assert type(batch["tokens"]) is np.ndarray


@hypothesis.given(st.integers(1, 60), st.integers(1, 20))
def test_blocks_hold_every_token_once(size, length):
  hypothesis.assume(length <= size)
  tokens = np.arange(1, size + 1)
  blocks, mask = windows.TokenWindows(tokens, length).blocks()
  assert blocks.shape == mask.shape == (-(-size // length), length)
  np.testing.assert_array_equal(blocks[mask], tokens)
  assert not blocks[~mask].any()


def test_window_longer_than_the_corpus_is_named():
  with pytest.raises(ValueError, match=r"most the 1000 tokens.* got 1001"):
    windows.TokenWindows(_TOKENS, 1001)
  with pytest.raises(ValueError, match="most the 0 tokens"):
    windows.TokenWindows(_TOKENS[:0], 1)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"seed": -1}, "seed must not be negative, got -1"),
    ({"step": -2}, "step must not be negative, got -2"),
    ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ({"process_count": 3}, "multiple of the 3 processes, got 8"),
    ({"process_count": 2, "process_index": 2}, r"in \[0, 2\), got 2"),
    ({"process_index": -1}, r"in \[0, 1\), got -1"),
    ({"process_count": 0}, r"in \[0, 0\), got 0"),
  ],
)
def test_bad_arguments_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    _batch(**changes)


def test_bad_tokens_are_named():
  with pytest.raises(ValueError, match="must be a vector"):
    windows.TokenWindows(_TOKENS.reshape(10, 100), 2)
  with pytest.raises(TypeError, match="must be integers, got float64"):
    windows.TokenWindows(np.zeros(3), 2)
  with pytest.raises(ValueError, match="length must be at least 1, got 0"):
    windows.TokenWindows(_TOKENS, 0)
