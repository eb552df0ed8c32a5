"""One look for all plots, without touching the caller's."""

import io

import matplotlib
import matplotlib._pylab_helpers
import matplotlib.image
import numpy as np
import pytest

from icml26_jax.report import plots


def test_the_callers_settings_come_back():
  with matplotlib.rc_context({"font.size": 3.0, "axes.grid": False}):
    figure, _ = plots.new()
    plots.png(figure)
    assert matplotlib.rcParams["font.size"] == 3.0
    assert matplotlib.rcParams["axes.grid"] is False


def test_the_callers_settings_do_not_leak_in():
  figure, _ = plots.new(title="Quality")
  expected = plots.png(figure)
  with matplotlib.rc_context({"font.size": 30.0, "axes.facecolor": "black"}):
    figure, _ = plots.new(title="Quality")
    assert plots.png(figure) == expected


def test_no_figure_stays_open():
  plots.png(plots.new()[0])
  assert matplotlib._pylab_helpers.Gcf.get_all_fig_managers() == []


def test_png_has_the_size_asked_for():
  figure, axes = plots.new(2, 1, panel=(4.0, 3.0))
  assert axes.shape == (1, 2)
  image = matplotlib.image.imread(io.BytesIO(plots.png(figure)), format="png")
  # 2 x 4 by 3 inches at 150 dots an inch.
  assert image.shape[:2] == (450, 1200)


def test_lines_differ_in_more_than_colour():
  _, axes = plots.new()
  with plots.style():
    for index in range(4):
      plots.line(axes[0, 0], [0, 1], [0, index], index=index, label=str(index))
  drawn = axes[0, 0].lines
  for property_name in ("color", "marker", "linestyle"):
    values = {getattr(line, f"get_{property_name}")() for line in drawn}
    assert len(values) == 4


def test_band_covers_the_interval():
  _, axes = plots.new()
  low, high = np.array([0.0, 1.0]), np.array([2.0, 4.0])
  with plots.style():
    plots.line(
      axes[0, 0], [0, 1], [1, 2], index=0, label="x", interval=(low, high)
    )
  box = axes[0, 0].collections[0].get_paths()[0].get_extents()
  assert (box.y0, box.y1) == (0.0, 4.0)


def test_palette_survives_red_green_blindness():
  """Neighbouring colours differ in lightness or in blue-yellow."""
  # Machado, Oliveira and Fernandes (2009), severity 1: deuteranopia.
  blind = np.array(
    [
      [0.367322, 0.860646, -0.227968],
      [0.280085, 0.672501, 0.047413],
      [-0.011820, 0.042940, 0.968881],
    ]
  )
  colours = [
    [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    for colour in plots.PALETTE
  ]
  seen = np.clip(np.array(colours) @ blind.T, 0.0, 1.0)
  distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
  # The first four are the ones most plots use.
  assert distances[:4, :4][np.triu_indices(4, 1)].min() > 0.15


def test_no_panel_is_an_error():
  with pytest.raises(ValueError, match="at least 1"):
    plots.new(0)
