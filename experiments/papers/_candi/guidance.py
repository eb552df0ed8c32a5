"""Part (c): steering by a classifier, on the exact denoiser.

A linear classifier tells the language reference from names in source code. A
sampler of the reference's chain is steered towards the names, harder and
harder; a second classifier, on pairs of letters and fitted on other text,
says how often that worked. (Success under the guiding one is true by
construction.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers._candi import corpus, oracle
from icml26_jax.diffusion import candi, mdlm, sampling
from icml26_jax.diffusion import oracle as oracle_lib
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import discrete
from icml26_jax.evaluation import (
  intervals,
  linear_probe,
  markov,
  text_metrics,
  token_counts,
)

DECLARED = "CANDI, gradient"
RIVALS = ("MDLM, exact D-CBG", "MDLM, first-order D-CBG")
METHODS = (DECLARED, "CANDI, straight-through", *RIVALS)

# The two kinds of guidance measure strength in units of their own: a factor
# of a gradient in the noisy space, and an exponent of a probability.
SCALES = {
  "CANDI": (0.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0),
  "MDLM": (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
}

# Of the mean loss; the same for both classifiers.
_L2 = 0.1


class Classifiers(NamedTuple):
  """The guide, the judge, and how good the judge is.

  Attributes:
    guide: on letters, fitted on the first half of the files.
    judge: on pairs of letters, fitted on the second half.
    accuracy: share of the first half's windows that the judge gets right.
  """

  guide: linear_probe.LinearProbe
  judge: linear_probe.LinearProbe
  accuracy: float


class Sweep(NamedTuple):
  """Samples of one method at K strengths.

  Attributes:
    scales: the K strengths.
    nll: `[K, S]` nats per character of each sequence under the chain.
    success: `[K, S]` bool, whether the judge finds the wanted class.
    entropy: `[K]` unigram entropy in nats.
  """

  scales: tuple[float, ...]
  nll: np.ndarray
  success: np.ndarray
  entropy: np.ndarray


def run(
  key: jax.Array,
  *,
  steps: int,
  seeds: int,
  rows: int,
  length: int,
  windows: int,
  scales: dict[str, Sequence[float]],
) -> tuple[Classifiers, dict[str, Sweep]]:
  """Sweeps the strength of guidance of every method.

  Args:
    key: typed key; row b of seed s uses one key everywhere.
    steps: network calls N.
    seeds: independent repetitions.
    rows: sequences of each.
    length: characters of a sequence.
    windows: windows of each class that a classifier is fitted on.
    scales: strengths for "CANDI" and for "MDLM".

  Returns:
    The classifiers, and a sweep for each of `METHODS`.
  """
  fitted = classifiers(length, windows)
  keys = oracle.seed_row_keys(key, seeds, rows)
  times = jnp.asarray(sampling.time_grid(steps))
  strengths = {method: scales[method.split(",")[0]] for method in METHODS}
  programs = {
    method: _program(method, fitted.guide, length) for method in METHODS
  }

  def sample(job):
    method, scale = job
    tokens, nll = programs[method](
      jax.random.clone(keys), times, jnp.float32(scale)
    )
    return np.asarray(tokens), np.asarray(nll)

  found = oracle.in_threads(
    "guidance",
    [[(method, scale) for scale in strengths[method]] for method in METHODS],
    sample,
  )

  def sweep(method):
    tokens, nll = zip(
      *(found[method, scale] for scale in strengths[method]), strict=True
    )
    return Sweep(
      scales=tuple(strengths[method]),
      nll=np.stack(nll),
      success=np.stack([judged(fitted.judge, sample) for sample in tokens]),
      entropy=np.array(
        [
          text_metrics.unigram_entropy(sample, corpus.VOCAB_SIZE)
          for sample in tokens
        ]
      ),
    )

  return fitted, {method: sweep(method) for method in METHODS}


@functools.cache
def classifiers(length: int, windows: int) -> Classifiers:
  """Fits the guide and the judge, on halves of the files.

  Args:
    length: characters of a window.
    windows: windows of each class.

  Returns:
    The classifiers of names in source code against the language reference.
  """
  halves = {}
  for split in ("first_half", "second_half"):
    names = corpus.identifiers(split, windows * length)
    prose = corpus.tokens("stdlib:prose", split)
    halves[split] = np.concatenate(
      [corpus.windows(text, length, windows) for text in (names, prose)]
    )
  labels = np.arange(2 * windows) < windows
  vocab_size = corpus.VOCAB_SIZE
  guide = linear_probe.fit(
    token_counts.unigram_counts(halves["first_half"], vocab_size),
    labels,
    l2=_L2,
  )
  judge = linear_probe.fit(
    token_counts.bigram_counts(halves["second_half"], vocab_size),
    labels,
    l2=_L2,
  )
  right = judged(judge, halves["first_half"]) == labels
  return Classifiers(guide, judge, float(np.mean(right)))


def judged(judge: linear_probe.LinearProbe, tokens: np.ndarray) -> np.ndarray:
  """`[S]` bool: whether the judge takes each sequence for the wanted class."""
  counts = token_counts.bigram_counts(tokens, corpus.VOCAB_SIZE)
  return linear_probe.log_odds(judge, counts) > 0


def exact_cbg(
  probe: linear_probe.LinearProbe, scale: jax.Array
) -> process_lib.LogitTransform:
  """`discrete.cbg_exact` of a linear classifier, in closed form.

  With log-odds linear in the one-hots, setting position i to token v changes
  them by `w_v - w . p_i`, so that the L V classifier calls collapse into one.
  """

  def update(logits, state, step):
    probs = jnp.exp(logits)
    here = probs @ probe.weights  # [B, L]
    odds = jnp.sum(here, axis=1) + probe.bias
    changed = odds[:, None] - here
    scores = jax.nn.log_sigmoid(changed[..., None] + probe.weights[None, None])
    tilted = discrete.tilt(logits, scores, scale, step.latent.revealed)
    return tilted, state

  return process_lib.LogitTransform(lambda tokens: (), update)


def nll_at_success(sweep: Sweep, levels: Sequence[float]) -> np.ndarray:
  """Chain NLL at given shares of success, along a sweep's frontier.

  Args:
    sweep: samples of one method.
    levels: shares of success.

  Returns:
    Nats per character at each level; NaN where the sweep does not reach.
  """
  return text_metrics.frontier_nll(
    sweep.nll.mean(axis=1), sweep.success.mean(axis=1), levels
  )


def difference_at_success(
  first: Sweep,
  second: Sweep,
  levels: Sequence[float],
  key: jax.Array,
  *,
  num_resamples: int = 1000,
) -> intervals.Interval:
  """`nll_at_success` of one method minus another's, with 95% intervals.

  Both are resampled with the same sequences.

  Args:
    first: a sweep.
    second: a sweep over as many sequences.
    levels: shares of success.
    key: typed key of the resampling.
    num_resamples: number of resamples.

  Returns:
    An interval of arrays, one entry a level; NaN where one of the two does
    not reach the level in every resample.
  """
  size = first.nll.shape[1]

  def of_rows(rows, axis):
    del axis
    weights = token_counts.row_counts(np.atleast_2d(rows).astype(int), size)
    curves = []
    for sweep in (first, second):
      nll = weights @ sweep.nll.T / size
      success = weights @ sweep.success.T.astype(np.float32) / size
      curves.append(
        [
          text_metrics.frontier_nll(*point, levels)
          for point in zip(nll, success, strict=True)
        ]
      )
    return (np.array(curves[0]) - np.array(curves[1])).T

  found = intervals.bootstrap_interval(
    np.arange(size), key, num_resamples=num_resamples, statistic=of_rows
  )
  return found._replace(estimate=found.estimate[:, 0])


def why_open(
  sweeps: Mapping[str, Sweep], names: Sequence[str], level: float
) -> str:
  """Why two methods could not be compared at a share of success, in words.

  Args:
    sweeps: samples of the methods.
    names: the two.
    level: the share.
  """
  parts = []
  for name in names:
    success = sweeps[name].success.mean(axis=1)
    if not success.min() <= level <= success.max():
      parts.append(
        f"{name} covers success of {success.min():.0%} to {success.max():.0%}"
      )
  return " and ".join(parts) or "not covered in every resample"


def _program(
  method: str, guide: linear_probe.LinearProbe, length: int
) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Compiled `(keys [B], times, scale) -> (tokens [B, L], nll [B])`."""
  chain = corpus.chain()
  denoise_fn = oracle_lib.denoise_fn(chain.initial, chain.transition)
  log_prob_fn = linear_probe.log_prob_fn(guide)

  @jax.jit
  def program(keys, times, scale):
    transform = None
    if method.startswith("CANDI"):
      process = candi.process(
        corpus.VOCAB_SIZE,
        guidance=candi.ClassifierGuidance(
          log_prob_fn, scale, straight_through=method != DECLARED
        ),
      )
    else:
      process = mdlm.process(corpus.VOCAB_SIZE)
      if method == RIVALS[0]:
        transform = exact_cbg(guide, scale)
      else:
        transform = discrete.cbg_taylor(log_prob_fn, scale)
    tokens, _ = sampling.sample(
      keys,
      process,
      denoise_fn,
      (keys.shape[0], length),
      times,
      transform=transform,
    )
    return tokens, markov.nll(chain, tokens)

  return program
