"""CANDI: does noise beside masks sample better in few network calls?

CANDI corrupts a token's identity by masks and its geometry by Gaussian noise,
each on a schedule of its own. Four questions, each with a criterion that was
written before the first run:

(a) `oracle`. With the exact denoiser of a Markov chain nothing is trained, and
    what is left is the error of sampling in N calls. Masked diffusion against
    CANDI in all its variants; one of them was declared beforehand, the others
    are reported, not chosen from.
(b) `trained`. The same with small transformers on real text, judged by an
    n-gram model of text that no model has seen.
(c) `guidance`. Adding a classifier's gradient to CANDI's score against
    tilting masked diffusion's predictions (D-CBG), at equal success.
(d) `dissonance`. Identity and geometry are lost at different noise levels,
    further apart the larger the vocabulary.

A likelihood alone can be bought with dull text, so unigram entropy and bigram
divergence stand beside it. CANDI's own training loss is no likelihood and is
not reported.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from experiments.papers import _text_models as text_models
from experiments.papers._candi import (
  comparison,
  corpus,
  dissonance,
  figures,
  guidance,
  oracle,
  trained,
)
from icml26_jax.evaluation import intervals, markov, sample_quality
from icml26_jax.report import claims

TITLE = "CANDI: Hybrid Discrete-Continuous Diffusion Models"
REFERENCE = "Pynadath, Shi and Zhang, ICML 2026, arXiv 2510.22510"
CLAIM = (
  "Masks and Gaussian noise together let a diffusion language model write"
  " better text than masks alone in few network calls, and follow an"
  " off-the-shelf classifier by adding its gradient."
)

# The criteria, fixed before the first run.
FEW_CALLS = (2, 4, 8)
ENTROPY_TOLERANCE = 0.05
SUCCESS_LEVELS = (0.25, 0.5, 0.75)
GUIDANCE_CALLS = 8
DISSONANCE_BOUND = 0.01

_FRONTIER = (
  "Frontier of GPT-2-large perplexity against unigram entropy on text8 and"
  " OpenWebText (1,024 tokens): ahead of MDLM at few network calls"
)
_BETTER = (
  "At each of N = 2, 4 and 8 CANDI (pf_ode, draw, r .01-.25) has lower NLL and"
  " lower bigram KL than MDLM, and unigram entropy within 0.05 nat of"
)


@dataclasses.dataclass(frozen=True)
class Budget:
  """Sizes of a run.

  Attributes:
    settings: samplers of part (a).
    steps: numbers of network calls of part (a).
    seeds: repetitions of parts (a) and (c).
    rows: sequences of each.
    size: models of part (b).
    trainings: seeds of part (b).
    trained_steps: numbers of network calls of part (b).
    windows: windows a class that a classifier of part (c) is fitted on.
    scales: strengths of guidance.
  """

  settings: tuple[oracle.Setting, ...]
  steps: tuple[int, ...]
  seeds: int
  rows: int
  size: text_models.Size
  trainings: int
  trained_steps: tuple[int, ...]
  windows: int
  scales: dict[str, tuple[float, ...]]


_SMALL = Budget(
  settings=oracle.SETTINGS,
  steps=(1, 2, 4, 8, 16, 64),
  seeds=3,
  rows=512,
  size=text_models.Size(
    d_model=64, num_layers=2, length=32, batch_size=64, num_steps=2400
  ),
  trainings=1,
  trained_steps=(1, 2, 4, 8, 16),
  windows=1500,
  scales=guidance.SCALES,
)
BUDGETS = {
  "smoke": Budget(
    settings=(oracle.MASKED, oracle.DECLARED),
    steps=FEW_CALLS,
    seeds=1,
    rows=64,
    size=text_models.Size(
      d_model=32, num_layers=1, length=16, batch_size=16, num_steps=20
    ),
    trainings=1,
    trained_steps=FEW_CALLS,
    windows=200,
    scales={"CANDI": (0.0, 64.0), "MDLM": (0.0, 8.0)},
  ),
  "small": _SMALL,
  "full": dataclasses.replace(
    _SMALL,
    size=text_models.Size(
      d_model=96, num_layers=3, length=64, batch_size=64, num_steps=2000
    ),
    trainings=3,
    trained_steps=(1, 2, 4, 8, 16, 64),
  ),
}
LENGTH = 64


def reproduce(key: jax.Array, budget: str) -> claims.Report:
  """Runs the four parts.

  Args:
    key: typed key of all randomness.
    budget: "smoke", "small" or "full".

  Returns:
    Four claims with their measurements.
  """
  settings = BUDGETS[budget]
  keys = jax.random.split(key, 3)
  # Trained models are shared between runs and papers: plain integers name
  # their seeds.
  first_seed = int(jax.random.key_data(key)[-1])
  parts = [
    _oracle(keys[0], settings),
    _trained(keys[1], first_seed, settings),
    _guidance(keys[2], settings),
    _dissonance(),
  ]
  return claims.Report(
    claims=tuple(claim for claim, _, _ in parts),
    tables=tuple(table for _, table, _ in parts),
    figures=tuple(figure for _, _, figure in parts),
  )


def _oracle(key, settings):
  samples = oracle.run(
    key,
    settings=settings.settings,
    steps=settings.steps,
    seeds=settings.seeds,
    rows=settings.rows,
    length=LENGTH,
  )
  rate = markov.entropy_rate(samples.chain)
  initial = np.asarray(samples.chain.initial, np.float64)
  entropy = float(-np.sum(initial * np.log(initial)))
  qualities = {
    job: sample_quality.with_intervals(scores)
    for job, scores in samples.scores.items()
  }
  declared, masked = oracle.DECLARED.name, oracle.MASKED.name
  differences = {
    n: sample_quality.paired_difference(
      samples.scores[declared, n], samples.scores[masked, n]
    )
    for n in FEW_CALLS
  }
  entropies = {n: qualities[declared, n].entropy for n in FEW_CALLS}
  checks = comparison.checks(differences, entropies, entropy, ENTROPY_TOLERANCE)
  claim = claims.judge(
    checks,
    id="oracle",
    statement="With the exact denoiser CANDI writes better text than masked"
    " diffusion in the same few network calls.",
    paper_figure=f"{_FRONTIER}; the paper has no exact denoiser.",
    criterion=f"{_BETTER} the chain's {entropy:.3f}: 95% paired intervals over"
    " all sequences, which are independent as nothing is trained; three seeds.",
    seeds=settings.seeds,
    unit="nat",
    note=comparison.gains(differences, checks),
  )
  table = figures.quality_table(
    "oracle",
    f"Exact denoiser: entropy rate {rate:.3f}, unigram entropy {entropy:.3f}",
    qualities,
    note=f"Nats per character. Behind every row: {_samples(settings)}; 95%"
    " intervals over sequences. NLL below the entropy rate means text that is"
    " duller than the chain's.",
  )
  shown = [
    name
    for name in (
      masked,
      declared,
      "CANDI pf_ode, draw, r .05-.45",
      "CANDI release, draw, r .01-.25",
    )
    if any(name == found for found, _ in qualities)
  ]
  figure = figures.quality_figure(
    "oracle",
    "The exact denoiser of a Markov chain: quality of text after N network"
    " calls. Lower NLL and KL are better as long as entropy stays at the"
    " chain's. NLL below that of the chain itself, its entropy rate, is text"
    " that was sharpened. The KL of the chain itself is 0 but for the size of"
    f" the sample. Bands: 95% intervals over {_samples(settings)}.",
    qualities,
    shown,
    "the chain itself",
    {"nll": rate, "entropy": entropy},
  )
  return claim, table, figure


def _trained(key, first_seed, settings):
  found = trained.run(
    key,
    size=settings.size,
    first_seed=first_seed,
    seeds=settings.trainings,
    steps=settings.trained_steps,
    rows=settings.rows,
  )
  reference = found.reference
  several = settings.trainings > 1

  def quality(samples):
    if not several:
      return sample_quality.with_intervals(samples[0])
    return sample_quality.Quality(
      *map(intervals.t_interval, figures.over_seeds(samples))
    )

  def difference(first, second):
    if not several:
      return sample_quality.paired_difference(first[0], second[0])
    return sample_quality.Quality(
      *map(
        intervals.paired_t_interval,
        figures.over_seeds(first),
        figures.over_seeds(second),
      )
    )

  qualities = {job: quality(samples) for job, samples in found.scores.items()}
  differences = {
    n: difference(
      found.scores[trained.CANDI, n], found.scores[trained.MASKED, n]
    )
    for n in FEW_CALLS
  }
  entropies = {n: qualities[trained.CANDI, n].entropy for n in FEW_CALLS}
  bound = float(np.mean(found.bounds))
  checks = comparison.checks(
    differences, entropies, reference.entropy, ENTROPY_TOLERANCE
  )
  claim = claims.judge(
    checks,
    id="trained",
    statement="Trained on the same text for as many steps, CANDI writes better"
    " text than masked diffusion in the same few network calls.",
    paper_figure=f"{_FRONTIER}; models of about 170M parameters.",
    criterion=f"{_BETTER} held-out text's {reference.entropy:.3f}, on three"
    " seeds with 95% paired intervals over seeds; NLL under an order-5 back-off"
    " model of text that no model has seen.",
    seeds=settings.trainings,
    unit="nat",
    note=f"{comparison.gains(differences, checks)}. {found.num_params:,} parameters,"
    f" {settings.size.characters:,} characters of training; MDLM's bound on"
    f" held-out text: {bound:.2f}"
    " bits per character"
    + ("" if several else "; one seed: intervals over sequences only"),
  )
  real = sample_quality.measure(found.real)
  size = settings.size
  spread = "seeds" if several else "sequences of one seed"
  table = figures.quality_table(
    "trained",
    f"Trained models: unigram entropy of held-out text {reference.entropy:.3f}",
    qualities,
    note=f"Nats per character. Behind every row:"
    f" {_count(settings.trainings, 'training')} of {size.num_steps:,} updates"
    f" of {size.batch_size} windows of {size.length} characters, with"
    f" {found.num_params:,} parameters, and {settings.rows:,} sequences of"
    f" {size.length} characters from each model; 95% intervals over"
    f" {spread}. The text that the models learnt from, as many windows of it"
    f" measured alike: NLL {real.nll:.3f}, bigram KL {real.kl:.4f}, entropy"
    f" {real.entropy:.3f}.",
  )
  figure = figures.quality_figure(
    "trained",
    "Small transformers trained on Python's documentation: quality of text"
    " after N network calls, judged by an n-gram model of held-out text (whose"
    f" unigram entropy is {reference.entropy:.3f}). Bands: 95% intervals over"
    f" {spread}.",
    qualities,
    (trained.MASKED, trained.CANDI),
    "text learnt from",
    real._asdict(),
  )
  return claim, table, figure


def _guidance(key, settings):
  sample_key, interval_key = jax.random.split(key)
  classifiers, sweeps = guidance.run(
    sample_key,
    steps=GUIDANCE_CALLS,
    seeds=settings.seeds,
    rows=settings.rows,
    length=LENGTH,
    windows=settings.windows,
    scales=settings.scales,
  )
  checks = []
  for rival in guidance.RIVALS:
    found = guidance.difference_at_success(
      sweeps[guidance.DECLARED],
      sweeps[rival],
      SUCCESS_LEVELS,
      jax.random.clone(interval_key),
    )
    for level, *values in zip(SUCCESS_LEVELS, *found, strict=True):
      estimate = claims.Estimate(*map(float, values))
      checks.append(
        claims.below(
          f"NLL minus {rival.removeprefix('MDLM, ')}'s at {level:.0%} success",
          estimate,
          0.0,
          note=""
          if estimate.has_interval
          else guidance.why_open(sweeps, (guidance.DECLARED, rival), level),
        )
      )
  claim = claims.judge(
    checks,
    id="guidance",
    statement="Adding an off-the-shelf classifier's gradient steers CANDI at"
    " less cost to the text than tilting masked diffusion's predictions.",
    paper_figure="Guidance of molecules (QM9) by gradient addition; no figure"
    " for text.",
    criterion="At N = 8, on the exact denoiser, and at judged success of 25%,"
    " 50% and 75%, chain NLL of CANDI (pf_ode, draw, r .01-.25, gradient"
    " through the denoiser) is below that of MDLM with exact and with"
    " first-order D-CBG: 95% paired intervals over sequences, three seeds. The"
    " judge is a second classifier, fitted on other text. A share that a"
    " method does not reach leaves the verdict open.",
    seeds=settings.seeds,
    unit="nat",
    note="Unguided, CANDI is at"
    f" {sweeps[guidance.DECLARED].nll[0].mean():.3f} and MDLM at"
    f" {sweeps[guidance.RIVALS[0]].nll[0].mean():.3f}. The judge is right on"
    f" {classifiers.accuracy:.0%} of windows it was not fitted on",
  )
  rate = markov.entropy_rate(corpus.chain())
  figure = figures.guidance_figure(sweeps, SUCCESS_LEVELS, rate)
  note = (
    "Strengths of the two kinds are in units of their own. Nats per character."
    f" Behind every row: {_samples(settings)}; 95% intervals over sequences."
    f" Guide and judge: each fitted on {settings.windows:,} windows of {LENGTH}"
    " characters of either kind of text."
  )
  return claim, figures.guidance_table(sweeps, note), figure


def _dissonance():
  claim = claims.judge(
    dissonance.checks(DISSONANCE_BOUND),
    id="dissonance",
    statement="Gaussian noise on one-hots loses a token's identity before its"
    " geometry, further apart the larger the vocabulary.",
    paper_figure="Temporal dissonance, in curves of both against noise.",
    criterion="At the noise where half of the tokens are lost, the share of"
    " wrong tokens that are nearer than the true one falls from V = 27 to 1,000"
    " to 50,257, and is below 1% there. Closed forms, right to 1e-5.",
    seeds=claims.EXACT,
    digits=5,
  )
  return claim, dissonance.table(), dissonance.figure()


def _samples(settings):
  """How much text is behind a figure of parts (a) and (c), in words."""
  return (
    f"{_count(settings.seeds, 'seed')} of {settings.rows:,} sequences of"
    f" {LENGTH} characters"
  )


def _count(number, noun):
  return f"{number:,} {noun}{'s' if number != 1 else ''}"
