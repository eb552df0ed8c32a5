"""Greedy decoding of a pretrained model, beside transformers.

SmolLM2-135M-Instruct in float32 continues a chat of 37 tokens by 64 tokens, at
batch 1 and batch 8; reading the prompt is part of the time. Both sides hold the
same weights, and must decode the same tokens before anything is timed. The
weights come from `python -m icml26_jax.pretrained.fetch smollm2-135m`.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import jax
import numpy as np

from experiments.benchmarks import _timing
from icml26_jax.decoding import autoregressive
from icml26_jax.models import llama
from icml26_jax.pretrained import checkpoint

MODEL = "smollm2-135m"
PROMPT = "What is the capital of France?"
NUM_TOKENS = 64
# Batch size to the least ratio aimed at.
TARGETS = {1: 1.0, 8: 2.0}
PEER = "transformers"


def check_peers() -> None:
  """Raises ModuleNotFoundError if a peer is not installed."""
  for module in ("torch", PEER):
    if importlib.util.find_spec(module) is None:
      raise ModuleNotFoundError(module, name=module)


def cases(seed: int) -> list[_timing.Case]:
  """The suite's work on both sides; see the module.

  Args:
    seed: not used; greedy decoding of given weights has no randomness.

  Returns:
    One case a batch size.
  """
  del seed
  import torch

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  loaded = checkpoint.load(MODEL)
  prompt = loaded.tokenizer.chat([{"role": "user", "content": PROMPT}])
  module = peer(loaded.params, loaded.config)
  model = llama.cached_model(loaded.config, num_slots=len(prompt) + NUM_TOKENS)
  result = []
  for batch_size, target in TARGETS.items():
    tokens = np.repeat(prompt[None], batch_size, axis=0)
    sides = {
      _timing.OURS: _ours(loaded.params, model, tokens),
      PEER: _theirs(module, tokens),
    }
    decoded = [run() for run in sides.values()]
    for other in decoded[1:]:
      np.testing.assert_array_equal(other, decoded[0], "decoded tokens differ")
    result.append(
      _timing.Case(
        name=f"greedy decoding, {batch_size} x {NUM_TOKENS} tokens",
        flops=decoding_flops(loaded.config, batch_size, len(prompt)),
        sides=sides,
        target=target,
        note=f"after a prompt of {len(prompt)} tokens",
      )
    )
  return result


def decoding_flops(
  config: llama.Config, batch_size: int, prompt_length: int
) -> float:
  """Floating-point operations of one call, in matrix products.

  Args:
    config: the network.
    batch_size: rows.
    prompt_length: tokens of the prompt.

  Returns:
    Two for every multiplication: each token that is read meets every matrix
    but the output's, and all tokens before it; each token that is decoded
    meets the output matrix.
  """
  table = config.vocab_size * config.d_model
  inner = llama.num_params(config) - table * (2 - config.tie_embeddings)
  read = prompt_length + NUM_TOKENS - 1
  pairs = read * (read + 1) // 2
  attention = 2 * config.num_layers * config.num_heads * config.head_dim
  products = read * inner + pairs * attention + NUM_TOKENS * table
  return 2.0 * batch_size * products


def peer(params: llama.Params, config: llama.Config) -> Any:
  """The model of transformers with our weights.

  Args:
    params: tied parameters without biases.
    config: their config.

  Returns:
    The module.
  """
  import torch
  import transformers

  params, config = llama.with_pairing(params, config, "half")
  module = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
      vocab_size=config.vocab_size,
      hidden_size=config.d_model,
      intermediate_size=config.d_ff,
      num_hidden_layers=config.num_layers,
      num_attention_heads=config.num_heads,
      num_key_value_heads=config.num_kv_heads,
      head_dim=config.head_dim,
      max_position_embeddings=config.max_length,
      rms_norm_eps=config.norm_eps,
      rope_parameters={
        "rope_type": "default",
        "rope_theta": config.rope_base,
      },
      tie_word_embeddings=True,
      bos_token_id=None,
      eos_token_id=None,
    )
  ).eval()

  def tensor(value, *shape):
    return torch.tensor(np.array(value).reshape(shape))

  layers, width = params["layers"], config.d_model
  state = {
    "model.embed_tokens.weight": tensor(params["embedding"], -1, width),
    "model.norm.weight": tensor(params["final_norm"], width),
  }
  names = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
  }
  norms = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
  }
  for i in range(config.num_layers):
    start = f"model.layers.{i}"
    for ours, theirs in names.items():
      shape = (width, -1) if ours in ("output", "down") else (-1, width)
      state[f"{start}.{theirs}.weight"] = tensor(layers[ours][i], *shape)
    for ours, theirs in norms.items():
      state[f"{start}.{theirs}.weight"] = tensor(layers[ours][i], width)
  found = module.load_state_dict(state, strict=False)
  if found.unexpected_keys or set(found.missing_keys) - {"lm_head.weight"}:
    raise AssertionError(f"weights without a counterpart: {found}")
  module.tie_weights()
  return module


def environment() -> dict[str, str | int]:
  """What the peers are, for the report."""
  import torch
  import transformers

  return {
    "torch": torch.__version__,
    "torch_threads": torch.get_num_threads(),
    "transformers": transformers.__version__,
  }


def _ours(params, model, tokens):
  """A function that decodes with our model."""

  def run():
    generation = autoregressive.generate(
      params, tokens, model=model, num_tokens=NUM_TOKENS
    )
    return np.asarray(jax.block_until_ready(generation.tokens))

  return run


def _theirs(module, tokens):
  """A function that decodes with transformers."""
  import torch

  inputs = torch.tensor(tokens.astype(np.int64))

  def run():
    with torch.inference_mode():
      whole = module.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        pad_token_id=0,
      )
    return whole[:, tokens.shape[1] :].numpy()

  return run
