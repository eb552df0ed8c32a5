"""Part 4: distilling a reward of whole sequences into next-token logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.special

from experiments.papers._arm_ebm import agreement, bounds
from experiments.papers._arm_ebm import language_model as lm
from icml26_jax.models import causal
from icml26_jax.report import progress
from icml26_jax.theory import arm_ebm
from icml26_jax.training import optimizer as optimizer_lib

TABULAR = "distilled, tabular"
TRANSFORMER = "distilled, transformer"
ONE_STEP = "one-step"
BEST_OF = 4
RIVALS = ("reference", ONE_STEP, f"best of {BEST_OF}")

Tables = list[np.ndarray]

# Most updates between two signs of progress.
_STRETCH = 100


class Target(NamedTuple):
  """What is distilled for one prompt.

  Attributes:
    reference: T tables, log-probabilities of the restricted model.
    bonus: `[V**T]` reward of each sequence beside them.
    logits: T tables, those of the optimal policy `p_ref exp(bonus) / Z`.
    log_probs: `[V**T]` of that policy.
  """

  reference: Tables
  bonus: np.ndarray
  logits: Tables
  log_probs: np.ndarray


class Distilled(NamedTuple):
  """What distilling gave, for P prompts.

  Attributes:
    rivals: name to `[P]` divergences KL(p_R || .) of what is not trained.
    tabular: `[P]` divergences of the trained tables.
    transformer: `[S, P]` divergences of the trained transformers of S seeds.
    bonus: name to `[P]` mean bonus; "optimum" is that of p_R.
    trials: pairs of models met on the way, for the bounds.
    num_params: size of the transformer.
  """

  rivals: dict[str, np.ndarray]
  tabular: np.ndarray
  transformer: np.ndarray
  bonus: dict[str, np.ndarray]
  trials: list[bounds.Trial]
  num_params: int


class Size(NamedTuple):
  """How long models learn.

  Attributes:
    seeds: transformers.
    d_model: their width.
    steps: their updates.
    table_steps: updates of the tables.
  """

  seeds: int
  d_model: int
  steps: int
  table_steps: int


def run(key: jax.Array, space: lm.Space, size: Size) -> Distilled:
  """Trains tables and transformers by forward KL, and compares.

  Args:
    key: typed key of the transformers' parameters.
    space: sequences and the reference model.
    size: how long.

  Returns:
    Divergences of all methods.
  """
  targets = [
    make_target(logits, bonuses(space.words, lm.LENGTH))
    for logits in space.logits
  ]
  laws = [rival_laws(target) for target in targets]
  trials: list[bounds.Trial] = []
  tables = _train_tables(targets, size.table_steps, trials)
  models, num_params = _train_transformers(key, targets, size, trials)
  bonus = {
    "optimum": [np.exp(t.log_probs) @ t.bonus for t in targets],
    **{
      name: [
        np.exp(law[name]) @ target.bonus
        for law, target in zip(laws, targets, strict=True)
      ]
      for name in RIVALS
    },
    TABULAR: [_mean_bonus(*pair) for pair in zip(tables, targets, strict=True)],
    TRANSFORMER: [
      np.mean([_mean_bonus(model[i], target) for model in models])
      for i, target in enumerate(targets)
    ],
  }
  return Distilled(
    rivals={
      name: np.array(
        [
          divergence(target, law[name])
          for law, target in zip(laws, targets, strict=True)
        ]
      )
      for name in RIVALS
    },
    tabular=_divergences(tables, targets),
    transformer=np.stack([_divergences(model, targets) for model in models]),
    bonus={name: np.array(values) for name, values in bonus.items()},
    trials=trials,
    num_params=num_params,
  )


def bonuses(words: Sequence[str], length: int) -> np.ndarray:
  """Reward of each sequence: a quarter of its characters, and distinct words.

  Args:
    words: V texts.
    length: T.

  Returns:
    `[V**T]` float64, in the order of the tables' rows.
  """
  tokens, _ = arm_ebm.enumerate_sequences(len(words), length, eos=False)
  characters = np.array([len(word) for word in words])[tokens].sum(axis=1)
  ordered = np.sort(tokens, axis=1)
  distinct = 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
  return characters / 4 + distinct


def make_target(logits: Sequence[np.ndarray], bonus: np.ndarray) -> Target:
  """The optimal policy for a bonus beside a reference model.

  Args:
    logits: T tables of the reference model.
    bonus: `[V**T]`.

  Returns:
    The target, in float64.
  """
  reference = [scipy.special.log_softmax(table, axis=1) for table in logits]
  rewards = [np.array(table) for table in reference]
  rewards[-1] += bonus.reshape(rewards[-1].shape)
  with jax.enable_x64(True):
    optimum = [
      np.asarray(table)
      for table in arm_ebm.rewards_to_logits(rewards, eos=False)
    ]
  return Target(reference, bonus, optimum, agreement.log_probs(optimum))


def rival_laws(target: Target) -> dict[str, np.ndarray]:
  """Log-probabilities `[V**T]` of what needs no training.

  The reference; one-step logits, which see the bonus at the last step only,
  where it is given; and the best of N draws from the reference.
  """
  one_step = list(target.reference)
  one_step[-1] = one_step[-1] + target.bonus.reshape(one_step[-1].shape)
  reference = agreement.log_probs(target.reference)
  return {
    "reference": reference,
    ONE_STEP: agreement.log_probs(one_step),
    f"best of {BEST_OF}": best_of(reference, target.bonus, BEST_OF),
  }


def best_of(log_probs: np.ndarray, bonus: np.ndarray, count: int) -> np.ndarray:
  """Law of the best of several independent draws, exactly.

  With F(b) the probability of a bonus of at most b, and F(b-) of less, a
  sequence of bonus b has probability `p (F(b)^N - F(b-)^N) / (F(b) - F(b-))`:
  of draws that tie, the first is taken.

  Args:
    log_probs: `[M]` of each sequence.
    bonus: `[M]` what is maximised.
    count: N draws.

  Returns:
    `[M]` log-probabilities.
  """
  levels, level = np.unique(bonus, return_inverse=True)
  mass = np.bincount(level, np.exp(log_probs), minlength=len(levels))
  below = np.concatenate([[0.0], np.cumsum(mass)[:-1]])
  # F^N - G^N = (F - G) (F^(N-1) + F^(N-2) G + ... + G^(N-1)), which does not
  # cancel.
  factor = sum(
    (below + mass) ** (count - 1 - k) * below**k for k in range(count)
  )
  return log_probs + np.log(factor)[level]


def divergence(target: Target, log_probs: np.ndarray) -> float:
  """KL(p_R || .) of a law over all sequences, in nats."""
  return float(np.exp(target.log_probs) @ (target.log_probs - log_probs))


def marks(steps: int) -> list[int]:
  """Numbers of updates after which a model is looked at: 0, 1, 3, 10, ..."""
  found = [0]
  for number in (1, 3, 10, 30, 100, 300, 1000, 3000):
    if number < steps:
      found.append(number)
  return [*found, steps]


def cross_entropy(logits: Sequence[jax.Array], visits: Sequence[jax.Array]):
  """Loss `-sum visits(s, y) log pi(y|s)` of tables, the forward KL + const."""
  return -sum(
    jnp.sum(passed * jax.nn.log_softmax(table))
    for table, passed in zip(logits, visits, strict=True)
  )


def _visits(targets):
  """T tables `[P, V**t, V]`: how often the optima pass (s, y)."""
  with jax.enable_x64(True):
    found = [
      arm_ebm.visit_probabilities(target.logits, eos=False)
      for target in targets
    ]
    return [
      np.stack([np.asarray(tables[t]) for tables in found])
      for t in range(len(found[0]))
    ]


def _divergences(models, targets):
  """`[P]` divergences KL(p_R || p_q) of tables."""
  with jax.enable_x64(True):
    return np.array(
      [
        float(bounds.exact_kl(target.logits, model, eos=False))
        for model, target in zip(models, targets, strict=True)
      ]
    )


def _mean_bonus(tables, target):
  return float(np.exp(agreement.log_probs(tables)) @ target.bonus)


def _record(trials, name, models, targets):
  """Adds a pair of models a prompt; what holds for the nearest logits of a
  policy holds for all others, whose bounds are larger.
  """
  for model, target in zip(models, targets, strict=True):
    near = bounds.aligned(model, target.logits)
    trials.append(bounds.trial(name, near, target.logits, eos=False))


def _train_tables(targets, steps, trials) -> list[Tables]:
  """Tables of every prompt, by Adam from zero, in float64."""
  visits = _visits(targets)
  settings = optimizer_lib.OptimizerConfig(
    learning_rate=0.05, decay_steps=steps, b2=0.999, clip_norm=None
  )
  with jax.enable_x64(True):
    params = [jnp.zeros(table.shape) for table in visits]
    weights = [jnp.asarray(table) for table in visits]
    params = _follow(
      params,
      cross_entropy,
      weights,
      settings,
      steps,
      "distilling, tabular",
      lambda params: _record(trials, TABULAR, _split(params), targets),
    )
    return _split(params)


def _split(params) -> list[Tables]:
  """Tables of each prompt out of tables with a leading axis of prompts."""
  return [
    [np.asarray(table[i]) for table in params] for i in range(len(params[0]))
  ]


def _train_transformers(key, targets, size, trials):
  """Transformers that are told the prompt by their first token."""
  visits = [jnp.asarray(table, jnp.float32) for table in _visits(targets)]
  num_prompts, _, vocab_size = visits[0].shape
  config = causal.Config(
    vocab_size=vocab_size + num_prompts,
    d_model=size.d_model,
    num_layers=2,
    num_heads=2,
    scan_layers=False,
  )
  pairs, _ = arm_ebm.enumerate_sequences(vocab_size, len(visits) - 1, eos=False)
  starts = vocab_size + np.arange(num_prompts, dtype=np.int32)
  rows = np.concatenate(
    [
      np.repeat(starts, len(pairs))[:, None],
      np.tile(pairs, (num_prompts, 1)),
    ],
    axis=1,
  )
  tokens = jnp.asarray(rows)

  def tables(params):
    logits = causal.apply(params, tokens, config=config)[..., :vocab_size]
    logits = logits.reshape(num_prompts, len(pairs), -1, vocab_size)
    return [
      logits[:, :: len(pairs) // vocab_size**t, t] for t in range(len(visits))
    ]

  settings = optimizer_lib.OptimizerConfig(
    learning_rate=3e-3,
    warmup_steps=min(20, size.steps // 2),
    decay_steps=size.steps,
    final_fraction=0.01,
  )

  def loss_fn(params, weights):
    return cross_entropy(tables(params), weights) / num_prompts

  read = jax.jit(tables)

  def models(params):
    return _split([np.asarray(x, np.float64) for x in read(params)])

  found = []
  for seed in range(size.seeds):
    params = _follow(
      causal.init(jax.random.fold_in(key, seed), config),
      loss_fn,
      visits,
      settings,
      size.steps,
      f"distilling, transformer {seed + 1} of {size.seeds}",
      lambda params: _record(trials, TRANSFORMER, models(params), targets),
    )
    found.append(models(params))
  return found, causal.num_params(config)


def _follow(params, loss_fn, data, settings, steps, description, look):
  """Trains, and looks at the parameters after some of the updates."""
  tx = optimizer_lib.make(settings)
  state = tx.init(params)

  @jax.jit
  def stretch(params, state, data, count):
    def step(_, carry):
      params, state = carry
      gradient = jax.grad(loss_fn)(params, data)
      updates, state = tx.update(gradient, state, params)
      return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, count, step, (params, state))

  look(params)
  done = 0
  with progress.bar(description, total=steps) as bar:
    for mark in marks(steps)[1:]:
      while done < mark:
        count = min(mark - done, _STRETCH)
        params, state = stretch(params, state, data, count)
        done += count
        bar.advance(count)
      look(params)
  return params
