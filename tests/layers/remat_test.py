"""What the backward pass keeps."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from icml26_jax.layers import block, remat


@pytest.mark.parametrize(
  "policy", ["", "all", "dots+qkv", "qkv+", "qkv+qkv", "qkv,context"]
)
def test_unknown_policies_are_refused(policy):
  with pytest.raises(ValueError, match="remat must be one of none, dots, full"):
    remat.check(policy)


@pytest.mark.parametrize(
  "policy", ["dots", "full", *remat.NAMES, "qkv+mlp_out"]
)
def test_known_policies_have_a_function(policy):
  assert callable(remat.policy_fn(policy))


def test_none_wraps_nothing():
  assert remat.policy_fn("none") is None
  assert remat.wrap(block.Block, "none", scanned=False) is block.Block


def _kept(policy, capsys):
  """Shapes that the backward pass of a block keeps, inputs left out."""
  module = remat.wrap(block.Block, policy, scanned=False)(2, 24)
  x = jnp.ones((2, 5, 8))
  params = nn.meta.unbox(block.Block(2, 24).init(jax.random.key(0), x))
  jax.ad_checkpoint.print_saved_residuals(
    lambda params, x: module.apply(params, x), params, x
  )
  lines = capsys.readouterr().out.splitlines()
  shapes = [
    line.split("[")[1].split("]")[0]
    for line in lines
    if "from the argument" not in line and "from a constant" not in line
  ]
  return sorted(tuple(map(int, shape.split(","))) for shape in shapes)


@pytest.mark.parametrize(
  ("policy", "expected"),
  [
    ("full", []),
    (remat.QKV, [(2, 2, 5, 4)] * 3),
    (remat.CONTEXT, [(2, 2, 5, 4)]),
    (remat.ATTENTION_OUT, [(2, 5, 8)]),
    (remat.MLP_HIDDEN, [(2, 5, 24)]),
    # Two-dimensional products: fused projection, attention's and the MLP's.
    ("dots", [(10, 8), (10, 24), (10, 24)]),
  ],
)
def test_a_policy_keeps_what_it_names(policy, expected, capsys):
  assert _kept(policy, capsys) == expected
