"""Part (a): samplers on the exact denoiser, where nothing is trained.

Text comes from a Markov chain whose posteriors are known exactly. What is
left between two processes at N network calls is the error of sampling itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent import futures
import functools
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.papers._candi import corpus
from icml26_jax.diffusion import (
  candi,
  identifiability,
  mdlm,
  oracle,
  sampling,
  schedules,
)
from icml26_jax.diffusion import process as process_lib
from icml26_jax.evaluation import markov, sample_quality
from icml26_jax.report import progress


class Setting(NamedTuple):
  """One way to sample.

  Attributes:
    name: how it is called in tables.
    update: how CANDI's vectors move; None for masked diffusion.
    x0_mode: what they move towards.
    ranks: rank degradation at time 0 and at time 1.
  """

  name: str
  update: str | None = None
  x0_mode: str = "draw"
  ranks: tuple[float, float] = (0.01, 0.25)


MASKED = Setting("MDLM")
DECLARED = Setting("CANDI pf_ode, draw, r .01-.25", "pf_ode")
SETTINGS = (
  MASKED,
  DECLARED,
  Setting("CANDI pf_ode, draw, r .05-.45", "pf_ode", "draw", (0.05, 0.45)),
  Setting("CANDI pf_ode, mean, r .01-.25", "pf_ode", "mean"),
  Setting("CANDI pf_ode, mean, r .05-.45", "pf_ode", "mean", (0.05, 0.45)),
  Setting("CANDI release, draw, r .01-.25", "release"),
  Setting("CANDI release, draw, r .05-.45", "release", "draw", (0.05, 0.45)),
  Setting("CANDI release, mean, r .01-.25", "release", "mean"),
  Setting("CANDI release, mean, r .05-.45", "release", "mean", (0.05, 0.45)),
)

# Programs are compiled for these numbers of steps; see `standing_start`.
_PROGRAM_STEPS = (16, 64)


class Samples(NamedTuple):
  """Samples of every setting and number of steps.

  Attributes:
    chain: the chain that the denoiser is exact for.
    scores: `(setting name, N)` to the scores of all seeds' sequences, the
      seeds one after the other.
  """

  chain: markov.MarkovChain
  scores: dict[tuple[str, int], sample_quality.Scores]


def run(
  key: jax.Array,
  *,
  settings: Sequence[Setting],
  steps: Sequence[int],
  seeds: int,
  rows: int,
  length: int,
) -> Samples:
  """Samples every setting at every number of steps.

  Row b of seed s uses one key in all of them, so that differences are paired.

  Args:
    key: typed key.
    settings: what to compare.
    steps: numbers of network calls.
    seeds: independent repetitions.
    rows: sequences of each.
    length: tokens of a sequence.

  Returns:
    The samples' scores.
  """
  chain = corpus.chain()
  joint = corpus.joint_bigrams(chain)
  keys = seed_row_keys(key, seeds, rows)
  groups: dict[tuple[str | None, str], list[tuple[Setting, int]]] = {}
  for setting in settings:
    program = setting.update, setting.x0_mode
    groups.setdefault(program, []).extend((setting, n) for n in steps)

  def sample(job):
    setting, n = job
    tokens, nll = _program(setting.update, setting.x0_mode, length)(
      jax.random.clone(keys),
      jnp.asarray(standing_start(n)),
      *map(jnp.float32, setting.ranks),
    )
    return sample_quality.score(tokens, nll, joint)

  found = in_threads("exact denoiser", list(groups.values()), sample)
  scores = {
    (setting.name, n): found[setting, n] for setting in settings for n in steps
  }
  return Samples(chain, scores)


def in_threads(
  description: str,
  groups: Sequence[Sequence[Hashable]],
  work: Callable[[Any], Any],
) -> dict[Any, Any]:
  """Does jobs in threads, those of a group one after the other.

  A small sampler keeps one core busy at most, and so does compiling; jobs that
  share a program go into one group, so that it is compiled once.

  Args:
    description: what the progress bar says.
    groups: the jobs.
    work: what to do with a job.

  Returns:
    The result of each job.
  """
  total = sum(map(len, groups))
  with (
    progress.bar(description, total=total, unit="samplers") as bar,
    futures.ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool,
  ):

    def do(group):
      found = {}
      for job in group:
        found[job] = work(job)
        bar.advance()
      return found

    return {
      job: result
      for found in pool.map(do, groups)
      for job, result in found.items()
    }


def seed_row_keys(key: jax.Array, seeds: int, rows: int) -> jax.Array:
  """`[seeds * rows]` keys, those of each seed from a key of its own."""
  return jnp.concatenate(
    [
      process_lib.row_keys(jax.random.fold_in(key, seed), rows)
      for seed in range(seeds)
    ]
  )


def standing_start(num_steps: int) -> np.ndarray:
  """Times of N steps, preceded by steps that stand still at time 1.

  A step from a time to itself commits nothing and moves nothing, so that one
  program serves several N: compiling takes longer than sampling does.

  Args:
    num_steps: N, at least 1.

  Returns:
    Times of the shortest program that has N steps, or N + 1 times if none has.
  """
  moving = sampling.time_grid(num_steps)
  program_steps = next(
    (steps for steps in _PROGRAM_STEPS if steps >= num_steps), num_steps
  )
  still = np.ones(program_steps - num_steps, np.float32)
  return np.concatenate([still, moving])


def hybrid_schedule(r_min: jax.Array, r_max: jax.Array) -> candi.Schedule:
  """CANDI's schedule with ranks that may be traced."""
  return candi.Schedule(
    alpha=schedules.log_linear_alpha,
    alpha_derivative=schedules.log_linear_alpha_derivative,
    sigma=lambda t: identifiability.sigma_from_rank(
      r_min + (1.0 - schedules.log_linear_alpha(t)) * (r_max - r_min)
    ),
  )


@functools.cache
def _program(
  update: str | None, x0_mode: str, length: int
) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Compiled `(keys [B], times, r_min, r_max) -> (tokens [B, L], nll [B])`."""
  chain = corpus.chain()
  denoise_fn = oracle.denoise_fn(chain.initial, chain.transition)

  @jax.jit
  def program(keys, times, r_min, r_max):
    if update is None:
      process = mdlm.process(corpus.VOCAB_SIZE)
    else:
      process = candi.from_schedule(
        corpus.VOCAB_SIZE,
        hybrid_schedule(r_min, r_max),
        update=update,
        x0_mode=x0_mode,
      )
    shape = (keys.shape[0], length)
    tokens, _ = sampling.sample(keys, process, denoise_fn, shape, times)
    return tokens, markov.nll(chain, tokens)

  return program
