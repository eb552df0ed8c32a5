"""Are next-token logits and energies of sequences the same object?

An autoregressive model (ARM) can be turned into an energy-based one (EBM) of
the same law, and back. Five questions, each with a criterion that was written
before the first run. The first three are theorems: a miss would be a bug of
ours, and their claims are exact checks in float64. The last two can fail.

(a) `text`. Three letters of Python's docstrings, counted: rewards are made of
    the logits, and all sequences are summed up again.
(b) `language-model`. The same with SmolLM2-135M, restricted to the most
    frequent words, after several prompts.
(c) `bounds`. The divergence of two models against the paper's bound by the
    largest difference of their logits, 2 T eps, and ours, T eps^2 / 2 and
    T osc^2 / 8, on random pairs and on all those met in (e).
(d) `optima`. Tables of logits, and tables of scores of sequences, trained on
    the same random targets: both losses reach the entropy of the target, and
    the scores give the logits.
(e) `distilled`. A reward over the sequences of (b) is distilled into tables and
    into small transformers, against the one-step logits (the bonus only at the
    step where it is given) and the best of four draws.

All is confirmed if (a) and (b) agree to 1e-9, every divergence is under every
bound, and (d) and (e) hold.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from experiments.papers._arm_ebm import (
  agreement,
  bounds,
  distil,
  figures,
  language_model,
  learning,
  text,
)
from icml26_jax.evaluation import intervals
from icml26_jax.report import claims

TITLE = (
  "Autoregressive Language Models are Secretly Energy-Based Models: Insights"
  " into the Lookahead Capabilities of Next-Token Prediction"
)
REFERENCE = (
  "Blondel, Sander, Vivier-Ardisson, Liu and Roulet, ICML 2026, arXiv"
  " 2512.15605"
)
CLAIM = (
  "Next-token logits and energies of whole sequences map to each other"
  " exactly, so that learning the one is learning the other, and errors of"
  " logits bound the divergence of sequences."
)

# The criteria, fixed before the first run.
EXACT_TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-3
TV_TOLERANCE = 0.02


@dataclasses.dataclass(frozen=True)
class Budget:
  """Sizes of a run.

  Attributes:
    letters: how much text is counted; None for all.
    vocab_size: words of part (b).
    prompts: prompts of parts (b) and (e).
    draws: random pairs of part (c), a size and scale.
    sizes: V and T of part (d).
    seeds: random targets of part (d).
    steps: updates of part (d).
    distil: models of part (e).
  """

  letters: int | None
  vocab_size: int
  prompts: int
  draws: int
  sizes: tuple[tuple[int, int], ...]
  seeds: int
  steps: int
  distil: distil.Size


BUDGETS = {
  "smoke": Budget(
    letters=20_000,
    vocab_size=4,
    prompts=2,
    draws=1,
    sizes=((3, 3), (2, 4)),
    seeds=1,
    steps=40,
    distil=distil.Size(seeds=1, d_model=16, steps=30, table_steps=100),
  ),
  "small": Budget(
    letters=None,
    vocab_size=12,
    prompts=5,
    draws=3,
    sizes=learning.SIZES,
    seeds=3,
    steps=2000,
    distil=distil.Size(seeds=3, d_model=64, steps=600, table_steps=2000),
  ),
  "full": Budget(
    letters=None,
    vocab_size=12,
    prompts=5,
    draws=20,
    sizes=learning.SIZES,
    seeds=5,
    steps=5000,
    distil=distil.Size(seeds=5, d_model=128, steps=3000, table_steps=5000),
  ),
}


def reproduce(key: jax.Array, budget: str) -> claims.Report:
  """Runs the five parts.

  Args:
    key: typed key of all randomness.
    budget: "smoke", "small" or "full".

  Returns:
    Five claims with their measurements.
  """
  settings = BUDGETS[budget]
  keys = jax.random.split(key, len(settings.sizes) + 1)
  seed = int(jax.random.key_data(key)[-1])
  counted = agreement.measure(
    text.count_logits(
      text.letters(settings.letters),
      vocab_size=text.VOCAB_SIZE,
      length=text.LENGTH,
      smoothing=text.SMOOTHING,
    )
  )
  space = language_model.build(settings.vocab_size, settings.prompts)
  read = {
    repr(prompt): agreement.measure(logits)
    for prompt, logits in zip(space.prompts, space.logits, strict=True)
  }
  distilled = distil.run(keys[-1], space, settings.distil)
  trials = [*bounds.run(seed, settings.draws), *distilled.trials]
  learnt = {
    size: learning.run(one, size, seeds=settings.seeds, steps=settings.steps)
    for one, size in zip(keys, settings.sizes, strict=False)
  }
  return claims.Report(
    claims=(
      _text_claim(counted),
      _language_model_claim(read, space),
      _bounds_claim(trials),
      _optima_claim(learnt, settings),
      _distilled_claim(distilled, space, settings),
    ),
    tables=(
      figures.agreement_table(
        {"letters": counted, **read},
        note="Largest errors in nats. The words of the language model:"
        f" {', '.join(word.strip() for word in space.words)}. Energies of"
        f" {language_model.NUM_PATHS} sequences a prompt from one pass in"
        " float32, without a cache, differ from the tables' by at most"
        f" {space.path_error:.1e} nats.",
      ),
      figures.bounds_table(trials),
      figures.learning_table(learnt),
      figures.distil_table(distilled, space.prompts),
    ),
    figures=(
      figures.bounds_figure(trials),
      figures.learning_figure(learnt, LOSS_TOLERANCE),
      figures.distil_figure(distilled, space.prompts),
    ),
  )


def _text_claim(found):
  return claims.judge(
    found.checks("letters", EXACT_TOLERANCE),
    id="text",
    statement="Rewards made of the logits of counted letters give the same"
    " probability to every sequence, and the soft value is log Z (exact"
    " check of a theorem).",
    paper_figure="Proposition 3.2, exact. A public reproduction found errors"
    " of 3.6e-15 over 4,096 sequences.",
    criterion="Log-probabilities of all sequences, log Z and the logits after a"
    f" round trip are within {EXACT_TOLERANCE:g} nats, in float64.",
    seeds=claims.EXACT,
    unit=f"times {agreement.UNIT:g} nats",
    digits=1,
    note=f"{found.num_sequences:,} sequences of {text.LENGTH} of"
    f" {text.VOCAB_SIZE} letters, counts plus {text.SMOOTHING:g}",
  )


def _language_model_claim(found, space):
  return claims.judge(
    [
      check
      for prompt, one in found.items()
      for check in one.checks(prompt, EXACT_TOLERANCE)
    ],
    id="language-model",
    statement="The same holds for the logits of a real language model (exact"
    " check of a theorem).",
    paper_figure="Proposition 3.2, exact, for any autoregressive model.",
    criterion="After every prompt, the three differences are within"
    f" {EXACT_TOLERANCE:g} nats, in float64.",
    seeds=claims.EXACT,
    unit=f"times {agreement.UNIT:g} nats",
    digits=1,
    note=f"SmolLM2-135M restricted to {len(space.words)} words,"
    f" {len(space.words) ** language_model.LENGTH:,} sequences a prompt",
  )


def _bounds_claim(trials):
  checks = []
  for bound in ("linear", "quadratic", "osc"):
    share = bounds.largest_ratio(trials, bound)
    checks.append(
      claims.below(
        f"largest share of the {bound} bound",
        claims.Estimate(share, share, share),
        1.0,
      )
    )
  linear, quadratic, osc = (check.estimate.value for check in checks)
  return claims.judge(
    checks,
    id="bounds",
    statement="Errors of logits bound the divergence of the laws of sequences:"
    " by 2 T eps, and more sharply by T eps^2 / 2 and T osc^2 / 8 (exact check"
    " of a theorem).",
    paper_figure="KL at most 2 T eps in both directions; a public reproduction"
    " found at most 0.072 of it.",
    criterion="No divergence of any pair, in either direction, exceeds any of"
    " the three bounds.",
    seeds=claims.EXACT,
    note=f"{len(trials)} pairs; at most {linear:.3f} of 2 T eps,"
    f" {quadratic:.3f} of T eps^2 / 2 and {osc:.3f} of T osc^2 / 8",
  )


def _optima_claim(learnt, settings):
  checks = []
  for (vocab_size, num_steps), found in learnt.items():
    where = f"V={vocab_size}, T={num_steps}"
    for name, values, bound in (
      ("ARM loss less entropy", found.arm_excess[:, -1], LOSS_TOLERANCE),
      ("EBM loss less entropy", found.ebm_excess[:, -1], LOSS_TOLERANCE),
      ("TV of sequences", found.sequence_tv, TV_TOLERANCE),
      ("TV of next tokens", found.policy_tv, TV_TOLERANCE),
    ):
      checks.append(claims.below(f"{name}, {where}", over_seeds(values), bound))
  worst = max(
    max(found.arm_excess[:, -1].max(), found.ebm_excess[:, -1].max())
    for found in learnt.values()
  )
  return claims.judge(
    checks,
    id="optima",
    statement="Learning next tokens and learning scores of sequences reach the"
    " same minimal loss, and one minimiser is the other's image.",
    paper_figure="Proposition 4.1; transformers at V=8, T=4 and V=4, T=8 reach"
    " the same loss in 5,000 steps.",
    criterion="At both sizes, both losses end within"
    f" {LOSS_TOLERANCE:g} nats of the target's entropy, and the learnt law and"
    " the learnt conditionals are within a total variation of"
    f" {TV_TOLERANCE:g} of those made of the learnt scores: 95% intervals over"
    " the seeds, at least three.",
    seeds=settings.seeds,
    digits=6,
    note=f"Tables, Adam {learning.LEARNING_RATE:g}, {settings.steps:,} steps;"
    f" the largest excess of any seed is {worst:.1e} nats",
  )


def _distilled_claim(found, space, settings):
  one_step = found.rivals[distil.ONE_STEP]
  checks = []
  for i, prompt in enumerate(space.prompts):
    gain = one_step[i] - found.tabular[i]
    for name, estimate in (
      # Trained from zero on an exact loss: nothing is random.
      ("tables", claims.Estimate(gain, gain, gain)),
      ("transformers", over_seeds(one_step[i] - found.transformer[:, i])),
    ):
      checks.append(
        claims.above(
          f"KL of one-step logits less the {name}', {prompt!r}", estimate, 0.0
        )
      )
  rival = found.rivals[f"best of {distil.BEST_OF}"]
  return claims.judge(
    checks,
    id="distilled",
    statement="Logits distilled from a reward of whole sequences look ahead:"
    " they are nearer to the optimal policy than logits that see the bonus"
    " only where it is given.",
    paper_figure="The bound on the error of distillation; no figure on a"
    " language model.",
    criterion="KL(p_R || .) of the one-step logits exceeds that of the"
    " distilled tables and of the distilled transformers after every one of"
    " five prompts: 95% intervals over the seeds, at least three.",
    seeds=settings.distil.seeds,
    unit="nats",
    note=f"Mean over prompts: one-step {one_step.mean():.3f}, best of"
    f" {distil.BEST_OF} {rival.mean():.3f}, tables {found.tabular.mean():.1e},"
    f" transformers {found.transformer.mean():.1e} ({found.num_params:,}"
    " parameters)",
  )


def over_seeds(values: np.ndarray) -> claims.Estimate:
  """Mean of `[S]` values with its 95% interval, none for one seed."""
  if len(values) < 2:
    return claims.Estimate(float(values[0]))
  found = intervals.t_interval(values)
  return claims.Estimate(*(float(value) for value in found))
