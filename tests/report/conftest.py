"""A small report with everything a report can hold."""

import pytest

from icml26_jax.report import claims, plots

RUN = claims.Run(
  paper="candi",
  title="A title with | and <tags>",
  budget="small",
  seed=7,
  seconds=192.345,
  environment={
    "python": "3.11.7",
    "jax": "0.10.1",
    "device": "cpu",
    "devices": 1,
    "cores": 2,
    "date": "2026-07-01 12:00 UTC",
    "commit": "0123456789abcdef" * 2 + "01234567",
  },
)


@pytest.fixture
def run():
  return RUN


@pytest.fixture
def report():
  figure, axes = plots.new(title="Quality")
  with plots.style():
    plots.line(
      axes[0, 0],
      [1, 2],
      [3.0, 2.5],
      index=0,
      label="CANDI",
      interval=([2.9, 2.4], [3.1, 2.6]),
    )
    plots.reference(axes[0, 0], 2.3, "entropy rate")
    axes[0, 0].set(xlabel="network calls", ylabel="NLL (nats per character)")
    axes[0, 0].legend()
  check = claims.below(
    "difference at N=2", claims.Estimate(-0.1, -0.12, -0.08), 0.0
  )
  statement = (
    "With exact conditionals the hybrid process writes better text than the"
    " masked one at the same number of network calls."
  )
  made = [
    claims.judge(
      [check],
      id=name,
      statement=statement,
      paper_figure="a frontier on OpenWebText",
      criterion="the whole paired interval is below 0",
      seeds=seeds,
      unit="nat",
    )
    for name, seeds in (("oracle", 3), ("trained", 1))
  ]
  wide = claims.Table(
    "wide",
    "A wide table",
    tuple(claims.Column(f"column {i}") for i in range(12)),
    (tuple(claims.Estimate(3.0, 2.9, 3.1) for _ in range(12)),),
  )
  narrow = claims.Table(
    "narrow",
    "A narrow table",
    (claims.Column("process"), claims.Column("NLL (nats)", 2)),
    (("MDLM", 3.14159), ("CANDI", None), ("count", 12345)),
    note="Three seeds.",
  )
  return claims.Report(
    tuple(made),
    (wide, narrow),
    (claims.Figure("quality", "Lower is better.", figure),),
  )
