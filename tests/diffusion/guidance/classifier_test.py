"""Gradient guidance of Gaussian latents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, continuous, sampling
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import classifier

BATCH, LENGTH, VOCAB, SLOPE = 3, 4, 5, 1.7
WEIGHTS = np.random.default_rng(0).normal(size=(LENGTH, VOCAB))


def log_linear(one_hots):
  """A score linear in the one-hots, in place of a log-probability."""
  weights = jnp.asarray(WEIGHTS, jnp.float32)
  return jnp.einsum("blv,lv->b", one_hots, weights)


def logistic(one_hots):
  return jax.nn.log_sigmoid(log_linear(one_hots))


def network(latent, t):
  """Position by position, so that its derivative can be written down."""
  del t
  return SLOPE * latent.values


def mixing_network(latent, t):
  noisy = latent.values / latent.sigma[:, None, None]
  return noisy + jnp.roll(jnp.tanh(noisy), 1, axis=1) + t[:, None, None]


def latent_of(seed=1):
  rng = np.random.default_rng(seed)
  values = jnp.asarray(rng.normal(size=(BATCH, LENGTH, VOCAB)), jnp.float32)
  revealed = jnp.asarray(rng.random((BATCH, LENGTH)) < 0.4)
  tokens = jnp.asarray(rng.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
  values = jnp.where(revealed[..., None], jax.nn.one_hot(tokens, VOCAB), values)
  return process_lib.Latent(
    jnp.where(revealed, tokens, 0), revealed, jnp.full(BATCH, 0.9), values
  )


def evaluate(guidance, denoise_fn=network, latent=None, embedding=None):
  process = candi.process(VOCAB, guidance=guidance, embedding=embedding)
  return process.evaluate(
    denoise_fn,
    latent_of() if latent is None else latent,
    jnp.float32(0.5),
    jnp.float32(0.25),
  )


def closed_form(straight_through, logistic_head):
  """`scale d/dy log p(c | softmax(slope y))` in float64, scale 2."""
  latent = latent_of()
  x = SLOPE * np.asarray(latent.values, np.float64)
  p = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
  revealed = np.asarray(latent.revealed)
  known = np.eye(VOCAB)[np.asarray(latent.tokens)]
  relaxed = np.where(revealed[..., None], known, p)
  gradient = np.tile(WEIGHTS, (BATCH, 1, 1))
  if logistic_head:
    score = np.einsum("blv,lv->b", relaxed, WEIGHTS)
    gradient = gradient / (1 + np.exp(score))[:, None, None]
  if not straight_through:
    mean = np.sum(p * gradient, -1, keepdims=True)
    gradient = SLOPE * p * (gradient - mean)
  return 2.0 * np.where(revealed[..., None], 0.0, gradient)


@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize("head", [log_linear, logistic])
def test_term_equals_its_closed_form(straight_through, head):
  guidance = candi.ClassifierGuidance(head, 2.0, straight_through)
  logits, term = evaluate(guidance)
  np.testing.assert_array_equal(logits, network(latent_of(), None))
  expected = closed_form(straight_through, head is logistic)
  np.testing.assert_allclose(term, expected, rtol=0, atol=2e-6)
  assert not np.any(np.asarray(term)[np.asarray(latent_of().revealed)])


def test_term_goes_through_a_network_that_mixes_positions():
  guidance = candi.ClassifierGuidance(logistic, 1.0)
  latent = latent_of()
  logits, term = evaluate(guidance, mixing_network)
  np.testing.assert_array_equal(
    logits, mixing_network(latent, jnp.full(BATCH, 0.5))
  )

  def total(values):
    changed = process_lib.Latent(
      latent.tokens, latent.revealed, latent.sigma, values
    )
    p = jax.nn.softmax(mixing_network(changed, jnp.full(BATCH, 0.5)), axis=-1)
    known = jax.nn.one_hot(latent.tokens, VOCAB)
    return jnp.sum(logistic(jnp.where(latent.revealed[..., None], known, p)))

  # Central differences along a few directions at hidden positions.
  rng = np.random.default_rng(3)
  for _ in range(5):
    direction = rng.normal(size=latent.values.shape).astype(np.float32)
    direction = np.where(np.asarray(latent.revealed)[..., None], 0, direction)
    step = 1e-2
    slope = (
      float(total(latent.values + step * direction))
      - float(total(latent.values - step * direction))
    ) / (2 * step)
    # The third derivative costs step^2, rounding eps / step.
    np.testing.assert_allclose(
      np.sum(term * direction), slope, rtol=0, atol=2e-3
    )


def test_network_runs_once_for_logits_and_term():
  calls = []

  def counted(latent, t):
    calls.append(1)
    return network(latent, t)

  for straight_through in (False, True):
    calls.clear()
    evaluate(candi.ClassifierGuidance(logistic, 1.0, straight_through), counted)
    assert len(calls) == 1


def test_bfloat16_network_gets_a_float32_term():
  def half_precision(latent, t):
    return network(latent, t).astype(jnp.bfloat16)

  logits, term = evaluate(
    candi.ClassifierGuidance(log_linear, 2.0), half_precision
  )
  assert logits.dtype == jnp.bfloat16
  assert term.dtype == jnp.float32
  # bfloat16 keeps 8 bits of logits of size at most 6 and of the cotangent.
  np.testing.assert_allclose(term, closed_form(False, False), rtol=0, atol=0.05)


@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize("size", [3, 1])
def test_embedded_term_is_the_explicit_one_seen_through_the_table(
  straight_through, size
):
  table = jnp.asarray(
    np.random.default_rng(4).normal(size=(VOCAB, size)), jnp.float32
  )
  back = jnp.asarray(
    np.random.default_rng(5).normal(size=(size, VOCAB)), jnp.float32
  )
  latent = latent_of()
  embedded = process_lib.Latent(
    latent.tokens,
    latent.revealed,
    latent.sigma,
    embedded=jnp.matmul(latent.values, table),
  )
  guidance = candi.ClassifierGuidance(logistic, 1.5, straight_through)
  logits, term = evaluate(
    guidance, lambda z, t: jnp.matmul(z.values, table) @ back
  )
  got_logits, got = evaluate(
    guidance, lambda z, t: z.embedded @ back, embedded, table
  )
  np.testing.assert_allclose(got_logits, logits, rtol=0, atol=1e-5)
  np.testing.assert_allclose(got, jnp.matmul(term, table), rtol=0, atol=2e-5)


# Programs that take seconds to optimise and milliseconds to run.
UNOPTIMISED = {"xla_backend_optimization_level": 0}


def run(guidance, steps):
  prompt = jnp.full((BATCH, LENGTH), 2)
  mask = jnp.arange(LENGTH)[None] < jnp.array([0, 1, 3])[:, None]
  return sampling.sample(
    jax.random.key(0),
    candi.process(VOCAB, guidance=guidance),
    mixing_network,
    (BATCH, LENGTH),
    sampling.time_grid(steps),
    prompt=prompt,
    prompt_mask=mask,
  )[0]


def compiled(fn):
  return jax.jit(fn, compiler_options=UNOPTIMISED)


def hlo(guidance):
  return jax.jit(lambda: run(guidance, 3)).lower().as_text()


def test_static_scale_zero_is_the_unguided_program():
  def never(one_hots):
    raise AssertionError("the classifier must not be called")

  for zero in (0, 0.0, np.float32(0), jnp.zeros(())):
    assert hlo(candi.ClassifierGuidance(never, zero)) == hlo(None)


def test_traced_scale_zero_gives_the_unguided_tokens():
  guided = compiled(
    lambda scale: run(candi.ClassifierGuidance(logistic, scale), 4)
  )
  unguided = np.asarray(compiled(lambda: run(None, 4))())
  np.testing.assert_array_equal(guided(0.0), unguided)
  # One program for the whole sweep, and a strong pull does change tokens.
  assert np.any(np.asarray(guided(50.0)) != unguided)
  assert guided._cache_size() == 1


def test_traced_scale_zero_gives_the_unguided_latent():
  def after(guidance):
    process = candi.process(VOCAB, guidance=guidance)
    latent, times = latent_of(), (jnp.float32(0.5), jnp.float32(0.25))
    logits, extra = process.evaluate(network, latent, *times)
    return process.reverse(
      process_lib.row_keys(jax.random.key(0), BATCH),
      latent,
      logits,
      extra,
      *times,
      process_lib.Selection(jnp.zeros((BATCH, LENGTH), bool)),
    )

  guided = jax.jit(
    lambda scale: after(candi.ClassifierGuidance(logistic, scale))
  )(0.0)
  np.testing.assert_allclose(
    guided.values, after(None).values, rtol=0, atol=1e-6
  )


def test_one_step_does_not_feel_guidance():
  guidance = candi.ClassifierGuidance(log_linear, 100.0)
  np.testing.assert_array_equal(
    compiled(lambda: run(guidance, 1))(), compiled(lambda: run(None, 1))()
  )


@pytest.mark.parametrize(
  ("make", "update"),
  [
    (candi.process, "pf_ode"),
    (candi.process, "release"),
    (continuous.process, "pf_ode"),
  ],
)
def test_guidance_raises_the_score_and_leaves_the_prompt(make, update):
  batch = 64

  def sample(scale):
    process = make(
      VOCAB,
      update=update,
      guidance=candi.ClassifierGuidance(log_linear, scale),
    )
    return sampling.sample(
      jax.random.key(0),
      process,
      lambda latent, t: latent.values / latent.sigma[:, None, None] ** 2,
      (batch, LENGTH),
      sampling.time_grid(6),
      prompt=jnp.full((batch, LENGTH), 2),
      prompt_mask=jnp.tile(jnp.arange(LENGTH)[None] == 1, (batch, 1)),
    )[0]

  sample = compiled(sample)
  scores = []
  for scale in (-3.0, 0.0, 3.0):
    tokens = np.asarray(sample(scale))
    np.testing.assert_array_equal(tokens[:, 1], 2)
    scores.append(WEIGHTS[np.arange(LENGTH), tokens].sum(1).mean())
  assert scores[0] + 0.5 < scores[1] < scores[2] - 0.5


@pytest.mark.parametrize(
  ("scale", "message"),
  [
    (float("nan"), "scale must be finite, got nan"),
    (float("inf"), "scale must be finite, got inf"),
    (np.ones(2), r"scale must be one number, got shape \(2,\)"),
  ],
)
def test_bad_scale_is_an_error(scale, message):
  with pytest.raises(ValueError, match=message):
    candi.process(VOCAB, guidance=candi.ClassifierGuidance(log_linear, scale))
  with pytest.raises(ValueError, match=message):
    classifier.check_scale(scale)


def test_check_scale_knows_only_what_is_known():
  assert classifier.check_scale(0.0)
  assert not classifier.check_scale(0.1)
  seen = []

  @jax.jit
  def trace(scale):
    seen.append(classifier.check_scale(scale))
    return scale

  trace(0.0)
  assert seen == [False]


@pytest.mark.parametrize("straight_through", [False, True])
def test_classifier_without_one_number_a_row_is_an_error(straight_through):
  guidance = candi.ClassifierGuidance(
    lambda one_hots: jnp.sum(one_hots, axis=(1, 2))[:, None],
    1.0,
    straight_through,
  )
  with pytest.raises(ValueError, match=r"one number a row \(3,\), got"):
    evaluate(guidance)
