"""CANDI: masks and Gaussian noise on one-hots, corrupting each position twice.

Each position is revealed with probability alpha(t); a hidden one still shows
its one-hot plus Gaussian noise of standard deviation sigma(t). So token
identity and continuous geometry are corrupted on schedules of their own.

References:
  Pynadath, Shi, Zhang, "CANDI: Hybrid Discrete-Continuous Diffusion Models",
  ICML 2026, arXiv 2510.22510.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax import checks
from icml26_jax.diffusion import (
  categorical,
  gaussian,
  mdlm,
  network_input,
  sampling,
  schedules,
)
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import classifier

carry_over = process_lib.carry_over
embed_input = network_input.embed_input
InputParams = network_input.InputParams
ClassifierGuidance = classifier.ClassifierGuidance
pf_ode_update = gaussian.pf_ode_update
release_update = gaussian.release_update
# CANDI weighs the cross-entropy of hidden tokens as masked diffusion does. The
# noise leaks information, so here this is no bound of the likelihood: never
# report its exponential as a perplexity.
loss = mdlm.loss

X0_MODES = ("draw", "mean")


class Schedule(NamedTuple):
  """How fast identity and geometry are corrupted.

  Attributes:
    alpha: time to the share of revealed positions, decreasing.
    alpha_derivative: its derivative in time.
    sigma: time to the standard deviation of the noise, positive.
  """

  alpha: Callable[[jax.Array], jax.Array]
  alpha_derivative: Callable[[jax.Array], jax.Array]
  sigma: Callable[[jax.Array], jax.Array]


def rank_linear_schedule(
  *, eps: float = 1e-3, r_min: float = 0.01, r_max: float = 0.25
) -> Schedule:
  """Log-linear masks, and noise whose rank degradation is linear in them.

  Args:
    eps: share of positions still revealed at time 1, in [0, 1).
    r_min: rank degradation of the noise at time 0, in (0, 1/2).
    r_max: rank degradation where everything is hidden, in [r_min, 1/2).

  Returns:
    The schedule.

  Raises:
    ValueError: if an argument is outside its range.
  """

  def sigma_fn(t):
    return schedules.rank_linear_sigma(t, r_min=r_min, r_max=r_max, eps=eps)

  sigma_fn(0.0)  # Checks the arguments now, not at the first use.
  return _log_linear_schedule(eps, sigma_fn)


def corrupt(
  key: jax.Array,
  x0: jax.Array,
  alpha: jax.Array | float,
  sigma: jax.Array | float,
  vocab_size: int,
) -> tuple[jax.Array, jax.Array]:
  """Draws the corrupted one-hots of a batch.

  Args:
    key: a typed key, or `[B]` of them, one a row.
    x0: `[B, L]` int tokens.
    alpha: `[B]` or `[]` float, share of revealed positions, in [0, 1].
    sigma: `[B]` or `[]` float, standard deviation of the noise, positive.
    vocab_size: number of tokens V, at least 2.

  Returns:
    `[B, L, V]` float32 one-hots, plus noise where hidden, and `[B, L]` bool,
    which positions are revealed.

  Raises:
    TypeError: if the tokens are not integers.
    ValueError: if an argument known now is outside its range.
  """
  checks.check_range("vocab_size", vocab_size, low=2)
  checks.check_tokens("x0", x0, vocab_size)
  gaussian.check_sigma("sigma", sigma)
  keys = process_lib.row_keys(key, x0.shape[0])
  revealed = mdlm.corrupt(process_lib.fold_rows(keys, 0), x0, alpha)
  xt = _noisy(
    gaussian.one_hot_space(vocab_size),
    process_lib.fold_rows(keys, 1),
    x0,
    revealed,
    process_lib.row_values("sigma", sigma, x0.shape[0]),
  )
  return xt, revealed


def process(
  vocab_size: int,
  *,
  eps: float = 1e-3,
  r_min: float = 0.01,
  r_max: float = 0.25,
  update: str = "pf_ode",
  x0_mode: str = "draw",
  guidance: ClassifierGuidance | None = None,
  accidental_reveal: bool = False,
  embedding: jax.Array | None = None,
) -> process_lib.Process:
  """CANDI with the schedules of the paper.

  Args:
    vocab_size: number of tokens V, at least 2.
    eps: share of positions still revealed at time 1, in [0, 1).
    r_min: rank degradation of the noise at time 0, in (0, 1/2).
    r_max: rank degradation where everything is hidden, in [r_min, 1/2).
    update: how hidden vectors move, "pf_ode" or "release".
    x0_mode: what they move towards: "draw", a drawn token's one-hot, or
      "mean", the predicted probabilities.
    guidance: classifier to follow while sampling; None for none.
    accidental_reveal: reveal with probability `alpha + (1 - alpha) / (V + 1)`
      in training, as the authors' code does: it replaces tokens by uniform
      ones out of V + 1 and calls revealed what is unchanged.
    embedding: `[V, D]` float table of the network. With it the latent is
      `Latent.embedded`, and no vector over the vocabulary is formed.

  Returns:
    The process.

  Raises:
    ValueError: if an argument is outside its range.
  """
  return from_schedule(
    vocab_size,
    rank_linear_schedule(eps=eps, r_min=r_min, r_max=r_max),
    update=update,
    x0_mode=x0_mode,
    guidance=guidance,
    accidental_reveal=accidental_reveal,
    embedding=embedding,
  )


def from_schedule(
  vocab_size: int,
  schedule: Schedule,
  *,
  update: str = "pf_ode",
  x0_mode: str = "draw",
  guidance: ClassifierGuidance | None = None,
  accidental_reveal: bool = False,
  embedding: jax.Array | None = None,
) -> process_lib.Process:
  """CANDI with any schedule; see `process` for the arguments.

  Args:
    vocab_size: number of tokens V, at least 2.
    schedule: the schedules of masks and noise.
    update: "pf_ode" or "release".
    x0_mode: "draw" or "mean".
    guidance: classifier to follow while sampling; None for none.
    accidental_reveal: reveal as the authors' code does.
    embedding: `[V, D]` float table of the network; None for one-hots.

  Returns:
    The process.

  Raises:
    ValueError: if an argument is outside its range.
  """
  checks.check_range("vocab_size", vocab_size, low=2)
  if update not in gaussian.UPDATES:
    raise ValueError(
      f"update must be one of {sorted(gaussian.UPDATES)}, got {update!r}"
    )
  if x0_mode not in X0_MODES:
    raise ValueError(f"x0_mode must be one of {X0_MODES}, got {x0_mode!r}")
  if guidance is not None and classifier.check_scale(guidance.scale):
    guidance = None
  if embedding is None:
    space = gaussian.one_hot_space(vocab_size)
  else:
    if x0_mode != "draw":
      raise ValueError(
        f"x0_mode must be 'draw' with an embedding, got {x0_mode!r}"
      )
    if embedding.shape[:1] != (vocab_size,):
      raise ValueError(
        f"embedding must have {vocab_size} rows, got shape {embedding.shape}"
      )
    space = gaussian.embedding_space(embedding)
  move = gaussian.UPDATES[update]

  def latent_at(tokens, revealed, sigma, noisy):
    visible = jnp.where(revealed, tokens, 0).astype(jnp.int32)
    return process_lib.Latent(visible, revealed, sigma, **{space.field: noisy})

  def corrupt_tokens(keys, x0, t):
    checks.check_tokens("x0", x0, vocab_size)
    alpha = schedule.alpha(t)
    if accidental_reveal:
      alpha = alpha + (1.0 - alpha) / (vocab_size + 1)
    revealed = mdlm.corrupt(process_lib.fold_rows(keys, 0), x0, alpha)
    sigma = schedule.sigma(t)
    noise_keys = process_lib.fold_rows(keys, 1)
    noisy = _noisy(space, noise_keys, x0, revealed, sigma)
    return latent_at(x0, revealed, sigma, noisy)

  def prior(keys, tokens, revealed, t):
    batch_size, length = tokens.shape
    sigma = jnp.full(batch_size, schedule.sigma(t))
    noise = sigma[:, None, None] * space.noise(keys, length)
    noisy = jnp.where(revealed[..., None], space.clean(tokens), noise)
    return latent_at(tokens, revealed, sigma, noisy)

  def evaluate(denoise_fn, latent, t, s):
    times = jnp.full(latent.sigma.shape, t)
    if update == "release":
      sigma = jnp.full(latent.sigma.shape, schedule.sigma(s))
      latent = dataclasses.replace(latent, sigma=sigma)
    if guidance is None:
      return denoise_fn(latent, times), None
    return classifier.guided_evaluate(
      guidance, space, denoise_fn, latent, times
    )

  def reverse(keys, latent, logits, extra, t, s, selection):
    del t
    tokens = categorical.draw(keys, logits)
    if selection.tokens is not None:
      tokens = jnp.where(selection.commit, selection.tokens, tokens)
    tokens = jnp.where(latent.revealed, latent.tokens, tokens)
    revealed = latent.revealed | selection.commit
    clean = space.clean(tokens)
    x0_hat = clean if x0_mode == "draw" else jax.nn.softmax(logits, axis=-1)
    sigma = jnp.full(latent.sigma.shape, schedule.sigma(s))
    noisy = move(
      getattr(latent, space.field), x0_hat, latent.sigma, sigma, extra
    )
    noisy = jnp.where(revealed[..., None], clean, noisy)
    return latent_at(tokens, revealed, sigma, noisy)

  def process_loss(logits, x0, latent, t, mask):
    return loss(
      logits,
      x0,
      latent.revealed,
      schedule.alpha(t),
      schedule.alpha_derivative(t),
      mask=mask,
    )

  return process_lib.Process(
    vocab_size=vocab_size,
    corrupt=corrupt_tokens,
    prior=prior,
    evaluate=evaluate,
    reverse=reverse,
    loss=process_loss,
    ancestral=mdlm.ancestral_policy(schedule.alpha),
    is_stationary=False,
  )


def sample(
  key: jax.Array,
  denoise_fn: process_lib.DenoiseFn,
  shape: tuple[int, int],
  ts: jax.Array | np.ndarray,
  *,
  vocab_size: int,
  sigma_fn: Callable[[jax.Array], jax.Array],
  update: str = "pf_ode",
  x0_mode: str = "draw",
  guidance_fn: ClassifierGuidance | None = None,
  prompt: jax.Array | None = None,
  prompt_mask: jax.Array | None = None,
  eps: float = 1e-3,
) -> tuple[jax.Array, sampling.SampleStats]:
  """Samples CANDI under any noise schedule; see `sampling.sample`.

  Args:
    key: a typed key, or `[B]` of them, one a row.
    denoise_fn: `(latent, t [B]) -> logits [B, L, V]`.
    shape: `(B, L)`.
    ts: `[N + 1]` strictly decreasing times in [0, 1].
    vocab_size: number of tokens V.
    sigma_fn: time to noise level, positive; checked on the host at concrete
      times.
    update: "pf_ode" or "release".
    x0_mode: "draw" or "mean".
    guidance_fn: classifier to follow; None for none.
    prompt: `[B, L]` int tokens that stay in place where `prompt_mask`.
    prompt_mask: `[B, L]` bool.
    eps: share of positions still revealed at time 1.

  Returns:
    `[B, L]` int32 tokens and the statistics of the run, `nfe` among them.

  Raises:
    ValueError: as `sampling.sample` and `process`, or if a noise level is not
      positive.
  """
  checks.check_range("eps", eps, low=0.0, high=1.0, open_high=True)
  sampling.check_times(ts)
  if checks.is_concrete(ts):
    gaussian.check_sigma("sigma", sigma_fn(jnp.asarray(ts, jnp.float32)))
  hybrid = from_schedule(
    vocab_size,
    _log_linear_schedule(eps, sigma_fn),
    update=update,
    x0_mode=x0_mode,
    guidance=guidance_fn,
  )
  return sampling.sample(
    key,
    hybrid,
    denoise_fn,
    shape,
    ts,
    prompt=prompt,
    prompt_mask=prompt_mask,
  )


def _log_linear_schedule(
  eps: float, sigma_fn: Callable[[jax.Array], jax.Array]
) -> Schedule:
  """Log-linear masks with any noise."""
  return Schedule(
    alpha=lambda t: schedules.log_linear_alpha(t, eps=eps),
    alpha_derivative=lambda t: schedules.log_linear_alpha_derivative(
      t, eps=eps
    ),
    sigma=sigma_fn,
  )


def _noisy(
  space: gaussian.Space,
  keys: jax.Array,
  x0: jax.Array,
  revealed: jax.Array,
  sigma: jax.Array,
) -> jax.Array:
  """Clean vectors, plus noise where hidden."""
  noise = sigma[:, None, None] * space.noise(keys, x0.shape[1])
  return space.clean(x0) + jnp.where(revealed[..., None], 0.0, noise)
