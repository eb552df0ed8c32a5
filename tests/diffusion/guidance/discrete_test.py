"""D-CBG: exact and first-order tilts of the predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import mdlm, sampling
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import discrete

BATCH, LENGTH, VOCAB = 2, 3, 4
WEIGHTS = np.random.default_rng(0).normal(size=(LENGTH, VOCAB))
SCALES = [0.5, 1.0, -2.0, 30.0]


def log_linear(one_hots):
  weights = jnp.asarray(WEIGHTS, jnp.float32)
  return jnp.einsum("blv,lv->b", one_hots, weights)


def bilinear(one_hots):
  """Neighbours matter: log-linear in each position, not in all together."""
  weights = jnp.asarray(WEIGHTS @ WEIGHTS.T @ WEIGHTS, jnp.float32)
  left, right = one_hots[:, :-1], one_hots[:, 1:]
  return jnp.einsum("blv,lv,blw,lw->b", left, weights[1:], right, weights[:-1])


def logistic(one_hots):
  return jax.nn.log_sigmoid(log_linear(one_hots))


def in_numpy(fn, one_hots):
  return np.asarray(fn(jnp.asarray(one_hots, jnp.float32)), np.float64)


def example(seed=1):
  rng = np.random.default_rng(seed)
  tokens = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  revealed = jnp.asarray([[True, False, False], [False, True, False]])
  logits = jnp.asarray(rng.normal(size=(BATCH, LENGTH, VOCAB)) * 2, jnp.float32)
  log_probs = process_lib.carry_over(logits, tokens, revealed)
  latent = process_lib.Latent(jnp.where(revealed, tokens, 0), revealed)
  step = process_lib.Step(
    process_lib.row_keys(jax.random.key(0), BATCH),
    latent,
    *map(jnp.float32, (0, 1.0, 0.5, 0)),
  )
  return log_probs, step


def apply(transform, log_probs, step):
  state = transform.init(step.latent.tokens)
  return transform.update(log_probs, state, step)[0]


@pytest.mark.parametrize("fn", [log_linear, bilinear, logistic])
@pytest.mark.parametrize("chunk_size", [1, 5, 1000])
def test_exact_scores_are_those_of_a_loop(fn, chunk_size):
  log_probs, _ = example()
  p = np.exp(np.asarray(log_probs, np.float64))
  got = discrete.token_log_probs(fn, jnp.exp(log_probs), chunk_size=chunk_size)
  for i in range(LENGTH):
    for v in range(VOCAB):
      x = p.copy()
      x[:, i] = np.eye(VOCAB)[v]
      np.testing.assert_allclose(
        got[:, i, v], in_numpy(fn, x), rtol=1e-5, atol=1e-5
      )


def test_first_order_scores_are_the_gradient():
  log_probs, _ = example()
  p = jnp.exp(log_probs)
  np.testing.assert_allclose(
    discrete.token_log_prob_gradient(log_linear, p),
    np.tile(WEIGHTS, (BATCH, 1, 1)),
    rtol=1e-6,
  )
  score = in_numpy(log_linear, p)
  np.testing.assert_allclose(
    discrete.token_log_prob_gradient(logistic, p),
    WEIGHTS / (1 + np.exp(score))[:, None, None],
    rtol=0,
    atol=1e-6,
  )


@pytest.mark.parametrize("scale", SCALES)
def test_tilt_equals_float64(scale):
  log_probs, step = example()
  scores = np.random.default_rng(2).normal(size=log_probs.shape)
  revealed = np.asarray(step.latent.revealed)
  got = discrete.tilt(
    log_probs, jnp.asarray(scores, jnp.float32), scale, step.latent.revealed
  )
  x = np.asarray(log_probs, np.float64)[~revealed] + scale * scores[~revealed]
  x -= x.max(-1, keepdims=True)
  expected = x - np.log(np.exp(x).sum(-1, keepdims=True))
  np.testing.assert_allclose(
    np.asarray(got)[~revealed], expected, rtol=0, atol=2e-5
  )
  np.testing.assert_array_equal(
    np.asarray(got)[revealed], np.asarray(log_probs)[revealed]
  )


def test_impossible_token_stays_impossible():
  log_probs = jnp.log(jnp.array([[[0.5, 0.5, 0.0]]]))
  scores = jnp.array([[[0.0, 1.0, jnp.inf]]])
  got = discrete.tilt(log_probs, scores, 1.0, jnp.zeros((1, 1), bool))
  expected = np.log([1 / (1 + np.e), np.e / (1 + np.e)])
  np.testing.assert_allclose(got[0, 0, :2], expected, rtol=1e-6)
  assert got[0, 0, 2] == -np.inf


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("fn", [log_linear, bilinear])
def test_both_agree_for_a_classifier_log_linear_in_each_position(fn, scale):
  log_probs, step = example()
  exact = apply(discrete.cbg_exact(fn, scale), log_probs, step)
  taylor = apply(discrete.cbg_taylor(fn, scale), log_probs, step)
  np.testing.assert_allclose(np.exp(exact), np.exp(taylor), rtol=0, atol=1e-4)
  assert np.abs(np.exp(exact) - np.exp(log_probs)).max() > 0.05


def test_both_differ_for_a_curved_classifier():
  log_probs, step = example()
  exact = apply(discrete.cbg_exact(logistic, 5.0), log_probs, step)
  taylor = apply(discrete.cbg_taylor(logistic, 5.0), log_probs, step)
  assert np.abs(np.exp(exact) - np.exp(taylor)).max() > 0.02


def test_exact_tilt_at_one_hidden_position_is_bayes_rule():
  # All else known: p(v | c, rest) is proportional to p(v | rest) p(c | v).
  log_probs, step = example()
  revealed = jnp.array([[True, False, True]] * BATCH)
  tokens = jnp.array([[1, 0, 3], [2, 0, 0]])
  log_probs = process_lib.carry_over(log_probs, tokens, revealed)
  step = process_lib.Step(
    step.keys,
    process_lib.Latent(tokens, revealed),
    *map(jnp.float32, (0, 1.0, 0.5, 0)),
  )
  got = apply(discrete.cbg_exact(logistic, 1.0), log_probs, step)
  for b in range(BATCH):
    likelihood = []
    for v in range(VOCAB):
      full = np.eye(VOCAB)[[int(tokens[b, 0]), v, int(tokens[b, 2])]]
      likelihood.append(np.exp(in_numpy(logistic, full[None])[0]))
    posterior = np.exp(np.asarray(log_probs[b, 1], np.float64)) * likelihood
    np.testing.assert_allclose(
      np.exp(got[b, 1]), posterior / posterior.sum(), rtol=1e-5
    )


@pytest.mark.parametrize("make", [discrete.cbg_exact, discrete.cbg_taylor])
def test_revealed_positions_and_normalisation(make):
  log_probs, step = example()
  got = np.asarray(apply(make(bilinear, 2.0), log_probs, step))
  revealed = np.asarray(step.latent.revealed)
  np.testing.assert_array_equal(got[revealed], np.asarray(log_probs)[revealed])
  np.testing.assert_allclose(np.exp(got).sum(-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("make", [discrete.cbg_exact, discrete.cbg_taylor])
def test_scale_zero_is_the_identity(make):
  def never(one_hots):
    raise AssertionError("the classifier must not be called")

  log_probs, step = example()
  for zero in (0, 0.0, jnp.zeros(())):
    assert apply(make(never, zero), log_probs, step) is log_probs
  traced = jax.jit(lambda scale: apply(make(logistic, scale), log_probs, step))(
    0.0
  )
  np.testing.assert_allclose(
    np.exp(traced), np.exp(log_probs), rtol=0, atol=1e-6
  )


@pytest.mark.parametrize("make", [discrete.cbg_exact, discrete.cbg_taylor])
def test_guided_masked_samples_have_the_tilted_law(make):
  # Independent uniform tokens and a log-linear classifier: position i has the
  # law softmax(scale * weights_i), however many steps are taken.
  batch, scale = 4000, 1.5

  @jax.jit
  def sample(scale):
    return sampling.sample(
      jax.random.key(0),
      mdlm.process(VOCAB),
      lambda latent, t: jnp.zeros((batch, LENGTH, VOCAB)),
      (batch, LENGTH),
      sampling.time_grid(2),
      transform=make(log_linear, scale),
      prompt=jnp.full((batch, LENGTH), 2),
      prompt_mask=jnp.tile(jnp.arange(LENGTH)[None] == 1, (batch, 1)),
    )[0]

  tokens = np.asarray(sample(scale))
  np.testing.assert_array_equal(tokens[:, 1], 2)
  for i in (0, 2):
    law = np.exp(scale * WEIGHTS[i])
    law /= law.sum()
    counts = np.bincount(tokens[:, i], minlength=VOCAB)
    chi2 = np.sum((counts - batch * law) ** 2 / (batch * law))
    # 3 degrees of freedom: the 1e-4 quantile is 21.1.
    assert chi2 < 21.1


@pytest.mark.parametrize("make", [discrete.cbg_exact, discrete.cbg_taylor])
@pytest.mark.parametrize(
  ("scale", "message"),
  [
    (float("nan"), "scale must be finite"),
    (np.ones(3), r"scale must be one number, got shape \(3,\)"),
  ],
)
def test_bad_scale_is_an_error(make, scale, message):
  with pytest.raises(ValueError, match=message):
    make(log_linear, scale)


@pytest.mark.parametrize("make", [discrete.cbg_exact, discrete.cbg_taylor])
def test_classifier_without_one_number_a_row_is_an_error(make):
  log_probs, step = example()
  transform = make(lambda one_hots: jnp.sum(one_hots), 1.0)
  with pytest.raises(ValueError, match=r"one number a row \(2,\), got"):
    apply(transform, log_probs, step)


def test_chunk_size_below_one_is_an_error():
  with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
    discrete.cbg_exact(log_linear, 1.0, chunk_size=0)
  with pytest.raises(ValueError, match="chunk_size must be at least 1"):
    discrete.token_log_probs(log_linear, jnp.ones((1, 1, 2)), chunk_size=-1)
