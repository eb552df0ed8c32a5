"""Part 3: learning logits of tokens, and learning scores of sequences."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from icml26_jax.report import progress
from icml26_jax.theory import arm_ebm

# The paper's own sizes (V, T).
SIZES = ((8, 4), (4, 8))
SCALE = 2.0
LEARNING_RATE = 0.05

# Steps between two signs of progress.
_STRETCH = 250


class Learnt(NamedTuple):
  """How both models learnt the same targets.

  Attributes:
    arm_excess: `[S, N + 1]` loss less the target's entropy before each of N
      steps and after the last, in nats, of S seeds.
    ebm_excess: the same of the energy-based model.
    sequence_tv: `[S]` total variation between the laws of sequences of the two
      learnt models.
    policy_tv: `[S]` total variation between the learnt conditionals and those
      made of the learnt scores: its mean over the states that the target
      passes, at the depth where it is largest.
  """

  arm_excess: np.ndarray
  ebm_excess: np.ndarray
  sequence_tv: np.ndarray
  policy_tv: np.ndarray


def run(
  key: jax.Array, size: tuple[int, int], *, seeds: int, steps: int
) -> Learnt:
  """Trains both models, from zero, on random targets.

  Args:
    key: typed key.
    size: V and T.
    seeds: number of targets S.
    steps: updates.

  Returns:
    Their losses and how far apart they end.
  """
  vocab_size, num_steps = size
  with jax.enable_x64(True):
    scores = SCALE * jax.random.normal(
      key, (seeds, vocab_size**num_steps), jnp.float64
    )
    target = jax.nn.softmax(scores)
    entropy = -jnp.sum(target * jnp.log(target), axis=1)
    counts = [
      target.reshape(seeds, vocab_size**t, vocab_size, -1).sum(axis=-1)
      for t in range(num_steps)
    ]
    zeros = [jnp.zeros_like(table) for table in counts]
    name = f"V={vocab_size}, T={num_steps}"
    logits, arm_losses = _train(_arm_nll, zeros, counts, steps, f"ARM, {name}")
    energy, ebm_losses = _train(
      _ebm_nll, jnp.zeros_like(target), target, steps, f"EBM, {name}"
    )
    distances = [
      compare(
        [table[i] for table in logits],
        energy[i],
        [table[i] for table in counts],
      )
      for i in range(seeds)
    ]
    return Learnt(
      np.asarray(arm_losses - entropy[:, None]),
      np.asarray(ebm_losses - entropy[:, None]),
      *np.array(distances).T,
    )


def as_rewards(scores: jax.Array, vocab_size: int) -> list[jax.Array]:
  """Scores `[V**T]` of sequences as rewards of the last step."""
  steps = [scores.reshape(-1, vocab_size)]
  while (count := len(steps[-1])) > 1:
    steps.append(jnp.zeros((count // vocab_size, vocab_size), scores.dtype))
  return steps[::-1]


def compare(
  logits: list[jax.Array], scores: jax.Array, counts: list[jax.Array]
) -> tuple[float, float]:
  """Total variation of a learnt policy and the one made of learnt scores.

  Args:
    logits: T tables `[V**t, V]`.
    scores: `[V**T]`.
    counts: T tables, probabilities of passing (s, y) under the target.

  Returns:
    Of the laws of sequences; and of the conditionals, see `Learnt`.
  """
  vocab_size = logits[0].shape[1]
  made = arm_ebm.rewards_to_logits(as_rewards(scores, vocab_size), eos=False)
  by_depth = []
  for learnt, other, passed in zip(logits, made, counts, strict=True):
    gap = jnp.abs(jax.nn.softmax(learnt) - jax.nn.softmax(other))
    by_depth.append(float(passed.sum(axis=1) @ gap.sum(axis=1) / 2))
  tokens, lengths = arm_ebm.enumerate_sequences(
    vocab_size, len(logits), eos=False
  )
  law = jnp.exp(arm_ebm.arm_log_probs(logits, tokens, lengths, eos=False))
  gap = jnp.abs(law - jax.nn.softmax(scores))
  return float(gap.sum() / 2), max(by_depth)


def _arm_nll(logits, counts):
  """`[S]` losses of tables `[S, V**t, V]`, given how often each is passed."""
  return -sum(
    jnp.sum(passed * jax.nn.log_softmax(table), axis=(1, 2))
    for table, passed in zip(logits, counts, strict=True)
  )


def _ebm_nll(scores, target):
  """`[S]` losses of scores `[S, V**T]` of all sequences."""
  return jax.nn.logsumexp(scores, axis=1) - jnp.sum(target * scores, axis=1)


def _train(loss_fn, params, target, steps, description):
  """Adam on S losses at once, which share no parameter."""
  optimizer = optax.adam(LEARNING_RATE)
  state = optimizer.init(params)
  losses = []
  with progress.bar(description, total=steps) as bar:
    for start in range(0, steps, _STRETCH):
      length = min(_STRETCH, steps - start)
      params, state, found = _stretch(
        params, state, target, loss_fn=loss_fn, length=length
      )
      losses.append(found)
      bar.advance(length)
  losses.append(loss_fn(params, target)[None])
  return params, jnp.concatenate(losses).T


@functools.partial(jax.jit, static_argnames=("loss_fn", "length"))
def _stretch(params, state, target, *, loss_fn, length):
  optimizer = optax.adam(LEARNING_RATE)

  def total(params):
    losses = loss_fn(params, target)
    return jnp.sum(losses), losses

  def step(carry, _):
    params, state = carry
    gradient, losses = jax.grad(total, has_aux=True)(params)
    updates, state = optimizer.update(gradient, state)
    return (optax.apply_updates(params, updates), state), losses

  (params, state), losses = jax.lax.scan(step, (params, state), length=length)
  return params, state, losses
