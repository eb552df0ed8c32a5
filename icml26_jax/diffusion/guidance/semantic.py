"""SAKE: predictions tilted by how much their meanings repeat each other.

Temperature flattens every position alike. Here the kernel entropy of the
predicted sequence says how redundant it is in meaning: below a target, tokens
that repeat what stands around lose probability; above it, they gain.

Predictions that are equal everywhere give no direction, so at a first, fully
masked step the rule is nearly off, and acts once predictions differ. Of two
masked positions that favour one token, the less certain loses it and the more
certain gains it: the law does not become flatter position by position.

References:
  Zhang, Lei, Feng, Sun, Farnia, "Exploring More to Solve More: Boosting
  Diversity in Text Diffusion Models via Entropy-Based Guidance", ICML 2026,
  arXiv 2608.00024. The form of the tilt is our reading of its abstract.
"""

from __future__ import annotations

from collections.abc import Callable
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import kernel_entropy

MODES = ("tilt", "temperature")


class Info(NamedTuple):
  """What guidance saw and did at a step.

  Attributes:
    h2: `[B]` float32, kernel entropy of each row in nats (of its group, if
      across samples).
    eta: `[B]` float32, strength, the mean over the row's masked positions; 0
      if there are none.
    gain: `[B]` float32, mean over masked positions of the expected size of a
      token's entropy gain |D|, in nats; 0 if there are none, or if
      `mode="temperature"`.
  """

  h2: jax.Array
  eta: jax.Array
  gain: jax.Array


def guide(
  logits: jax.Array,
  embed: jax.Array,
  masked: jax.Array,
  *,
  lam: float | jax.Array,
  target: float | jax.Array = 0.5,
  h: float | jax.Array | None = None,
  ell: float | jax.Array = 4.0,
  kind: str = "rbf",
  mode: str = "tilt",
  kappa: float | jax.Array = 1.0,
  across_samples: bool = False,
  group_size: int = 8,
  position_kind: str = "gaussian",
  tilt_embed: jax.Array | None = None,
) -> tuple[jax.Array, Info]:
  """Guides predictions by the kernel entropy of their soft embeddings.

  With `e_i = sum_v p_i(v) E_v`, `H_2` the entropy of their Gram matrix, N the
  number of positions in it and `eta = lam (target - H_2 / ln N)`:
  `mode="tilt"` gives `p_i(v) exp(eta D_i(v))`, D the first-order entropy gain
  of a token; `mode="temperature"` gives `p_i(v)^beta_i`, where
  `beta_i = exp(-kappa eta_i)` and eta_i comes from the local entropy h_i. Time
  is `O(L^2 d + L d V)` a row, memory `O(L^2 + L V)`.

  Args:
    logits: `[B, L, V]` float, not necessarily normalised; visible positions
      certain (after carry-over). -inf stays.
    embed: `[V, d]` float token embeddings; rows are scaled to unit length.
    masked: `[B, L]` bool, the positions to guide.
    lam: strength; 0 changes nothing.
    target: normalised entropy at which guidance turns its sign, in (0, 1).
    h: bandwidth of "rbf"; None for the median distance of the embeddings.
    ell: length scale of the position kernel; infinity for none.
    kind: "rbf" or "cosine2".
    mode: "tilt" or "temperature".
    kappa: factor of "temperature".
    across_samples: one Gram matrix for the rows of a group, so that they
      diversify each other: here a batch is not what its rows give one by one.
    group_size: rows of a group, consecutive, if across samples; the memory of
      a group is `(group_size L)^2`.
    position_kind: "gaussian" or "rational".
    tilt_embed: `[V, d]` float embeddings that give the direction of the tilt in
      place of `embed`, which still gives eta. With `shuffle_embeddings` it is
      the control: as strong a tilt without semantics. None for `embed`.

  Returns:
    Logits of the shape and type of `logits`, not normalised, those of positions
    that are not masked unchanged; and what guidance did. Unchanged, with an
    eta of 0, if a Gram matrix has a single position.

  Raises:
    ValueError: if shapes disagree, a concrete number is outside its range, a
      name is unknown, or a concrete embedding has length 0.
  """
  _check(lam, target, h, ell, kappa, group_size, mode, kind, position_kind)
  batch_size, length, vocab_size = logits.shape
  if embed.ndim != 2 or embed.shape[0] != vocab_size:
    raise ValueError(
      f"embed must have a row a token [{vocab_size}, d], got {embed.shape}"
    )
  if masked.shape != (batch_size, length):
    raise ValueError(
      f"masked must have shape {(batch_size, length)}, got {masked.shape}"
    )
  if tilt_embed is not None and mode == "temperature":
    raise ValueError("tilt_embed must be None in mode 'temperature'")
  dtype = jnp.promote_types(logits.dtype, jnp.float32)
  embed = _unit_rows("embed", embed.astype(dtype))
  if tilt_embed is not None:
    if tilt_embed.shape != embed.shape:
      raise ValueError(
        f"tilt_embed must have shape {embed.shape}, got {tilt_embed.shape}"
      )
    tilt_embed = _unit_rows("tilt_embed", tilt_embed.astype(dtype))
  if h is None:
    h = kernel_entropy.median_distance(embed) if kind == "rbf" else 1.0

  def guide_group(logits, masked):  # [G, L, V], [G, L]
    return _guide_group(
      logits.astype(dtype),
      masked,
      embed,
      embed if tilt_embed is None else tilt_embed,
      lam=lam,
      target=target,
      mode=mode,
      kappa=kappa,
      kernel={
        "h": h,
        "ell": ell,
        "kind": kind,
        "position_kind": position_kind,
        "positions": None,
      },
    )

  size = group_size if across_samples else 1
  guided, info = _in_groups(guide_group, size, logits, masked)
  guided = jnp.where(masked[..., None], guided.astype(logits.dtype), logits)
  return guided, info


