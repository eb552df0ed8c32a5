"""AdamW with clipping, warm-up and cosine decay."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from icml26_jax import checks


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Settings of the optimizer.

  Attributes:
    learning_rate: peak learning rate.
    warmup_steps: updates of linear warm-up; the first already moves.
    decay_steps: updates, warm-up included, until the cosine ends; 0 keeps the
      peak for ever.
    final_fraction: share of the peak at which the cosine ends and stays.
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    weight_decay: decoupled weight decay, times the learning rate.
    clip_norm: largest global gradient norm; None for no clipping.
    moment_dtype: dtype of the first moment, "float32" or "bfloat16".
  """

  learning_rate: float = 1e-3
  warmup_steps: int = 0
  decay_steps: int = 0
  final_fraction: float = 0.1
  b1: float = 0.9
  b2: float = 0.98
  eps: float = 1e-8
  weight_decay: float = 0.0
  clip_norm: float | None = 1.0
  moment_dtype: str = "float32"

  def __post_init__(self):
    checks.check_range("learning_rate", self.learning_rate, low=0.0)
    checks.check_range("warmup_steps", self.warmup_steps, low=0)
    checks.check_range("decay_steps", self.decay_steps, low=0)
    checks.check_range("final_fraction", self.final_fraction, low=0.0, high=1.0)
    for name in ("b1", "b2"):
      checks.check_range(
        name, getattr(self, name), low=0.0, high=1.0, open_high=True
      )
    checks.check_range("eps", self.eps, low=0.0, open_low=True)
    checks.check_range("weight_decay", self.weight_decay, low=0.0)
    if self.clip_norm is not None:
      checks.check_range("clip_norm", self.clip_norm, low=0.0, open_low=True)
    if 0 < self.decay_steps <= self.warmup_steps:
      raise ValueError(
        "optimizer.warmup_steps must be less than optimizer.decay_steps, which"
        " is num_steps unless set: got warmup_steps"
        f" {self.warmup_steps} and decay_steps {self.decay_steps}"
      )
    if self.moment_dtype not in ("float32", "bfloat16"):
      raise ValueError(
        "moment_dtype must be 'float32' or 'bfloat16', got"
        f" {self.moment_dtype!r}"
      )


def schedule(
  config: OptimizerConfig,
) -> Callable[[jax.Array | int], jax.Array]:
  """Learning rate of each update.

  Update n, from 0, has rate `peak * (n + 1) / warmup` during warm-up, then
  `peak * (f + (1 - f) * (1 + cos(pi * u)) / 2)` with u the share of the decay
  that is over and f the final fraction.

  Args:
    config: the settings.

  Returns:
    A function from the number of the update to a `[]` float32 rate.
  """
  peak, warmup = config.learning_rate, config.warmup_steps
  length = config.decay_steps - warmup

  def rate(step):
    step = jnp.asarray(step, jnp.float32)
    value = jnp.float32(peak)
    if config.decay_steps:
      over = jnp.clip((step - warmup) / length, min=0.0, max=1.0)
      cosine = 0.5 * (1.0 + jnp.cos(jnp.pi * over))
      fraction = config.final_fraction
      value = peak * (fraction + (1.0 - fraction) * cosine)
    if warmup:
      value = jnp.minimum(1.0, (step + 1.0) / warmup) * value
    return value

  return rate


def decay_mask(logical_axes: Any) -> Any:
  """Which parameters weight decay applies to: the matrices of the layers.

  Norm scales, biases and other vectors are left alone, and so is every table
  over the vocabulary.

  Args:
    logical_axes: tree of tuples of logical axis names, see
      `training.sharding`.

  Returns:
    The same tree of bool.
  """

  def one(path, axes):
    name = str(getattr(path[-1], "key", path[-1])) if path else ""
    inner = [axis for axis in axes if axis != "layers"]
    is_vector = len(inner) < 2 or name in ("bias", "scale")
    return not is_vector and "vocab" not in inner

  return jax.tree.map_with_path(
    one, logical_axes, is_leaf=lambda node: isinstance(node, tuple)
  )


def make(
  config: OptimizerConfig, logical_axes: Any = None
) -> optax.GradientTransformation:
  """AdamW: clip by global norm, moments, decoupled decay, schedule.

  Args:
    config: the settings.
    logical_axes: the parameters' logical axes, from which `decay_mask` says
      what decays; None lets every parameter decay.

  Returns:
    The optimizer.

  References:
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019,
    algorithm 2.
  """
  steps = []
  if config.clip_norm is not None:
    steps.append(optax.clip_by_global_norm(config.clip_norm))
  steps.append(
    optax.scale_by_adam(
      b1=config.b1,
      b2=config.b2,
      eps=config.eps,
      mu_dtype=jnp.dtype(config.moment_dtype),
    )
  )
  if config.weight_decay:
    mask = None if logical_axes is None else decay_mask(logical_axes)
    steps.append(optax.add_decayed_weights(config.weight_decay, mask))
  steps.append(optax.scale_by_learning_rate(schedule(config)))
  return optax.chain(*steps)
