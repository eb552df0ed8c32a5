"""What a diffusion language model is made of: latent, process, transforms.

A `Process` corrupts tokens and takes one reverse step; a `LogitTransform`
edits the network's predictions; an `UnmaskingPolicy` says which positions to
commit now. Each is a NamedTuple of pure functions over explicit pytrees, so
any process, any chain of transforms and any policy run together in
`sampling.sample` under `jit`, `vmap` and `lax.scan`.

Time runs from 1 (noise) to 0 (text) throughout.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

State = Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Latent:
  """A partly corrupted batch of sequences: all that a denoiser may see.

  Attributes:
    tokens: `[B, L]` int32, the token at a revealed position. Elsewhere it is 0
      and carries no information.
    revealed: `[B, L]` bool, True where the token is known.
    sigma: `[B]` float32, standard deviation of the Gaussian noise at hidden
      positions; None for a process that only masks.
    values: `[B, L, V]` float32, the one-hot of the token, plus noise at hidden
      positions; None for a process that only masks or that lives in the
      embedding space.
    embedded: `[B, L, D]` float32, `values` seen through an embedding table
      (`values @ E`), for processes that never form a vector over the
      vocabulary.
  """

  tokens: jax.Array
  revealed: jax.Array
  sigma: jax.Array | None = None
  values: jax.Array | None = None
  embedded: jax.Array | None = None


# (latent, t[B]) -> logits [B, L, V]
DenoiseFn = Callable[[Latent, jax.Array], jax.Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
  """What a transform or a policy may look at besides the predictions.

  Attributes:
    keys: `[B]` typed keys, one a row, fresh for this caller and step.
    latent: the latent the predictions were made from.
    index: `[]` int32, number of the step, from 0.
    time: `[]` float32, the time of `latent`.
    next_time: `[]` float32, the time to step to.
    is_last: `[]` bool, True on the step that must commit every position.
  """

  keys: jax.Array
  latent: Latent
  index: jax.Array
  time: jax.Array
  next_time: jax.Array
  is_last: jax.Array


class LogitTransform(NamedTuple):
  """Edits predictions, with memory.

  Attributes:
    init: `tokens [B, L] -> state`. Every leaf of the state has the rows as its
      first axis, `[B, ...]`: a row that needs no network call at a step keeps
      its own state, whatever the other rows of the batch do.
    update: `(logits [B, L, V] float32, state, step) -> (logits, state)`. The
      incoming logits are log-probabilities with carry-over: at a revealed
      position 0 for its token and -inf elsewhere. The outgoing ones need not
      be normalised, and what they say of revealed positions is ignored.
  """

  init: Callable[[jax.Array], State]
  update: Callable[[jax.Array, State, Step], tuple[jax.Array, State]]


class Selection(NamedTuple):
  """What a policy decides.

  Attributes:
    commit: `[B, L]` bool, positions to fix now; revealed ones are ignored.
    tokens: `[B, L]` int32 tokens to write there, or None to draw them from
      the transformed predictions.
  """

  commit: jax.Array
  tokens: jax.Array | None = None


class UnmaskingPolicy(NamedTuple):
  """Chooses the positions to commit at a step, with memory.

  Attributes:
    init: `tokens [B, L] -> state`, every leaf `[B, ...]` as in
      `LogitTransform`.
    select: `(log_probs, state, step) -> (Selection, state)`. `log_probs
      [B, L, V]` float32 are the network's own, before any transform, so that
      a temperature never changes the order; None if `uses_predictions` is
      False.
    uses_predictions: False if the choice does not depend on the network, so
      that a call whose result nobody would use can be left out.
  """

  init: Callable[[jax.Array], State]
  select: Callable[[jax.Array | None, State, Step], tuple[Selection, State]]
  uses_predictions: bool


class Process(NamedTuple):
  """A corruption process of a diffusion language model and its reversal.

  `keys` are `[B]` typed keys, one a row: a batch gives what its rows give one
  by one.

  Attributes:
    vocab_size: number of tokens V, without any mask symbol.
    corrupt: `(keys, x0 [B, L], t [B]) -> Latent`, a draw of the forward
      process.
    prior: `(keys, tokens [B, L], revealed [B, L], t []) -> Latent`, the start
      of sampling at time `t`, given tokens in place.
    evaluate: `(denoise_fn, latent, t [], s []) -> (logits [B, L, V], extra)`,
      the network call of a step from `t` to `s`; `extra` is handed to
      `reverse` (for instance a guidance gradient).
    reverse: `(keys, latent, logits, extra, t [], s [], selection) -> Latent`
      at time `s`, with exactly the selected positions newly revealed. `logits`
      are the transformed predictions, not necessarily normalised.
    loss: `(logits, x0, latent, t [B], mask [B, L]) -> [B]` float32, training
      loss of each sequence in nats, summed over its positions; only
      positions with `mask` count.
    ancestral: the unmasking policy under which `reverse` samples from the
      process.
    is_stationary: True if a latent only changes where a position is
      committed, so that a step that commits nothing needs no network call.
  """

  vocab_size: int
  corrupt: Callable[[jax.Array, jax.Array, jax.Array], Latent]
  prior: Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Latent]
  evaluate: Callable[
    [DenoiseFn, Latent, jax.Array, jax.Array], tuple[jax.Array, Any]
  ]
  reverse: Callable[
    [jax.Array, Latent, jax.Array, Any, jax.Array, jax.Array, Selection],
    Latent,
  ]
  loss: Callable[
    [jax.Array, jax.Array, Latent, jax.Array, jax.Array], jax.Array
  ]
  ancestral: UnmaskingPolicy
  is_stationary: bool


def identity() -> LogitTransform:
  """The transform that changes nothing."""
  return LogitTransform(
    init=lambda tokens: (), update=lambda logits, state, step: (logits, state)
  )


def chain(*transforms: LogitTransform) -> LogitTransform:
  """Transforms applied from left to right, as one transform.

  Each member sees its own fresh keys, and log-probabilities with carry-over:
  what one member leaves unnormalised is normalised for the next. `chain()` is
  the identity and `chain(a)` gives what `a` gives but for the keys.

  Args:
    *transforms: the members.

  Returns:
    A transform whose state is the tuple of the members' states.
  """

  def init(tokens):
    return tuple(transform.init(tokens) for transform in transforms)

  def update(logits, states, step):
    new_states = []
    for i, (transform, state) in enumerate(
      zip(transforms, states, strict=True)
    ):
      member_step = dataclasses.replace(step, keys=fold_rows(step.keys, i))
      if i:
        logits = carry_over(logits, step.latent.tokens, step.latent.revealed)
      logits, state = transform.update(logits, state, member_step)
      new_states.append(state)
    return logits, tuple(new_states)

  return LogitTransform(init, update)


def row_keys(key: jax.Array, batch_size: int) -> jax.Array:
  """One key a row; row b's key does not depend on the batch size.

  Args:
    key: a typed key, or `[B]` typed keys, which are returned as they are.
    batch_size: number of rows B.

  Returns:
    `[B]` typed keys.

  Raises:
    TypeError: if `key` is not a typed key.
    ValueError: if several keys are given, but not one a row.
  """
  dtype = getattr(key, "dtype", None)
  if dtype is None or not jnp.issubdtype(dtype, jax.dtypes.prng_key):
    raise TypeError(
      "key must be a typed key (jax.random.key), got"
      f" {type(key).__name__ if dtype is None else dtype}"
    )
  if key.shape == (batch_size,):
    return key
  if key.shape:
    raise ValueError(
      f"key must be one key or one a row ({batch_size},), got shape {key.shape}"
    )
  rows = jnp.arange(batch_size)
  return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)


def row_values(name: str, value: Any, batch_size: int) -> jax.Array:
  """One float32 number a row.

  Args:
    name: how the argument is called, for the message.
    value: one number, or one a row.
    batch_size: number of rows B.

  Returns:
    `[B]` float32.

  Raises:
    ValueError: if the shape is neither `()` nor `(B,)`.
  """
  if jnp.shape(value) not in ((), (batch_size,)):
    raise ValueError(
      f"{name} must be one number or one a row ({batch_size},), got shape"
      f" {jnp.shape(value)}"
    )
  return jnp.broadcast_to(jnp.asarray(value, jnp.float32), (batch_size,))


def fold_rows(keys: jax.Array, data: jax.Array | int) -> jax.Array:
  """Folds one integer into every key of a row of keys."""
  return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, data)


def carry_over(
  logits: jax.Array, tokens: jax.Array, revealed: jax.Array
) -> jax.Array:
  """Log-probabilities in which a revealed token is certain.

  Args:
    logits: `[B, L, V]` any float.
    tokens: `[B, L]` int32, the tokens at revealed positions.
    revealed: `[B, L]` bool.

  Returns:
    `[B, L, V]` float32: log-softmax at hidden positions; at revealed ones 0
    for the token and -inf elsewhere.
  """
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
  certain = jnp.where(
    jnp.arange(logits.shape[-1])[None, None] == tokens[..., None],
    0.0,
    -jnp.inf,
  )
  return jnp.where(revealed[..., None], certain, log_probs)
