"""Properties of every process over shapes, vocabularies, dtypes, ugly logits."""

import functools

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.diffusion import candi, continuous, mdlm, sampling
from icml26_jax.diffusion import process as process_lib

MAKERS = {
  "mdlm": mdlm.process,
  "candi": candi.process,
  "candi_release_mean": functools.partial(
    candi.process, update="release", x0_mode="mean", r_max=0.49
  ),
  "continuous": continuous.process,
}
# (batch, length, vocabulary, steps, dtype): each costs a compilation.
CASES = [
  (1, 1, 2, 1, jnp.float32),
  (3, 4, 2, 5, jnp.bfloat16),
  (2, 3, 37, 3, jnp.float32),
]
# Programs that take seconds to optimise and milliseconds to run.
compiled = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


@functools.cache
def sampler(name, case):
  batch, length, vocab_size, steps, dtype = case
  process = MAKERS[name](vocab_size)
  return compiled(
    lambda key, logits, prompt, mask: sampling.sample(
      key,
      process,
      lambda latent, t: logits.astype(dtype),
      (batch, length),
      sampling.time_grid(steps),
      prompt=prompt,
      prompt_mask=mask,
    )
  )


@functools.cache
def losses(name, case):
  vocab_size, dtype = case[2], case[4]
  process = MAKERS[name](vocab_size)

  def total(logits, keys, x0, t, mask):
    latent = process.corrupt(keys, x0, t)
    per_row = process.loss(logits.astype(dtype), x0, latent, t, mask)
    return jnp.sum(per_row), (per_row, latent)

  return compiled(jax.value_and_grad(total, has_aux=True))


def ugly_logits(rng, kind, shape):
  logits = rng.normal(size=shape)
  if kind == "large":
    return logits * 1e4
  if kind == "equal":
    return np.full(shape, -3.0)
  if kind == "certain":
    return np.where(
      rng.integers(0, shape[-1], shape[:-1])[..., None] == np.arange(shape[-1]),
      0.0,
      -np.inf,
    )
  if kind == "forbidden":
    allowed = rng.random(shape) < 0.5
    allowed[..., 0] |= ~allowed.any(-1)
    return np.where(allowed, logits, -np.inf)
  return logits


names = st.sampled_from(sorted(MAKERS))
cases = st.sampled_from(CASES)
seeds = st.integers(0, 2**31)


@hypothesis.given(
  name=names,
  case=cases,
  seed=seeds,
  kind=st.sampled_from(["plain", "large", "equal", "certain", "forbidden"]),
  share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_samples_are_complete_possible_and_keep_the_prompt(
  name, case, seed, kind, share
):
  batch, length, vocab_size, steps, _ = case
  rng = np.random.default_rng(seed)
  logits = ugly_logits(rng, kind, (batch, length, vocab_size))
  mask = rng.random((batch, length)) < share
  prompt = rng.integers(0, vocab_size, (batch, length))
  tokens, stats = sampler(name, case)(
    jax.random.key(seed), jnp.asarray(logits, jnp.float32), prompt, mask
  )
  tokens = np.asarray(tokens)
  assert tokens.min() >= 0
  assert tokens.max() < vocab_size
  np.testing.assert_array_equal(tokens[mask], prompt[mask])
  drawn = np.take_along_axis(logits, tokens[..., None], -1)[..., 0]
  assert np.all(drawn[~mask] > -np.inf)
  committed, nfe = np.asarray(stats.committed), np.asarray(stats.nfe)
  np.testing.assert_array_equal(committed.sum(1), (~mask).sum(1))
  assert np.all(nfe <= steps)
  assert np.all((nfe == 0) == mask.all(1))
  assert nfe.max(initial=0) <= int(stats.calls) <= steps
  # A call that a masked process makes commits something.
  if name == "mdlm":
    np.testing.assert_array_equal(nfe, (committed > 0).sum(1))


@hypothesis.given(
  name=names,
  case=cases,
  seed=seeds,
  kind=st.sampled_from(["plain", "large", "equal"]),
  time=st.sampled_from([0.0, 1e-30, 1e-7, 0.3, 1.0]),
  share=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_losses_are_finite_and_not_negative(
  name, case, seed, kind, time, share
):
  batch, length, vocab_size, _, _ = case
  rng = np.random.default_rng(seed)
  logits = ugly_logits(rng, kind, (batch, length, vocab_size))
  mask = jnp.asarray(rng.random((batch, length)) < share)
  x0 = jnp.asarray(rng.integers(0, vocab_size, (batch, length)), jnp.int32)
  (_, (per_row, latent)), gradient = losses(name, case)(
    jnp.asarray(logits, jnp.float32),
    process_lib.row_keys(jax.random.key(seed), batch),
    x0,
    jnp.full(batch, time),
    mask,
  )
  assert np.all(np.isfinite(per_row))
  assert np.asarray(per_row).min() >= 0
  assert np.all(np.isfinite(gradient))
  counted = np.asarray(mask) & ~np.asarray(latent.revealed)
  assert not np.any(np.asarray(gradient)[~counted])
  np.testing.assert_array_equal(np.asarray(per_row)[~counted.any(1)], 0.0)
  # Gradients of a cross-entropy sum to zero over the vocabulary.
  largest = np.abs(gradient).max(initial=1.0)
  np.testing.assert_allclose(
    np.asarray(gradient).sum(-1), 0.0, atol=1e-2 * largest
  )
