"""The diffusion transformer of `models.dit` as PyTorch users would write it.

Eager modules, fused query-key-value product, scaled-dot-product attention and
the fused AdamW. Weights are those of our model, so both compute one function.
"""

from __future__ import annotations

from collections.abc import Mapping
import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from icml26_jax.layers import rms_norm
from icml26_jax.models import dit


class Block(nn.Module):
  """Attention and position-wise network, modulated by a condition."""

  def __init__(self, width: int, heads: int, hidden: int, condition: int):
    super().__init__()
    self.heads = heads
    self.qkv = nn.Linear(width, 3 * width, bias=False)
    self.out = nn.Linear(width, width, bias=False)
    self.up = nn.Linear(width, hidden, bias=False)
    self.down = nn.Linear(hidden, width, bias=False)
    self.modulation = nn.Linear(condition, 6 * width)

  def forward(self, x, condition, cosine, sine):
    """Runs the block on `[B, T, D]`."""
    batch, length, width = x.shape
    shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.modulation(
      condition
    )[:, None].chunk(6, dim=-1)
    y = _norm(x) * (1 + scale_1) + shift_1
    qkv = self.qkv(y).view(batch, length, 3, self.heads, width // self.heads)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    y = functional.scaled_dot_product_attention(
      _rotate(query, cosine, sine), _rotate(key, cosine, sine), value
    )
    y = y.transpose(1, 2).reshape(batch, length, width)
    x = x + (1 + gate_1) * self.out(y)
    y = _norm(x) * (1 + scale_2) + shift_2
    y = self.down(functional.gelu(self.up(y), approximate="tanh"))
    return x + (1 + gate_2) * y


class DiT(nn.Module):
  """The network, for latents that only mask."""

  def __init__(self, config: dit.Config, length: int):
    super().__init__()
    width, condition = config.d_model, config.condition_width
    self.scale = math.sqrt(width)
    self.alpha_eps = config.alpha_eps
    self.embedding = nn.Embedding(config.vocab_size, width)
    self.special = nn.Parameter(torch.empty(width))
    self.level_hidden = nn.Linear(256, condition)
    self.level_out = nn.Linear(condition, condition)
    self.blocks = nn.ModuleList(
      Block(width, config.num_heads, config.hidden_width, condition)
      for _ in range(config.num_layers)
    )
    self.modulation = nn.Linear(condition, 2 * width)
    self.output = nn.Linear(width, config.vocab_size, bias=False)
    half = config.head_dim // 2
    frequency = 10_000.0 ** (-torch.arange(half) / half)
    angle = torch.arange(length)[:, None] * frequency
    self.register_buffer("cosine", angle.cos())
    self.register_buffer("sine", angle.sin())
    self.register_buffer("frequency", 10.0 * 1e-3 ** (torch.arange(128) / 127))

  def forward(self, tokens, revealed, t):
    """`[B, L]` tokens and bool, `[B]` times to `[B, L, V]` logits."""
    table = functional.normalize(self.embedding.weight, dim=-1)
    special = functional.normalize(self.special, dim=-1)
    x = torch.where(
      revealed[..., None], functional.embedding(tokens, table), special
    )
    x = self.scale * x
    level = -torch.log1p(-(1 - self.alpha_eps) * t)
    angle = level[:, None] * self.frequency
    waves = torch.cat([angle.cos(), angle.sin()], dim=-1)
    condition = functional.silu(self.level_hidden(waves))
    condition = functional.silu(self.level_out(condition))
    for block in self.blocks:
      x = block(x, condition, self.cosine, self.sine)
    shift, scale = self.modulation(condition)[:, None].chunk(2, dim=-1)
    return self.output(_norm(x) * (1 + scale) + shift)


