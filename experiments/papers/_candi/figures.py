"""Plots and tables of the experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import ticker
import numpy as np

from experiments.papers._candi import guidance
from icml26_jax.evaluation import intervals, sample_quality
from icml26_jax.report import claims, plots

# (name, N) to the three measures with their intervals.
Qualities = Mapping[tuple[str, int], sample_quality.Quality]

_MEASURES = (
  ("nll", "NLL (nats per character)"),
  ("kl", "bigram KL (nats)"),
  ("entropy", "unigram entropy (nats)"),
)

# Masked diffusion and CANDI look as they do in the other figures.
_GUIDANCE_LINES = (
  guidance.RIVALS[0],
  guidance.DECLARED,
  "CANDI, straight-through",
  guidance.RIVALS[1],
)


def estimate(interval: intervals.Interval) -> claims.Estimate:
  """An interval of one number as an estimate."""
  return claims.Estimate(*(float(value) for value in interval))


def quality_table(
  id: str, title: str, qualities: Qualities, note: str
) -> claims.Table:
  """One row a sampler and N, the three measures beside each other.

  Args:
    id: of the table.
    title: of the table.
    qualities: what was measured.
    note: below the table.
  """
  rows = tuple(
    (name, n, *(estimate(getattr(quality, m)) for m, _ in _MEASURES))
    for (name, n), quality in qualities.items()
  )
  columns = (
    claims.Column("sampler"),
    claims.Column("N"),
    claims.Column("NLL"),
    claims.Column("bigram KL", 4),
    claims.Column("entropy"),
  )
  return claims.Table(id, title, columns, rows, note)


def quality_figure(
  id: str,
  caption: str,
  qualities: Qualities,
  names: Sequence[str],
  references: Mapping[str, tuple[float, str]],
) -> claims.Figure:
  """The three measures against the number of network calls.

  Args:
    id: of the figure.
    caption: below the figure.
    qualities: what was measured.
    names: samplers to draw.
    references: measure to a value to compare with, and what it is.
  """
  drawn, axes = plots.new(3, panel=(4.4, 4.2))
  with plots.style():
    for axis, (measure, label) in zip(axes[0], _MEASURES, strict=True):
      for index, name in enumerate(names):
        steps = [n for found, n in qualities if found == name]
        values = [getattr(qualities[name, n], measure) for n in steps]
        plots.line(
          axis,
          steps,
          [value.estimate for value in values],
          index=index,
          label=name if measure == "nll" else None,
          interval=(
            [value.low for value in values],
            [value.high for value in values],
          ),
        )
      if measure in references:
        plots.reference(axis, *references[measure])
        axis.legend(*_only(axis, references[measure][1]), loc="upper right")
      ticks = sorted({n for _, n in qualities})
      axis.set_xscale("log", base=2)
      axis.set_xticks(ticks, [str(n) for n in ticks])
      axis.set(xlabel="network calls N", ylabel=label)
      if measure == "kl":
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
    handles, labels = axes[0, 0].get_legend_handles_labels()
    kept = [
      (handle, label)
      for handle, label in zip(handles, labels, strict=True)
      if label in names
    ]
    drawn.legend(
      *zip(*kept, strict=True), loc="outside lower center", ncols=len(kept)
    )
  return claims.Figure(id, caption, drawn)


def guidance_figure(
  sweeps: Mapping[str, guidance.Sweep],
  levels: Sequence[float],
  entropy_rate: float,
) -> claims.Figure:
  """Chain NLL against success, a line a method.

  Args:
    sweeps: what was measured.
    levels: shares of success at which the methods are compared.
    entropy_rate: of the chain, in nats.
  """
  drawn, axes = plots.new(panel=(7.2, 4.6))
  axis = axes[0, 0]
  with plots.style():
    for level in levels:
      axis.axvline(100 * level, color="#BBBBBB", linewidth=6, alpha=0.4)
    for name, sweep in sweeps.items():
      plots.line(
        axis,
        100 * sweep.success.mean(axis=1),
        sweep.nll.mean(axis=1),
        index=_GUIDANCE_LINES.index(name),
        label=name,
      )
    plots.reference(axis, entropy_rate, "entropy rate of the chain")
    top = max(
      sweeps[name].nll.mean(axis=1).max()
      for name in (guidance.DECLARED, *guidance.RIVALS)
    )
    axis.set(
      xlabel="judged success (%)",
      ylabel="chain NLL (nats per character)",
      xlim=(0, 101),
      ylim=(entropy_rate - 0.1, top + 0.3),
    )
    axis.legend(loc="upper left")
  return claims.Figure(
    "guidance",
    "Steering a sampler of Python's language reference towards names in source"
    " code, harder and harder from left to right, at N = 8 calls. Lower is"
    " better at equal success; the grey bands are the shares of success at"
    " which the methods are compared.",
    drawn,
  )


def guidance_table(sweeps: Mapping[str, guidance.Sweep]) -> claims.Table:
  """One row a method and strength."""
  rows = []
  for name, sweep in sweeps.items():
    success, nll = sweep.success.mean(axis=1), sweep.nll.mean(axis=1)
    for scale, *values in zip(
      sweep.scales, 100 * success, nll, sweep.entropy, strict=True
    ):
      rows.append((name, scale, *map(float, values)))
  columns = (
    claims.Column("method"),
    claims.Column("strength", 0),
    claims.Column("success (%)", 1),
    claims.Column("chain NLL"),
    claims.Column("entropy"),
  )
  return claims.Table(
    "guidance",
    "Guidance by strength, N = 8",
    columns,
    tuple(rows),
    note="Strengths of the two kinds are in units of their own. Nats per"
    " character.",
  )


def over_seeds(samples: Sequence[sample_quality.Scores]) -> np.ndarray:
  """`[3, S]` measures of each seed: NLL, entropy, divergence."""
  return np.array([sample_quality.measure(sample) for sample in samples]).T


def _only(axis, label):
  """Handles and labels of one entry."""
  handles, labels = axis.get_legend_handles_labels()
  index = labels.index(label)
  return [handles[index]], [label]
