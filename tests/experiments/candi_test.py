"""The parts of CANDI's experiment."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import reproduce
from experiments.papers import _text_models as text_models
from experiments.papers import candi as paper
from experiments.papers._candi import (
  comparison,
  corpus,
  dissonance,
  figures,
  guidance,
  oracle,
  trained,
)
from icml26_jax.diffusion import candi, mdlm, sampling
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import discrete
from icml26_jax.evaluation import intervals, linear_probe, sample_quality


@pytest.mark.parametrize("num_steps", [1, 2, 16, 17, 64, 65])
def test_standing_start_ends_in_the_plain_times(num_steps):
  times = oracle.standing_start(num_steps)
  assert len(times) - 1 in (16, 64, 65)
  np.testing.assert_array_equal(
    times[-num_steps - 1 :], sampling.time_grid(num_steps)
  )
  assert np.all(times[: -num_steps - 1] == 1.0)


@pytest.mark.parametrize("update", [None, "pf_ode", "release"])
def test_a_step_that_stands_still_changes_nothing(update):
  process = candi.process(3, update=update) if update else mdlm.process(3)
  keys = process_lib.row_keys(jax.random.key(0), 2)
  hidden = jnp.zeros((2, 5), bool)
  latent = process.prior(keys, jnp.zeros((2, 5), jnp.int32), hidden, 1.0)
  now = jnp.float32(1.0)
  step = process_lib.Step(
    keys=jax.random.clone(keys),
    latent=latent,
    index=jnp.int32(0),
    time=now,
    next_time=now,
    is_last=jnp.bool_(False),
  )
  logits = jnp.zeros((2, 5, 3))
  selection, _ = process.ancestral.select(logits, (), step)
  assert not np.any(selection.commit)
  after = process.reverse(
    jax.random.clone(keys), latent, logits, None, now, now, selection
  )
  assert not np.any(after.revealed)
  if update:
    np.testing.assert_array_equal(after.sigma, latent.sigma)
    # x0 + (y - x0) is y to rounding.
    np.testing.assert_allclose(after.values, latent.values, atol=1e-6)


def test_ranks_may_be_traced():
  t = jnp.linspace(0.0, 1.0, 5)
  got = jax.jit(lambda a, b: oracle.hybrid_schedule(a, b).sigma(t))(0.05, 0.45)
  expected = candi.rank_linear_schedule(r_min=0.05, r_max=0.45).sigma(t)
  np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_jobs_in_threads_keep_their_results():
  found = oracle.in_threads("test", [[1, 2], [3], []], lambda job: job**2)
  assert found == {1: 1, 2: 4, 3: 9}


def test_an_error_in_a_thread_is_raised():
  with pytest.raises(ZeroDivisionError):
    oracle.in_threads("test", [[0]], lambda job: 1 / job)


@pytest.mark.slow  # Four programs to compile.
def test_samplers_agree_with_two_independent_trials():
  """NLL of the exact-denoiser comparison, known to 0.015 at N=2, 0.008 at N=8."""
  expected = {
    (oracle.MASKED.name, 2): (3.22, 0.015),
    (oracle.MASKED.name, 8): (2.535, 0.008),
    (oracle.DECLARED.name, 2): (3.045, 0.015),
    (oracle.DECLARED.name, 8): (2.494, 0.008),
    ("CANDI release, draw, r .01-.25", 2): (3.095, 0.015),
    ("CANDI release, draw, r .01-.25", 8): (2.406, 0.008),
  }
  names = {name for name, _ in expected}
  samples = oracle.run(
    jax.random.key(11),
    settings=[s for s in oracle.SETTINGS if s.name in names],
    steps=(2, 8),
    seeds=1,
    rows=512,
    length=64,
  )
  for job, (nll, error) in expected.items():
    got = sample_quality.with_intervals(samples.scores[job]).nll
    ours = (got.high - got.low) / (2 * 1.96)
    assert abs(got.estimate - nll) < 4 * np.hypot(ours, error), job


def test_chain_is_that_of_the_card():
  chain = corpus.chain()
  entropy = -np.sum(chain.initial * np.log(chain.initial))
  # The text differs a little between versions of Python.
  assert abs(entropy - 2.839) < 0.01
  joint = corpus.joint_bigrams(chain)
  np.testing.assert_allclose(joint.sum(), 1.0, rtol=1e-12)
  np.testing.assert_allclose(joint.sum(axis=0), joint.sum(axis=1), atol=1e-6)


def test_identifiers_are_names_only():
  text = corpus.identifiers("first_half", 2000)
  assert text.shape == (2000,)
  assert (
    corpus._names("def f(x):\n  # note\n  return 'text', x.y\n", 99)
    == "f x x y "
  )
  assert corpus._names("abc = defg = hij\n", 5) == "abc defg "


def test_too_many_windows_are_refused():
  with pytest.raises(ValueError, match="count must be at most 2, got 3"):
    corpus.windows(np.arange(10), 4, 3)
  with pytest.raises(ValueError, match="num_tokens must be at most"):
    corpus.identifiers("first_half", 10**8)


def test_exact_guidance_in_closed_form_equals_every_call():
  rng = np.random.default_rng(0)
  vocab_size, shape = 4, (3, 5)
  probe = linear_probe.LinearProbe(
    jnp.asarray(rng.normal(size=vocab_size), jnp.float32), jnp.float32(0.2)
  )
  revealed = jnp.asarray(rng.random(shape) < 0.4)
  tokens = jnp.asarray(rng.integers(0, vocab_size, shape), jnp.int32)
  logits = process_lib.carry_over(
    jnp.asarray(rng.normal(size=(*shape, vocab_size)), jnp.float32),
    tokens,
    revealed,
  )
  step = process_lib.Step(
    keys=process_lib.row_keys(jax.random.key(0), 3),
    latent=process_lib.Latent(tokens, revealed),
    index=jnp.int32(0),
    time=jnp.float32(1.0),
    next_time=jnp.float32(0.5),
    is_last=jnp.bool_(False),
  )
  got, _ = guidance.exact_cbg(probe, jnp.float32(3.0)).update(logits, (), step)
  slow = discrete.cbg_exact(linear_probe.log_prob_fn(probe), 3.0)
  expected, _ = slow.update(logits, (), step)
  # Scores of size 1 times the scale 3, in float32.
  np.testing.assert_allclose(got, expected, atol=1e-5)


def _sweep(nll, success):
  """A sweep whose S sequences scatter around straight lines."""
  rng = np.random.default_rng(0)
  rows = np.arange(200)[None] / 200
  return guidance.Sweep(
    scales=tuple(range(len(nll))),
    nll=np.asarray(nll)[:, None] + 0.1 * rng.normal(size=(1, 200)),
    success=rows < np.asarray(success)[:, None],
    entropy=np.ones(len(nll)),
  )


def test_methods_are_compared_at_equal_success():
  first = _sweep([2.0, 3.0], [0.0, 1.0])
  second = _sweep([2.5, 3.5, 4.5], [0.0, 0.5, 1.0])
  found = guidance.difference_at_success(
    first, second, (0.25, 0.5), jax.random.key(0), num_resamples=200
  )
  # 2.25 - 3 and 2.5 - 3.5, and the noise falls out of the difference.
  np.testing.assert_allclose(found.estimate, [-0.75, -1.0], atol=1e-9)
  assert np.all(found.low <= found.estimate)
  assert np.all(found.estimate <= found.high)
  # Success moves by sqrt(.25 / 200) = 0.035, and the slopes differ by 1.
  assert np.all(found.high - found.low < 4 * 1.96 * 0.035)


def test_success_that_is_not_reached_is_left_open():
  first = _sweep([2.0, 3.0], [0.0, 0.4])
  found = guidance.difference_at_success(
    first, first, (0.2, 0.8), jax.random.key(0), num_resamples=50
  )
  assert found.estimate[0] == 0.0
  assert np.isnan(found.estimate[1])
  assert np.isnan(found.low[1])


def test_levels_that_are_not_reached_are_explained():
  sweeps = {
    "low": _sweep([2.0, 3.0], [0.1, 0.4]),
    "high": _sweep([2.0, 3.0], [0.3, 0.9]),
  }
  names = ("low", "high")
  assert (
    guidance.why_open(sweeps, names, 0.5) == "low covers success of 10% to 40%"
  )
  assert (
    guidance.why_open(sweeps, names, 0.2) == "high covers success of 30% to 90%"
  )
  assert "and high covers" in guidance.why_open(sweeps, names, 0.95)
  assert (
    guidance.why_open(sweeps, names, 0.4) == "not covered in every resample"
  )


def test_guidance_table_has_intervals_over_sequences():
  sweep = _sweep([2.0, 3.0], [0.25, 1.0])
  table = figures.guidance_table({"MDLM": sweep}, "note")
  name, scale, success, nll, entropy = table.rows[0]
  assert (name, scale, entropy) == ("MDLM", 0, 1.0)
  assert success.value == 25.0
  # Quantile 1.972 of Student's distribution with 199 degrees of freedom.
  expected = 1.972 * 100 * np.sqrt(0.25 * 0.75 / 199)
  assert success.high - success.value == pytest.approx(expected, rel=1e-3)
  spread = 1.972 * np.std(sweep.nll[0], ddof=1) / np.sqrt(200)
  assert nll.value - nll.low == pytest.approx(spread, rel=1e-3)
  assert table.note == "note"


def _quality(nll, kl, entropy):
  return sample_quality.Quality(
    *(
      intervals.Interval(
        np.float64(x), np.float64(x - 0.1), np.float64(x + 0.1)
      )
      for x in (nll, entropy, kl)
    )
  )


def test_conditions_ask_for_better_text_as_varied_as_the_real():
  differences = {
    2: _quality(-0.3, -0.2, 0.0),
    4: _quality(0.3, -0.2, 0.0),
  }
  entropies = {
    n: intervals.Interval(*map(np.float64, ends))
    for n, ends in {2: (2.8, 2.79, 2.81), 4: (2.83, 2.82, 2.84)}.items()
  }
  found = comparison.checks(differences, entropies, 2.82, 0.05)
  assert [check.verdict for check in found] == [
    "holds",
    "holds",
    "holds",
    "fails",
    "holds",
    "holds",
  ]
  # The miss is named by the claim itself.
  assert comparison.gains(differences, found) == (
    "NLL minus MDLM's: -0.300 at N=2"
  )


def test_a_far_reference_does_not_squeeze_the_curves():
  qualities = {
    ("MDLM", n): _quality(4.0 + 1 / n, 0.5 / n + 0.2, 2.8) for n in (1, 2, 4)
  }
  figure = figures.quality_figure(
    "x",
    "caption",
    qualities,
    ["MDLM"],
    "text",
    {"nll": 1.302, "kl": 0.2, "entropy": 2.85},
  ).figure
  nll, kl, entropy = figure.axes
  assert nll.get_ylim()[0] > 3.9
  assert [text.get_text() for text in nll.texts] == ["↓ text: 1.302"]
  for axis, value in ((kl, 0.2), (entropy, 2.85)):
    assert list(axis.lines[-1].get_ydata()) == [value, value]
    assert not axis.texts
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.texts] == ["MDLM", "text"]
  assert all(axis.get_title() for axis in figure.axes)


def test_curves_of_dissonance_are_told_apart():
  axis = dissonance.figure().figure.axes[0]
  curves = [line for line in axis.lines if len(line.get_xdata()) == 200]
  assert len(curves) == 5
  looks = {(line.get_linestyle(), line.get_linewidth()) for line in curves}
  assert len(looks) == 5
  dots = [line for line in axis.lines if line.get_marker() == "o"]
  assert {float(dot.get_ydata()[0]) for dot in dots} == {0.5}
  assert all(dot.get_color() != "black" for dot in dots)


@pytest.mark.parametrize(
  ("vocab_size", "sigma", "rank"),
  [(27, 0.50677, 0.0815), (1000, 0.30900, 0.0111), (50257, 0.23648, 0.00139)],
)
def test_half_of_the_tokens_are_lost_where_the_card_says(
  vocab_size, sigma, rank
):
  got = dissonance.half_lost(vocab_size)
  assert round(got[0], 5) == pytest.approx(sigma, abs=1.1e-5)
  assert got[1] == pytest.approx(rank, rel=5e-3)


def test_models_hardly_learn_what_the_judge_knows():
  first, second = (
    text_models.halves(split).astype(np.int8).tobytes()
    for split in ("first_half", "second_half")
  )
  assert min(len(first), len(second)) > 500_000
  length = 100
  learnt = {
    first[i : i + length] for i in range(0, len(first) - length, length)
  }
  hits = sum(
    second[i : i + length] in learnt for i in range(len(second) - length)
  )
  # A stretch that both halves hold meets a window of 100 once every 100
  # characters. Python's documentation does repeat a sentence here and there.
  assert hits * length / len(second) < 0.02


def test_budgets_only_grow():
  smoke, small, full = (
    paper.BUDGETS[name] for name in reproduce.papers.BUDGETS
  )
  assert small.settings == full.settings == oracle.SETTINGS
  assert set(smoke.steps) >= set(paper.FEW_CALLS)
  assert (small.trainings, full.trainings) == (1, 3)
  assert smoke.size.characters < small.size.characters < full.size.characters
  assert small.trained_steps[: len(paper.FEW_CALLS)] != ()
  for budget in (smoke, small, full):
    assert set(budget.trained_steps) >= set(paper.FEW_CALLS)


def test_reference_is_held_out_text():
  reference = trained.make_reference(32)
  assert reference.windows.shape == (256, 32)
  scores = trained.judge(reference, reference.windows)
  got = sample_quality.measure(scores)
  # The judge has seen these, so that it finds them likely.
  assert got.nll < 2.0
  assert abs(got.entropy - reference.entropy) < 0.05


@pytest.mark.slow  # The whole experiment, as small as it gets.
def test_smoke_budget_runs_to_a_report(tmp_path, monkeypatch):
  monkeypatch.setenv("ICML26_CACHE", str(tmp_path / "cache"))
  records, broken = reproduce.run_all(["candi"], "smoke", tmp_path / "out", 0)
  assert broken == []
  found = json.loads(
    (tmp_path / "out" / "candi" / "report.json").read_text("utf-8")
  )
  assert [claim["id"] for claim in found["claims"]] == [
    "oracle",
    "trained",
    "guidance",
    "dissonance",
  ]
  # One seed decides nothing.
  assert [claim["verdict"] for claim in found["claims"]] == [
    "inconclusive",
    "inconclusive",
    "inconclusive",
    "holds",
  ]
  assert found["figures"] == [
    "oracle.png",
    "trained.png",
    "guidance.png",
    "dissonance.png",
  ]
  for name in found["figures"]:
    data = (tmp_path / "out" / "candi" / name).read_bytes()
    assert data.startswith(b"\x89PNG")
  assert len(records[0]["tables"]) == 4
