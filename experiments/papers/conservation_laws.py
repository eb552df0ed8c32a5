"""Conservation laws: what do weights keep under gradient flow?

Some functions of the weights of a block stay where they are whatever the data
and the loss. Four questions, each with a criterion that was written before
the first run:

(a) `layers`. Do all layers of a pretrained model (SmolLM2-135M, in float32, on
    real text) keep what the theorems say, while quantities that look like
    their laws move?
(b) `steps`, `softmax_gate`. Gradient descent breaks the laws by tau^2 a step:
    drifts after a fixed number of steps grow as tau^2 and at a fixed time as
    tau, for networks trained on digits and on text. A linear law stays at
    rounding. `full` adds `minibatches`, the same with random batches.
(c) `sigmoid_gate`. Theorem 4.7 claims the law of softmax gates for normalised
    sigmoids too. A counterexample of two experts, worked out by hand, says
    no; `sigmoid_flow` asks whether the flow itself moves that sum on digits,
    or only its discretisation.
(d) `count`. Are there no other laws? The rank of the Lie algebra that a small
    block generates counts them.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from experiments.papers._conservation_laws import (
  counting,
  drift,
  figures,
  networks,
  real_model,
)
from icml26_jax.report import claims, progress
from icml26_jax.theory import conservation

TITLE = "Conservation Laws for Modern Neural Architectures"
REFERENCE = "Tran et al., ICML 2026, arXiv 2606.17816"
CLAIM = (
  "SwiGLU, rotary and grouped attention and mixtures of experts conserve exact"
  " functions of their weights under gradient flow, which gradient descent"
  " breaks by the square of the step size only."
)

# The criteria, fixed before the first run.
LAW_BOUND = 1e-6
CONTROL_BOUND = 1e-3
CONTROL_SHARE = 0.9
SLOPE_FEW, SLOPE_END, SLOPE_RADIUS = 2.0, 1.0, 0.1
SAME_DRIFT = 0.1
# Rounding of a rate of order one in float64.
EXACT_RATE = 1e-12

_SOFTMAX, _SIGMOID = "mixture, softmax", "mixture, normalised sigmoid"


@dataclasses.dataclass(frozen=True)
class Budget:
  """Sizes of a run.

  Attributes:
    batches: rows of text for the pretrained model.
    length: predicted tokens of a row.
    seeds: initial weights of each small network.
    images: digits.
    width: hidden units.
    rows: rows of text of the small transformer.
    row_length: characters of such a row.
    time: how far the flow is followed.
    batch_size: digits of a random batch; None for full batches only.
    blocks: how many of the small blocks are counted.
  """

  batches: int
  length: int
  seeds: int
  images: int
  width: int
  rows: int
  row_length: int
  time: float
  batch_size: int | None
  blocks: int | None


_SMALL = Budget(
  batches=4,
  length=64,
  # Three left one slope open: 1.956 ±0.073.
  seeds=5,
  images=512,
  width=16,
  rows=8,
  row_length=32,
  time=4.0,
  batch_size=None,
  blocks=None,
)
BUDGETS = {
  "smoke": dataclasses.replace(
    _SMALL,
    batches=1,
    length=16,
    seeds=1,
    images=64,
    width=8,
    rows=2,
    row_length=16,
    time=0.4,
    batch_size=16,
    blocks=4,
  ),
  "small": _SMALL,
  "full": dataclasses.replace(
    _SMALL, seeds=10, images=1797, rows=16, batch_size=128
  ),
}


def reproduce(key: jax.Array, budget: str) -> claims.Report:
  """Runs the four parts.

  Args:
    key: typed key of the weights and the text.
    budget: "smoke", "small" or "full".

  Returns:
    Six claims, seven where there are random batches, and the measurements.
  """
  settings = BUDGETS[budget]
  seed = int(jax.random.key_data(key)[-1])
  layers = real_model.run(
    *real_model.load(settings.batches, settings.length, seed)
  )
  with jax.enable_x64(True):
    found, random_batches = _drifts(key, settings)
    rates = {
      gate: float(
        conservation.normalized_sigmoid_counterexample(gate).router_rate[0]
      )
      for gate in ("normalized_sigmoid", "softmax")
    }
  counts = counting.run(counting.blocks()[: settings.blocks])
  parts = [
    _layers_claim(layers),
    _steps_claim("steps", found, settings),
    _softmax_claim(found, settings),
    _sigmoid_claim(found, rates, settings),
    _flow_claim(found, rates, settings),
    _count_claim(counts),
  ]
  if random_batches:
    parts.insert(2, _steps_claim("minibatches", random_batches, settings))
  return claims.Report(
    claims=tuple(parts),
    tables=(
      figures.real_table(layers),
      figures.drift_table([*found, *random_batches]),
      figures.count_table(counts),
    ),
    figures=(
      figures.layers_figure(layers, LAW_BOUND, CONTROL_BOUND),
      figures.drift_figure(found),
    ),
  )


def _drifts(key, settings):
  """Drifts under full and under random batches."""
  digits = (
    networks.swiglu(settings.images, settings.width),
    networks.mixture(settings.images, settings.width, "softmax"),
  )
  others = (
    networks.gelu(settings.images, settings.width),
    networks.mixture(settings.images, settings.width, "normalized_sigmoid"),
    networks.transformer(settings.rows, settings.row_length),
  )
  jobs = [(network, None) for network in (*digits, *others)]
  if settings.batch_size is not None:
    jobs += [(network, settings.batch_size) for network in digits]
  found, random_batches = [], []
  with progress.bar(
    "drift of small networks",
    total=len(jobs) * len(drift.TAUS),
    unit="step sizes",
  ) as bar:
    for i, (network, batch_size) in enumerate(jobs):
      job = functools.partial(
        drift.run,
        jax.random.fold_in(key, i),
        seeds=settings.seeds,
        time=settings.time,
        advance=bar.advance,
      )
      if batch_size is None:
        found += job(network)
      else:
        named = network._replace(name=f"{network.name}, random batches")
        random_batches += job(named, batch_size=batch_size)
  return found, random_batches


def _layers_claim(layers):
  checks = [
    *real_model.law_checks(layers, LAW_BOUND),
    real_model.control_check(layers, CONTROL_BOUND, CONTROL_SHARE),
  ]
  largest = max(float(x.max()) for x in layers.laws.values())
  batches, depth = layers.laws["swiglu"].shape
  share = real_model.moving_share(layers, CONTROL_BOUND)
  return claims.judge(
    checks,
    id="layers",
    statement="SwiGLU, rotary query-key pairs, values and outputs (summed over"
    " a group of heads) and normalisation gains have exact laws in every layer"
    " of a trained model.",
    paper_figure="Theorems 4.2 to 4.4, proved for one block without a"
    " normalisation. Relative rates of 4e-16 (SwiGLU) and 7e-16 (rotary"
    " attention) in float64 against 0.38 for a control, in a public"
    " reproduction. Grouped heads and gains are ours.",
    criterion=f"In each of {depth} layers and {batches} batches the relative"
    f" rates of all laws are below {LAW_BOUND:g} in float32, and in at least"
    f" {CONTROL_SHARE:.0%} of the layers every control's is above"
    f" {CONTROL_BOUND:g}. Computed, not sampled.",
    seeds=claims.EXACT,
    note=f"The largest rate of any law is {largest:.1e}; all controls move in"
    f" {share:.0%} of the layers",
  )


def _steps_claim(id, found, settings):
  random_batches = id == "minibatches"
  return claims.judge(
    drift.slope_checks(
      found, few=SLOPE_FEW, end=SLOPE_END, radius=SLOPE_RADIUS
    ),
    id=id,
    statement="Gradient descent"
    + (" on random batches" if random_batches else "")
    + " breaks quadratic laws by the square of the step size a step.",
    paper_figure="|h(theta_k) - h(theta_0)| of order tau^2 k (eq. 9), in curves"
    " of Qwen-3-style models and ViTs at three rates, ten seeds.",
    criterion=f"Slopes of log drift in log tau, tau in {drift.TAUS}, are"
    f" {SLOPE_FEW:g} after k = {drift.FEW_STEPS} steps and {SLOPE_END:g} at"
    f" T = {settings.time:g}, both within {SLOPE_RADIUS:g}, for every quadratic"
    " law: 95% intervals over at least three seeds.",
    seeds=settings.seeds,
    note="Drift at a fixed time grows as tau because the steps become fewer",
  )


def _softmax_claim(found, settings):
  one = drift.pick(found, _SOFTMAX, networks.ROUTER)
  largest = float(one.largest.max())
  return claims.judge(
    [
      claims.below(
        "largest drift of the sum, in units of the bound",
        _exact(largest / drift.rounding(one)),
        1.0,
      )
    ],
    id="softmax_gate",
    statement="A softmax gate keeps the sum over experts of its weights, a"
    " linear law that gradient descent does not break.",
    paper_figure="Theorem 4.5.",
    criterion="At every tau and on every seed the sum moves by rounding only:"
    " less than 16 E eps max|weight| a step, in float64.",
    seeds=settings.seeds,
    digits=4,
    note=f"Drift {largest:.1e}, bound {drift.rounding(one):.1e}",
  )


def _sigmoid_claim(found, rates, settings):
  one = drift.pick(found, _SIGMOID, networks.ROUTER)
  smallest = float(one.largest.min())
  return claims.judge(
    [
      claims.below(
        "rate of the sum in the counterexample of two experts",
        _exact(abs(rates["normalized_sigmoid"])),
        EXACT_RATE,
      ),
      claims.below(
        "smallest drift of the sum on digits",
        _exact(smallest),
        drift.rounding(one),
      ),
    ],
    id="sigmoid_gate",
    statement="A gate of normalised sigmoids keeps the sum over experts as a"
    " softmax gate does.",
    paper_figure="Theorem 4.7.",
    criterion=f"The rate is below {EXACT_RATE:g} in the counterexample (x = e1,"
    " target 0, experts that say 0 and e1, logits 0 and log 3), and the drift"
    " on digits is within rounding as for the softmax gate.",
    seeds=settings.seeds,
    note="Refuted: by hand the rate is 9/250 = 0.036, and with a softmax gate"
    f" it is {abs(rates['softmax']):.1g}. A number added to all logits leaves a"
    " softmax as it is, but not a quotient of sigmoids",
  )


def _flow_claim(found, rates, settings):
  one = drift.pick(found, _SIGMOID, networks.ROUTER)
  return claims.judge(
    [
      *drift.ratio_checks(one, SAME_DRIFT),
      claims.within(
        "rate in the counterexample",
        _exact(rates["normalized_sigmoid"]),
        9 / 250,
        EXACT_RATE,
      ),
    ],
    id="sigmoid_flow",
    statement="Ours: the flow itself moves the sum over experts of normalised"
    " sigmoids, not its discretisation.",
    paper_figure="None; it contradicts theorem 4.7.",
    criterion=f"Drifts at T = {settings.time:g} agree within {SAME_DRIFT:.0%} at"
    " all step sizes (95% intervals over at least three seeds), and the rate in"
    " the counterexample is 9/250.",
    seeds=settings.seeds,
    note="The sum moves by"
    f" {float(np.mean(one.end[:, -1] / one.size)):.1%} of its size",
  )


def _count_claim(counts):
  return claims.judge(
    counting.checks(counts),
    id="count",
    statement="There are no other laws: GELU and SiLU have none, a SwiGLU one a"
    " hidden unit, attention and mixtures those of the theorems.",
    paper_figure="Theorems 4.1 to 4.6, proved for all sizes.",
    criterion="The number of parameters less the dimension of the generated Lie"
    " algebra is exactly the number of laws, for blocks of up to 16 parameters"
    " in float64. For normalised sigmoids the expected number is ours, without"
    " the sums of theorem 4.7.",
    seeds=claims.EXACT,
    digits=0,
    note=", ".join(f"{count.block.name} {count.found}" for count in counts),
  )


def _exact(value):
  return claims.Estimate(value, value, value)