def sake(
  embed: jax.Array,
  *,
  lam: float | jax.Array,
  target: float | jax.Array = 0.5,
  h: float | jax.Array | None = None,
  ell: float | jax.Array = 4.0,
  kind: str = "rbf",
  mode: str = "tilt",
  kappa: float | jax.Array = 1.0,
  across_samples: bool = False,
  group_size: int = 8,
  position_kind: str = "gaussian",
  tilt_embed: jax.Array | None = None,
) -> process_lib.LogitTransform:
  """SAKE as a member of a chain; see `guide` for the arguments.

  Args:
    embed: `[V, d]` float token embeddings, of the model itself or of a small
      encoder.
    lam: strength; with 0 it changes nothing, but still tells the entropy.
    target: normalised entropy at which guidance turns its sign, in (0, 1).
    h: bandwidth of "rbf"; None for the median distance of the embeddings,
      computed once.
    ell: length scale of the position kernel; infinity for none.
    kind: "rbf" or "cosine2".
    mode: "tilt" or "temperature".
    kappa: factor of "temperature".
    across_samples: one Gram matrix for the rows of a group.
    group_size: rows of a group, if across samples.
    position_kind: "gaussian" or "rational".
    tilt_embed: `[V, d]` float embeddings of the control.

  Returns:
    A transform whose memory is the `Info` of the last step, for
    `sampling.sample(record=...)`.

  Raises:
    ValueError: as `guide`.
  """
  _check(lam, target, h, ell, kappa, group_size, mode, kind, position_kind)
  if tilt_embed is not None:
    _unit_rows("tilt_embed", tilt_embed)
  unit = _unit_rows("embed", embed.astype(jnp.float32))
  if h is None and kind == "rbf":
    h = kernel_entropy.median_distance(unit)

  def init(tokens):
    return Info(*(jnp.zeros(tokens.shape[0]) for _ in Info._fields))

  def update(logits, state, step):
    del state
    return guide(
      logits,
      embed,
      ~step.latent.revealed,
      lam=lam,
      target=target,
      h=h,
      ell=ell,
      kind=kind,
      mode=mode,
      kappa=kappa,
      across_samples=across_samples,
      group_size=group_size,
      position_kind=position_kind,
      tilt_embed=tilt_embed,
    )

  return process_lib.LogitTransform(init, update)


def shuffle_embeddings(key: jax.Array, embed: jax.Array) -> jax.Array:
  """The same embeddings, each given to another token: no semantics left.

  Args:
    key: a typed key.
    embed: `[V, d]` float.

  Returns:
    `[V, d]`, the rows of `embed` in random order.
  """
  return embed[jax.random.permutation(key, embed.shape[0])]


