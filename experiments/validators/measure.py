"""Measures the laws of a subject beside its controls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.validators import subject as subject_lib
from icml26_jax.evaluation import intervals
from icml26_jax.theory import conservation

HOLDS, BROKEN, NO_POWER = "holds", "broken", "no power"
UNDECIDED = "undecided"


class Row(NamedTuple):
  """What became of one law.

  Attributes:
    law: its name.
    layers: number of layers that have it.
    largest: largest relative rate of a component.
    layer: the layer it was found in, from 0.
    control: name of the control that moved least, or "" without one.
    weakest: its largest relative rate in the layer where that is smallest; NaN
      without one.
    verdict: `HOLDS`; `BROKEN` if `largest` is above the tolerance or NaN;
      `NO_POWER` if neither law nor control moved.
  """

  law: str
  layers: int
  largest: float
  layer: int
  control: str
  weakest: float
  verdict: str


class Pairing(NamedTuple):
  """Which rotary pairing the weights were trained with, by the loss.

  Attributes:
    declared: the pairing that the checkpoint declares.
    loss: nats a token with it.
    other_loss: nats a token with the other one.
    low: lower end of the 95% interval of the difference, other less declared.
    high: upper end.
    verdict: `HOLDS` if the interval is above 0, `BROKEN` if below, otherwise
      `UNDECIDED`, as for weights that were not trained.
  """

  declared: str
  loss: float
  other_loss: float
  low: float
  high: float
  verdict: str


class Program:
  """Compiled measurement of one model on any batch.

  Args:
    subject: the model.
    laws: names of its laws to measure.
  """

  def __init__(self, subject: subject_lib.Subject, laws: Sequence[str]):
    self._subject = subject
    self._laws = tuple(laws)
    wanted = {name: subject.laws[name] for name in laws}
    for law in laws:
      for name, control in subject.controls.get(law, {}).items():
        wanted[_join(law, name)] = control

    def rates(params, batch):
      found = conservation.measure(wanted, subject.loss, params, batch)
      return {
        name: rate.relative
        for name, rate in conservation.layer_maxima(found).items()
      }

    self._rates = jax.jit(rates)
    losses = subject.pairing_losses
    self._losses = None if losses is None else jax.jit(losses)

  def __call__(
    self, params: Any, batch: Any
  ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
    """Largest relative rate in each layer, all from one gradient.

    Args:
      params: parameters of the subject.
      batch: a batch of the shape of the subject's.

    Returns:
      `[layers]` float64 of each law, and of each control under its law.
    """
    # float32 products on a TPU are bfloat16 ones by default.
    with jax.default_matmul_precision("highest"):
      found = jax.device_get(self._rates(params, batch))
    found = {name: np.asarray(x, np.float64) for name, x in found.items()}
    controls = {
      law: {
        name: found[_join(law, name)]
        for name in self._subject.controls.get(law, {})
      }
      for law in self._laws
    }
    return {law: found[law] for law in self._laws}, controls

  def pairing(self, params: Any, batch: Any) -> Pairing:
    """Compares rotary pairings by the loss.

    Args:
      params: parameters of the subject.
      batch: a batch of the shape of the subject's.

    Returns:
      The losses and the verdict.

    Raises:
      ValueError: if the subject cannot tell pairings apart.
    """
    if self._losses is None or self._subject.pairing is None:
      raise ValueError(f"{self._subject.title} cannot tell pairings apart")
    with jax.default_matmul_precision("highest"):
      own, other = jax.device_get(self._losses(params, batch))
    return _judge_pairing(self._subject.pairing, own, other)


def judge(
  law: str,
  maxima: np.ndarray,
  controls: dict[str, np.ndarray],
  tolerance: float,
) -> Row:
  """The verdict on one law.

  Args:
    law: its name.
    maxima: `[layers]` largest relative rates.
    controls: the same of its controls.
    tolerance: largest relative rate of a law.
  """
  # NaN is the largest of all: argmax finds it.
  layer = int(np.argmax(maxima))
  largest = float(maxima[layer])
  control, weakest = "", float("nan")
  if controls:
    control, weakest = min(
      ((name, float(np.min(values))) for name, values in controls.items()),
      key=lambda pair: pair[1],
    )
  if not largest <= tolerance:
    verdict = BROKEN
  elif controls and not weakest > tolerance:
    verdict = NO_POWER
  else:
    verdict = HOLDS
  return Row(law, len(maxima), largest, layer, control, weakest, verdict)


def _judge_pairing(declared, own, other):
  own, other = (np.asarray(x, np.float64).ravel() for x in (own, other))
  low, high = float("-inf"), float("inf")
  if len(own) > 1:
    # As if tokens were independent; a wrong pairing costs a nat and more.
    _, low, high = map(float, intervals.paired_t_interval(other, own))
  verdict = HOLDS if low > 0 else BROKEN if high < 0 else UNDECIDED
  return Pairing(
    declared, float(own.mean()), float(other.mean()), low, high, verdict
  )


def _join(law, control):
  return f"{law}/{control}"
