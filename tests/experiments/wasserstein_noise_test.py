"""The parts of the experiment on distances of noisy images."""

import itertools
import json

import jax
import numpy as np
import pytest

from experiments import papers, reproduce
from experiments.papers import wasserstein_noise as paper
from experiments.papers._wasserstein_noise import growth, poses, shrinking
from icml26_jax.report import claims
from icml26_jax.theory import wasserstein_noise

HOLDS, FAILS = claims.Verdict.HOLDS, claims.Verdict.FAILS


@pytest.fixture(scope="module")
def grown():
  return growth.run(
    jax.random.key(0),
    names=("camera",),
    orders=(1, 2),
    sigmas=np.array([1e-3, 0.3, 1.0]),
    trials=3,
    size=8,
  )


def test_a_draw_serves_every_sigma_and_order(grown):
  first, second = grown["camera", 1], grown["camera", 2]
  np.testing.assert_array_equal(first.euclidean, second.euclidean)
  # L2 is that of the noise alone, which is proportional to sigma.
  unit = first.euclidean / first.sigmas
  np.testing.assert_allclose(unit, unit[:, :1] * np.ones(3), rtol=1e-9)
  assert np.ptp(unit[:, 0]) > 0.01


def test_slopes_are_those_of_the_largest_noise(grown):
  found = growth.slopes(grown, 0.1)
  assert set(found) == {("camera", name) for name in ("L2", "W_1", "W_2")}
  curves = grown["camera", 2]
  expected = np.log(curves.distance[:, 2] / curves.distance[:, 1]) / np.log(
    1 / 0.3
  )
  np.testing.assert_allclose(found["camera", "W_2"], expected, rtol=1e-9)
  checks = growth.slope_checks(found, 0.05)
  assert {check.verdict for check in checks} == {HOLDS}
  wrong = {("camera", "W_2"): np.array([1.0, 1.001, 0.999])}
  assert growth.slope_checks(wrong, 0.05)[0].verdict is FAILS


def test_bounds_are_checked_on_samples_and_means(grown):
  checks = growth.sample_checks(grown)
  assert {check.name for check in checks} == {
    "distance / tree",
    "distance / spectral",
    "lower bound / distance",
  }
  checks += growth.mean_checks(grown, 2.0, 8)
  assert len(checks) == 3 + 2 * 5
  assert {check.verdict for check in checks} == {HOLDS}


def test_a_missed_bound_is_seen(grown):
  curves = grown["camera", 1]
  high = {("camera", 1): curves._replace(distance=10 * curves.distance)}
  verdicts = {
    check.name: check.verdict for check in growth.mean_checks(high, 2.0, 8)
  }
  assert verdicts["mean W_1 / spectral"] is FAILS
  assert verdicts["lower bound / mean W_1"] is HOLDS
  low = {("camera", 1): curves._replace(distance=0.1 * curves.distance)}
  verdicts = {
    check.name: check.verdict for check in growth.mean_checks(low, 2.0, 8)
  }
  assert verdicts["lower bound / mean W_1"] is FAILS
  ratios = dict(curves.ratios, tree=np.array([0.5, 1.01, 0.2]))
  missed = growth.sample_checks({("camera", 1): curves._replace(ratios=ratios)})
  assert claims.all_of(missed, seeds=claims.EXACT) is FAILS


def _shrinking(means, error):
  chosen = {2: 1e-3, 3: 2e-3}
  ratios = {
    key: shrinking.Ratio(mean, error)
    for key, mean in zip(
      [(2, 1e-3), (1, 1e-3), (3, 2e-3), (1, 2e-3)], means, strict=True
    )
  }
  return shrinking.Shrinking({}, {}, chosen, ratios)


def test_shrinking_needs_a_small_mean_and_a_small_error():
  def verdict(found, p):
    return claims.all_of(
      shrinking.shrinking_checks(found, p, 0.97, 2.0), seeds=16
    )

  assert verdict(_shrinking([0.95, 1.0, 1.1, 1.1], 0.01), 2) is HOLDS
  assert verdict(_shrinking([1.1, 1.0, 0.95, 1.1], 0.01), 3) is HOLDS
  assert verdict(_shrinking([0.98, 1.0, 0.8, 1.1], 0.001), 2) is FAILS
  assert verdict(_shrinking([1.05, 1.0, 0.8, 1.1], 0.01), 2) is FAILS
  open_still = verdict(_shrinking([0.95, 1.0, 0.8, 1.1], 0.04), 2)
  assert open_still is claims.Verdict.INCONCLUSIVE


def test_first_order_must_not_shrink():
  good = shrinking.rising_checks(_shrinking([0.9, 0.99, 0.8, 1.1], 0.01), 2.0)
  assert [check.verdict for check in good] == [HOLDS, HOLDS]
  bad = shrinking.rising_checks(_shrinking([0.9, 0.97, 0.8, 1.1], 0.01), 2.0)
  assert [check.verdict for check in bad] == [FAILS, HOLDS]


