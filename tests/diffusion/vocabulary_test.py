"""Ids that stand for no token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, mdlm, policies, sampling, vocabulary
from icml26_jax.diffusion import process as process_lib

DEFINED = np.array([True, True, True, False, False])


def padded(latent, t):
  """A padded output layer whose undefined ids shout."""
  del t
  logits = jnp.array([0.0, 0.5, 1.0, 50.0, 60.0])
  return jnp.broadcast_to(logits, (*latent.tokens.shape, 5))


@pytest.mark.parametrize("make", [mdlm.process, candi.process])
@pytest.mark.parametrize("policy", [None, policies.top_prob()])
def test_undefined_ids_are_never_drawn(make, policy):
  tokens, _ = sampling.sample(
    jax.random.key(0),
    make(5),
    vocabulary.only_defined(padded, DEFINED),
    (64, 3),
    sampling.time_grid(3),
    policy=policy,
  )
  assert set(np.unique(tokens).tolist()) == {0, 1, 2}


def test_logits_of_defined_ids_are_unchanged():
  latent = process_lib.Latent(
    jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 2), bool)
  )
  got = vocabulary.only_defined(padded, jnp.asarray(DEFINED))(latent, None)
  np.testing.assert_array_equal(got[..., :3], padded(latent, None)[..., :3])
  assert np.all(np.asarray(got)[..., 3:] == -np.inf)


@pytest.mark.parametrize(
  ("defined", "error", "message"),
  [
    (np.ones(5), TypeError, "defined must be bool"),
    (np.ones((1, 5), bool), ValueError, "defined must be a vector"),
    (np.zeros(5, bool), ValueError, "at least one token"),
  ],
)
def test_bad_mask_is_an_error(defined, error, message):
  with pytest.raises(error, match=message):
    vocabulary.only_defined(padded, defined)


def test_mask_of_another_length_is_an_error():
  denoise = vocabulary.only_defined(padded, np.ones(4, bool))
  with pytest.raises(ValueError, match="one entry a logit"):
    sampling.sample(
      jax.random.key(0),
      mdlm.process(5),
      denoise,
      (1, 2),
      sampling.time_grid(1),
    )