def _guide_group(
  logits, masked, embed, tilt_embed, *, lam, target, mode, kappa, kernel
):
  """Guides the rows of one Gram matrix; `[G, L, V]` logits, `[G]` info."""
  rows, length, vocab_size = logits.shape
  count = rows * length
  flat = logits.reshape(count, vocab_size)
  hidden = masked.reshape(count)
  p = jax.nn.softmax(flat, axis=-1)
  kernel = kernel | {"positions": jnp.tile(jnp.arange(length), rows)}
  matrix = kernel_entropy.gram(_soft(p, embed), **kernel)
  h2 = kernel_entropy.renyi2(matrix)
  if count <= 1:
    zero = jnp.zeros(rows, logits.dtype)
    return logits, Info(zero + h2, zero, zero)

  possible = flat > -jnp.inf
  finite = jnp.where(possible, flat, 0.0)
  if mode == "tilt":
    eta = lam * (target - h2 / math.log(count))
    e = _soft(p, tilt_embed)
    g = kernel_entropy.entropy_gradient(e, **kernel)
    gain = kernel_entropy.token_gain(g, tilt_embed, e)
    edited = finite + eta * gain
    eta = jnp.full(count, eta)
    size = jnp.sum(p * jnp.abs(gain), axis=-1)
  else:
    local = kernel_entropy.local_entropy(matrix)
    eta = lam * (target - local / math.log(count))
    edited = finite * jnp.exp(-kappa * eta)[:, None]
    size = jnp.zeros(count, logits.dtype)
  edited = jnp.where(possible, edited, -jnp.inf)
  info = Info(
    jnp.full(rows, h2),
    _masked_mean(eta, hidden, rows),
    _masked_mean(size, hidden, rows),
  )
  return edited.reshape(logits.shape), info


def _soft(p, embed):
  return jnp.matmul(p, embed, precision=jax.lax.Precision.HIGHEST)


def _masked_mean(values, hidden, rows):
  """Mean over the hidden positions of each row; 0 if there are none."""
  values, hidden = values.reshape(rows, -1), hidden.reshape(rows, -1)
  total = jnp.sum(values, axis=1, where=hidden)
  return total / jnp.maximum(jnp.sum(hidden, axis=1), 1)


def _in_groups(
  fn: Callable, size: int, logits: jax.Array, masked: jax.Array
) -> tuple[jax.Array, Info]:
  """Applies `fn` to consecutive groups of rows, a smaller one at the end."""
  whole = logits.shape[0] // size * size
  parts = []
  if whole:
    grouped = jax.tree.map(
      lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), (logits, masked)
    )
    parts.append(
      jax.tree.map(
        lambda x: x.reshape(whole, *x.shape[2:]), jax.vmap(fn)(*grouped)
      )
    )
  if whole < logits.shape[0] or not parts:
    parts.append(fn(logits[whole:], masked[whole:]))
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _unit_rows(name: str, embed: jax.Array) -> jax.Array:
  """Rows scaled to unit length; none may have length 0."""
  if checks.is_concrete(embed):
    lengths = np.linalg.norm(np.asarray(embed, np.float64), axis=1)
    bad = np.flatnonzero(~((lengths > 0) & np.isfinite(lengths)))
    if bad.size:
      raise ValueError(
        f"{name} must have rows of positive length, got length"
        f" {lengths[bad[0]]:g} at row {bad[0]}"
      )
  return embed / jnp.linalg.norm(embed, axis=1, keepdims=True)


def _check(lam, target, h, ell, kappa, group_size, mode, kind, position_kind):
  """Raises ValueError for concrete numbers outside their range."""
  checks.check_range("lam", lam, open_low=True, open_high=True)
  checks.check_range(
    "target", target, low=0.0, high=1.0, open_low=True, open_high=True
  )
  if h is not None:
    checks.check_range("h", h, low=0.0, open_low=True, open_high=True)
  checks.check_range("ell", ell, low=0.0, open_low=True)
  checks.check_range("kappa", kappa, open_low=True, open_high=True)
  checks.check_range("group_size", group_size, low=1)
  for name, value, known in (
    ("mode", mode, MODES),
    ("kind", kind, kernel_entropy.KINDS),
    ("position_kind", position_kind, kernel_entropy.POSITION_KINDS),
  ):
    if value not in known:
      raise ValueError(f"{name} must be one of {known}, got {value!r}")
