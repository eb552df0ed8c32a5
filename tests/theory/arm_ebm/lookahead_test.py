"""The share of a logit that looks ahead: 0, 1, and a correlation by hand."""

import numpy as np
import pytest
import scipy.special

from icml26_jax.theory import arm_ebm


def share(rewards, *, eos):
  logits = arm_ebm.rewards_to_logits(rewards, eos=eos)
  return float(arm_ebm.lookahead_share(rewards, logits, eos=eos))


@pytest.mark.parametrize("eos", [False, True])
def test_share_is_a_correlation_over_states(make_tables, eos):
  rewards = make_tables(3, 4, eos=eos)
  logits = [np.asarray(x) for x in arm_ebm.rewards_to_logits(rewards, eos=eos)]
  here, ahead = [], []
  for t in range(3):
    values = scipy.special.logsumexp(logits[t + 1], axis=1)
    for row, line in enumerate(logits[t]):
      x = line[:3]
      v = values[3 * row : 3 * row + 3]
      # With EOS nothing but EOS follows the last but one step.
      here.extend(x - x.mean())
      ahead.extend(v - v.mean())
  expected = np.corrcoef(here, ahead)[0, 1] ** 2
  np.testing.assert_allclose(share(rewards, eos=eos), expected, rtol=1e-10)


def test_independent_steps_do_not_look_ahead():
  rng = np.random.default_rng(0)
  rewards = [np.tile(rng.normal(size=4), (4**t, 1)) for t in range(4)]
  assert share(rewards, eos=False) == 0.0


def test_a_reward_at_the_end_is_all_lookahead():
  rng = np.random.default_rng(1)
  rewards = [np.zeros((1, 4)), np.zeros((4, 4)), rng.normal(size=(16, 4))]
  np.testing.assert_allclose(share(rewards, eos=False), 1.0, rtol=1e-12)


@pytest.mark.parametrize(("vocab_size", "num_steps"), [(3, 1), (1, 3)])
def test_nothing_to_compare_is_zero(make_tables, vocab_size, num_steps):
  rewards = make_tables(vocab_size, num_steps, eos=False)
  assert share(rewards, eos=False) == 0.0


def test_forbidden_tokens_are_left_out():
  rewards = [np.zeros((1, 3)), np.array([[0.0] * 3, [1.0] * 3, [-np.inf] * 3])]
  # Two values are left, which always lie on a line.
  np.testing.assert_allclose(share(rewards, eos=False), 1.0, rtol=1e-12)


def test_tables_that_do_not_belong_together_are_refused(make_tables):
  first, second = (make_tables(3, 3, eos=False, seed=seed) for seed in (0, 1))
  with pytest.raises(ValueError, match=r"q must be rewards_to_logits\(r\)"):
    arm_ebm.lookahead_share(first, second, eos=False)
  with pytest.raises(ValueError, match="r and q must have one size"):
    arm_ebm.lookahead_share(first, make_tables(3, 2, eos=False), eos=False)
