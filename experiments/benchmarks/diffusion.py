"""Training and sampling of a diffusion transformer, beside eager PyTorch.

Both sides run the network of the character models in float32 (4 blocks, width
128, 4 heads, 27 tokens) on 64 rows of 64 tokens with the same weights, the
loss of masked diffusion, AdamW and clipping; the sampler takes 64 steps. Before
anything is timed, their logits are checked to agree.
"""

from __future__ import annotations

import importlib.util
import os

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks import _timing
from icml26_jax.diffusion import mdlm, sampling
from icml26_jax.diffusion import process as process_lib
from icml26_jax.models import dit
from icml26_jax.training import mesh as mesh_lib
from icml26_jax.training import optimizer as optimizer_lib
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import state as state_lib
from icml26_jax.training import step as step_lib

ROWS = 64
LENGTH = 64
STEPS = 64
VOCABULARY = 27
EPS = 1e-3
PEER = "PyTorch"


def check_peers() -> None:
  """Raises ModuleNotFoundError if a peer is not installed."""
  if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError("PyTorch", name="torch")


def config() -> dit.Config:
  """The network."""
  return dit.Config(VOCABULARY, scan_layers=False)


def forward_flops(config: dit.Config, rows: int, length: int) -> float:
  """Floating-point operations of one forward pass, in matrix products.

  Args:
    config: the network.
    rows: batch size B.
    length: positions a row L.

  Returns:
    Two for every multiplication: products with weights, and scores and
    averages of attention. Normalisation and activations are left out.
  """
  width, condition = config.d_model, config.condition_width
  block = 4 * width**2 + 2 * width * config.hidden_width
  a_token = (
    config.num_layers * (block + 2 * length * width) + width * config.vocab_size
  )
  a_row = 256 * condition + condition**2
  a_row += (6 * config.num_layers + 2) * condition * width
  return 2.0 * rows * (length * a_token + a_row)


def cases(seed: int) -> list[_timing.Case]:
  """The suite's work on both sides; see the module.

  Args:
    seed: of the weights, the tokens and the noise.

  Returns:
    Training steps and sampling.
  """
  import torch

  from experiments.benchmarks import _torch_dit

  torch.set_num_threads(len(os.sched_getaffinity(0)))
  torch.manual_seed(seed)
  network = config()
  params = dit.init(jax.random.key(seed), network)
  module = _torch_dit.load(params, network, LENGTH)
  tokens = np.random.default_rng(seed).integers(
    VOCABULARY, size=(ROWS, LENGTH), dtype=np.int32
  )
  check_agreement(params, network, tokens)

  optimizer = optimizer_lib.OptimizerConfig(weight_decay=0.01)
  torch_optimizer = torch.optim.AdamW(
    module.parameters(),
    lr=optimizer.learning_rate,
    betas=(optimizer.b1, optimizer.b2),
    eps=optimizer.eps,
    weight_decay=optimizer.weight_decay,
    fused=True,
  )
  torch_tokens = torch.tensor(tokens).long()
  times = sampling.time_grid(STEPS)

  def torch_train():
    return _torch_dit.train_step(
      module,
      torch_optimizer,
      torch_tokens,
      eps=EPS,
      clip_norm=optimizer.clip_norm,
    )

  calls = {}

  def torch_sample():
    _, calls[PEER] = _torch_dit.sample(module, (ROWS, LENGTH), times, eps=EPS)

  ours_sample = _sampler(params, network, times, seed, calls)
  ours_sample()
  torch_sample()
  if calls[PEER] != calls[_timing.OURS]:
    raise AssertionError(f"network calls differ: {calls}")

  forward = forward_flops(network, ROWS, LENGTH)
  size = f"{ROWS} x {LENGTH} tokens"
  return [
    _timing.Case(
      name=f"training step, {size}",
      flops=3 * forward,
      sides={
        _timing.OURS: _trainer(network, optimizer, tokens),
        PEER: torch_train,
      },
      target=1.0,
      note="AdamW, clipping, masked diffusion loss, noise drawn in the step",
    ),
    _timing.Case(
      name=f"sampling, {size}, {STEPS} steps",
      flops=calls[PEER] * forward,
      sides={_timing.OURS: ours_sample, PEER: torch_sample},
      target=1.5,
      note=f"{calls[PEER]} network calls on both sides",
    ),
  ]


