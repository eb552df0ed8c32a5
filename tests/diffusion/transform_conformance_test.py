"""What every logit transform must do; a row of TRANSFORMS a transform."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import contexts, guidance, policies, transforms
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB, STEPS = 4, 5, 6, 2
UNOPTIMISED = {"xla_backend_optimization_level": 0}


def classifier(one_hots):
  return jax.nn.log_sigmoid(jnp.sum(one_hots[:, :, 0] - 0.3, axis=1))


def unconditional(vocab_size):
  def denoise(latent, t):
    known = jax.nn.one_hot(latent.tokens, vocab_size)
    known = known * latent.revealed[..., None]
    return 0.5 * jnp.roll(known, 1, axis=1) + t[:, None, None]

  return denoise


def table(vocab_size):
  rng = np.random.default_rng(vocab_size)
  return jnp.asarray(rng.normal(size=(vocab_size, 3)), jnp.float32)


# Made for a vocabulary, so that a vocabulary of one token can be tried.
TRANSFORMS = {
  "identity": lambda v: process_lib.identity(),
  "temperature": lambda v: transforms.temperature(0.7),
  "top_k": lambda v: transforms.top_k(3),
  "top_p": lambda v: transforms.top_p(0.8),
  "min_p": lambda v: transforms.min_p(0.2),
  "withhold": lambda v: policies.withhold(v - 1),
  "cfg": lambda v: guidance.cfg(unconditional(v), 1.7),
  "cbg_exact": lambda v: guidance.cbg_exact(classifier, 1.5),
  "cbg_taylor": lambda v: guidance.cbg_taylor(classifier, 1.5),
  "sake": lambda v: guidance.sake(table(v), lam=3.0, target=0.9),
  "sake_cosine2": lambda v: guidance.sake(
    table(v), lam=-3.0, kind="cosine2", position_kind="rational"
  ),
  "sake_temperature": lambda v: guidance.sake(
    table(v), lam=3.0, target=0.9, mode="temperature", ell=float("inf")
  ),
  "sake_across": lambda v: guidance.sake(
    table(v), lam=3.0, across_samples=True, group_size=3
  ),
  "contexts": lambda v: contexts.coherent_contexts(v, window=3),
  "contexts_compressed": lambda v: contexts.coherent_contexts(
    v, window=3, stored_tokens=2
  ),
  "chain": lambda v: process_lib.chain(
    guidance.cbg_taylor(classifier, 1.5),
    guidance.sake(table(v), lam=2.0),
    contexts.coherent_contexts(v, window=2),
    transforms.top_p(0.9),
  ),
}
ROWS_MIX = {"sake_across"}
every_transform = pytest.mark.parametrize("name", TRANSFORMS)


def inputs(seed=0, *, length=LENGTH, vocab_size=VOCAB, share=0.6):
  """Keys, tokens, which are revealed, and the logits of two steps."""
  rng = np.random.default_rng(seed)
  revealed = jnp.asarray(rng.random((BATCH, length)) >= share)
  tokens = rng.integers(0, vocab_size, (BATCH, length))
  logits = rng.normal(size=(STEPS, BATCH, length, vocab_size), scale=2)
  return (
    process_lib.row_keys(jax.random.key(seed), BATCH),
    jnp.where(revealed, tokens, 0).astype(jnp.int32),
    revealed,
    jnp.asarray(logits, jnp.float32),
  )


def run(keys, tokens, revealed, logits, *, transform):
  """Two steps: `[2, B, L, V]` edited logits, and the last state."""
  state = transform.init(tokens)
  out = []
  for i in range(STEPS):
    step = process_lib.Step(
      keys=process_lib.fold_rows(keys, i),
      latent=process_lib.Latent(tokens, revealed),
      index=jnp.int32(i),
      time=jnp.float32(1 - 0.2 * i),
      next_time=jnp.float32(0.8 - 0.2 * i),
      is_last=jnp.bool_(False),
    )
    log_probs = process_lib.carry_over(logits[i], tokens, revealed)
    edited, state = transform.update(log_probs, state, step)
    out.append(edited)
  return jnp.stack(out), state


TRACES = collections.Counter()


@functools.cache
def compiled(name):
  transform = TRANSFORMS[name](VOCAB)

  def counted(*arguments):
    TRACES[name] += 1
    return run(*arguments, transform=transform)

  return jax.jit(counted, compiler_options=UNOPTIMISED)


def assert_same(got, expected):
  """Equal laws at a position, up to the rounding of some 40 numbers."""
  got, expected = (
    np.asarray(jax.nn.softmax(x, axis=-1)) for x in (got, expected)
  )
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@every_transform
def test_state_comes_from_shapes_and_keeps_its_types(name):
  transform = TRANSFORMS[name](VOCAB)
  arguments = inputs()
  tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
  start = jax.eval_shape(transform.init, tokens)
  edited, end = jax.eval_shape(
    functools.partial(run, transform=transform), *arguments
  )
  assert edited.dtype == jnp.float32
  assert edited.shape == (STEPS, BATCH, LENGTH, VOCAB)
  assert jax.tree.structure(start) == jax.tree.structure(end)
  for a, b in zip(jax.tree.leaves(start), jax.tree.leaves(end), strict=True):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    assert a.shape[0] == BATCH


@every_transform
def test_edited_predictions_are_laws(name):
  keys, tokens, revealed, logits = inputs(1)
  edited, _ = compiled(name)(keys, tokens, revealed, logits)
  assert not np.any(np.isnan(edited))
  assert np.asarray(edited).max() < np.inf
  assert np.all(np.asarray(edited).max(axis=-1) > -np.inf)


@every_transform
def test_second_call_is_not_traced_and_jit_equals_eager(name):
  got, _ = compiled(name)(*inputs(2))
  compiled(name)(*inputs(3))
  assert TRACES[name] == 1
  eager, _ = run(*inputs(2), transform=TRANSFORMS[name](VOCAB))
  assert_same(got, eager)


@every_transform
def test_vmap_equals_a_loop(name):
  many = [inputs(seed) for seed in (4, 5)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
  got, _ = jax.jit(
    jax.vmap(functools.partial(run, transform=TRANSFORMS[name](VOCAB))),
    compiler_options=UNOPTIMISED,
  )(*stacked)
  for i, arguments in enumerate(many):
    assert_same(got[i], compiled(name)(*arguments)[0])


@pytest.mark.parametrize("name", [x for x in TRANSFORMS if x not in ROWS_MIX])
def test_batch_equals_its_rows(name):
  keys, tokens, revealed, logits = inputs(6)
  got, _ = compiled(name)(keys, tokens, revealed, logits)
  _, other_tokens, other_revealed, other_logits = inputs(7)
  mixed, _ = compiled(name)(
    keys,
    other_tokens.at[1].set(tokens[1]),
    other_revealed.at[1].set(revealed[1]),
    other_logits.at[:, 1].set(logits[:, 1]),
  )
  np.testing.assert_array_equal(got[:, 1], mixed[:, 1])
  alone, _ = run(
    keys[1:2],
    tokens[1:2],
    revealed[1:2],
    logits[:, 1:2],
    transform=TRANSFORMS[name](VOCAB),
  )
  assert_same(got[:, 1], alone[:, 0])


@every_transform
@pytest.mark.parametrize(
  "corner",
  [
    {"share": 1.1},
    {"share": -0.1},
    {"length": 1, "share": 1.1},
    {"vocab_size": 1},
  ],
  ids=["all_masked", "none_masked", "one_position", "one_token"],
)
def test_gradients_are_finite_in_the_corners(name, corner):
  keys, tokens, revealed, logits = inputs(8, **corner)
  transform = TRANSFORMS[name](logits.shape[-1])

  def total(logits):
    edited, _ = run(keys, tokens, revealed, logits, transform=transform)
    # Log-probabilities of what stays possible.
    edited = jax.nn.log_softmax(edited, axis=-1)
    return jnp.sum(jnp.where(edited > -jnp.inf, edited, 0.0) ** 2)

  value, gradient = jax.jit(
    jax.value_and_grad(total), compiler_options=UNOPTIMISED
  )(logits)
  assert np.isfinite(value)
  assert np.all(np.isfinite(gradient))
