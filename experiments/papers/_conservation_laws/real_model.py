"""Part (a): laws of all layers of a pretrained language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments.validators import llama_subject, loading, measure
from icml26_jax.models import llama
from icml26_jax.pretrained import checkpoint, fetch
from icml26_jax.report import claims, progress

MODEL = "smollm2-135m"
CORPUS = "stdlib:docstrings"
LAWS = ("swiglu", "query_key", "value_output", "attention_gain", "mlp_gain")


class Found(NamedTuple):
  """Largest relative rates in each layer.

  Attributes:
    laws: `[batches, layers]` float64 of each law.
    controls: the same of each control.
    law_of: the law that each control stands beside.
    losses: `[batches]` nats a token.
    other_losses: the same with the other rotary pairing.
  """

  laws: Mapping[str, np.ndarray]
  controls: Mapping[str, np.ndarray]
  law_of: Mapping[str, str]
  losses: np.ndarray
  other_losses: np.ndarray


def load(num_batches: int, length: int, seed: int):
  """The pretrained model and rows of text.

  Args:
    num_batches: number of rows.
    length: predicted tokens of a row.
    seed: chooses the text.

  Returns:
    Parameters, config, `[num_batches, length + 1]` int32 tokens.
  """
  fetch.fetch(MODEL)
  params, config, tokenizer = checkpoint.load(MODEL)
  tokens = loading.text_tokens(
    tokenizer,
    loading.find_text(CORPUS),
    rows=num_batches,
    length=length + 1,
    seed=seed,
  )
  return params, config, tokens


def run(
  params: llama.Params, config: llama.Config, tokens: np.ndarray
) -> Found:
  """Measures laws and controls, one row of text a batch.

  Args:
    params: parameters, float32.
    config: their shape.
    tokens: `[batches, T]` int32.

  Returns:
    What was found.
  """
  laws, controls, law_of, pairings = [], [], {}, []
  program = None
  with progress.bar(
    "laws of a pretrained model", total=len(tokens), unit="batches"
  ) as bar:
    for row in tokens:
      subject = llama_subject.make(
        MODEL, params, config, jnp.asarray(row[None])
      )
      if program is None:
        program = measure.Program(subject, LAWS)
      found, beside = program(params, subject.batch)
      laws.append(found)
      controls.append(
        {name: x for own in beside.values() for name, x in own.items()}
      )
      law_of = {name: law for law, own in beside.items() for name in own}
      pairings.append(program.pairing(params, subject.batch))
      bar.advance(loss=pairings[-1].loss)
  return Found(
    laws=_stack(laws),
    controls=_stack(controls),
    law_of=law_of,
    losses=np.array([pairing.loss for pairing in pairings]),
    other_losses=np.array([pairing.other_loss for pairing in pairings]),
  )


def law_checks(found: Found, bound: float) -> list[claims.Check]:
  """That every law is below a bound in every layer and batch."""
  return [
    claims.below(
      f"largest relative rate of {name} over {bound:g}",
      _exact(x.max() / bound),
      1.0,
    )
    for name, x in found.laws.items()
  ]


def control_check(found: Found, bound: float, share: float) -> claims.Check:
  """That every control moves in most layers, in the batch where least.

  Args:
    found: what was measured.
    bound: of a control's largest relative rate in a layer.
    share: of layers in which all controls must be above it.
  """
  name = f"share of layers in which every control is above {bound:g}"
  moved = moving_share(found, bound)
  # "At least": a share equal to the bound is met.
  return claims.above(name, _exact(moved), np.nextafter(share, 0.0))


def moving_share(found: Found, bound: float) -> float:
  """Share of layers in which every control is above a bound."""
  least = np.min([x.min(axis=0) for x in found.controls.values()], axis=0)
  return float(np.mean(least > bound))


def _stack(parts):
  return {name: np.stack([part[name] for part in parts]) for name in parts[0]}


def _exact(value):
  return claims.Estimate(float(value), float(value), float(value))
