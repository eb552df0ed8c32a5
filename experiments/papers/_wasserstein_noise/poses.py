"""Part (c): are poses of an object told apart by their noisy pictures?"""

from __future__ import annotations

from collections.abc import Callable
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import ot
from scipy import ndimage, stats

from icml26_jax.data import images
from icml26_jax.report import progress
from icml26_jax.theory import wasserstein_noise

BOX = 20
LARGEST_ANGLE = 90.0
LARGEST_SHIFT = 2.0
SIGMA_STEP = 0.002
_MOST_STEPS = 50

# Pictures are drawn this much larger and averaged.
_FINER = 8
_SINKHORN_EPSILON = 0.02
_PROJECTIONS = 64

EXACT = ("L2", "W_1", "W_2")
BASELINES = ("sliced W_2", "Sinkhorn W_2")


class Poses(NamedTuple):
  """Pictures of one object in several poses.

  Attributes:
    pictures: `[P, n, n]` distributions over pixels.
    displacement: `[P (P - 1) / 2]` root mean square distance in sides of the
      picture by which the object's mass moves between two poses.
  """

  pictures: np.ndarray
  displacement: np.ndarray


class Found(NamedTuple):
  """Rank correlation of distances between pictures and between poses.

  Attributes:
    poses: the pictures.
    scan: sigma to the mean correlation of L2 on the draws that choose sigma.
    sigma: the one chosen.
    clean: distance to its correlation without noise.
    noisy: distance to its correlation on each fresh draw, `[draws]`.
    example: the pictures of the first fresh draw.
    distances: distance to its values between those pictures, in the order of
      `itertools.combinations`.
  """

  poses: Poses
  scan: dict[float, float]
  sigma: float
  clean: dict[str, float]
  noisy: dict[str, np.ndarray]
  example: np.ndarray
  distances: dict[str, np.ndarray]


def run(
  key: jax.Array,
  *,
  count: int,
  scans: int,
  draws: int,
  size: int,
  level: float,
) -> Found:
  """Chooses the noise by L2 on some draws and compares distances on others.

  Args:
    key: typed key.
    count: poses.
    scans: draws that sigma is chosen by.
    draws: fresh draws.
    size: pixels on a side, at least 3/2 of the object's box.
    level: correlation of L2 below which the noise is large enough.

  Returns:
    The correlations.
  """
  pose_key, scan_key, fresh_key = jax.random.split(key, 3)
  poses = make(pose_key, count, size)
  scan = _scan(_noise(scan_key, scans, count, size), poses, level)
  sigma = max(scan)
  metrics = {name: _METRICS[name] for name in (*EXACT, *BASELINES)}
  noisy = poses.pictures + sigma * _noise(fresh_key, draws, count, size)
  distances = []
  total = (1 + draws) * len(metrics)
  with progress.bar("poses", total=total, unit="distances") as bar:
    for pictures in (poses.pictures, *noisy):
      found = {}
      for name, metric in metrics.items():
        found[name] = metric(*_pairs(pictures))
        bar.advance()
      distances.append(found)
  correlations = [
    {name: correlation(found[name], poses) for name in metrics}
    for found in distances
  ]
  return Found(
    poses=poses,
    scan=scan,
    sigma=sigma,
    clean=correlations[0],
    noisy={
      name: np.array([found[name] for found in correlations[1:]])
      for name in metrics
    },
    example=noisy[0],
    distances=distances[1],
  )


