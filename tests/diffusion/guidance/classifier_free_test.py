"""D-CFG: mixtures of a conditional and an unconditional prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, guidance, mdlm, sampling
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 2, 3, 5


def laws(seed=0):
  rng = np.random.default_rng(seed)
  p, q = rng.dirichlet(np.ones(VOCAB), size=(2, BATCH, LENGTH))
  return p, q


@pytest.mark.parametrize("gamma", [-1.0, 0.0, 0.5, 1.0, 2.5])
def test_equals_float64(gamma):
  p, q = laws()
  got = guidance.combine(jnp.log(p), jnp.log(q), gamma)
  expected = p**gamma * q ** (1 - gamma)
  expected /= expected.sum(-1, keepdims=True)
  np.testing.assert_allclose(np.exp(got), expected, rtol=2e-5)


@pytest.mark.parametrize("gamma", [-1.0, 0.0, 0.5, 1.0, 3.0])
def test_token_impossible_in_either_stays_impossible(gamma):
  p = jnp.log(jnp.array([0.5, 0.5, 0.0, 0.0]))
  q = jnp.log(jnp.array([0.25, 0.25, 0.5, 0.0])).at[1].set(-jnp.inf)
  got = guidance.combine(p, q, gamma)
  np.testing.assert_array_equal(got, [0.0, -jnp.inf, -jnp.inf, -jnp.inf])
  gradient = jax.grad(
    lambda p, q, g: guidance.combine(p, q, g)[0], argnums=(0, 1, 2)
  )(p, q, gamma)
  assert all(np.all(np.isfinite(leaf)) for leaf in gradient)


def test_laws_without_a_common_token_leave_the_conditional_one():
  p = jnp.log(jnp.array([[0.5, 0.5, 0.0]]))
  q = jnp.log(jnp.array([[0.0, 0.0, 1.0]]))
  np.testing.assert_array_equal(guidance.combine(p, q, 2.0), p)


def conditional(latent, t):
  """Likes the first token of the row, if it is shown."""
  del t
  first = jax.nn.one_hot(latent.tokens[:, 0], VOCAB)
  first = first * latent.revealed[:, :1]
  return jnp.broadcast_to(
    first[:, None] + 0.3 * jnp.arange(VOCAB)[None, None],
    (*latent.tokens.shape, VOCAB),
  )


def prompted(batch):
  prompt = jnp.full((batch, LENGTH), 2, jnp.int32)
  return prompt, jnp.tile(jnp.arange(LENGTH)[None] == 0, (batch, 1))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_transform_leans_away_from_the_network_without_its_prompt(gamma):
  prompt, mask = prompted(BATCH)
  latent = process_lib.Latent(jnp.where(mask, prompt, 0), mask)
  step = process_lib.Step(
    process_lib.row_keys(jax.random.key(0), BATCH),
    latent,
    0,
    jnp.float32(1.0),
    jnp.float32(0.5),
    False,
  )
  log_probs = process_lib.carry_over(
    conditional(latent, None), latent.tokens, latent.revealed
  )
  transform = guidance.cfg(guidance.without_prompt(conditional, mask), gamma)
  got, _ = transform.update(log_probs, transform.init(prompt), step)
  np.testing.assert_array_equal(got[:, 0], log_probs[:, 0])
  # The unconditional logits lack the 1 of the prompt's token.
  logits = 0.3 * np.arange(VOCAB) + gamma * (np.arange(VOCAB) == 2)
  law = np.exp(logits) / np.exp(logits).sum()
  np.testing.assert_allclose(
    np.exp(got[:, 1:]), np.tile(law, (BATCH, 2, 1)), rtol=1e-5
  )


def test_sampled_tokens_have_the_guided_law():
  batch, gamma = 4000, 2.0
  prompt, mask = prompted(batch)
  tokens, _ = jax.jit(
    lambda key: sampling.sample(
      key,
      mdlm.process(VOCAB),
      conditional,
      (batch, LENGTH),
      sampling.time_grid(2),
      transform=guidance.cfg(guidance.without_prompt(conditional, mask), gamma),
      prompt=prompt,
      prompt_mask=mask,
    )
  )(jax.random.key(0))
  logits = 0.3 * np.arange(VOCAB) + gamma * (np.arange(VOCAB) == 2)
  law = np.exp(logits) / np.exp(logits).sum()
  for i in (1, 2):
    counts = np.bincount(np.asarray(tokens)[:, i], minlength=VOCAB)
    chi2 = np.sum((counts - batch * law) ** 2 / (batch * law))
    # 4 degrees of freedom: the 1e-4 quantile is 23.5.
    assert chi2 < 23.5


def test_gamma_one_is_the_identity_and_calls_nothing():
  def never(latent, t):
    raise AssertionError("the network must not be called")

  logits = jnp.zeros((1, 1, 2))
  for one in (1, 1.0, jnp.ones(())):
    assert guidance.cfg(never, one).update(logits, (), None)[0] is logits


@pytest.mark.parametrize(
  ("gamma", "message"),
  [
    (float("nan"), "gamma must be"),
    (float("inf"), "gamma must be"),
    (np.ones(2), r"gamma must be one number, got shape \(2,\)"),
  ],
)
def test_bad_gamma_is_an_error(gamma, message):
  with pytest.raises(ValueError, match=message):
    guidance.cfg(conditional, gamma)


def test_bad_shapes_and_latents_are_errors():
  with pytest.raises(ValueError, match="must have one shape"):
    guidance.combine(jnp.zeros(3), jnp.zeros(4), 1.0)
  with pytest.raises(TypeError, match="prompt_mask must be bool"):
    guidance.without_prompt(conditional, jnp.zeros((1, 2)))
  prompt, mask = prompted(BATCH)
  hidden = guidance.without_prompt(conditional, mask)
  with pytest.raises(ValueError, match="prompt_mask must have shape"):
    hidden(process_lib.Latent(prompt[:1], mask[:1]), jnp.zeros(1))
  keys = process_lib.row_keys(jax.random.key(0), BATCH)
  noisy = candi.process(VOCAB).corrupt(keys, prompt, jnp.full(BATCH, 0.5))
  with pytest.raises(ValueError, match="process that only masks"):
    hidden(noisy, jnp.zeros(BATCH))
