"""Fixed-length windows of a long run of tokens, as batches.

A batch is a pure function of (seed, step, process), so that a resumed run
sees what an uninterrupted one would have seen, and any number of processes
see together what one would see alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class TokenWindows:
  """Windows of `length` tokens of one split.

  Attributes:
    tokens: `[N]` integers; a memory-mapped file will do.
    length: tokens in a window, from 1 to N.
  """

  tokens: np.ndarray
  length: int

  def __post_init__(self):
    if self.tokens.ndim != 1:
      raise ValueError(f"tokens must be a vector, got {self.tokens.shape}")
    if not np.issubdtype(self.tokens.dtype, np.integer):
      raise TypeError(f"tokens must be integers, got {self.tokens.dtype}")
    if self.length < 1:
      raise ValueError(f"length must be at least 1, got {self.length}")
    if self.length > len(self.tokens):
      raise ValueError(
        f"length must be at most the {len(self.tokens)} tokens of the corpus,"
        f" got {self.length}"
      )

  def batch(
    self,
    *,
    seed: int,
    step: int,
    batch_size: int,
    process_index: int = 0,
    process_count: int = 1,
  ) -> dict[str, np.ndarray]:
    """The rows of one process of the global batch of one step.

    Each row starts at a uniformly drawn token.

    Args:
      seed: of the run, not negative.
      step: number of the step, not negative.
      batch_size: rows of the global batch, B.
      process_index: this process, from 0.
      process_count: number of processes P; it must divide B.

    Returns:
      `tokens` `[B / P, length]` int32; `mask` bool of that shape, all True;
      `index` `[B / P]` int32, the row's number in the global batch; `stratum`
      `[B / P]` float32, that number over B.

    Raises:
      ValueError: if an argument is outside its range, or P does not divide B.
    """
    for name, value in (("seed", seed), ("step", step)):
      if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    if batch_size < 1:
      raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= process_index < process_count:
      raise ValueError(
        f"process_index must be in [0, {process_count}), got {process_index}"
      )
    if batch_size % process_count:
      raise ValueError(
        f"batch_size must be a multiple of the {process_count} processes, got"
        f" {batch_size}"
      )
    generator = np.random.default_rng((seed, step))
    last = len(self.tokens) - self.length
    starts = generator.integers(0, last, size=batch_size, endpoint=True)
    rows = batch_size // process_count
    index = np.arange(process_index * rows, (process_index + 1) * rows)
    positions = starts[index, None] + np.arange(self.length)[None]
    tokens = np.asarray(self.tokens[positions], np.int32)
    return {
      "tokens": tokens,
      "mask": np.ones(tokens.shape, np.bool_),
      "index": index.astype(np.int32),
      "stratum": index.astype(np.float32) / np.float32(batch_size),
    }

  def blocks(self) -> tuple[np.ndarray, np.ndarray]:
    """All tokens once, cut into consecutive windows, for evaluation.

    Returns:
      Tokens `[ceil(N / length), length]` int32 and a bool mask, which is False
      behind the end of the last window; tokens there are 0.
    """
    count = -(-len(self.tokens) // self.length)
    tokens = np.zeros(count * self.length, np.int32)
    tokens[: len(self.tokens)] = self.tokens
    mask = np.arange(tokens.size) < len(self.tokens)
    return tokens.reshape(count, -1), mask.reshape(count, -1)
