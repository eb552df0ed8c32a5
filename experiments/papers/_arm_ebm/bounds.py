"""Random trials of the bounds on the divergence of two models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from icml26_jax.theory import arm_ebm

# V, T and whether there is an end token.
SIZES = ((2, 1, False), (8, 4, False), (8, 4, True), (4, 6, False))
SCALES = (0.01, 0.03, 0.1, 0.3, 1.0, 4.0)


# Divergences and bounds below this, in nats, are rounding.
_ROUNDING = 1e-12

# One program a size: step by step, most of the time would go into compiling.
exact_kl = jax.jit(arm_ebm.exact_kl, static_argnames="eos")
kl_bounds = jax.jit(arm_ebm.kl_bounds, static_argnames="eos")


class Trial(NamedTuple):
  """Divergences of one pair of models and their bounds.

  Attributes:
    name: what the pair is, for the legend.
    eps: largest difference of logits.
    kl: the larger of the two divergences, in nats.
    linear: the paper's bound.
    quadratic: ours.
    osc: ours, by the oscillation.
    choices: number of steps with a choice.
  """

  name: str
  eps: float
  kl: float
  linear: float
  quadratic: float
  osc: float
  choices: int


def trial(name: str, q, q_star, *, eos: bool) -> Trial:
  """Measures a pair of models.

  Args:
    name: what it is.
    q: T tables.
    q_star: tables of the same shapes.
    eos: whether there is an end token.

  Returns:
    The divergences and the bounds, computed in float64.
  """
  with jax.enable_x64(True):
    bounds = kl_bounds(q, q_star, eos=eos)
    kl = max(
      float(exact_kl(q, q_star, eos=eos)),
      float(exact_kl(q_star, q, eos=eos)),
    )
  choices = len(q) - int(eos)
  linear = float(bounds["linear"])
  return Trial(
    name=name,
    eps=linear / (2 * choices),
    kl=kl,
    linear=linear,
    quadratic=float(bounds["quadratic"]),
    osc=float(bounds["osc"]),
    choices=choices,
  )


def run(seed: int, draws: int) -> list[Trial]:
  """Random models, disturbed at every scale.

  Half of the disturbances are normal numbers, half are plus or minus the
  scale, which comes closer to the bounds.

  Args:
    seed: of the numbers.
    draws: pairs a size, scale and kind.

  Returns:
    The trials.
  """
  found = []
  for vocab_size, num_steps, eos in SIZES:
    for number, scale in enumerate(SCALES):
      for draw in range(draws):
        rng = np.random.default_rng(
          (seed, vocab_size, num_steps, eos, number, draw)
        )
        shapes = [(vocab_size**t, vocab_size + eos) for t in range(num_steps)]
        q_star = [rng.normal(size=shape) for shape in shapes]
        for kind in ("normal", "signs"):
          noise = [rng.normal(size=shape) for shape in shapes]
          if kind == "signs":
            noise = [np.sign(table) for table in noise]
          q = [
            table + scale * error
            for table, error in zip(q_star, noise, strict=True)
          ]
          found.append(trial("random tables", q, q_star, eos=eos))
  return found


def aligned(q: Sequence[np.ndarray], q_star: Sequence[np.ndarray]):
  """The same model with the logits that are closest to others.

  A constant added to all logits of a state changes nothing, and is not learnt.
  This one makes the largest difference in each state as small as it can be.

  Args:
    q: T tables.
    q_star: tables of the same shapes.

  Returns:
    Tables.
  """
  shifted = []
  for one, other in zip(q, q_star, strict=True):
    gap = np.asarray(one) - np.asarray(other)
    middle = (
      gap.max(axis=1, keepdims=True) + gap.min(axis=1, keepdims=True)
    ) / 2
    shifted.append(np.asarray(one) - middle)
  return shifted


def largest_ratio(trials: Iterable[Trial], bound: str) -> float:
  """Largest share of a bound that a divergence takes.

  Args:
    trials: pairs of models.
    bound: "linear", "quadratic" or "osc".
  """
  return max(
    trial.kl / max(getattr(trial, bound), _ROUNDING) for trial in trials
  )