def load(params: Mapping[str, Any], config: dit.Config, length: int) -> DiT:
  """The network with the weights of ours.

  Args:
    params: from `dit.init`, with time conditioning and without qk_norm.
    config: its configuration.
    length: number of positions.

  Returns:
    The module.
  """

  def tensor(array, rows):
    """Our weights map rows to columns; PyTorch's columns to rows."""
    matrix = np.asarray(array, np.float32).reshape(rows, -1)
    return torch.tensor(matrix.T.copy())

  width = config.d_model
  blocks = params["layers"]["blocks"]
  state = {
    "embedding.weight": torch.tensor(np.array(params["embedding"])),
    "special": torch.tensor(np.array(params["special"])),
    "output.weight": tensor(params["output"], width),
  }
  linears = {
    "level_hidden": (params["noise_level"]["hidden"], 256),
    "level_out": (params["noise_level"]["out"], config.condition_width),
    "modulation": (params["modulation"]["linear"], config.condition_width),
  }
  for i in range(config.num_layers):
    modulation = {k: v[i] for k, v in blocks["modulation"]["linear"].items()}
    linears[f"blocks.{i}.modulation"] = (modulation, config.condition_width)
    attention, mlp = blocks["attention"], blocks["mlp"]
    state |= {
      f"blocks.{i}.qkv.weight": tensor(
        np.swapaxes(attention["qkv"][i], 1, 2), width
      ),
      f"blocks.{i}.out.weight": tensor(attention["out"][i], width),
      f"blocks.{i}.up.weight": tensor(mlp["up"]["kernel"][i], width),
      f"blocks.{i}.down.weight": torch.tensor(
        np.array(mlp["down"]["kernel"][i])
      ),
    }
  for name, (linear, rows) in linears.items():
    state[f"{name}.weight"] = tensor(linear["kernel"], rows)
    state[f"{name}.bias"] = torch.tensor(np.array(linear["bias"]).reshape(-1))
  module = DiT(config, length)
  module.load_state_dict(state, strict=False)
  missing = set(dict(module.named_parameters())) - set(state)
  if missing:
    raise AssertionError(f"weights without a counterpart: {sorted(missing)}")
  return module


def train_step(
  module: DiT,
  optimizer: torch.optim.Optimizer,
  tokens: torch.Tensor,
  *,
  eps: float,
  clip_norm: float,
) -> float:
  """One step of masked diffusion training; returns the loss."""
  batch_size = tokens.shape[0]
  shift = torch.rand(())
  t = 1 - (shift + torch.arange(batch_size) / batch_size) % 1
  alpha = 1 - (1 - eps) * t
  revealed = torch.rand(tokens.shape) < alpha[:, None]
  logits = module(torch.where(revealed, tokens, 0), revealed, t)
  nll = functional.cross_entropy(
    logits.flatten(0, 1), tokens.flatten(), reduction="none"
  ).view_as(tokens)
  weight = (1 - eps) / (1 - alpha)
  loss = (weight[:, None] * nll.masked_fill(revealed, 0)).mean()
  optimizer.zero_grad(set_to_none=True)
  loss.backward()
  nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
  optimizer.step()
  return loss.item()


@torch.no_grad()
def sample(
  module: DiT, shape: tuple[int, int], times: np.ndarray, *, eps: float
) -> tuple[torch.Tensor, int]:
  """Ancestral sampling of masked diffusion.

  Positions to commit are drawn first, and the network is called only if there
  are any.

  Returns:
    `[B, L]` tokens and the number of calls.
  """
  tokens = torch.zeros(shape, dtype=torch.long)
  revealed = torch.zeros(shape, dtype=torch.bool)
  calls = 0
  for step, (t, s) in enumerate(itertools.pairwise(times)):
    alpha, next_alpha = 1 - (1 - eps) * t, 1 - (1 - eps) * s
    probability = (next_alpha - alpha) / (1 - alpha)
    commit = torch.rand(shape) < probability
    if step == len(times) - 2:
      commit = torch.ones_like(commit)
    commit &= ~revealed
    if not commit.any():
      continue
    calls += 1
    logits = module(tokens, revealed, torch.full(shape[:1], float(t)))
    gumbel = -torch.log(-torch.log(torch.rand_like(logits)))
    tokens = torch.where(commit, (logits + gumbel).argmax(-1), tokens)
    revealed |= commit
  return tokens, calls


def _norm(x):
  return functional.rms_norm(x, x.shape[-1:], eps=rms_norm.EPSILON)


def _rotate(x, cosine, sine):
  first, second = x.chunk(2, dim=-1)
  return torch.cat(
    [first * cosine - second * sine, first * sine + second * cosine], dim=-1
  )
