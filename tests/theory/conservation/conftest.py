"""Blocks written the slow obvious way, independent of the library."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def float64():
  with jax.enable_x64(True):
    yield


def normal(seed, *shape, scale=1.0):
  return scale * np.random.default_rng(seed).normal(size=shape)


def swiglu(p, x):
  return ((x @ p["A"]) * jax.nn.silu(x @ p["B"])) @ p["C"]


def swiglu_params(seed, d=6, h=8, o=4, scale=0.4):
  return {
    name: jnp.asarray(normal((seed, i), *shape, scale=scale))
    for i, (name, shape) in enumerate(
      {"A": (d, h), "B": (d, h), "C": (h, o)}.items()
    )
  }


def attention(p, x, *, frequencies=None, pairing="interleaved", causal=True):
  """Softmax attention of one sequence `[n, d]`.

  Rotary positions as multiplication by exp(i position frequency).
  """
  n = len(x)
  groups = len(p["Q"]) // len(p["K"])
  out = 0.0
  for h in range(len(p["Q"])):
    q, k, v = (
      x @ p[name][g] + (p[f"b{name}"][g][None] if f"b{name}" in p else 0.0)
      for name, g in (("Q", h), ("K", h // groups), ("V", h // groups))
    )
    dk = q.shape[-1]
    if frequencies is not None:
      turn = jnp.exp(1j * jnp.arange(n)[:, None] * frequencies[None, :])
      q, k = (turn * as_complex(y, pairing) for y in (q, k))
    scores = (q @ jnp.conj(k).T).real / np.sqrt(dk)
    if causal:
      scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
    out = out + jax.nn.softmax(scores, axis=-1) @ v @ p["O"][h]
  return out


def as_complex(y, pairing):
  half = y.shape[-1] // 2
  if pairing == "interleaved":
    return y[:, 0::2] + 1j * y[:, 1::2]
  return y[:, :half] + 1j * y[:, half:]


def attention_params(seed, heads=4, kv_heads=2, d=5, dk=4, biases=False):
  shapes = {
    "Q": (heads, d, dk),
    "K": (kv_heads, d, dk),
    "V": (kv_heads, d, dk),
    "O": (heads, dk, d),
  }
  if biases:
    shapes |= {"bQ": (heads, dk), "bK": (kv_heads, dk), "bV": (kv_heads, dk)}
  return {
    name: jnp.asarray(normal((seed, i), *shape, scale=0.7))
    for i, (name, shape) in enumerate(shapes.items())
  }


def moe(p, x, gate, k=None):
  """Mixture of SwiGLU experts, see `gates`."""
  weights = gates(x @ p["W"], gate, k)
  outputs = jnp.stack(
    [
      swiglu({name: p[name][e] for name in "ABC"}, x)
      for e in range(p["W"].shape[-1])
    ],
    axis=1,
  )
  return jnp.einsum("ne,neo->no", weights, outputs)


def gates(logits, gate, k=None):
  if gate == "sigmoid":
    return jax.nn.sigmoid(logits)
  if gate == "normalized_sigmoid":
    s = jax.nn.sigmoid(logits)
    return s / jnp.sum(s, axis=-1, keepdims=True)
  if k is None:
    return jax.nn.softmax(logits, axis=-1)
  kth = jnp.sort(logits, axis=-1)[:, -k][:, None]
  chosen = logits >= kth
  if gate == "unnormalised_topk":
    return jnp.where(chosen, jax.nn.softmax(logits, axis=-1), 0.0)
  return jax.nn.softmax(jnp.where(chosen, logits, -jnp.inf), axis=-1)


def moe_params(seed, d=5, experts=4, h=3, o=2):
  shapes = {
    "W": (d, experts),
    "A": (experts, d, h),
    "B": (experts, d, h),
    "C": (experts, h, o),
  }
  return {
    name: jnp.asarray(normal((seed, i), *shape, scale=0.7))
    for i, (name, shape) in enumerate(shapes.items())
  }


def squared_error(outputs, y):
  return jnp.mean(jnp.square(outputs - y))


def log_cosh(outputs, y):
  return jnp.sum(jnp.logaddexp(outputs - y, y - outputs))


def cross_entropy(outputs, y):
  logits = jax.nn.log_softmax(outputs, axis=-1)
  return -jnp.mean(jnp.take_along_axis(logits, labels(y), axis=-1))


def labels(y):
  return jnp.argmax(y, axis=-1, keepdims=True)


@pytest.fixture(scope="session")
def nets():
  """Networks, their parameters and losses."""
  return types.SimpleNamespace(
    normal=normal,
    swiglu=swiglu,
    swiglu_params=swiglu_params,
    attention=attention,
    attention_params=attention_params,
    moe=moe,
    moe_params=moe_params,
    squared_error=squared_error,
    losses=(squared_error, log_cosh, cross_entropy),
    cross_entropy=cross_entropy,
  )
