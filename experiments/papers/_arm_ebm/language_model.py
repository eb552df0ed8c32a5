"""Part 2: a real language model, restricted to a few tokens."""

from __future__ import annotations

import collections
import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.data import corpora
from icml26_jax.models import llama, prompts
from icml26_jax.pretrained import checkpoint, fetch
from icml26_jax.report import progress
from icml26_jax.theory import arm_ebm

NAME = "smollm2-135m"
LENGTH = 3
PROMPTS = (
  "This function returns",
  "Each of the files must",
  "The default value",
  "If the argument is not given, it",
  "The list of names can",
)

# Characters of documentation that frequent tokens are counted in.
_SAMPLE = 400_000
# Whole words, so that what is enumerated reads as text.
_WORD = re.compile(" [a-z]+")

# Sequences a prompt that are read a second time, without a cache.
NUM_PATHS = 8


class Space(NamedTuple):
  """All continuations of prompts by a few tokens.

  Attributes:
    words: V texts of the tokens.
    prompts: P texts.
    logits: of each prompt, tables `[V**t, V]` float64 of T = `LENGTH` steps.
    path_error: largest difference, in nats, between the energies of some
      sequences that one pass over each gives, without a cache and in float32,
      and their scores by the tables.
  """

  words: tuple[str, ...]
  prompts: tuple[str, ...]
  logits: list[list[np.ndarray]]
  path_error: float


def build(vocab_size: int, num_prompts: int) -> Space:
  """Reads the logits off the model; obtains its weights if need be.

  Args:
    vocab_size: number of tokens V.
    num_prompts: how many of `PROMPTS`.

  Returns:
    The space.
  """
  fetch.fetch(NAME)
  params, config, tokenizer = checkpoint.load(NAME)
  assert tokenizer is not None
  chosen = frequent_tokens(tokenizer, vocab_size)
  texts = PROMPTS[:num_prompts]
  tokens, mask = prompts.pad([tokenizer.encode(text) for text in texts])
  # Rows of pairs, in the order of the tables' rows.
  pairs = chosen[arm_ebm.enumerate_sequences(vocab_size, 2, eos=False)[0]]
  first, cache = _prefill(
    params, jnp.asarray(tokens), jnp.asarray(mask), jnp.asarray(chosen), config
  )
  found = []
  with progress.bar("language model", total=len(texts), unit="prompts") as bar:
    for i in range(len(texts)):
      later = _extend(
        params, cache, i, jnp.asarray(pairs), jnp.asarray(chosen), config
      )
      rows = np.concatenate(
        [
          np.broadcast_to(np.asarray(first)[i], (len(pairs), 1, vocab_size)),
          np.asarray(later),
        ],
        axis=1,
      )
      found.append(tables_of_rows(rows.astype(np.float64)))
      bar.advance()
  return Space(
    words=tuple(tokenizer.decode([token]) for token in chosen),
    prompts=texts,
    logits=found,
    path_error=path_error(params, config, tokens, mask, chosen, found),
  )


def frequent_tokens(tokenizer, count: int) -> np.ndarray:
  """The most frequent words of the documentation that are one token each.

  Args:
    tokenizer: of the model.
    count: how many.

  Returns:
    `[count]` int32 token numbers, the most frequent first.
  """
  documents = corpora.load("stdlib:docstrings", split="all").documents
  text = "\n".join(documents)[:_SAMPLE]
  counts = collections.Counter(tokenizer.encode(text).tolist())
  found: list[int] = []
  for token, _ in counts.most_common():
    if _WORD.fullmatch(tokenizer.decode([token])):
      found.append(token)
      if len(found) == count:
        return np.asarray(found, np.int32)
  raise ValueError(f"count must be at most {len(found)}, got {count}")


def tables_of_rows(rows: np.ndarray) -> list[np.ndarray]:
  """Tables out of the logits along all sequences of T - 1 tokens.

  Args:
    rows: `[V**(T - 1), T, V]`, logits before each token and after the last, of
      the sequences in the order of the tables' rows.

  Returns:
    T tables `[V**t, V]`, each state's taken from the first sequence through it.
  """
  count, length, vocab_size = rows.shape
  return [rows[:: count // vocab_size**t, t] for t in range(length)]


def path_error(
  params,
  config,
  tokens,
  mask,
  chosen: np.ndarray,
  tables: list[list[np.ndarray]],
) -> float:
  """Largest difference of energies by one pass from scores by the tables.

  Args:
    params: parameters of the model.
    config: its shape.
    tokens: `[P, L]` int32 prompts, padded left.
    mask: `[P, L]` bool.
    chosen: `[V]` int32, tokens of the model.
    tables: of each prompt, tables of T steps.

  Returns:
    The difference over `NUM_PATHS` sequences a prompt, in nats.
  """
  sequences, lengths = arm_ebm.enumerate_sequences(
    len(chosen), LENGTH, eos=False
  )
  picked = np.linspace(0, len(sequences) - 1, NUM_PATHS).astype(int)
  sequences, lengths = sequences[picked], lengths[picked]
  # The last token need not be read.
  read = np.tile(chosen[sequences[:, :-1]], (len(tokens), 1))
  rows = np.concatenate([np.repeat(tokens, NUM_PATHS, axis=0), read], axis=1)
  shown = np.pad(
    np.repeat(mask, NUM_PATHS, axis=0),
    ((0, 0), (0, LENGTH - 1)),
    constant_values=True,
  )
  logits = _read(
    params, jnp.asarray(rows), jnp.asarray(shown), jnp.asarray(chosen), config
  )
  worst = 0.0
  for found, expected in zip(
    np.split(np.asarray(logits), len(tokens)), tables, strict=True
  ):
    energies, _ = arm_ebm.implicit_energy(found, sequences, lengths)
    with jax.enable_x64(True):
      rewards = arm_ebm.logits_to_rewards(expected, eos=False)
      scores = arm_ebm.sequence_scores(rewards, sequences, lengths, eos=False)
      worst = max(worst, float(np.abs(np.asarray(energies) + scores).max()))
  return worst


@functools.partial(jax.jit, static_argnames="config")
def _read(params, tokens, mask, chosen, config):
  """Logits `[N, T, V]` of the chosen tokens at the last T positions."""
  logits = llama.apply(params, tokens, mask, config=config)
  return logits[:, -LENGTH:][..., chosen]


@functools.partial(jax.jit, static_argnames="config")
def _prefill(params, tokens, mask, chosen, config):
  """Logits `[P, V]` of the chosen tokens after each prompt, and a cache."""
  output, cache = llama.prefill(
    params, tokens, mask, config=config, num_slots=tokens.shape[1] + LENGTH - 1
  )
  return output.logits[:, chosen], cache


@functools.partial(jax.jit, static_argnames="config")
def _extend(params, cache, prompt, continuations, chosen, config):
  """Logits `[N, 2, V]` after each token of N continuations of one prompt."""
  count = len(continuations)

  def repeat(array, axis):
    row = jax.lax.dynamic_index_in_dim(array, prompt, axis)
    return jnp.repeat(row, count, axis=axis)

  cache = type(cache)(
    keys=repeat(cache.keys, 1),
    values=repeat(cache.values, 1),
    valid=repeat(cache.valid, 0),
    next_slot=cache.next_slot,
    next_position=repeat(cache.next_position, 0),
  )
  output, _ = llama.extend(params, cache, continuations, config=config)
  return output.logits[..., chosen]