def _trainer(network, optimizer, tokens, accumulation=1):
  """A function that takes one training step."""
  rows, length = tokens.shape
  task = recipe_lib.build(
    recipe_lib.Recipe(
      process="mdlm",
      model=network,
      data=recipe_lib.DataConfig("stdlib:prose", "char27", length, rows),
      optimizer=optimizer,
      num_steps=1,
      process_options=(("eps", EPS),),
      accumulation=accumulation,
    )
  )
  mesh = mesh_lib.make_mesh({"data": 1})
  rules = task.recipe.all_rules
  tx = optimizer_lib.make(optimizer)
  abstract = state_lib.abstract(
    task.init, tx, mesh, rules, task.logical_axes, with_ema=False
  )
  step = step_lib.make_train_step(
    task.loss_fn,
    tx,
    mesh,
    rules,
    state_shardings=state_lib.shardings(abstract),
    accumulation=accumulation,
  )
  state = state_lib.init(jax.random.key(0), task.init, tx, abstract)
  batch = {
    "tokens": tokens,
    "mask": np.ones(tokens.shape, bool),
    "index": np.arange(rows, dtype=np.int32),
    "stratum": np.arange(rows, dtype=np.float32) / rows,
  }

  def run():
    nonlocal state
    state, metrics = step(state, batch)
    return float(metrics["loss"])

  return run


def _sampler(params, network, times, seed, calls):
  """A function that draws a batch of sequences."""
  process = mdlm.process(VOCABULARY, eps=EPS)

  @jax.jit
  def draw(params, key):
    return sampling.sample(
      key,
      process,
      lambda latent, t: dit.apply(params, latent, t, config=network),
      (ROWS, LENGTH),
      times,
    )

  key = jax.random.key(seed)

  def run():
    nonlocal key
    key, draw_key = jax.random.split(key)
    tokens, stats = draw(params, draw_key)
    calls[_timing.OURS] = int(stats.calls)
    return jax.block_until_ready(tokens)

  return run


def check_agreement(params, network: dit.Config, tokens: np.ndarray) -> None:
  """Raises AssertionError unless both sides compute the same logits.

  Args:
    params: our parameters; they are perturbed first, since modulation starts
      at 0 and would leave half of the network unchecked.
    network: their configuration.
    tokens: `[B, LENGTH]` int tokens.
  """
  import torch

  from experiments.benchmarks import _torch_dit

  rng = np.random.default_rng(0)
  revealed = rng.random(tokens.shape) < 0.5
  t = rng.uniform(0.1, 1.0, size=len(tokens)).astype(np.float32)
  visible = np.where(revealed, tokens, 0)
  params = jax.tree.map(
    lambda leaf: (
      leaf + jnp.asarray(0.1 * rng.standard_normal(leaf.shape), leaf.dtype)
    ),
    params,
  )
  latent = process_lib.Latent(jnp.asarray(visible), jnp.asarray(revealed))
  ours = dit.apply(params, latent, jnp.asarray(t), config=network)
  with torch.no_grad():
    theirs = _torch_dit.load(params, network, tokens.shape[1])(
      torch.tensor(visible).long(), torch.tensor(revealed), torch.tensor(t)
    ).numpy()
  error = np.max(np.abs(np.asarray(ours) - theirs)) / np.max(np.abs(theirs))
  # float32 sums of a few hundred terms through four blocks.
  if not error < 1e-4:
    raise AssertionError(f"the two networks differ by {error:.1e}")


def environment() -> dict[str, str | int]:
  """What the peers are, for the report."""
  import torch

  return {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
