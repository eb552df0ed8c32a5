"""Tables and figures of the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import textwrap

import numpy as np

from experiments.papers._arm_ebm import agreement, bounds, distil, learning
from icml26_jax.report import claims, plots

# Pairs below this, in nats, differ by rounding only.
_NO_DIVERGENCE = 1e-12


def agreement_table(
  rows: Mapping[str, agreement.Agreement], note: str
) -> claims.Table:
  """One row a model: how closely it and its energies agree.

  Args:
    rows: name to what was measured.
    note: below the table.
  """
  columns = (
    claims.Column("model"),
    claims.Column("sequences"),
    claims.Column("log Z (nats)"),
    claims.Column("log-probability error"),
    claims.Column("log Z error"),
    claims.Column("round-trip error"),
    claims.Column("lookahead share"),
  )
  return claims.Table(
    "agreement",
    "A model of next tokens and the energies made of it",
    columns,
    tuple(
      (
        name,
        found.num_sequences,
        found.log_partition,
        f"{found.law:.1e}",
        f"{found.partition:.1e}",
        f"{found.round_trip:.1e}",
        found.lookahead,
      )
      for name, found in rows.items()
    ),
    note,
  )


def learning_table(
  found: Mapping[tuple[int, int], learning.Learnt],
) -> claims.Table:
  """One row a size and seed."""
  rows = []
  for (vocab_size, num_steps), learnt in found.items():
    for seed in range(len(learnt.arm_excess)):
      rows.append(
        (
          vocab_size,
          num_steps,
          seed,
          *(
            f"{value[seed]:.1e}"
            for value in (
              learnt.arm_excess[:, -1],
              learnt.ebm_excess[:, -1],
              learnt.sequence_tv,
              learnt.policy_tv,
            )
          ),
        )
      )
  columns = tuple(
    claims.Column(name)
    for name in (
      "V",
      "T",
      "seed",
      "ARM excess (nats)",
      "EBM excess (nats)",
      "sequence TV",
      "policy TV",
    )
  )
  return claims.Table(
    "learning",
    "Tables trained on the same random targets",
    columns,
    tuple(rows),
    note="Excess: loss less the target's entropy. TV: total variation between"
    " what the two models learnt, of sequences and of next tokens (mean over"
    " the states passed, at the worst depth).",
  )


def learning_figure(
  found: Mapping[tuple[int, int], learning.Learnt], bound: float
) -> claims.Figure:
  """Loss less entropy against steps, a panel a size.

  Args:
    found: what was measured.
    bound: the criterion, in nats.
  """
  drawn, axes = plots.new(len(found), panel=(5.0, 4.0))
  with plots.style():
    for axis, ((vocab_size, num_steps), learnt) in zip(
      axes[0], found.items(), strict=True
    ):
      for index, (name, excess) in enumerate(
        (("ARM", learnt.arm_excess), ("EBM", learnt.ebm_excess))
      ):
        steps = np.arange(excess.shape[1])
        plots.line(
          axis,
          steps,
          excess.mean(axis=0),
          index=index,
          label=f"{name}, {_num_params(name, vocab_size, num_steps):,} parameters",
          interval=(excess.min(axis=0), excess.max(axis=0)),
          marker="",
        )
      plots.reference(axis, bound, f"criterion, {bound:g}")
      axis.set_yscale("log")
      axis.set(
        xlabel="steps of Adam",
        ylabel="loss less entropy (nats per sequence)",
        title=f"V = {vocab_size}, T = {num_steps}",
      )
      axis.legend(loc="upper right")
  return claims.Figure(
    "learning",
    "Learning logits of next tokens (ARM) and learning scores of whole"
    " sequences (EBM) end at the same loss, the entropy of the target. Mean"
    " over the seeds; the band spans them.",
    drawn,
  )


def bounds_table(trials: Sequence[bounds.Trial]) -> claims.Table:
  """One row a kind of pair: the largest shares of the bounds."""
  names = dict.fromkeys(trial.name for trial in trials)
  rows = []
  for name in names:
    some = [trial for trial in trials if trial.name == name]
    rows.append(
      (
        name,
        len(some),
        f"{min(trial.eps for trial in some):.3g}",
        f"{max(trial.eps for trial in some):.3g}",
        *(
          bounds.largest_ratio(some, bound)
          for bound in ("linear", "quadratic", "osc")
        ),
      )
    )
  columns = (
    claims.Column("pairs of models"),
    claims.Column("pairs"),
    claims.Column("least eps"),
    claims.Column("largest eps"),
    claims.Column("KL / 2T eps"),
    claims.Column("KL / (T eps^2 / 2)"),
    claims.Column("KL / (T osc^2 / 8)"),
  )
  return claims.Table(
    "bounds",
    "Largest shares of the bounds that a divergence takes",
    columns,
    tuple(rows),
    note="The larger of the two directions. T counts the steps with a choice.",
  )


def bounds_figure(trials: Sequence[bounds.Trial]) -> claims.Figure:
  """Divergence per step against eps, with both bounds."""
  drawn, axes = plots.new(panel=(7.4, 5.0))
  axis = axes[0, 0]
  trials = [trial for trial in trials if trial.kl > _NO_DIVERGENCE]
  eps = np.array([trial.eps for trial in trials])
  grid = np.geomspace(eps.min() / 1.5, eps.max() * 1.5, 200)
  with plots.style():
    for index, name in enumerate(dict.fromkeys(t.name for t in trials)):
      some = [trial for trial in trials if trial.name == name]
      axis.plot(
        [trial.eps for trial in some],
        [trial.kl / trial.choices for trial in some],
        linestyle="",
        marker=plots.MARKERS[index],
        color=plots.PALETTE[index],
        alpha=0.55,
        markersize=5,
        label=name,
      )
    axis.plot(grid, 2 * grid, color="black", label="2 eps (paper)")
    axis.plot(
      grid, grid**2 / 2, color="black", linestyle="--", label="eps$^2$ / 2"
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set(
      xlabel="eps, largest difference of logits (nats)",
      ylabel="exact KL per step (nats)",
    )
    axis.legend(loc="lower right")
  return claims.Figure(
    "bounds",
    "Exact divergence of sequences, the larger of both directions, divided by"
    " the number of steps, and its bounds. Below eps = 4 the quadratic bound"
    " is the tighter one. Distilling leaves logits of what the target hardly"
    " ever passes far from the optimum's, which costs little divergence but"
    " keeps eps large. Pairs that differ by a shift of all logits of a state"
    " have no divergence and are not drawn.",
    drawn,
  )


def distil_table(
  found: distil.Distilled, prompts: Sequence[str]
) -> claims.Table:
  """One row a method, one column a prompt."""
  rows: list[tuple] = [
    (name, *map(float, values), float(found.bonus[name].mean()))
    for name, values in found.rivals.items()
  ]
  rows.append(
    (
      distil.TABULAR,
      *(f"{value:.1e}" for value in found.tabular),
      float(found.bonus[distil.TABULAR].mean()),
    )
  )
  rows.append(
    (
      distil.TRANSFORMER,
      *(f"{value:.1e}" for value in found.transformer.mean(axis=0)),
      float(found.bonus[distil.TRANSFORMER].mean()),
    )
  )
  rows.append(
    ("optimum", *(0.0 for _ in prompts), float(found.bonus["optimum"].mean()))
  )
  return claims.Table(
    "distilled",
    "KL(p_R || method) by prompt, in nats",
    (
      claims.Column("method"),
      *(claims.Column(f"{prompt!r}") for prompt in prompts),
      claims.Column("mean bonus"),
    ),
    tuple(rows),
    note="Bonus: a quarter of the characters and the number of distinct words."
    " Best-of-4 may exceed the optimum's bonus: it pays with divergence from"
    " the reference.",
  )


def distil_figure(
  found: distil.Distilled, prompts: Sequence[str]
) -> claims.Figure:
  """Divergence from the optimum by prompt."""
  drawn, axes = plots.new(panel=(7.6, 4.6))
  axis = axes[0, 0]
  position = np.arange(len(prompts))
  methods = {
    **found.rivals,
    distil.TABULAR: found.tabular,
    distil.TRANSFORMER: found.transformer.mean(axis=0),
  }
  with plots.style():
    for index, (name, values) in enumerate(methods.items()):
      axis.plot(
        position,
        values,
        linestyle="",
        marker=plots.MARKERS[index],
        color=plots.PALETTE[index],
        markersize=8,
        label=name,
      )
    axis.set_yscale("log")
    axis.set_xticks(position, [textwrap.fill(p, 14) for p in prompts])
    axis.set_xlim(-0.5, len(prompts) - 0.5)
    axis.set(xlabel="prompt", ylabel="KL($p_R$ ‖ method) (nats)")
    drawn.legend(
      *axis.get_legend_handles_labels(),
      loc="outside lower center",
      ncols=3,
    )
  return claims.Figure(
    "distilled",
    "How far each method is from the optimal policy of a reward over three"
    " tokens of a language model. Lower is better.",
    drawn,
  )


def _num_params(name: str, vocab_size: int, num_steps: int) -> int:
  """How many parameters a model has."""
  if name == "EBM":
    return vocab_size**num_steps
  return sum(vocab_size ** (t + 1) for t in range(num_steps))
