"""Part (d): identity and geometry are lost at different noise levels."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from icml26_jax.diffusion import identifiability
from icml26_jax.report import claims, plots

VOCAB_SIZES = (2, 27, 1000, 50257)
_SIGMAS = np.geomspace(0.1, 10.0, 200)

# The closed forms are float32; each value here is right to about this.
_ACCURACY = 1e-5


@functools.cache
def half_lost(vocab_size: int) -> tuple[float, float]:
  """Noise that loses half of the tokens, and what the geometry lost by then.

  Args:
    vocab_size: number of tokens V, at least 3.

  Returns:
    sigma at identity corruption 1/2, and rank degradation there.
  """
  sigma = identifiability.sigma_at_identity(vocab_size, 0.5)
  return float(sigma), float(identifiability.rank_degradation(sigma))


def checks(bound: float) -> list[claims.Check]:
  """Conditions of the claim.

  Args:
    bound: largest rank degradation at V = 50257.

  Returns:
    That it falls with V, and stays below the bound.
  """
  sizes = [size for size in VOCAB_SIZES if size > 2]
  ranks = [half_lost(size)[1] for size in sizes]

  def exact(value):
    return claims.Estimate(value, value - _ACCURACY, value + _ACCURACY)

  found = [
    claims.below(
      f"r where half is lost at V = {large:,} minus V = {small:,}",
      exact(after - before),
      0.0,
    )
    for small, large, before, after in zip(
      sizes, sizes[1:], ranks, ranks[1:], strict=False
    )
  ]
  name = f"r where half is lost at V = {sizes[-1]:,}"
  return [*found, claims.below(name, exact(ranks[-1]), bound)]


def table() -> claims.Table:
  """Where half of the tokens are lost, by vocabulary."""
  rows = []
  for size in VOCAB_SIZES[1:]:
    sigma, rank = half_lost(size)
    rows.append((size, sigma, rank, (size - 1) * rank))
  return claims.Table(
    "dissonance",
    "Where half of the tokens are lost (rho = 1/2)",
    (
      claims.Column("vocabulary V"),
      claims.Column("sigma", 4),
      claims.Column("rank degradation r", 5),
      claims.Column("wrong tokens nearer", 1),
    ),
    tuple(rows),
    note="With V = 2 the two are one: rho = r, and half is never lost.",
  )


def figure() -> claims.Figure:
  """rho and r against sigma."""
  drawn, axes = plots.new(panel=(8.5, 4.4))
  axis = axes[0, 0]
  with plots.style():
    rank = identifiability.rank_degradation(jnp.asarray(_SIGMAS))
    axis.plot(
      _SIGMAS,
      np.asarray(rank),
      color="black",
      linewidth=4.5,
      label="geometry lost (r), any V",
    )
    for index, size in enumerate(VOCAB_SIZES):
      rho = identifiability.identity_corruption(size, jnp.asarray(_SIGMAS))
      plots.line(
        axis,
        _SIGMAS,
        np.asarray(rho),
        index=index,
        label=f"identity lost (rho), V = {size:,}",
        marker="",
        # V = 2 lies on the black line.
        **({"color": plots.PALETTE[5], "linewidth": 1.5} if size == 2 else {}),
      )
    for index, size in enumerate(VOCAB_SIZES):
      if size > 2:
        sigma, value = half_lost(size)
        colour = plots.PALETTE[index]
        axis.plot([sigma] * 2, [value, 0.5], color=colour, linewidth=1.0)
        # A white rim sets the dots off from the lines.
        axis.plot(
          [sigma] * 2,
          [0.5, value],
          marker="o",
          color=colour,
          linestyle="",
          markersize=9,
          markeredgecolor="white",
          zorder=5,
          clip_on=False,
        )
    axis.set(
      xscale="log",
      xlabel="standard deviation of the noise, sigma",
      ylabel="share of tokens lost (rho),\nof wrong tokens nearer (r)",
      ylim=(0.0, 1.02),
    )
    axis.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10])
    axis.set_xticklabels(["0.1", "0.2", "0.5", "1", "2", "5", "10"])
    axis.minorticks_off()
    drawn.legend(loc="outside right center")
  return claims.Figure(
    "dissonance",
    "Gaussian noise on one-hots loses the identity of a token (rho: some wrong"
    " token is the nearest) long before the geometry (r: share of wrong tokens"
    " that are nearer). Dots: where half of the tokens are lost, and how"
    " little of the geometry is lost there; the larger the vocabulary, the"
    " less.",
    drawn,
  )
