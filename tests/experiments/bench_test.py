"""Benchmarks beside peers: how they time, count, compare and fail."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import bench, benchmarks, cli
from experiments.benchmarks import _timing, diffusion
from icml26_jax.diffusion import process as process_lib
from icml26_jax.models import dit

ROOT = pathlib.Path(__file__).parents[2]
SMALL = dit.Config(27, d_model=16, num_layers=2, num_heads=2, scan_layers=False)

needs_torch = pytest.mark.skipif(
  importlib.util.find_spec("torch") is None, reason="needs the extra peers"
)


class _Clock:
  """Time that passes only where a side says so."""

  def __init__(self):
    self.now, self.calls = 0.0, []

  def side(self, name, seconds):
    """A side that takes so long in turn."""
    durations = iter(seconds)

    def run():
      self.calls.append(name)
      self.now += next(durations)

    return run

  def __call__(self):
    return self.now


def _measure(**options):
  clock = _Clock()
  case = _timing.Case(
    name="work",
    flops=2e9,
    sides={
      _timing.OURS: clock.side("ours", [9, 2, 1, 4]),
      "peer": clock.side("peer", [9, 3, 6, 4]),
    },
    target=1.5,
  )
  (result,) = _timing.measure(
    [case], repetitions=3, warmup=1, clock=clock, **options
  )
  return clock, result


def test_sides_take_turns_in_alternating_order():
  rounds = []
  clock, _ = _measure(advance=lambda: rounds.append(None))
  assert clock.calls == [
    "ours",
    "peer",
    "ours",
    "peer",
    "peer",
    "ours",
    "ours",
    "peer",
  ]
  assert len(rounds) == 3


def test_times_ratio_and_record_leave_out_the_warmup():
  _, result = _measure()
  assert result.seconds[_timing.OURS].tolist() == [2, 1, 4]
  assert result.seconds["peer"].tolist() == [3, 6, 4]
  assert result.ratio == 4 / 2
  record = result.record()
  assert record["sides"][_timing.OURS] == {
    "median_ms": 2000.0,
    "quartiles_ms": [1500.0, 3000.0],
    "fastest_ms": 1000.0,
    "gflop_per_second": 1.0,
  }
  # Of the ratios 1.5, 6 and 1.
  assert record["paired_ratio_quartiles"] == [1.25, 3.75]
  assert (record["peer"], record["target"]) == ("peer", 1.5)
  json.dumps(record)


def test_no_repetition_is_refused():
  with pytest.raises(ValueError, match="repetitions must be at least 1"):
    _timing.measure([], repetitions=0)


def _product_flops(jaxpr):
  """Two for every multiplication in the matrix products of a program."""
  total = 0
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == "dot_general":
      (summed, _), _ = eqn.params["dimension_numbers"]
      depth = np.prod([eqn.invars[0].aval.shape[i] for i in summed])
      total += 2 * depth * np.prod(eqn.outvars[0].aval.shape)
    for value in eqn.params.values():
      inner = getattr(value, "jaxpr", value)
      if hasattr(inner, "eqns"):
        total += eqn.params.get("length", 1) * _product_flops(inner)
  return total


@pytest.mark.parametrize(
  "config", [SMALL, dit.Config(27)], ids=["small", "char"]
)
def test_flops_are_those_of_the_programs_products(config):
  params = jax.eval_shape(lambda: dit.init(jax.random.key(0), config))
  latent = process_lib.Latent(
    jnp.zeros((3, 8), jnp.int32), jnp.zeros((3, 8), bool)
  )
  jaxpr = jax.make_jaxpr(
    lambda params: dit.apply(params, latent, jnp.ones(3), config=config)
  )(params)
  expected = _product_flops(jaxpr.jaxpr)
  assert diffusion.forward_flops(config, 3, 8) == expected


def test_suites_are_found_by_file():
  names = benchmarks.names()
  assert "diffusion" in names
  assert not any(name.startswith("-") for name in names)
  for name in names:
    suite = benchmarks.load(name)
    assert suite.__doc__
    for function in ("cases", "check_peers", "environment"):
      assert callable(getattr(suite, function))


def test_a_missing_peer_names_its_extra(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(
    cli.UserError, match=r"with torch, which.*pip install -e '.\[peers\]'"
  ):
    bench.load("diffusion")


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    (
      "--suite=difusion",
      "unknown suite 'difusion' (did you mean 'diffusion'?)",
    ),
    ("--seed=1", "--suite must name a suite; suites: diffusion"),
    ("--repetitions=0", "repetitions"),
  ],
)
def test_wrong_arguments_are_one_line_and_code_2(flag, message):
  run = subprocess.run(
    [sys.executable, "-m", "experiments.bench", flag],
    capture_output=True,
    text=True,
    cwd=ROOT,
    env=dict(os.environ),
  )
  assert (run.returncode, run.stdout) == (2, "")
  assert run.stderr.startswith("error: ")
  assert message in run.stderr
  assert run.stderr.count("\n") == 1


def test_a_report_is_json_and_a_table(capsys):
  def cases(seed):
    return [
      _timing.Case(
        name=f"nothing, seed {seed}",
        flops=1e6,
        sides={_timing.OURS: lambda: None, "peer": lambda: None},
        note="for the test",
      )
    ]

  suite = types.SimpleNamespace(
    cases=cases, environment=lambda: {"peer": "1.0"}
  )
  report = bench.run(suite, "nothing", 2, 7)
  assert report["schema"] == bench.SCHEMA
  assert report["environment"]["peer"] == "1.0"
  assert report["cases"][0]["repetitions"] == 2
  json.dumps(report)
  bench.show(report)
  shown = capsys.readouterr().out
  for text in ("suite nothing", "nothing, seed 7", "peer", "for the test"):
    assert text in shown


@needs_torch
def test_both_sides_compute_one_function_and_call_it_as_often(monkeypatch):
  monkeypatch.setattr(diffusion, "ROWS", 2)
  monkeypatch.setattr(diffusion, "LENGTH", 8)
  monkeypatch.setattr(diffusion, "STEPS", 3)
  monkeypatch.setattr(diffusion, "config", lambda: SMALL)
  # Raises if logits or numbers of calls differ.
  train, sample = diffusion.cases(seed=0)
  assert train.peer == sample.peer == diffusion.PEER
  losses = {side: run() for side, run in train.sides.items()}
  assert all(np.isfinite(loss) for loss in losses.values())
  # Near uniform predictions, at times that differ.
  assert all(0.5 < loss / np.log(27) < 2 for loss in losses.values())
  forward = diffusion.forward_flops(SMALL, 2, 8)
  assert train.flops == 3 * forward
  assert forward <= sample.flops <= 3 * forward


@needs_torch
def test_another_function_is_noticed(monkeypatch):
  from experiments.benchmarks import _torch_dit

  params = dit.init(jax.random.key(0), SMALL)
  tokens = np.zeros((2, diffusion.LENGTH), np.int32)
  monkeypatch.setattr(_torch_dit, "_norm", lambda x: x)
  with pytest.raises(AssertionError, match="networks differ"):
    diffusion.check_agreement(params, SMALL, tokens)


@needs_torch
def test_torch_weights_are_all_taken_from_ours():
  from experiments.benchmarks import _torch_dit

  params = dit.init(jax.random.key(0), SMALL)
  module = _torch_dit.load(params, SMALL, 8)
  count = sum(weights.numel() for weights in module.parameters())
  assert count == dit.num_params(SMALL)


@needs_torch
def test_torch_sampler_reveals_everything():
  import torch

  from experiments.benchmarks import _torch_dit

  torch.manual_seed(0)
  module = _torch_dit.load(dit.init(jax.random.key(0), SMALL), SMALL, 8)
  times = np.linspace(1, 0, 33)
  tokens, calls = _torch_dit.sample(module, (1, 8), times, eps=1e-3)
  assert tokens.shape == (1, 8)
  assert 0 <= int(tokens.min()) <= int(tokens.max()) < 27
  # At most one call a token, and fewer than steps: most commit nothing.
  assert 1 <= calls <= 8
