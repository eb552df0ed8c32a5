"""State of training, and how it comes to lie sharded on the devices."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from icml26_jax.training import sharding as sharding_lib

Params = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
  """All that training carries from step to step.

  Attributes:
    step: `[]` int32, updates made so far.
    params: tree of parameters.
    ema_params: the same tree, their exponential moving average; None for none.
    opt_state: state of the optimizer.
    key: typed key, never consumed: step n folds n into it.
  """

  step: jax.Array
  params: Params
  ema_params: Params | None
  opt_state: optax.OptState
  key: jax.Array

  @property
  def sampling_params(self) -> Params:
    """The parameters to sample and evaluate with: the average if there is one."""
    return self.params if self.ema_params is None else self.ema_params


def create(
  key: jax.Array,
  init_fn: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  *,
  with_ema: bool,
) -> TrainState:
  """The state before the first step, on whatever device it is computed.

  Args:
    key: typed key; its halves initialise the parameters and drive training.
    init_fn: key to parameters.
    optimizer: the optimizer.
    with_ema: whether to keep an average of the parameters, which starts at
      the parameters themselves.

  Returns:
    The state.
  """
  init_key, train_key = jax.random.split(key)
  params = init_fn(init_key)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    ema_params=jax.tree.map(jnp.copy, params) if with_ema else None,
    opt_state=optimizer.init(params),
    key=train_key,
  )


def abstract(
  init_fn: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  mesh: jax.sharding.Mesh,
  rules: sharding_lib.Rules,
  logical_axes: Any,
  *,
  with_ema: bool,
) -> TrainState:
  """Shapes, dtypes and shardings of the state; nothing is computed.

  Whatever the optimizer keeps for each parameter lies as that parameter does;
  counters and the key are on every device.

  Args:
    init_fn: key to parameters.
    optimizer: the optimizer.
    mesh: the mesh.
    rules: logical axis rules.
    logical_axes: the parameters' logical axes.
    with_ema: whether there is an average of the parameters.

  Returns:
    A state of `jax.ShapeDtypeStruct`, to compile for, to initialise and to
    restore into.

  Raises:
    ValueError: if a parameter does not fit the mesh; see
      `training.sharding.param_shardings`.
  """
  shapes = jax.eval_shape(
    lambda key: create(key, init_fn, optimizer, with_ema=with_ema),
    jax.random.key(0),
  )
  params = sharding_lib.param_shardings(
    mesh, logical_axes, rules, shapes.params
  )
  whole: Any = sharding_lib.replicated(mesh)
  shardings = TrainState(
    step=whole,
    params=params,
    ema_params=params if with_ema else None,
    opt_state=optax.tree.map_params(
      optimizer,
      lambda leaf, sharding: sharding,
      shapes.opt_state,
      params,
      transform_non_params=lambda leaf: whole,
    ),
    key=whole,
  )
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    shapes,
    shardings,
  )


def shardings(abstract_state: TrainState) -> TrainState:
  """The shardings of an abstract state, as a state."""
  return jax.tree.map(lambda leaf: leaf.sharding, abstract_state)


def init(
  key: jax.Array,
  init_fn: Callable[[jax.Array], Params],
  optimizer: optax.GradientTransformation,
  abstract_state: TrainState,
) -> TrainState:
  """Computes the state before the first step in place.

  Each device computes its own part: no device ever holds a whole copy of a
  parameter that is cut. The values do not depend on the mesh.

  Args:
    key: typed key.
    init_fn: key to parameters.
    optimizer: the optimizer.
    abstract_state: from `abstract`.

  Returns:
    The state.
  """
  with_ema = abstract_state.ema_params is not None
  return jax.jit(
    lambda key: create(key, init_fn, optimizer, with_ema=with_ema),
    out_shardings=shardings(abstract_state),
  )(key)
