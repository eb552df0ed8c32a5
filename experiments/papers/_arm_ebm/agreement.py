"""How closely a model and its energy-based twin agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
import scipy.special

from icml26_jax.report import claims
from icml26_jax.theory import arm_ebm

Tables = Sequence[np.ndarray]

# Errors are counted in these, about the rounding of one float64 operation.
UNIT = 1e-15


class Agreement(NamedTuple):
  """Largest differences, in nats.

  Attributes:
    num_sequences: how many sequences were compared.
    log_partition: A(x) = log Z(x).
    law: between log p_q, a product of conditionals, and log p_R, a score less
      the log of the sum over all sequences.
    partition: between that log of a sum and V_q(x).
    round_trip: between the logits and those made of their rewards again.
    lookahead: share of the logits that is about the future, see
      `arm_ebm.lookahead_share`.
  """

  num_sequences: int
  log_partition: float
  law: float
  partition: float
  round_trip: float
  lookahead: float

  def checks(self, name: str, bound: float) -> list[claims.Check]:
    """The three differences against a bound in nats, in `UNIT`s."""
    found = {
      "log-probabilities": self.law,
      "log Z": self.partition,
      "logits after a round trip": self.round_trip,
    }
    estimates = {
      what: claims.Estimate(*(error / UNIT,) * 3)
      for what, error in found.items()
    }
    return [
      claims.below(f"{what}, {name}", estimate, bound / UNIT)
      for what, estimate in estimates.items()
    ]


def measure(logits: Tables) -> Agreement:
  """Compares a model of fixed-length sequences with its energies.

  Args:
    logits: T float64 tables, `[V**t, V]`.

  Returns:
    The differences, computed in float64.
  """
  with jax.enable_x64(True):
    rewards = arm_ebm.logits_to_rewards(logits, eos=False)
    tokens, lengths = arm_ebm.enumerate_sequences(
      logits[0].shape[1], len(logits), eos=False
    )
    scores = np.asarray(
      arm_ebm.sequence_scores(rewards, tokens, lengths, eos=False)
    )
    again = arm_ebm.rewards_to_logits(rewards, eos=False)
    value = float(arm_ebm.log_partition(rewards, eos=False))
    lookahead = float(arm_ebm.lookahead_share(rewards, again, eos=False))
    log_partition = scipy.special.logsumexp(scores)
    law = log_probs(logits)
    return Agreement(
      num_sequences=len(tokens),
      log_partition=value,
      law=float(np.abs(law - (scores - log_partition)).max()),
      partition=float(np.abs(log_partition - value)),
      round_trip=max(
        float(np.abs(one - other).max())
        for one, other in zip(again, logits, strict=True)
      ),
      lookahead=lookahead,
    )


def log_probs(logits: Tables) -> np.ndarray:
  """Log-probabilities `[V**T]` as products of conditionals, in NumPy.

  Shares no code with `arm_ebm`; sequences are in its order.
  """
  total = np.zeros(1)
  for table in logits:
    conditional = scipy.special.log_softmax(
      np.asarray(table, np.float64), axis=1
    )
    total = (total[:, None] + conditional).reshape(-1)
  return total
