"""Plots and tables of the experiment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.papers._conservation_laws import (
  counting,
  drift,
  networks,
  real_model,
)
from icml26_jax.report import claims, plots

# Controls that the figure of all layers shows; the table has all.
_TITLES = {
  "swiglu": "SwiGLU",
  "query_key": "queries and keys, rotary pairs",
  "value_output": "values and outputs",
  "attention_gain": "gain before attention",
  "mlp_gain": "gain before the SwiGLU",
}
_CONTROL_LABELS = {
  "gate_down": "gate matrix instead of up",
  "query_key_entries": "single entries of QᵀQ - KᵀK",
  "other_pairing": "other pairing",
  "query_key_per_head": "no sum over the group (Q, K)",
  "value_output_per_head": "no sum over the group (V, O)",
  "gain_without_value": "without the values",
  "gain_without_gate": "without the gate matrix",
}


def layers_figure(
  found: real_model.Found, law_bound: float, control_bound: float
) -> claims.Figure:
  """Relative rates of laws and controls in every layer.

  Args:
    found: what was measured.
    law_bound: below which a law must be.
    control_bound: above which a control must be.
  """
  drawn, axes = plots.new(3, 2, panel=(4.6, 3.9))
  panels = axes.ravel()
  with plots.style():
    for axis, (law, title) in zip(panels, _TITLES.items(), strict=False):
      values = found.laws[law]
      layers = np.arange(values.shape[1])
      plots.line(
        axis, layers, values.max(axis=0), index=0, label="law", markersize=3.5
      )
      names = [name for name, of in found.law_of.items() if of == law]
      for index, name in enumerate(names, start=1):
        plots.line(
          axis,
          layers,
          found.controls[name].min(axis=0),
          index=index,
          label=_CONTROL_LABELS.get(name, name),
          markersize=3.5,
        )
      axis.axhspan(law_bound, control_bound, color="#BBBBBB", alpha=0.35)
      axis.set_yscale("log")
      axis.set(
        xlabel="layer",
        ylabel="relative rate",
        title=title,
        ylim=(1e-9, 30.0),
      )
      axis.legend(loc="center", bbox_to_anchor=(0.5, 0.43), fontsize=8.5)
    # The sixth panel says what the two rates mean.
    panels[-1].axis("off")
    panels[-1].text(
      0.0,
      0.95,
      "Largest relative rate of any component\n"
      "in a layer: of a law, in the batch where\n"
      "it is largest; of a control, in the batch\n"
      "where it is smallest.\n\n"
      "Laws must be below the grey band,\n"
      "controls above it. A rate of 1 means that\n"
      "the quantity moves along the gradient.",
      va="top",
      fontsize=11,
      transform=panels[-1].transAxes,
    )
  return claims.Figure(
    "layers",
    "Laws and what is no law in every layer of SmolLM2-135M, in float32 and on"
    " real text. Laws are at rounding; quantities that look like them move.",
    drawn,
  )


def real_table(found: real_model.Found) -> claims.Table:
  """Laws and controls over all layers."""
  rows = [
    (law, "law", float(x.max()), float(x.max(axis=0).min()))
    for law, x in found.laws.items()
  ]
  rows += [
    (
      f"{_CONTROL_LABELS.get(name, name)} ({found.law_of[name]})",
      "control",
      float(x.max()),
      float(x.min()),
    )
    for name, x in found.controls.items()
  ]
  table_rows = tuple(
    (name, kind, f"{largest:.1e}", f"{least:.1e}")
    for name, kind, largest, least in rows
  )
  return claims.Table(
    "layers",
    "SmolLM2-135M: largest relative rate of a layer",
    (
      claims.Column("quantity"),
      claims.Column("kind"),
      claims.Column("most"),
      claims.Column("least"),
    ),
    table_rows,
    note="Over layers and batches. Text costs"
    f" {found.losses.mean():.2f} nats a token with the rotary pairing of the"
    f" file and {found.other_losses.mean():.2f} with the other, which laws"
    " cannot tell.",
  )


def drift_figure(found: Sequence[drift.Found]) -> claims.Figure:
  """Drift against the step size: laws beside what is none."""
  few = [one for one in found if one.network == "SwiGLU"]
  few += [one for one in found if one.network == "GELU"]
  mixtures = [one for one in found if one.network.startswith("mixture")]
  text = [one for one in found if one.network == "transformer"]
  drawn, axes = plots.new(3, 2, panel=(4.9, 4.3))
  titles = ("SwiGLU and GELU, digits", "mixtures, digits", "transformer, text")
  with plots.style():
    for column, (title, group) in enumerate(
      zip(titles, (few, mixtures, text), strict=True)
    ):
      for row, (part, where) in enumerate(
        (("few", f"after {drift.FEW_STEPS} steps"), ("end", "at a fixed time"))
      ):
        axis = axes[row, column]
        for index, one in enumerate(group):
          drifts = getattr(one, part) / one.size[:, None]
          plots.line(
            axis,
            drift.TAUS,
            drifts.mean(axis=0),
            index=index,
            label=_label(one, group),
            linestyle="-" if one.conserved else "--",
            markersize=5,
          )
        _powers(axis, 2 if part == "few" else 1, group, part)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(drift.TAUS, [f"{tau:g}" for tau in drift.TAUS])
        axis.minorticks_off()
        axis.set(
          xlabel="step size τ",
          ylabel=f"‖drift‖ / ‖value‖ {where}",
          title=title if row == 0 else "",
        )
        if row == 1:
          axis.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=8.5
          )
  return claims.Figure(
    "drift",
    "Gradient descent breaks the laws of gradient flow by τ² a step (above)"
    " and by τ at a fixed time (below); dotted lines have those slopes. What"
    " is no law (dashed) moves whatever the step size. The sum over experts of"
    " a softmax router, a linear law, stays at rounding.",
    drawn,
  )


def drift_table(found: Sequence[drift.Found]) -> claims.Table:
  """Drift and its powers of the step size, one row a quantity."""
  rows = []
  for one in found:
    few, end = (_slope(one, drifts) for drifts in (one.few, one.end))
    rows.append(
      (
        one.network,
        one.law,
        "law" if one.conserved else "no law",
        f"{(one.end[:, 0] / one.size).mean():.1e}",
        f"{(one.end[:, -1] / one.size).mean():.1e}",
        few,
        end,
      )
    )
  coarse, fine = drift.TAUS[0], drift.TAUS[-1]
  return claims.Table(
    "drift",
    "Drift under gradient descent",
    (
      claims.Column("network"),
      claims.Column("quantity"),
      claims.Column("kind"),
      claims.Column(f"at τ = {coarse:g}"),
      claims.Column(f"at τ = {fine:g}"),
      claims.Column("slope, fixed k", 2),
      claims.Column("slope, fixed T", 2),
    ),
    tuple(rows),
    note="‖drift‖ / ‖value at the start‖ at the end, mean over seeds, and powers"
    f" of τ after k = {drift.FEW_STEPS} steps and at the end, with 95%"
    " intervals over seeds; no slope where the drift is rounding. The"
    " transformer is followed from time 4 on, when its gradient has become"
    " steady.",
  )


def count_table(counts: Sequence[counting.Count]) -> claims.Table:
  """Numbers of laws found and expected."""
  return claims.Table(
    "count",
    "Independent laws of small blocks",
    (
      claims.Column("block"),
      claims.Column("parameters"),
      claims.Column("laws found"),
      claims.Column("expected"),
      claims.Column("source"),
    ),
    tuple(
      (
        count.block.name,
        count.num_params,
        count.found,
        count.block.laws,
        count.block.source,
      )
      for count in counts
    ),
    note="Parameters less the dimension of the Lie algebra that the gradients of"
    " the outputs generate, at random parameters.",
  )


def _slope(one, drifts):
  if one.conserved and not _has_slope(one):
    return None
  return drift.estimate(drift.slopes(drifts))


def _label(one, group):
  several = len({other.network for other in group}) > 1
  name = f"{one.law} ({one.network})" if several else one.law
  return name if one.conserved else f"no law: {name}"


def _powers(axis, power, group, part):
  """A line of that slope below the law that drifts least."""
  laws = [one for one in group if _has_slope(one)]
  lowest = min(
    (getattr(one, part) / one.size[:, None]).mean(axis=0)[-1] for one in laws
  )
  taus = np.array(drift.TAUS)
  axis.plot(
    taus,
    0.4 * lowest * (taus / taus[-1]) ** power,
    color="#555555",
    linestyle=":",
    linewidth=1.5,
    label="∝ τ² above, ∝ τ below",
  )


def _has_slope(one):
  return one.conserved and one.law != networks.ROUTER
