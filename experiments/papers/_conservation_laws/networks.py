"""Part (b): small networks, their data and the laws that they have.

All in float64, so that what is measured is the drift of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.data import digits, tokenizers
from icml26_jax.models import llama
from icml26_jax.objectives import next_token
from icml26_jax.theory import conservation

Law = Callable[[Any], Any]

NUM_EXPERTS = 4
ROUTER = "sum over experts of the router"


class Network(NamedTuple):
  """A network with its data.

  Attributes:
    name: what it is.
    init: key to parameters.
    loss: `loss(params, data)`, a scalar: the mean over rows.
    data: pytree of arrays, rows first.
    laws: what is conserved, by name.
    others: what is not.
    warm_up: time of flow before the measurement. Orders of the step size show
      while the gradient hardly changes within `FEW_STEPS` coarse steps.
  """

  name: str
  init: Callable[[jax.Array], Any]
  loss: Callable[[Any, Any], jax.Array]
  data: Any
  laws: Mapping[str, Law]
  others: Mapping[str, Law]
  warm_up: float = 0.0


def swiglu(num_images: int, width: int) -> Network:
  """A SwiGLU that classifies digits."""

  def apply(params, images):
    gated = (images @ params["A"]) * jax.nn.silu(images @ params["B"])
    return gated @ params["C"]

  return Network(
    name="SwiGLU",
    init=_init(_shapes(width, "A", "B", "C")),
    loss=functools.partial(_cross_entropy, apply),
    data=_digits(num_images),
    laws={
      "‖A_i‖² - ‖C_i‖²": conservation.swiglu_law(
        lambda params: (params["A"], params["B"], params["C"])
      )
    },
    others={
      "‖B_i‖² - ‖C_i‖²": lambda params: conservation.relu_invariant(
        params["B"], params["C"]
      )
    },
  )


def gelu(num_images: int, width: int) -> Network:
  """Two layers with a GELU between them, which have no law."""

  def apply(params, images):
    return jax.nn.gelu(images @ params["A"]) @ params["C"]

  return Network(
    name="GELU",
    init=_init(_shapes(width, "A", "C")),
    loss=functools.partial(_cross_entropy, apply),
    data=_digits(num_images),
    laws={},
    others={
      "‖A_i‖² - ‖C_i‖²": lambda params: conservation.relu_invariant(
        params["A"], params["C"]
      )
    },
  )


def mixture(num_images: int, width: int, gate: str) -> Network:
  """Four SwiGLU experts that classify digits.

  Args:
    num_images: how many digits.
    width: hidden units of an expert.
    gate: `softmax` or `normalized_sigmoid`.
  """
  weigh = {
    "softmax": jax.nn.softmax,
    "normalized_sigmoid": lambda z: (
      jax.nn.sigmoid(z) / jnp.sum(jax.nn.sigmoid(z), axis=-1, keepdims=True)
    ),
  }[gate]
  shapes = {
    name: (NUM_EXPERTS, *shape)
    for name, shape in _shapes(width, "A", "B", "C").items()
  }
  shapes["W"] = (digits.NUM_PIXELS, NUM_EXPERTS)

  def apply(params, images):
    share = weigh(images @ params["W"])
    up = jnp.einsum("nd,edh->neh", images, params["A"])
    inner = jnp.einsum("nd,edh->neh", images, params["B"])
    hidden = share[..., None] * up * jax.nn.silu(inner)
    return jnp.einsum("neh,eho->no", hidden, params["C"])

  def select(params):
    return params["W"], {name: params[name] for name in ("A", "B", "C")}

  def part(name):
    # The sum is no law of normalised sigmoids, but is measured like one.
    law = conservation.moe_law(select, "softmax")
    return lambda params: law(params)[name]

  laws = {"‖A_i‖² - ‖C_i‖² of the experts": part("experts")}
  sums = {ROUTER: part("router")}
  holds = gate == "softmax"
  return Network(
    name="mixture, softmax" if holds else "mixture, normalised sigmoid",
    init=_init(shapes),
    loss=functools.partial(_cross_entropy, apply),
    data=_digits(num_images),
    laws={**laws, **(sums if holds else {})},
    others={} if holds else sums,
  )


def transformer(rows: int, length: int) -> Network:
  """Two Llama layers, rotary and with grouped heads, on text.

  Args:
    rows: rows of the one batch.
    length: characters of a row.
  """
  tokenizer = tokenizers.load("char27")
  config = llama.Config(
    vocab_size=tokenizer.vocab_size,
    d_model=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    d_ff=64,
    rope_pairing="half",
    max_length=length,
    tie_embeddings=False,
    dtype="float64",
  )
  shapes = jax.eval_shape(
    functools.partial(llama.init, config=config), jax.random.key(0)
  )
  found = conservation.laws_for(shapes, pairing=config.rope_pairing).laws
  controls = conservation.controls_for(shapes, pairing=config.rope_pairing).laws

  def init(key):
    params = llama.init(key, config)
    # Unit variance, as in `models.causal`: a small residual stream, which the
    # normalisation blows up, would make the flow stiff.
    params["embedding"] = params["embedding"] * config.d_model**0.5
    return jax.tree.map(lambda x: x.astype(jnp.float64), params)

  def loss(params, tokens):
    logits = llama.apply(params, tokens, config=config)
    mask = jnp.ones(tokens.shape, jnp.bool_)
    return jnp.mean(next_token.nll(logits, tokens, mask))

  names = {
    "query_key": "‖Q‖² - ‖K‖² of a rotary pair",
    "value_output": "VᵀV - O Oᵀ",
    "swiglu": "‖A_i‖² - ‖C_i‖²",
    "attention_gain": "gain before attention",
    "mlp_gain": "gain before the SwiGLU",
  }
  return Network(
    name="transformer",
    init=init,
    loss=loss,
    data=jnp.asarray(_text(tokenizer, rows, length)),
    laws={text: found[name] for name, text in names.items()},
    others={"entries of QᵀQ - KᵀK": controls["query_key_entries"]},
    # At first the gradient falls by a quarter within a time of 0.4; from here
    # on it changes by a hundredth.
    warm_up=4.0,
  )


def _text(tokenizer, rows, length):
  from icml26_jax.data import corpora

  documents = corpora.load("stdlib:docstrings", split="train").documents
  tokens = tokenizer.encode_documents(documents[:400])
  return tokens[: rows * length].reshape(rows, length)


def _digits(num_images):
  images, labels = digits.load(num_images)
  return jnp.asarray(images), jnp.asarray(labels)


def _cross_entropy(apply, params, data):
  images, labels = data
  log_probs = jax.nn.log_softmax(apply(params, images))
  return -jnp.mean(jnp.take_along_axis(log_probs, labels[:, None], axis=1))


def _shapes(width, *names):
  shapes = {
    "A": (digits.NUM_PIXELS, width),
    "B": (digits.NUM_PIXELS, width),
    "C": (width, digits.NUM_CLASSES),
  }
  return {name: shapes[name] for name in names}


def _init(shapes):
  """Normal weights of variance 1 / (inputs)."""

  def init(key):
    return {
      name: jax.random.normal(jax.random.fold_in(key, i), shape, jnp.float64)
      / np.sqrt(shape[-2])
      for i, (name, shape) in enumerate(shapes.items())
    }

  return init
