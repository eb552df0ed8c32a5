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

# Name, label of the axis, title.
_MEASURES = (
  ("nll", "NLL (nats per character)", "Likelihood: lower is better"),
  ("kl", "bigram KL (nats)", "Pairs of characters: lower is better"),
  ("entropy", "unigram entropy (nats)", "Variety: that of real text is best"),
)

# A line to compare with that is further from the curves than this share of
# their height is not drawn, but named at the edge.
_FAR = 0.5

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
    (name, n, *(estimate(getattr(quality, m)) for m, *_ in _MEASURES))
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
  reference: str,
  values: Mapping[str, float],
) -> claims.Figure:
  """The three measures against the number of network calls.

  Args:
    id: of the figure.
    caption: below the figure.
    qualities: what was measured.
    names: samplers to draw.
    reference: what the curves are compared with.
    values: its measures, as far as they are known.
  """
  drawn, axes = plots.new(3, panel=(4.4, 4.2))
  with plots.style():
    for axis, (measure, label, title) in zip(axes[0], _MEASURES, strict=True):
      for index, name in enumerate(names):
        steps = [n for job, n in qualities if job == name]
        found = [getattr(qualities[name, n], measure) for n in steps]
        plots.line(
          axis,
          steps,
          [interval.estimate for interval in found],
          index=index,
          label=name if measure == "nll" else None,
          interval=(
            [interval.low for interval in found],
            [interval.high for interval in found],
          ),
        )
      ticks = sorted({n for _, n in qualities})
      axis.set_xscale("log", base=2)
      axis.set_xticks(ticks, [str(n) for n in ticks])
      axis.set(xlabel="network calls N", ylabel=label, title=title)
      if measure == "kl":
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
      if measure in values:
        _compare(axis, values[measure], reference)
    _legend_below(drawn, axes[0])
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
    for index, level in enumerate(levels):
      axis.axvline(
        100 * level,
        color="#BBBBBB",
        linewidth=6,
        alpha=0.4,
        label=None if index else "compared here",
      )
    for name, sweep in sweeps.items():
      nll = intervals.t_interval(sweep.nll)
      plots.line(
        axis,
        100 * sweep.success.mean(axis=1),
        nll.estimate,
        index=_GUIDANCE_LINES.index(name),
        label=name,
        interval=(nll.low, nll.high),
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
      ylim=(entropy_rate - 0.03, top + 0.1),
    )
    _legend_below(drawn, [axis], columns=3)
  return claims.Figure(
    "guidance",
    "Steering a sampler of Python's language reference towards names in source"
    " code, harder and harder from left to right, at N = 8 calls. Lower is"
    " better at equal success; the upright grey bars are the shares of success"
    " at which the methods are compared. Bands: 95% intervals of NLL over"
    " sequences.",
    drawn,
  )


def guidance_table(
  sweeps: Mapping[str, guidance.Sweep], note: str
) -> claims.Table:
  """One row a method and strength.

  Args:
    sweeps: what was measured.
    note: below the table.
  """
  rows = []
  for name, sweep in sweeps.items():
    success = np.transpose(intervals.t_interval(100.0 * sweep.success))
    nll = np.transpose(intervals.t_interval(sweep.nll))
    for scale, *both, entropy in zip(
      sweep.scales, success, nll, sweep.entropy, strict=True
    ):
      rows.append(
        (
          name,
          scale,
          *(claims.Estimate(*map(float, ends)) for ends in both),
          float(entropy),
        )
      )
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
    note=note,
  )


def over_seeds(samples: Sequence[sample_quality.Scores]) -> np.ndarray:
  """`[3, S]` measures of each seed: NLL, entropy, divergence."""
  return np.array([sample_quality.measure(sample) for sample in samples]).T


def _compare(axis, value, label):
  """A line at a value, or a note at the edge if it would squeeze the curves."""
  to_axes = axis.transAxes.inverted().transform
  at = to_axes(axis.transData.transform((axis.get_xlim()[0], value)))[1]
  if -_FAR <= at <= 1 + _FAR:
    plots.reference(axis, value, label)
    return
  below = at < 0
  # Room for the note between the curves and the edge.
  edge = axis.transAxes.transform((0, -0.12 if below else 1.12))
  end = axis.transData.inverted().transform(edge)[1]
  axis.set_ylim(**{"bottom" if below else "top": end})
  axis.annotate(
    f"{'↓' if below else '↑'} {label}: {value:.3f}",
    (0.03, 0.03) if below else (0.97, 0.97),
    xycoords="axes fraction",
    ha="left" if below else "right",
    va="bottom" if below else "top",
    color="#555555",
  )


def _legend_below(drawn, axes, columns=None):
  """One legend for all panels, each label once."""
  entries = {}
  for axis in axes:
    for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
      entries.setdefault(label, handle)
  drawn.legend(
    entries.values(),
    entries.keys(),
    loc="outside lower center",
    ncols=columns or len(entries),
  )
