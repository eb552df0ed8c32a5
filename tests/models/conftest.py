"""A language model written the slow obvious way, in NumPy."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from icml26_jax.models import llama

_SMALL = llama.Config(
  vocab_size=29,
  d_model=12,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=6,
  d_ff=16,
  rope_base=50.0,
  max_length=32,
)


class SlowLlama:
  """Small configs with parameters, and their predictions token by token."""

  def config(self, **changes) -> llama.Config:
    """A small config."""
    return dataclasses.replace(_SMALL, **changes)

  def params(self, config: llama.Config, seed: int = 0):
    """Parameters none of which is 0 or 1."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(
      functools.partial(llama.init, config=config), jax.random.key(0)
    )

    def draw(path, leaf):
      scale = 0.1 if leaf.ndim < 3 else leaf.shape[-1] ** -0.5
      offset = 1.0 if "norm" in path[-1].key else 0.0
      return (offset + scale * rng.normal(size=leaf.shape)).astype(np.float32)

    return jax.tree.map_with_path(draw, shapes)

  def prompts(self, lengths, seed: int = 0):
    """Random prompts."""
    rng = np.random.default_rng(seed)
    return [rng.integers(_SMALL.vocab_size, size=n) for n in lengths]

  def forward(self, params, tokens, config):
    """Logits, residual streams and attention of one row, float64.

    Args:
      params: parameters.
      tokens: `[T]`.
      config: their config.

    Returns:
      `[T, V]`, `[L + 1, T, D]` and `[L, H, T, T]`.
    """
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = params["embedding"][tokens]
    streams, attention = [x], []
    for i in range(config.num_layers):
      weights = {name: x[i] for name, x in params["layers"].items()}
      attended, probabilities = _attend(x, weights, config)
      x = x + attended
      y = _norm(x, weights["mlp_norm"], config)
      gate = y @ weights["gate"].T
      hidden = gate / (1 + np.exp(-gate)) * (y @ weights["up"].T)
      x = x + hidden @ weights["down"].T
      streams.append(x)
      attention.append(probabilities)
    x = _norm(x, params["final_norm"], config)
    head = params["embedding" if config.tie_embeddings else "head"]
    return x @ head.T, np.stack(streams), np.stack(attention)


@pytest.fixture(scope="session")
def slow_llama() -> SlowLlama:
  return SlowLlama()


def _attend(x, weights, config):
  y = _norm(x, weights["attention_norm"], config)
  length, group = len(x), config.num_heads // config.num_kv_heads
  out = np.zeros_like(x)
  if config.output_bias:
    out += weights["output_bias"]
  probabilities = np.zeros((config.num_heads, length, length))
  for h in range(config.num_heads):
    query = _head(y, weights, "query", h, config)
    key = _head(y, weights, "key", h // group, config)
    value = _head(y, weights, "value", h // group, config, rotary=False)
    for t in range(length):
      scores = key[: t + 1] @ query[t] / np.sqrt(config.head_dim)
      share = np.exp(scores - scores.max())
      share /= share.sum()
      probabilities[h, t, : t + 1] = share
      out[t] += weights["output"][:, h] @ (share @ value[: t + 1])
  return out, probabilities


def _head(y, weights, name, h, config, rotary=True):
  x = y @ weights[name][h].T
  if config.qkv_bias:
    x = x + weights[f"{name}_bias"][h]
  if not rotary:
    return x
  half = config.head_dim // 2
  turned = np.empty_like(x)
  for j in range(half):
    interleaved = config.rope_pairing == "interleaved"
    a, b = (2 * j, 2 * j + 1) if interleaved else (j, j + half)
    speed = config.rope_base ** (-2 * j / config.head_dim)
    if config.rope_divisors is not None:
      speed /= config.rope_divisors[j]
    for t in range(len(x)):
      c, s = np.cos(t * speed), np.sin(t * speed)
      turned[t, a] = c * x[t, a] - s * x[t, b]
      turned[t, b] = s * x[t, a] + c * x[t, b]
  return turned


def _norm(x, gain, config):
  return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + config.norm_eps) * gain
