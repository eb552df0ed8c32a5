"""One look for all plots: readable at a glance, safe for colour-blind eyes.

Figures are made without pyplot, so that neither its list of open figures nor
the caller's settings and backend are touched.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import io
from typing import Any

import cycler
import matplotlib
from matplotlib import layout_engine
from matplotlib.backends import backend_agg
import matplotlib.figure
import numpy as np

# Okabe and Ito's palette, told apart with any common colour blindness; its
# yellow is left out, too pale on white.
PALETTE = (
  "#0072B2",  # blue
  "#D55E00",  # vermilion
  "#009E73",  # green
  "#CC79A7",  # purple
  "#E69F00",  # orange
  "#56B4E9",  # sky
  "#000000",  # black
)
# Colour is never the only difference between two lines.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")

_DPI = 150
_STYLE: dict[str, Any] = {
  "font.family": "sans-serif",
  "font.sans-serif": ["DejaVu Sans"],
  "font.size": 11,
  "axes.titlesize": 12,
  "axes.labelsize": 11,
  "legend.fontsize": 9.5,
  "xtick.labelsize": 10,
  "ytick.labelsize": 10,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.axisbelow": True,
  "grid.color": "#DDDDDD",
  "grid.linewidth": 0.8,
  "lines.linewidth": 2.0,
  "lines.markersize": 6.0,
  "legend.frameon": False,
  "axes.prop_cycle": cycler.cycler(color=PALETTE),
  "figure.facecolor": "white",
  "savefig.facecolor": "white",
}


@contextlib.contextmanager
def style() -> Iterator[None]:
  """Our settings inside the block; the caller's own again after it."""
  with matplotlib.rc_context():
    matplotlib.rcdefaults()
    settings: Any = matplotlib.rcParams
    settings.update(_STYLE)
    yield


def new(
  columns: int = 1,
  rows: int = 1,
  *,
  panel: tuple[float, float] = (5.2, 3.9),
  title: str = "",
) -> tuple[matplotlib.figure.Figure, np.ndarray]:
  """An empty figure in our look. Draw on it inside `style()`.

  Args:
    columns: panels side by side.
    rows: rows of panels.
    panel: width and height of one panel in inches.
    title: title above all panels.

  Returns:
    The figure and `[rows, columns]` axes.

  Raises:
    ValueError: if there is no panel.
  """
  if columns < 1 or rows < 1:
    raise ValueError(f"columns and rows must be at least 1: {columns}, {rows}")
  with style():
    figure = matplotlib.figure.Figure(
      figsize=(panel[0] * columns, panel[1] * rows),
      # Room between a panel and the next one's label.
      layout=layout_engine.ConstrainedLayoutEngine(wspace=0.06, hspace=0.06),
    )
    backend_agg.FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    if title:
      figure.suptitle(title)
  return figure, axes


def line(axes, x, y, *, index: int, label: str, interval=None, **style_options):
  """A line with markers and, where given, a band for its interval.

  Args:
    axes: where to draw.
    x: `[N]` positions.
    y: `[N]` values.
    index: number of the line, which decides colour, marker and dashes.
    label: its name in the legend.
    interval: `([N] low, [N] high)` of the band, or None.
    **style_options: passed on to `axes.plot`.
  """
  colour = PALETTE[index % len(PALETTE)]
  options = {
    "color": colour,
    "marker": MARKERS[index % len(MARKERS)],
    "linestyle": DASHES[index % len(DASHES)],
    **style_options,
  }
  axes.plot(x, y, label=label, **options)
  if interval is not None:
    low, high = interval
    axes.fill_between(x, low, high, color=options["color"], alpha=0.18, lw=0)


def reference(
  axes, value: float, label: str, *, vertical: bool = False
) -> None:
  """A thin grey line at a value to compare with.

  Args:
    axes: where to draw.
    value: the value.
    label: its name in the legend.
    vertical: True for a value on the x axis.
  """
  draw = axes.axvline if vertical else axes.axhline
  draw(
    value, color="#555555", linestyle=(0, (1, 1)), linewidth=1.5, label=label
  )


def png(figure: matplotlib.figure.Figure) -> bytes:
  """The figure as a PNG, the same bytes for the same figure.

  Args:
    figure: a figure from `new`.

  Returns:
    The file's contents.
  """
  buffer = io.BytesIO()
  with style():
    # Without the version of matplotlib, which would change the bytes.
    figure.savefig(buffer, format="png", dpi=_DPI, metadata={"Software": None})
  return buffer.getvalue()
