"""Chains of all kinds of transforms, with a policy, under every process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import (
  candi,
  contexts,
  continuous,
  guidance,
  mdlm,
  policies,
  sampling,
  transforms,
)
from icml26_jax.diffusion import process as process_lib

ROWS, LENGTH, VOCAB = 3, 6, 5


def denoise(latent, t):
  known = jax.nn.one_hot(latent.tokens, VOCAB) * latent.revealed[..., None]
  if latent.values is not None:
    known = known + latent.values / (1.0 + latent.sigma)[:, None, None]
  near = jnp.roll(known, 1, axis=1) + jnp.roll(known, -1, axis=1)
  return jnp.cumsum(near, axis=-1) + t[:, None, None]


def likes_token_two(one_hots):
  return jax.nn.log_sigmoid(4.0 * jnp.mean(one_hots[:, :, 2], axis=1))


@pytest.mark.parametrize("make", [mdlm.process, candi.process])
def test_guided_coherent_decoding_of_a_batch_equals_its_rows(make):
  chain = process_lib.chain(
    guidance.cbg_taylor(likes_token_two, 1.5),
    guidance.sake(jnp.eye(VOCAB), lam=2.0),
    contexts.coherent_contexts(VOCAB, window=3),
    transforms.top_k(3),
  )
  keys = process_lib.row_keys(jax.random.key(0), ROWS)
  rng = np.random.default_rng(0)
  prompt = jnp.asarray(rng.integers(0, VOCAB, (ROWS, LENGTH)))
  mask = jnp.asarray(rng.random((ROWS, LENGTH)) < 0.3)

  def run(keys, prompt, mask):
    return sampling.sample(
      keys,
      make(VOCAB),
      denoise,
      prompt.shape,
      sampling.time_grid(4),
      transform=chain,
      policy=policies.ccd(VOCAB, b_max=3, tau=1.2, greedy=False),
      prompt=prompt,
      prompt_mask=mask,
    )

  tokens, stats = jax.jit(run)(keys, prompt, mask)
  for b in range(ROWS):
    row = slice(b, b + 1)
    one, one_stats = jax.jit(run)(keys[row], prompt[row], mask[row])
    np.testing.assert_array_equal(tokens[row], one)
    np.testing.assert_array_equal(stats.nfe[row], one_stats.nfe)
  np.testing.assert_array_equal(
    np.sum(stats.committed, axis=1), np.sum(~mask, axis=1)
  )


def test_guidance_by_class_raises_its_token():
  @jax.jit
  def sample(key, scale):
    return sampling.sample(
      key,
      continuous.process(VOCAB),
      denoise,
      (200, LENGTH),
      sampling.time_grid(3),
      transform=process_lib.chain(
        guidance.cbg_exact(likes_token_two, scale),
        guidance.sake(jnp.eye(VOCAB), lam=1.0),
      ),
    )[0]

  shares = [
    np.mean(np.asarray(sample(jax.random.key(1), scale)) == 2)
    for scale in (0.0, 6.0)
  ]
  # 1,200 tokens: four standard errors of a difference are 0.08.
  assert shares[1] > shares[0] + 0.08
