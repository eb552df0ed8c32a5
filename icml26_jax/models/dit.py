"""Bidirectional diffusion transformer over tokens."""

from __future__ import annotations

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.diffusion import candi, schedules
from icml26_jax.diffusion import process as process_lib
from icml26_jax.layers import modulation, noise_level, parameter, rms_norm
from icml26_jax.models import transformer

Params = transformer.Params


@dataclasses.dataclass(frozen=True)
class Config(transformer.Config):
  """Shape of a diffusion transformer; see `transformer.Config` for the rest.

  Attributes:
    time_conditioning: whether blocks are conditioned on `-log alpha(t)`. A
      masked diffusion does not need it.
    d_conditioning: width of the condition; None for d_model, at most 128.
    input_mix: share of the special vector in a noisy hidden position's input.
    alpha_eps: eps of the schedule `alpha = 1 - (1 - eps) t` that turns times
      into noise levels.
  """

  time_conditioning: bool = True
  d_conditioning: int | None = None
  input_mix: float = 0.5
  alpha_eps: float = 1e-3

  def __post_init__(self):
    super().__post_init__()
    if self.d_conditioning is not None:
      checks.check_range("d_conditioning", self.d_conditioning, low=1)
    checks.check_range("input_mix", self.input_mix, low=0.0, high=1.0)
    checks.check_range(
      "alpha_eps",
      self.alpha_eps,
      low=0.0,
      high=1.0,
      open_low=self.time_conditioning,
      open_high=True,
    )

  @property
  def condition_width(self) -> int:
    """Width of the condition."""
    if self.d_conditioning is None:
      return min(self.d_model, 128)
    return self.d_conditioning


class DiT(nn.Module):
  """The network as a flax module.

  Attributes:
    config: its shape.

  References:
    Peebles, Xie, "Scalable Diffusion Models with Transformers", ICCV 2023.
    Sahoo et al., "Simple and Effective Masked Diffusion Language Models",
    NeurIPS 2024, appendix on architectures.
  """

  config: Config

  @nn.compact
  def __call__(
    self,
    latent: process_lib.Latent,
    t: jax.Array,
    mask: jax.Array | None = None,
  ) -> jax.Array:
    """Predicts tokens; see `apply`."""
    c = self.config
    dtype = jnp.dtype(c.dtype)
    table = parameter.parameter(
      self,
      "embedding",
      (c.vocab_size, c.d_model),
      ("vocab", "embed"),
      nn.initializers.normal(1.0),
    )
    special = parameter.parameter(
      self, "special", (c.d_model,), ("embed",), nn.initializers.normal(1.0)
    )
    x = embed(table, special, latent, mix=c.input_mix)
    # Unit vectors to unit variance, the scale of what the blocks add.
    x = (math.sqrt(c.d_model) * x).astype(dtype)

    condition = None
    if c.time_conditioning:
      alpha = schedules.log_linear_alpha(t, eps=c.alpha_eps)
      condition = noise_level.NoiseLevel(c.condition_width, name="noise_level")(
        -jnp.log(alpha)
      ).astype(dtype)

    x = transformer.make_stack(c, is_causal=False, name="layers")(
      x, condition, mask
    )
    if condition is None:
      x = rms_norm.RMSNorm(name="norm")(x)
    else:
      shift, scale = modulation.Modulation(c.d_model, 2, name="modulation")(
        condition
      )
      x = modulation.modulate(rms_norm.rms_normalise(x), shift, scale)
    output = parameter.parameter(
      self,
      "output",
      (c.d_model, c.vocab_size),
      ("embed", "vocab"),
      transformer.OUTPUT_INIT,
    )
    return transformer.logits(x, output)


def embed(
  table: jax.Array,
  special: jax.Array,
  latent: process_lib.Latent,
  *,
  mix: float,
) -> jax.Array:
  """The network's input vectors, for a latent of any process.

  With noise, `candi.embed_input`. Without, a revealed token's unit vector, and
  the unit special vector where hidden.

  Args:
    table: `[V, D]` float32, its rows are normalised.
    special: `[D]` float32, normalised.
    latent: the latent; noise may be given over the vocabulary (`values`) or
      through the normalised table (`embedded`).
    mix: share of the special vector in a noisy position.

  Returns:
    `[B, L, D]` float32.

  Raises:
    ValueError: if the latent has a noise level but no noise, or noise without a
      level.
  """
  sigma, embedded = latent.sigma, latent.embedded
  has_noise = latent.values is not None or embedded is not None
  if has_noise != (sigma is not None):
    raise ValueError(
      "a latent must have sigma and either values or embedded, or none of them"
    )
  if latent.values is not None and sigma is not None:
    return candi.embed_input(
      candi.InputParams(table, special),
      latent.values,
      latent.revealed,
      sigma,
      mix=mix,
    )
  revealed = latent.revealed[..., None]
  unit_special = _unit(special)[None, None]
  if embedded is not None and sigma is not None:
    scale = (1.0 - mix) / jnp.sqrt(1.0 + jnp.square(sigma))
    noisy = mix * unit_special + scale[:, None, None] * embedded
    return jnp.where(revealed, embedded, noisy)
  return jnp.where(
    revealed, jnp.take(_unit(table), latent.tokens, axis=0), unit_special
  )


def init(key: jax.Array, config: Config) -> Params:
  """Draws the parameters.

  Args:
    key: typed key.
    config: shape of the network.

  Returns:
    Nested dictionaries of float32 arrays.
  """
  return transformer.init(DiT(config), key, *_example())


def logical_axes(config: Config) -> Params:
  """The parameters' tree, with a tuple of logical axis names a leaf."""
  return transformer.logical_axes(DiT(config), *_example())


def apply(
  params: Params,
  latent: process_lib.Latent,
  t: jax.Array,
  *,
  config: Config,
  mask: jax.Array | None = None,
) -> jax.Array:
  """Predicts the token of every position.

  Args:
    params: from `init`.
    latent: `[B, L]` latent of any process.
    t: `[B]` float, its time, in (0, 1]; ignored without time conditioning.
    config: the configuration the parameters were made for.
    mask: `[B, L]` bool, False at padding, which no position looks at; None if
      there is none. Logits at padding mean nothing.

  Returns:
    `[B, L, V]` float32 logits.

  Raises:
    ValueError: if the shapes disagree.
  """
  if latent.revealed.shape != latent.tokens.shape:
    raise ValueError(
      f"revealed {latent.revealed.shape} and tokens {latent.tokens.shape} must"
      " have one shape"
    )
  if t.shape != latent.tokens.shape[:1]:
    raise ValueError(
      f"t must have shape {latent.tokens.shape[:1]}, got {t.shape}"
    )
  return transformer.run(DiT(config), params, latent, t, mask)


def embedding_table(params: Params) -> jax.Array:
  """`[V, D]` float32 unit vectors of the tokens, as the network sees them."""
  return _unit(params["embedding"])


def num_params(config: Config) -> int:
  """Number of parameters, without making them."""
  return transformer.num_params(lambda key: init(key, config))


def _unit(vectors: jax.Array) -> jax.Array:
  """Vectors over their length."""
  return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True)


def _example():
  """Inputs that parameters can be made from; parameters ignore lengths."""
  latent = process_lib.Latent(
    jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2), bool)
  )
  return latent, jnp.ones((1,))
