"""Causal transformer language model."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from icml26_jax.layers import parameter, rms_norm
from icml26_jax.models import transformer

Config = transformer.Config
Params = transformer.Params


class CausalTransformer(nn.Module):
  """The network as a flax module: blocks without a condition.

  Attributes:
    config: its shape.
  """

  config: Config

  @nn.compact
  def __call__(
    self, tokens: jax.Array, mask: jax.Array | None = None
  ) -> jax.Array:
    """Predicts next tokens; see `apply`."""
    c = self.config
    table = parameter.parameter(
      self,
      "embedding",
      (c.vocab_size, c.d_model),
      ("vocab", "embed"),
      nn.initializers.normal(1.0),
    )
    x = jnp.take(table, tokens, axis=0).astype(c.dtype)
    x = transformer.make_stack(c, is_causal=True, name="layers")(x, None, mask)
    x = rms_norm.RMSNorm(name="norm")(x)
    output = parameter.parameter(
      self,
      "output",
      (c.d_model, c.vocab_size),
      ("embed", "vocab"),
      transformer.OUTPUT_INIT,
    )
    return transformer.logits(x, output)


def init(key: jax.Array, config: Config) -> Params:
  """Draws the parameters.

  Args:
    key: typed key.
    config: shape of the network.

  Returns:
    Nested dictionaries of float32 arrays.
  """
  return transformer.init(CausalTransformer(config), key, _example())


def logical_axes(config: Config) -> Params:
  """The parameters' tree, with a tuple of logical axis names a leaf."""
  return transformer.logical_axes(CausalTransformer(config), _example())


def apply(
  params: Params,
  tokens: jax.Array,
  *,
  config: Config,
  mask: jax.Array | None = None,
) -> jax.Array:
  """Predicts, at every position, the token that comes next.

  Args:
    params: from `init`.
    tokens: `[B, L]` int tokens.
    config: the configuration the parameters were made for.
    mask: `[B, L]` bool, False at padding, which no position looks at; None if
      there is none. Logits at padding mean nothing.

  Returns:
    `[B, L, V]` float32 logits; those at position i depend on tokens 0..i only.

  Raises:
    TypeError: if the tokens are not integers.
  """
  if not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise TypeError(f"tokens must be integers, got {tokens.dtype}")
  return transformer.run(CausalTransformer(config), params, tokens, mask)


def embedding_table(params: Params) -> jax.Array:
  """`[V, D]` float32 vectors of the tokens, as the network sees them."""
  return params["embedding"]


def num_params(config: Config) -> int:
  """Number of parameters, without making them."""
  return transformer.num_params(lambda key: init(key, config))


def _example():
  """An input that parameters can be made from; they ignore its length."""
  return jnp.zeros((1, 2), jnp.int32)
