"""Steps to ask a policy about, and whole decodings with one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import mdlm, sampling
from icml26_jax.diffusion import process as process_lib


@pytest.fixture(scope="session")
def make_step():
  """`(revealed, time, next_time, ...) -> Step` of a masked process."""

  def make(revealed, time=1.0, next_time=0.5, *, seed=0, is_last=False):
    revealed = jnp.asarray(revealed)
    latent = process_lib.Latent(jnp.zeros(revealed.shape, jnp.int32), revealed)
    return process_lib.Step(
      process_lib.row_keys(jax.random.key(seed), revealed.shape[0]),
      latent,
      jnp.int32(0),
      jnp.float32(time),
      jnp.float32(next_time),
      jnp.bool_(is_last),
    )

  return make


@pytest.fixture(scope="session")
def choose():
  """`(policy, log_probs, step) -> commit [B, L]` of a fresh policy."""

  def run(policy, log_probs, step):
    selection, _ = jax.jit(policy.select)(
      jnp.asarray(log_probs, jnp.float32) if policy.uses_predictions else None,
      policy.init(step.latent.tokens),
      step,
    )
    return np.asarray(selection.commit)

  return run


@pytest.fixture(scope="session")
def network():
  """A denoiser that looks at all revealed tokens of a row, without ties."""

  def make(vocab_size, sharpness=2.0):
    def denoise(latent, t):
      del t
      length = latent.tokens.shape[1]
      ids = jnp.arange(1.0, vocab_size + 1)[None, None]
      place = jnp.arange(1.0, length + 1)[None, :, None]
      seen = jnp.where(
        latent.revealed[..., None],
        jnp.sin((latent.tokens + 1.3)[..., None] * ids * 0.7),
        0.1 * jnp.cos(place * ids),
      )
      context = jnp.mean(seen * jnp.cos(place), axis=1, keepdims=True)
      near = jnp.roll(seen, 1, axis=1) + 0.7 * jnp.roll(seen, -1, axis=1)
      return sharpness * (near + 3.0 * context + 0.3 * jnp.sin(place * ids))

    return denoise

  return make


@pytest.fixture(scope="session")
def decode():
  """Runs masked decoding, compiled, and gives NumPy tokens and statistics."""

  def run(
    policy,
    denoise_fn,
    shape,
    steps,
    *,
    vocab_size,
    transform=None,
    prompt=None,
    prompt_mask=None,
    key=None,
  ):
    def sample(key, prompt, prompt_mask):
      return sampling.sample(
        key,
        mdlm.process(vocab_size),
        denoise_fn,
        shape,
        sampling.time_grid(steps),
        transform=transform,
        policy=policy,
        prompt=prompt,
        prompt_mask=prompt_mask,
      )

    # A program that runs once need not be fast.
    compiled = jax.jit(
      sample, compiler_options={"xla_backend_optimization_level": 0}
    )
    if prompt is not None:
      prompt, prompt_mask = jnp.asarray(prompt), jnp.asarray(prompt_mask)
    key = jax.random.key(0) if key is None else key
    return jax.tree.map(np.asarray, compiled(key, prompt, prompt_mask))

  return run
