"""The parts of the experiment on energies of autoregressive models."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from experiments import reproduce
from experiments.papers import arm_ebm as paper
from experiments.papers._arm_ebm import (
  agreement,
  bounds,
  distil,
  language_model,
  learning,
  text,
)
from icml26_jax.report import claims
from icml26_jax.theory import arm_ebm


def random_tables(vocab_size, num_steps, seed=0):
  rng = np.random.default_rng((seed, vocab_size, num_steps))
  return [
    rng.normal(size=(vocab_size**t, vocab_size)) for t in range(num_steps)
  ]


def test_counts_are_those_of_the_text():
  tables = text.count_logits(
    np.array([0, 1, 1, 0, 1]), vocab_size=2, length=2, smoothing=0.5
  )
  # Windows 01, 11, 10, 01.
  np.testing.assert_allclose(np.exp(tables[0]), [[2.5, 2.5]])
  np.testing.assert_allclose(np.exp(tables[1]), [[0.5, 2.5], [1.5, 1.5]])


def test_log_z_of_counted_letters_is_their_number():
  letters = text.letters(5000)
  tables = text.count_logits(letters, vocab_size=27, length=2, smoothing=0.5)
  found = agreement.measure(tables)
  # Every window is counted once, and half a count is added to 27 letters.
  np.testing.assert_allclose(
    found.log_partition, np.log(4999 + 27 / 2), rtol=1e-12
  )
  assert found.num_sequences == 27**2
  assert max(found.law, found.partition, found.round_trip) < 1e-12
  # The rewards are not the logits: something is looked ahead to.
  assert 0.01 < found.lookahead < 0.99


def test_disagreement_is_seen():
  tables = random_tables(3, 3)
  found = agreement.measure(tables)
  assert all(
    check.verdict is claims.Verdict.HOLDS for check in found.checks("x", 1e-9)
  )
  wrong = found._replace(law=1e-8)
  assert [check.verdict for check in wrong.checks("x", 1e-9)] == [
    claims.Verdict.FAILS,
    claims.Verdict.HOLDS,
    claims.Verdict.HOLDS,
  ]


def test_conditionals_multiply_in_the_order_of_enumeration():
  tables = random_tables(3, 3)
  tokens, lengths = arm_ebm.enumerate_sequences(3, 3, eos=False)
  with jax.enable_x64(True):
    expected = arm_ebm.arm_log_probs(tables, tokens, lengths, eos=False)
  np.testing.assert_allclose(agreement.log_probs(tables), expected, atol=1e-12)


def test_tables_are_taken_from_rows_along_sequences():
  tables = random_tables(3, 3)
  numbers = np.arange(9)
  rows = np.stack(
    [tables[t][numbers // 3 ** (2 - t)] for t in range(3)], axis=1
  )
  for got, expected in zip(
    language_model.tables_of_rows(rows), tables, strict=True
  ):
    np.testing.assert_array_equal(got, expected)


class _Words:
  """A tokenizer of whole words."""

  names = (" the", "The", " of", "\n", " to", "s")

  def encode(self, text):
    del text
    return np.array([1, 1, 1, 3, 3, 0, 0, 2, 5, 4, 4, 4])

  def decode(self, tokens):
    return "".join(self.names[token] for token in tokens)


def test_frequent_tokens_are_whole_words():
  np.testing.assert_array_equal(
    language_model.frequent_tokens(_Words(), 2), [4, 0]
  )
  with pytest.raises(ValueError, match="count must be at most 3, got 4"):
    language_model.frequent_tokens(_Words(), 4)


def test_bonus_counts_characters_and_distinct_words():
  got = distil.bonuses((" a", " the"), 2)
  # (a a), (a the), (the a), (the the)
  np.testing.assert_array_equal(got, [1 + 1, 1.5 + 2, 1.5 + 2, 2 + 1])


def test_best_of_n_is_that_of_enumerated_draws():
  rng = np.random.default_rng(0)
  p = rng.dirichlet(np.ones(5))
  bonus = np.array([1.0, 0.0, 2.0, 1.0, 2.0])
  expected = np.zeros(5)
  for draws in np.ndindex(*(5,) * 3):
    chosen = max(draws, key=lambda i: bonus[i])
    expected[chosen] += np.prod(p[list(draws)])
  got = np.exp(distil.best_of(np.log(p), bonus, 3))
  np.testing.assert_allclose(got, expected, rtol=1e-12)
  np.testing.assert_allclose(
    np.exp(distil.best_of(np.log(p), bonus, 1)), p, rtol=1e-12
  )


def test_target_is_the_reference_tilted_by_the_bonus():
  logits = random_tables(3, 3)
  bonus = np.random.default_rng(1).normal(size=27)
  target = distil.make_target(logits, bonus)
  expected = agreement.log_probs(logits) + bonus
  expected -= scipy.special.logsumexp(expected)
  np.testing.assert_allclose(target.log_probs, expected, atol=1e-12)
  laws = distil.rival_laws(target)
  for law in laws.values():
    np.testing.assert_allclose(np.exp(law).sum(), 1.0, rtol=1e-12)
    assert distil.divergence(target, law) > 1e-3
  # The one-step logits know the right conditional of the last step.
  last = target.reference[-1] + bonus.reshape(9, 3)
  one_step = laws[distil.ONE_STEP].reshape(9, 3)
  np.testing.assert_allclose(
    scipy.special.log_softmax(one_step, axis=1),
    scipy.special.log_softmax(last, axis=1),
    atol=1e-12,
  )
  np.testing.assert_allclose(
    scipy.special.logsumexp(one_step, axis=1),
    agreement.log_probs(target.reference[:-1]),
    atol=1e-12,
  )


def test_models_are_looked_at_from_start_to_end():
  assert distil.marks(1) == [0, 1]
  assert distil.marks(100) == [0, 1, 3, 10, 30, 100]
  assert distil.marks(600) == [0, 1, 3, 10, 30, 100, 300, 600]


def test_distilling_comes_near_the_optimum():
  space = language_model.Space(
    words=(" a", " the", " other"),
    prompts=("one", "two"),
    logits=[random_tables(3, 3, seed) for seed in range(2)],
    path_error=0.0,
  )
  size = distil.Size(seeds=1, d_model=16, steps=200, table_steps=400)
  found = distil.run(jax.random.key(0), space, size)
  assert found.tabular.shape == (2,)
  assert found.transformer.shape == (1, 2)
  assert np.all(found.tabular < 1e-3)
  assert np.all(found.transformer < found.rivals["reference"])
  np.testing.assert_allclose(
    found.bonus[distil.TABULAR], found.bonus["optimum"], atol=0.1
  )
  for bound in ("linear", "quadratic", "osc"):
    assert bounds.largest_ratio(found.trials, bound) < 1.0


def test_scores_are_rewards_of_the_last_step():
  scores = np.random.default_rng(0).normal(size=8)
  with jax.enable_x64(True):
    rewards = learning.as_rewards(jnp.asarray(scores), 2)
    assert [table.shape for table in rewards] == [(1, 2), (2, 2), (4, 2)]
    tokens, lengths = arm_ebm.enumerate_sequences(2, 3, eos=False)
    got = arm_ebm.sequence_scores(rewards, tokens, lengths, eos=False)
  np.testing.assert_array_equal(got, scores)


def test_a_model_and_its_own_scores_are_not_apart():
  tables = random_tables(3, 3)
  log_probs = agreement.log_probs(tables)
  # Half the mass of one sequence goes to its neighbour: that is the distance.
  moved = np.exp(log_probs)
  mass = 0.5 * moved[0]
  moved[:2] += [-mass, mass]
  with jax.enable_x64(True):
    logits = [jnp.asarray(table) for table in tables]
    visits = arm_ebm.visit_probabilities(logits, eos=False)
    same = learning.compare(logits, jnp.asarray(log_probs + 3.0), visits)
    other = learning.compare(logits, jnp.log(jnp.asarray(moved)), visits)
  np.testing.assert_allclose(same, 0.0, atol=1e-12)
  # Both sequences belong to one state, at the last depth.
  np.testing.assert_allclose(other, mass, rtol=1e-10)


def test_both_ways_of_learning_start_and_end_at_the_same_loss():
  found = learning.run(jax.random.key(1), (3, 3), seeds=2, steps=1200)
  np.testing.assert_allclose(
    found.arm_excess[:, 0], found.ebm_excess[:, 0], rtol=1e-9
  )
  assert found.arm_excess.shape == found.ebm_excess.shape == (2, 1201)
  for excess in (found.arm_excess, found.ebm_excess):
    assert np.all(excess > -1e-12)
    assert np.all(excess[:, -1] < 1e-3)
  assert np.all(found.sequence_tv < 0.02)
  assert np.all(found.policy_tv < 0.02)


def test_random_pairs_are_within_the_bounds():
  trials = bounds.run(0, 1)
  assert len(trials) == len(bounds.SIZES) * len(bounds.SCALES) * 2
  for bound in ("linear", "quadratic", "osc"):
    assert 0.01 < bounds.largest_ratio(trials, bound) < 1.0


def test_a_divergence_above_a_bound_is_seen():
  fine = bounds.trial(
    "x", random_tables(2, 2, 0), random_tables(2, 2, 1), eos=False
  )
  assert bounds.largest_ratio([fine], "linear") < 1.0
  wrong = fine._replace(kl=2 * fine.linear)
  assert bounds.largest_ratio([fine, wrong], "linear") == 2.0


def test_aligned_logits_are_the_same_model_and_nearest():
  q, q_star = random_tables(3, 2, 0), random_tables(3, 2, 1)
  near = bounds.aligned(q, q_star)
  np.testing.assert_allclose(
    agreement.log_probs(near), agreement.log_probs(q), atol=1e-12
  )
  found = bounds.trial("x", near, q_star, eos=False)
  # The largest difference is half the oscillation, so that the bounds meet.
  np.testing.assert_allclose(found.quadratic, found.osc, rtol=1e-12)


def test_one_seed_has_no_interval():
  assert np.isnan(paper.over_seeds(np.ones(1)).low)
  estimate = paper.over_seeds(np.array([1.0, 2.0, 3.0]))
  assert estimate.low < estimate.value == 2.0 < estimate.high


def test_budgets_only_grow():
  smoke, small, full = (
    paper.BUDGETS[name] for name in reproduce.papers.BUDGETS
  )
  assert small.sizes == full.sizes == learning.SIZES
  assert small.prompts == full.prompts == len(language_model.PROMPTS)
  for first, second in ((smoke, small), (small, full)):
    assert first.steps < second.steps
    assert first.seeds < second.seeds
    assert first.distil.steps < second.distil.steps
    assert first.draws < second.draws


@pytest.mark.slow  # The whole experiment, with the language model.
def test_smoke_budget_runs_to_a_report(tmp_path, smollm2_path):
  records, broken = reproduce.run_all(["arm-ebm"], "smoke", tmp_path, 0)
  assert broken == []
  folder = tmp_path / "arm-ebm"
  found = json.loads((folder / "report.json").read_text("utf-8"))
  verdicts = {claim["id"]: claim["verdict"] for claim in found["claims"]}
  # Theorems hold at any size; one seed decides nothing.
  assert verdicts == {
    "text": "holds",
    "language-model": "holds",
    "bounds": "holds",
    "optima": "inconclusive",
    "distilled": "inconclusive",
  }
  assert found["figures"] == ["bounds.png", "learning.png", "distilled.png"]
  for name in found["figures"]:
    assert (folder / name).read_bytes().startswith(b"\x89PNG")
  assert len(records[0]["tables"]) == 4
