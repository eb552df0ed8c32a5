"""Plots and tables of the experiment."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from experiments.papers._wasserstein_noise import growth, poses, shrinking
from icml26_jax.report import claims, plots
from icml26_jax.theory import wasserstein_noise

_UPPER = ("paper", "dyadic", "tree", "spectral")


def growth_figure(found: growth.Growth, size: int) -> claims.Figure:
  """Distances and expected bounds against sigma, one panel an order."""
  orders = sorted({p for _, p in found})
  drawn, axes = plots.new(len(orders), panel=(4.8, 4.4))
  with plots.style():
    for axis, p in zip(axes[0], orders, strict=True):
      curves = [curve for (_, order), curve in found.items() if order == p]
      sigmas = curves[0].sigmas
      bounds = wasserstein_noise.expected_bounds(size, sigmas, p)
      for index, name in enumerate(_UPPER):
        plots.line(
          axis,
          sigmas,
          bounds[name],
          index=index + 2,
          label=f"{name} bound",
          marker="",
        )
      plots.line(
        axis,
        sigmas,
        np.mean([curve.distance for curve in curves], axis=(0, 1)),
        index=0,
        label=f"W_{p}, measured",
      )
      plots.line(
        axis,
        sigmas,
        bounds["lower"],
        index=6,
        label="lower bound",
        marker="",
        linestyle=":",
      )
      plots.line(
        axis,
        sigmas,
        np.mean([curve.euclidean for curve in curves], axis=(0, 1)),
        index=1,
        label="L2, measured",
      )
      axis.set_xscale("log")
      axis.set_yscale("log")
      axis.set(
        title=f"p = {p}",
        xlabel="noise sigma (mass per pixel)",
        ylabel="distance to the clean image",
      )
    axes[0, 0].legend(loc="upper left", fontsize=8)
  return claims.Figure(
    "growth",
    "Distance of a noisy image to the same image without noise, mean over"
    f" images of {size} by {size} pixels. L2 grows as sigma, W_p as"
    " sigma^(1/p) once the noise outweighs the image, below bounds for the"
    " mean.",
    drawn,
  )


def slope_table(
  slopes: Mapping[tuple[str, str], np.ndarray], smallest: float
) -> claims.Table:
  """One row an image and distance."""
  rows = tuple(
    (
      name,
      metric,
      growth.expected_slope(metric),
      growth.estimate(values),
    )
    for (name, metric), values in slopes.items()
  )
  columns = (
    claims.Column("image"),
    claims.Column("distance"),
    claims.Column("expected slope"),
    claims.Column("slope", 4),
  )
  return claims.Table(
    "slopes",
    f"Slopes of log distance in log sigma, sigma from {smallest:g}",
    columns,
    rows,
    note="95% intervals over draws of the noise.",
  )


def bound_table(found: growth.Growth, size: int) -> claims.Table:
  """Measured means beside all expected bounds at the largest noise."""
  rows = []
  for p in sorted({p for _, p in found}):
    curves = [curve for (_, order), curve in found.items() if order == p]
    sigma = float(curves[0].sigmas[-1])
    bounds = wasserstein_noise.expected_bounds(size, sigma, p)
    values = np.concatenate([curve.distance[:, -1] for curve in curves])
    rows.append(
      (
        f"W_{p}",
        sigma,
        float(bounds["lower"]),
        growth.estimate(values),
        *(float(bounds[name]) for name in reversed(_UPPER)),
      )
    )
  columns = (
    claims.Column("distance"),
    claims.Column("sigma", 1),
    claims.Column("lower"),
    claims.Column("measured"),
    *(claims.Column(name) for name in reversed(_UPPER)),
  )
  return claims.Table(
    "bounds",
    "Mean distance to the clean image and its bounds",
    columns,
    tuple(rows),
    note="95% intervals over images and draws. Beyond p = 1, dyadic and"
    " spectral follow from p = 1 by c^p <= d^(p-1) c.",
  )


def shrinking_figure(
  found: shrinking.Shrinking, names: tuple[str, str], standard_errors: float
) -> claims.Figure:
  """Share of the clean distance against sigma."""
  drawn, axes = plots.new(1, panel=(6.4, 4.2))
  axis = axes[0, 0]
  with plots.style():
    for index, (p, ratios) in enumerate(found.curves.items()):
      mean, error = np.array(ratios).T
      reach = standard_errors * error
      plots.line(
        axis,
        shrinking.SIGMAS,
        mean,
        index=index,
        label=f"W_{p}",
        interval=(mean - reach, mean + reach),
      )
    plots.reference(axis, 1.0, "without noise")
    axis.set_xscale("log")
    axis.set(
      xlabel="noise sigma (mass per pixel)",
      ylabel="distance / distance without noise",
      ylim=(0.7, 1.6),
    )
    axis.legend(loc="upper left")
  return claims.Figure(
    "shrinking",
    f"Distance of {names[0]} and {names[1]}, both with noise, as a share of"
    " their distance without. Bands are"
    f" {standard_errors:g} standard errors over the draws that the noise"
    " levels were chosen by. W_1 never falls, by Jensen's inequality.",
    drawn,
  )


def shrinking_table(
  found: shrinking.Shrinking, standard_errors: float
) -> claims.Table:
  """One row an order and noise level, on fresh draws."""
  rows = tuple(
    (
      f"W_{p}",
      sigma,
      found.clean[p],
      shrinking.estimate(
        found.curves[p][shrinking.SIGMAS.index(sigma)], standard_errors
      ),
      shrinking.estimate(ratio, standard_errors),
    )
    for (p, sigma), ratio in sorted(found.fresh.items())
  )
  columns = (
    claims.Column("distance"),
    claims.Column("sigma", 4),
    claims.Column("without noise", 4),
    claims.Column("ratio, choosing draws"),
    claims.Column("ratio, fresh draws"),
  )
  return claims.Table(
    "shrinking",
    "Noisy distance as a share of the clean one",
    columns,
    rows,
    note=f"Intervals are {standard_errors:g} standard errors.",
  )


def pose_figure(found: poses.Found) -> claims.Figure:
  """A pose with and without noise, and distances against displacement."""
  drawn, axes = plots.new(4, panel=(3.5, 3.6))
  middle = len(found.example) // 2
  with plots.style():
    for axis, picture, title in (
      (axes[0, 0], found.poses.pictures[middle], "one pose"),
      (
        axes[0, 1],
        found.example[middle],
        f"with noise, sigma = {found.sigma:g}",
      ),
    ):
      axis.imshow(picture, cmap="gray")
      axis.grid(False)
      axis.set(title=title, xticks=[], yticks=[])
    for index, (axis, metric) in enumerate(
      zip(axes[0, 2:], ("L2", "W_2"), strict=True)
    ):
      axis.plot(
        found.poses.displacement,
        found.distances[metric],
        plots.MARKERS[index],
        color=plots.PALETTE[index],
        markersize=4,
      )
      rank = poses.correlation(found.distances[metric], found.poses)
      axis.set(
        title=f"{metric}: rank correlation {rank:.2f}",
        xlabel="displacement of poses (sides)",
        ylabel=f"{metric} of noisy pictures",
      )
  return claims.Figure(
    "poses",
    "Poses of a horse under noise, one draw: do pictures of like poses stay"
    " close? Each point is a pair of poses.",
    drawn,
  )


def pose_table(found: poses.Found) -> claims.Table:
  """One row a distance."""
  rows = tuple(
    (name, found.clean[name], growth.estimate(values))
    for name, values in found.noisy.items()
  )
  columns = (
    claims.Column("distance"),
    claims.Column("without noise"),
    claims.Column("with noise"),
  )
  return claims.Table(
    "poses",
    f"Rank correlation with the displacement of poses, sigma {found.sigma:g}",
    columns,
    rows,
    note="Spearman's correlation over all pairs of poses; 95% intervals over"
    " draws of the noise, where there are several. Sliced W_2 is on the plane,"
    " the others on the torus.",
  )
