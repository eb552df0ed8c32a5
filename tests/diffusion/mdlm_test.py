"""Masked diffusion: its bound, its reveals, one reverse step."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import categorical, mdlm
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 4, 6, 5


def example(seed=0, dtype=jnp.float32):
  rng = np.random.default_rng(seed)
  logits = jnp.asarray(rng.normal(size=(BATCH, LENGTH, VOCAB)) * 3, dtype)
  x0 = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  revealed = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.4)
  return logits, x0, revealed


def numpy_loss(logits, x0, revealed, alpha, alpha_derivative, mask=None):
  """The loss with loops, in float64."""
  logits = np.asarray(logits, np.float64)
  losses = np.zeros(len(x0))
  for b, i in np.ndindex(*x0.shape):
    if revealed[b, i] or (mask is not None and not mask[b, i]):
      continue
    row = logits[b, i]
    log_prob = row[x0[b, i]] - np.log(np.sum(np.exp(row - row.max())))
    log_prob -= row.max()
    losses[b] += -alpha_derivative[b] / (1 - alpha[b]) * -log_prob
  return losses


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("with_mask", [False, True])
def test_loss_equals_float64_loops(dtype, with_mask):
  logits, x0, revealed = example(dtype=dtype)
  rng = np.random.default_rng(1)
  mask = jnp.asarray(rng.random(x0.shape) < 0.7) if with_mask else None
  alpha = rng.random(BATCH).astype(np.float32)
  derivative = -rng.random(BATCH).astype(np.float32)
  got = mdlm.loss(logits, x0, revealed, alpha, derivative, mask=mask)
  expected = numpy_loss(
    *map(np.asarray, (logits, x0, revealed)),
    alpha.astype(float),
    derivative.astype(float),
    None if mask is None else np.asarray(mask),
  )
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, expected, rtol=3e-6)


def test_fully_revealed_rows_cost_nothing_at_alpha_one():
  logits, x0, _ = example()
  revealed = jnp.ones(x0.shape, bool)

  def total(x):
    return jnp.sum(mdlm.loss(x, x0, revealed, 1.0, -1.0))

  value, gradient = jax.value_and_grad(total)(logits)
  assert float(value) == 0.0
  np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def test_weight_stays_finite_in_its_gradient_at_alpha_one():
  logits, x0, revealed = example()
  gradient = jax.grad(
    lambda alpha: jnp.sum(mdlm.loss(logits, x0, revealed, alpha, -1.0))
  )(jnp.ones(BATCH))
  np.testing.assert_array_equal(gradient, np.zeros(BATCH))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"revealed": np.ones((BATCH, LENGTH + 1), bool)}, "one shape"),
    ({"x0": np.full((BATCH, LENGTH), VOCAB)}, r"\[0, 5\), got 5"),
    ({"alpha": np.ones(BATCH + 1)}, "alpha must be one number or one a row"),
    ({"alpha_derivative": np.ones((BATCH, 1))}, "alpha_derivative must be"),
  ],
)
def test_bad_arguments_of_the_loss(change, message):
  logits, x0, revealed = example()
  arguments = {
    "logits": logits,
    "x0": x0,
    "revealed": revealed,
    "alpha": 0.5,
    "alpha_derivative": -1.0,
  }
  with pytest.raises(ValueError, match=message):
    mdlm.loss(**{**arguments, **change})


def conditional_logits(joint, x0, revealed):
  """Log of the exact conditionals given revealed tokens, by enumeration."""
  vocab_size, length = joint.shape[0], joint.ndim
  out = np.zeros((length, vocab_size))
  for i in range(length):
    if revealed[i]:
      continue
    for v in range(vocab_size):
      index = tuple(
        x0[j] if revealed[j] else (v if j == i else slice(None))
        for j in range(length)
      )
      out[i, v] = np.log(joint[index].sum())
  return out


def nelbo(joint, x0, eps, uniform=False):
  """The bound by exact quadrature: the integrand is a polynomial in t."""
  length = joint.ndim
  nodes, weights = np.polynomial.legendre.leggauss(length + 1)
  nodes, weights = (nodes + 1) / 2, weights / 2
  subsets = np.array(list(itertools.product([False, True], repeat=length)))
  logits = np.stack([conditional_logits(joint, x0, s) for s in subsets])
  if uniform:
    logits = np.zeros_like(logits)
  process = mdlm.process(joint.shape[0], eps=eps)
  total = 0.0
  for t, weight in zip(nodes, weights, strict=True):
    alpha = 1 - (1 - eps) * t
    revealed = subsets.sum(1)
    probability = alpha**revealed * (1 - alpha) ** (length - revealed)
    losses = process.loss(
      jnp.asarray(logits, jnp.float32),
      jnp.tile(jnp.asarray(x0, jnp.int32)[None], (len(subsets), 1)),
      process_lib.Latent(jnp.zeros(subsets.shape, int), jnp.asarray(subsets)),
      jnp.full(len(subsets), t),
      jnp.ones(subsets.shape, bool),
    )
    total += weight * np.sum(probability * np.asarray(losses, np.float64))
  return total


def some_joint(seed, vocab_size=3, length=4):
  weights = np.random.default_rng(seed).random((vocab_size,) * length) ** 3
  return weights / weights.sum()


@pytest.mark.parametrize("seed", range(3))
def test_bound_with_exact_conditionals_is_the_likelihood(seed):
  joint = some_joint(seed)
  x0 = np.random.default_rng(seed).integers(0, 3, 4)
  np.testing.assert_allclose(
    nelbo(joint, x0, eps=0.0), -np.log(joint[tuple(x0)]), rtol=1e-5
  )


def test_bound_is_the_sum_over_hidden_sets():
  joint = some_joint(5)
  x0, length = np.array([0, 2, 1, 1]), 4
  total = 0.0
  for revealed in itertools.product([False, True], repeat=length):
    hidden = length - sum(revealed)
    if not hidden:
      continue
    weight = (
      math.factorial(hidden - 1)
      * math.factorial(length - hidden)
      / math.factorial(length)
    )
    logits = conditional_logits(joint, x0, revealed)
    for i in range(length):
      if not revealed[i]:
        log_prob = logits[i, x0[i]] - np.log(np.exp(logits[i]).sum())
        total -= weight * log_prob
  np.testing.assert_allclose(total, -np.log(joint[tuple(x0)]), rtol=1e-12)
  np.testing.assert_allclose(nelbo(joint, x0, eps=0.0), total, rtol=1e-5)


@pytest.mark.parametrize("eps", [0.0, 1e-3])
def test_bound_of_the_uniform_model(eps):
  got = nelbo(some_joint(0), np.array([0, 1, 2, 0]), eps, uniform=True)
  np.testing.assert_allclose(got, (1 - eps) * 4 * np.log(3), rtol=1e-5)


def test_default_eps_puts_exact_conditionals_slightly_below():
  joint = some_joint(1)
  x0 = np.array([2, 0, 1, 2])
  got = nelbo(joint, x0, eps=1e-3)
  exact = -np.log(joint[tuple(x0)])
  # What is missing: the cost between alpha = eps and alpha = 0, where all
  # four tokens are hidden, eps sum_i -log p(x_i) to first order.
  marginals = [
    joint.sum(tuple(j for j in range(4) if j != i))[x0[i]] for i in range(4)
  ]
  missing = -1e-3 * np.sum(np.log(marginals))
  np.testing.assert_allclose(exact - got, missing, rtol=2e-2)


@pytest.mark.parametrize("alpha", [0.0, 0.03, 0.5, 1.0])
def test_reveals_have_their_rate_in_each_row(alpha):
  rows, length = 8, 4096
  revealed = mdlm.corrupt(
    jax.random.key(0), jnp.zeros((rows, length), int), alpha
  )
  rate = np.asarray(revealed).mean(1)
  error = np.sqrt(alpha * (1 - alpha) / length)
  assert np.abs(rate - alpha).max() <= 4.5 * error
  if 0 < alpha < 1:
    assert len(np.unique(np.asarray(revealed), axis=0)) == rows


def test_alpha_outside_its_range_is_an_error():
  x0 = jnp.zeros((2, 3), int)
  for alpha in (-0.1, 1.1, float("nan")):
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\]"):
      mdlm.corrupt(jax.random.key(0), x0, alpha)
  with pytest.raises(ValueError, match="alpha must be one number or one a row"):
    mdlm.corrupt(jax.random.key(0), x0, np.full(3, 0.5))


def test_reveal_probability_is_the_share_of_time_that_passes():
  # Log-linear: (alpha(s) - alpha(t)) / (1 - alpha(t)) = (t - s) / t.
  rng = np.random.default_rng(0)
  t = rng.uniform(0.05, 1, 100)
  s = t * rng.random(100)
  for eps in (0.0, 1e-3, 0.5):
    got = mdlm.reveal_probability(1 - (1 - eps) * t, 1 - (1 - eps) * s)
    # 1 - alpha has an absolute error of float32's eps.
    atol = 4 * np.finfo(np.float32).eps / ((1 - eps) * 0.05)
    np.testing.assert_allclose(got, (t - s) / t, rtol=0, atol=atol)


def test_reveal_probability_at_its_ends():
  assert float(mdlm.reveal_probability(1.0, 1.0)) == 1.0
  assert float(mdlm.reveal_probability(0.3, 1.0)) == 1.0
  assert float(mdlm.reveal_probability(0.3, 0.3)) == 0.0
  gradient = jax.grad(mdlm.reveal_probability)(1.0, 1.0)
  assert float(gradient) == 0.0


def step_at(key, revealed, t, s):
  tokens = jnp.zeros(revealed.shape, jnp.int32)
  return process_lib.Step(
    keys=process_lib.row_keys(key, revealed.shape[0]),
    latent=process_lib.Latent(tokens, revealed),
    index=jnp.int32(0),
    time=jnp.float32(t),
    next_time=jnp.float32(s),
    is_last=jnp.bool_(False),
  )


def test_ancestral_policy_commits_hidden_positions_at_the_rate():
  revealed = jnp.arange(4096)[None] % 2 == jnp.arange(4)[:, None] % 2
  policy = mdlm.process(VOCAB).ancestral
  selection, state = policy.select(
    None, (), step_at(jax.random.key(0), revealed, 0.8, 0.5)
  )
  assert state == ()
  assert selection.tokens is None
  assert not policy.uses_predictions
  commit, hidden = np.asarray(selection.commit), ~np.asarray(revealed)
  assert not commit[~hidden].any()
  rate, expected = commit[hidden].mean(), 0.3 / 0.8
  error = np.sqrt(expected * (1 - expected) / hidden.sum())
  assert abs(rate - expected) < 4 * error


def test_corrupted_latent_hides_tokens():
  _, x0, _ = example()
  process = mdlm.process(VOCAB)
  keys = process_lib.row_keys(jax.random.key(0), BATCH)
  latent = process.corrupt(keys, x0, jnp.full(BATCH, 0.5))
  revealed = np.asarray(latent.revealed)
  assert 0 < revealed.sum() < revealed.size
  np.testing.assert_array_equal(latent.tokens, np.where(revealed, x0, 0))
  assert latent.values is None
  assert latent.sigma is None


@pytest.mark.parametrize("own_tokens", [False, True])
def test_reverse_step_reveals_exactly_the_selection(own_tokens):
  logits, x0, revealed = example()
  process = mdlm.process(VOCAB)
  latent = process.prior(None, x0, revealed, jnp.float32(1.0))
  rng = np.random.default_rng(3)
  # Revealed positions are selected too, and must be left alone.
  commit = jnp.asarray(rng.random(x0.shape) < 0.5)
  own = jnp.asarray(rng.integers(0, VOCAB, x0.shape), jnp.int32)
  keys = process_lib.row_keys(jax.random.key(4), BATCH)
  drawn = own if own_tokens else categorical.draw(keys, logits)
  keys = process_lib.row_keys(jax.random.key(4), BATCH)
  after = process.reverse(
    keys,
    latent,
    logits,
    None,
    jnp.float32(0.5),
    jnp.float32(0.25),
    process_lib.Selection(commit, own if own_tokens else None),
  )
  revealed, commit = np.asarray(revealed), np.asarray(commit)
  expected = np.where(revealed, x0, np.where(commit, drawn, 0))
  np.testing.assert_array_equal(after.tokens, expected)
  np.testing.assert_array_equal(after.revealed, revealed | commit)


def test_committed_tokens_follow_the_predictions():
  probs = np.array([0.5, 0.3, 0.15, 0.049, 0.001])
  length = 20_000
  process = mdlm.process(VOCAB)
  tokens = jnp.zeros((1, length), jnp.int32)
  latent = process.prior(None, tokens, tokens > 0, jnp.float32(1.0))
  logits = jnp.tile(jnp.log(jnp.asarray(probs))[None, None], (1, length, 1))
  after = process.reverse(
    process_lib.row_keys(jax.random.key(0), 1),
    latent,
    logits.astype(jnp.float32) + 7.0,
    None,
    jnp.float32(1.0),
    jnp.float32(0.0),
    process_lib.Selection(jnp.ones((1, length), bool)),
  )
  counts = np.bincount(np.asarray(after.tokens)[0], minlength=VOCAB)
  chi2 = np.sum((counts - length * probs) ** 2 / (length * probs))
  # 4 degrees of freedom: the 1e-4 quantile is 23.5.
  assert chi2 < 23.5


def test_network_sees_the_time_of_each_row():
  seen = []

  def network(latent, t):
    seen.append(t)
    return jnp.zeros((*latent.tokens.shape, VOCAB))

  process = mdlm.process(VOCAB)
  _, x0, revealed = example()
  latent = process.prior(None, x0, revealed, jnp.float32(1.0))
  _, extra = process.evaluate(
    network, latent, jnp.float32(0.75), jnp.float32(0.5)
  )
  assert extra is None
  np.testing.assert_array_equal(seen[0], np.full(BATCH, 0.75, np.float32))


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"vocab_size": 1}, "vocab_size must be in"),
    ({"vocab_size": 5, "eps": 1.0}, "eps must be in"),
    ({"vocab_size": 5, "eps": -0.1}, "eps must be in"),
    ({"vocab_size": 5, "eps": float("nan")}, "eps must be in"),
  ],
)
def test_bad_arguments_of_the_process(kwargs, message):
  with pytest.raises(ValueError, match=message):
    mdlm.process(**kwargs)


def test_tokens_outside_the_vocabulary_are_an_error():
  keys = process_lib.row_keys(jax.random.key(0), 1)
  with pytest.raises(ValueError, match=r"x0 must be in \[0, 5\), got 5"):
    mdlm.process(VOCAB).corrupt(keys, jnp.full((1, 2), 5), jnp.full(1, 0.5))


def test_schedule_that_is_nan_gives_nan_not_a_loss_of_zero():
  _, x0, revealed = example()
  logits = jnp.zeros((*x0.shape, VOCAB))
  run = jax.jit(lambda alpha: mdlm.loss(logits, x0, revealed, alpha, -1.0))
  assert np.isnan(run(jnp.float32(np.nan))).all()
  assert np.isnan(jax.jit(mdlm.reveal_probability)(jnp.float32(np.nan), 0.5))


@pytest.mark.parametrize(
  ("alpha", "derivative", "message"),
  [
    (2.0, -1.0, r"alpha must be in \[0, 1\]"),
    (-1.0, -1.0, r"alpha must be in \[0, 1\]"),
    (np.nan, -1.0, r"alpha must be in \[0, 1\]"),
    (0.5, 1.0, r"alpha_derivative must be in"),
  ],
)
def test_impossible_schedule_is_an_error(alpha, derivative, message):
  _, x0, revealed = example()
  logits = jnp.zeros((*x0.shape, VOCAB))
  with pytest.raises(ValueError, match=message):
    mdlm.loss(logits, x0, revealed, alpha, derivative)


def test_mask_of_another_shape_is_an_error():
  _, x0, revealed = example()
  logits = jnp.zeros((*x0.shape, VOCAB))
  with pytest.raises(ValueError, match=r"mask .* must have one shape"):
    mdlm.loss(logits, x0, revealed, 0.5, -1.0, mask=jnp.ones(x0.shape[1], bool))