def make(key: jax.Array, count: int, size: int) -> Poses:
  """A horse, turned by 0 to 90 degrees and shifted by up to 2 pixels.

  Args:
    key: typed key of the shifts.
    count: poses, their angles evenly spaced.
    size: pixels on a side.

  Returns:
    The poses.
  """
  shape = images.silhouette()
  zoom = BOX * _FINER / max(shape.shape)
  fine = ndimage.zoom(shape, zoom, order=1)
  centre = (np.array(fine.shape) - 1) / 2
  angles = np.deg2rad(np.linspace(0.0, LARGEST_ANGLE, count))
  shifts = np.asarray(
    jax.random.uniform(
      key, (count, 2), minval=-LARGEST_SHIFT, maxval=LARGEST_SHIFT
    ),
    np.float64,
  )
  turns = np.array(
    [[[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]] for t in angles]
  )
  canvas = size * _FINER
  pictures = []
  for turn, shift in zip(turns, shifts, strict=True):
    # Where each pixel of the picture comes from.
    middle = (canvas - 1) / 2 + shift * _FINER
    picture = ndimage.affine_transform(
      fine,
      turn.T,
      offset=centre - turn.T @ middle,
      output_shape=(canvas, canvas),
      order=1,
    )
    blocks = picture.reshape(size, _FINER, size, _FINER).mean(axis=(1, 3))
    pictures.append(images.as_mass(blocks.clip(min=0.0)))
  places = np.argwhere(fine > 0)
  mass = fine[fine > 0] / fine[fine > 0].sum()
  # In sides of the picture from the object's centre, [P, pixels, 2].
  moved = (
    np.einsum("pij,xj->pxi", turns, (places - centre) / canvas)
    + shifts[:, None, :] / size
  )
  displacement = [
    math.sqrt(mass @ np.sum((moved[i] - moved[j]) ** 2, axis=1))
    for i, j in itertools.combinations(range(count), 2)
  ]
  return Poses(np.stack(pictures), np.array(displacement))


def correlation(distances: np.ndarray, poses: Poses) -> float:
  """Spearman's correlation of distances with those of the poses."""
  return float(stats.spearmanr(distances, poses.displacement).statistic)


def _scan(noise, poses, level) -> dict[float, float]:
  """Raises the noise until L2's mean correlation is below `level`."""
  found: dict[float, float] = {}
  for step in range(1, _MOST_STEPS + 1):
    sigma = round(step * SIGMA_STEP, 9)
    values = [
      correlation(_euclidean(*_pairs(poses.pictures + sigma * unit)), poses)
      for unit in noise
    ]
    found[sigma] = float(np.mean(values))
    if found[sigma] < level:
      return found
  raise RuntimeError(
    f"L2's correlation is not below {level} up to sigma = {max(found)}"
  )


def _noise(key, draws, count, size) -> np.ndarray:
  """`[draws, P, n, n]` independent centred noise with sigma 1."""
  keys = jax.random.split(key, (draws, count))
  draw = jax.vmap(
    jax.vmap(lambda k: wasserstein_noise.center_noise(k, size, 1.0))
  )
  return np.asarray(draw(keys), np.float64)


def _pairs(pictures) -> tuple[np.ndarray, np.ndarray]:
  """First and second of each pair, `[P (P - 1) / 2, n, n]`."""
  first, second = zip(
    *itertools.combinations(range(len(pictures)), 2), strict=True
  )
  return pictures[list(first)], pictures[list(second)]


def _euclidean(first, second) -> np.ndarray:
  return np.sqrt(np.sum((first - second) ** 2, axis=(1, 2)))


def _exact(p: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
  def distances(first, second):
    return np.array(
      [
        wasserstein_noise.signed_wasserstein(a, b, p)
        for a, b in zip(first, second, strict=True)
      ]
    )

  return distances


def _sinkhorn(first, second) -> np.ndarray:
  solve = jax.jit(
    jax.vmap(
      lambda a, b: wasserstein_noise.signed_wasserstein(
        a, b, 2, solver="sinkhorn", epsilon=_SINKHORN_EPSILON
      )
    )
  )
  return np.asarray(solve(jnp.asarray(first), jnp.asarray(second)))


def _sliced(first, second) -> np.ndarray:
  """Mean over directions of the distance in one dimension, on the plane."""
  size = first.shape[1]
  places = np.argwhere(np.ones((size, size))) / size
  found = []
  for a, b in zip(first, second, strict=True):
    (a_pos, a_neg), (b_pos, b_neg) = map(wasserstein_noise.split_signed, (a, b))
    source = np.asarray(a_pos + b_neg, np.float64).ravel()
    target = np.asarray(b_pos + a_neg, np.float64).ravel()
    unit = ot.sliced_wasserstein_distance(
      places,
      places,
      source / source.sum(),
      target / target.sum(),
      n_projections=_PROJECTIONS,
      seed=0,
    )
    found.append(math.sqrt(source.sum()) * float(unit))
  return np.array(found)


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
  "L2": _euclidean,
  "W_1": _exact(1),
  "W_2": _exact(2),
  "sliced W_2": _sliced,
  "Sinkhorn W_2": _sinkhorn,
}