def test_levels_are_chosen_on_other_draws():
  found = shrinking.run(
    jax.random.key(1), names=("camera", "moon"), choosing=2, fresh=3, size=8
  )
  for p, sigma in found.chosen.items():
    curve = {
      s: r.mean for s, r in zip(shrinking.SIGMAS, found.curves[p], strict=True)
    }
    candidates = shrinking.CANDIDATES[p]
    assert curve[sigma] == min(curve[candidate] for candidate in candidates)
    assert found.fresh[p, sigma].mean != curve[sigma]
    assert (1, sigma) in found.fresh
  checks = shrinking.pair_checks(found, 2.0, 8)
  assert [check.verdict for check in checks] == [HOLDS] * 3


def test_candidates_lie_on_the_curve():
  for candidates in shrinking.CANDIDATES.values():
    assert set(candidates) <= set(shrinking.SIGMAS)


@pytest.fixture(scope="module")
def posed():
  return poses.make(jax.random.key(2), 4, 32)


def test_poses_hold_the_whole_object(posed):
  assert posed.pictures.shape == (4, 32, 32)
  np.testing.assert_allclose(posed.pictures.sum(axis=(1, 2)), 1.0)
  edges = np.ones((32, 32), bool)
  edges[1:-1, 1:-1] = False
  assert np.all(posed.pictures[:, edges] == 0.0)


def test_displacement_is_that_of_the_mass(posed):
  """Of the centre, which both the pictures and the poses show."""
  assert posed.displacement.shape == (6,)
  axis = np.arange(32) / 32
  centres = np.stack(
    [
      np.array([p.sum(axis=1) @ axis, p.sum(axis=0) @ axis])
      for p in posed.pictures
    ]
  )
  moved = [
    np.linalg.norm(centres[i] - centres[j])
    for i, j in itertools.combinations(range(4), 2)
  ]
  # A centre moves by no more than the root mean square.
  assert np.all(np.array(moved) <= posed.displacement + 1e-3)
  # Whatever is moved is an upper bound on the best way to move it.
  w2 = [
    wasserstein_noise.signed_wasserstein(
      posed.pictures[i], posed.pictures[j], 2, torus=False
    )
    for i, j in itertools.combinations(range(4), 2)
  ]
  # Pixels round each place by less than their diagonal.
  assert np.all(np.array(w2) <= posed.displacement + np.sqrt(2) / 32)
  # The shape turned by 90 degrees is displaced most.
  assert np.argmax(posed.displacement) == 2


def test_baselines_agree_with_the_exact_distance(posed):
  a, b = posed.pictures[:2], posed.pictures[2:]
  exact = poses._METRICS["W_2"](a, b)
  sinkhorn = poses._METRICS["Sinkhorn W_2"](a, b)
  assert np.all(sinkhorn >= exact * (1 - 1e-5))
  # A projection shortens every way.
  sliced = poses._METRICS["sliced W_2"](a, b)
  plane = [
    wasserstein_noise.signed_wasserstein(x, y, 2, torus=False)
    for x, y in zip(a, b, strict=True)
  ]
  assert np.all(sliced <= np.array(plane) * (1 + 1e-9))
  # By 1/sqrt(2) on average, if directions are alike.
  assert np.all(sliced >= 0.5 * np.array(plane))


def test_correlation_is_one_for_the_poses_themselves(posed):
  assert poses.correlation(posed.displacement, posed) == pytest.approx(1.0)
  assert poses.correlation(-posed.displacement, posed) == pytest.approx(-1.0)


def test_noise_that_hides_nothing_is_reported(posed, monkeypatch):
  monkeypatch.setattr(poses, "_MOST_STEPS", 2)
  noise = np.zeros((1, 4, 32, 32))
  with pytest.raises(RuntimeError, match=r"up to sigma = 0\.004"):
    poses._scan(noise, posed, -1.0)


def test_budgets_only_grow():
  smoke, small, full = (paper.BUDGETS[name] for name in papers.BUDGETS)
  assert set(smoke.names) < set(small.names) == set(full.names)
  assert smoke.trials < claims.MIN_SEEDS <= small.trials <= full.trials
  assert smoke.fresh < claims.MIN_SEEDS < small.fresh < full.fresh
  assert smoke.pose_draws < claims.MIN_SEEDS < small.pose_draws
  assert small.pose_draws < full.pose_draws
  for budget in (smoke, small, full):
    sigmas = np.geomspace(1e-4, 1.0, budget.sigmas)
    assert np.sum(sigmas >= paper.TOP_DECADE) >= 2


def test_smoke_budget_runs_to_a_report(tmp_path):
  records, broken = reproduce.run_all(
    ["wasserstein-noise"], "smoke", tmp_path, 0
  )
  assert broken == []
  folder = tmp_path / "wasserstein-noise"
  found = json.loads((folder / "report.json").read_text("utf-8"))
  verdicts = {claim["id"]: claim["verdict"] for claim in found["claims"]}
  # Two draws decide nothing; theorems need none.
  assert verdicts == {
    "growth": "inconclusive",
    "bounds": "holds",
    "shrinking-2": "inconclusive",
    "shrinking-3": "inconclusive",
    "jensen": "inconclusive",
    "poses": "inconclusive",
  }
  assert found["figures"] == ["growth.png", "shrinking.png", "poses.png"]
  for name in found["figures"]:
    assert (folder / name).read_bytes().startswith(b"\x89PNG")
  assert len(records[0]["tables"]) == 4
