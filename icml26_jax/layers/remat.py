"""What the backward pass keeps of a block, and what it computes again."""

from __future__ import annotations

from collections.abc import Callable

import flax.linen as nn
import jax

# Names of what a block computes, for policies that keep some of it.
QKV = "qkv"
CONTEXT = "context"
ATTENTION_OUT = "attention_out"
MLP_HIDDEN = "mlp_hidden"
MLP_OUT = "mlp_out"

NAMES = (QKV, CONTEXT, ATTENTION_OUT, MLP_HIDDEN, MLP_OUT)
POLICIES = ("none", "dots", "full")


def check(policy: str) -> None:
  """Raises ValueError unless `policy` is one that `policy_fn` knows."""
  names = policy.split("+")
  known = policy in POLICIES or all(name in NAMES for name in names)
  if not known or len(set(names)) != len(names):
    raise ValueError(
      f"remat must be one of {', '.join(POLICIES)}, or some of"
      f" {', '.join(NAMES)} joined by '+', got {policy!r}"
    )


def policy_fn(policy: str) -> Callable[..., bool] | None:
  """The policy for `jax.checkpoint`.

  Args:
    policy: "none" keeps everything; "full" keeps nothing but the block's
      input; "dots" keeps the results of products with weights; names joined by
      "+", such as "qkv+context", keep what they say.

  Returns:
    The policy; None if nothing is computed again.

  Raises:
    ValueError: if the policy is unknown.
  """
  check(policy)
  policies = jax.checkpoint_policies
  if policy == "none":
    return None
  if policy == "full":
    return policies.nothing_saveable
  if policy == "dots":
    return policies.dots_with_no_batch_dims_saveable
  return policies.save_only_these_names(*policy.split("+"))


def wrap(block: type[nn.Module], policy: str, *, scanned: bool):
  """A module class that keeps what the policy says.

  Args:
    block: the class of one block.
    policy: see `policy_fn`.
    scanned: whether the block runs under `nn.scan`, whose loop already keeps
      the compiler from merging the second computation with the first.

  Returns:
    A module class.
  """
  keep = policy_fn(policy)
  if keep is None:
    return block
  return nn.remat(block, policy=keep, prevent_cse=not scanned)
