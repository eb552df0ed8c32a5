"""Part (b): the same comparison with trained models on real text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers import _text_models as text_models
from experiments.papers._candi import oracle
from icml26_jax.diffusion import sampling
from icml26_jax.evaluation import (
  likelihood,
  ngram,
  sample_quality,
  text_metrics,
)
from icml26_jax.report import progress
from icml26_jax.training import recipe

CANDI, MASKED, REAL = "CANDI pf_ode, draw, r .01-.25", "MDLM", "text learnt"

# The judge predicts each character from the four before it.
_JUDGE_ORDER = 5
# For the reference's bigrams: no pair is impossible.
_SMOOTHING = 0.1
_BOUND_WINDOWS = 256


class Reference(NamedTuple):
  """Held-out text, as a judge.

  Attributes:
    judge: order-5 back-off model of the second halves.
    bigrams: `[V, V]` distribution of their neighbouring characters.
    entropy: their unigram entropy in nats.
    windows: `[M, L]` windows of them.
  """

  judge: ngram.Ngrams
  bigrams: np.ndarray
  entropy: float
  windows: np.ndarray


class Trained(NamedTuple):
  """What was measured.

  Attributes:
    reference: the judge.
    scores: `(process name, N)` to those of one sample a seed.
    real: text that the models learnt from, measured like a sample.
    bounds: MDLM's bound in bits a character on held-out text, one a seed.
    num_params: parameters of a model.
  """

  reference: Reference
  scores: dict[tuple[str, int], list[sample_quality.Scores]]
  real: sample_quality.Scores
  bounds: list[float]
  num_params: int


def run(
  key: jax.Array,
  *,
  size: text_models.Size,
  first_seed: int,
  seeds: int,
  steps: Sequence[int],
  rows: int,
) -> Trained:
  """Trains both processes on every seed, samples, and measures.

  Args:
    key: typed key of the sampling.
    size: of the models.
    first_seed: seed of the first training.
    seeds: number of trainings of each process.
    steps: numbers of network calls.
    rows: sequences of each sample.

  Returns:
    The measurements.
  """
  reference = make_reference(size.length)
  scores: dict[tuple[str, int], list[sample_quality.Scores]] = {}
  bounds, num_params = [], 0
  for name, process in ((CANDI, "candi"), (MASKED, "mdlm")):
    program = None
    for index in range(seeds):
      made = text_models.make_recipe(process, size, seed=first_seed + index)
      params = text_models.train(
        made, f"training {process}, seed {index + 1} of {seeds}"
      )
      task = recipe.build(made)
      program = program or _program(task, size.length)
      keys = oracle.seed_row_keys(jax.random.fold_in(key, index), 1, rows)
      with progress.bar("sampling", total=len(steps), unit="samplers") as bar:
        for n in steps:
          times = jnp.asarray(oracle.standing_start(n))
          tokens = program(params, jax.random.clone(keys), times)
          found = judge(reference, np.asarray(tokens))
          scores.setdefault((name, n), []).append(found)
          bar.advance()
      if process == "mdlm":
        bounds.append(_bound(task, params, key, reference.windows))
      num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
  learnt = text_models.training_data(size.length).train
  real = learnt.batch(seed=first_seed, step=0, batch_size=rows)["tokens"]
  return Trained(reference, scores, judge(reference, real), bounds, num_params)


def make_reference(length: int) -> Reference:
  """The judge, fitted on text that no model learns from.

  Args:
    length: characters of a window.
  """
  text = text_models.halves("second_half")
  vocab_size = text_models.VOCAB_SIZE
  count = len(text) // length
  # Evenly spread over the text.
  starts = np.linspace(0, count - 1, _BOUND_WINDOWS).astype(int) * length
  return Reference(
    judge=ngram.fit(text, vocab_size, order=_JUDGE_ORDER),
    bigrams=text_metrics.bigram_distribution(
      text, vocab_size, smoothing=_SMOOTHING
    ),
    entropy=text_metrics.unigram_entropy(text, vocab_size),
    windows=np.stack([text[start : start + length] for start in starts]),
  )


def judge(reference: Reference, tokens: np.ndarray) -> sample_quality.Scores:
  """Scores of a sample `[S, L]` under the judge."""
  nll = ngram.nll(reference.judge, tokens).mean(axis=1)
  return sample_quality.score(tokens, nll, reference.bigrams)


def _program(task: recipe.Task, length: int) -> Callable[..., jax.Array]:
  """Compiled `(params, keys [B], times) -> tokens [B, L]`."""

  @jax.jit
  def program(params, keys, times):
    tokens, _ = sampling.sample(
      keys,
      task.process(params),
      task.denoise_fn(params),
      (keys.shape[0], length),
      times,
    )
    return tokens

  return program


def _bound(task, params, key, windows) -> float:
  """MDLM's bound in bits a character on held-out windows."""
  bound = jax.jit(
    lambda params, key: likelihood.mdlm_bound(
      key, task.denoise_fn(params), jnp.asarray(windows)
    )
  )
  return float(bound(params, jax.random.clone(key)).bits_per_character)
