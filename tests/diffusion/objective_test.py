"""Cross-entropy of tokens, training times, and the loss of a process."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, mdlm, objective
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB = 4, 6, 5
# Programs that take seconds to optimise and milliseconds to run.
UNOPTIMISED = {"xla_backend_optimization_level": 0}


def example(seed=0, dtype=jnp.float32, scale=3.0):
  rng = np.random.default_rng(seed)
  logits = jnp.asarray(rng.normal(size=(BATCH, LENGTH, VOCAB)) * scale, dtype)
  targets = rng.integers(0, VOCAB, (BATCH, LENGTH))
  counted = rng.random((BATCH, LENGTH)) < 0.6
  return logits, jnp.asarray(targets, jnp.int32), jnp.asarray(counted)


def numpy_nll(logits, targets):
  x = np.asarray(logits, np.float64)
  x = x - x.max(-1, keepdims=True)
  log_probs = x - np.log(np.exp(x).sum(-1, keepdims=True))
  return -np.take_along_axis(log_probs, np.asarray(targets)[..., None], -1)[
    ..., 0
  ]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
def test_token_nll_equals_float64(dtype, scale):
  logits, targets, counted = example(dtype=dtype, scale=scale)
  got = objective.token_nll(logits, targets, counted)
  expected = np.where(counted, numpy_nll(logits, targets), 0.0)
  assert got.dtype == jnp.float32
  # Two float32 numbers as large as the logits are subtracted.
  atol = 4 * np.finfo(np.float32).eps * np.abs(np.asarray(logits, float)).max()
  np.testing.assert_allclose(got, expected, rtol=1e-6, atol=atol)


def test_token_nll_of_an_impossible_token_is_infinite():
  logits = jnp.array([[[0.0, -jnp.inf, 0.0]]])
  one = jnp.ones((1, 1), bool)
  got = [
    float(objective.token_nll(logits, jnp.full((1, 1), k), one)[0, 0])
    for k in range(3)
  ]
  np.testing.assert_allclose(got, [np.log(2), np.inf, np.log(2)], rtol=1e-6)


def test_what_is_not_counted_may_be_nan_and_has_no_gradient():
  logits, targets, counted = example()
  poisoned = jnp.where(counted[..., None], logits, jnp.nan)

  def total(x):
    return jnp.sum(objective.token_nll(x, targets, counted))

  value, gradient = jax.value_and_grad(total)(poisoned)
  expected, expected_gradient = jax.value_and_grad(total)(logits)
  assert float(value) == float(expected)
  np.testing.assert_array_equal(gradient, expected_gradient)
  assert not np.any(np.asarray(gradient)[~np.asarray(counted)])


def test_gradient_of_token_nll_is_softmax_minus_one_hot():
  logits, targets, _ = example()
  counted = jnp.ones(targets.shape, bool)
  gradient = jax.grad(
    lambda x: jnp.sum(objective.token_nll(x, targets, counted))
  )(logits)
  x = np.exp(np.asarray(logits, np.float64))
  expected = x / x.sum(-1, keepdims=True) - np.eye(VOCAB)[np.asarray(targets)]
  np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
  ("change", "error", "message"),
  [
    ({"logits": np.zeros((BATCH, LENGTH + 1, VOCAB))}, ValueError, "agree"),
    ({"targets": np.zeros((BATCH,), int)}, ValueError, "agree"),
    ({"counted": np.ones((BATCH, 1), bool)}, ValueError, "agree"),
    ({"counted": np.ones((BATCH, LENGTH))}, TypeError, "counted must be bool"),
    (
      {"targets": np.full((BATCH, LENGTH), VOCAB)},
      ValueError,
      r"targets must be in \[0, 5\), got 5",
    ),
    ({"targets": np.zeros((BATCH, LENGTH))}, TypeError, "must be integers"),
  ],
)
def test_bad_arguments_of_token_nll(change, error, message):
  logits, targets, counted = example()
  arguments = {"logits": logits, "targets": targets, "counted": counted}
  with pytest.raises(error, match=message):
    objective.token_nll(**{**arguments, **change})


@pytest.mark.parametrize("size", [1, 7, 64])
def test_each_stratum_has_one_time(size):
  strata = jnp.arange(size) / size
  for seed in range(20):
    t = np.asarray(objective.stratified_times(jax.random.key(seed), strata))
    assert t.min() > 0
    assert t.max() <= 1
    gaps = np.diff(np.sort(t.astype(np.float64)))
    np.testing.assert_allclose(gaps, 1 / size, atol=2e-7)


def test_time_zero_is_never_drawn_where_time_wraps_round():
  # The stratum that meets the shift at exactly 1 gets time 1, not 0.
  (first,) = objective.stratified_times(jax.random.key(0), jnp.zeros(1))
  wrapped = objective.stratified_times(jax.random.key(0), first[None])
  assert 0 < float(first) < 1
  assert float(wrapped[0]) == 1.0


def test_each_row_of_stratified_times_is_uniform():
  strata = jnp.array([0.0, 0.3])
  t = jax.vmap(objective.stratified_times, in_axes=(0, None))(
    jax.random.split(jax.random.key(0), 20_000), strata
  )
  for row in np.asarray(t, np.float64).T:
    # Kolmogorov-Smirnov: 1.95 / sqrt(n) is exceeded once in 1000 runs.
    grid = np.arange(1, row.size + 1) / row.size
    assert np.abs(np.sort(row) - grid).max() < 1.95 / np.sqrt(row.size)


def batch_of(tokens, mask):
  size = tokens.shape[0]
  return {
    "tokens": tokens,
    "mask": mask,
    "index": jnp.arange(size, dtype=jnp.int32),
    "stratum": jnp.arange(size, dtype=jnp.float32) / size,
  }


def linear_model(params, latent, t):
  x = jax.nn.one_hot(latent.tokens, VOCAB) * latent.revealed[..., None]
  if latent.values is not None:
    x = x + latent.values
  return jnp.matmul(x, params) + t[:, None, None]


@pytest.mark.parametrize("make", [mdlm.process, candi.process])
def test_loss_is_the_mean_over_tokens_that_count(make):
  _, tokens, mask = example()
  process = make(VOCAB)
  params = jnp.asarray(np.random.default_rng(1).normal(size=(VOCAB, VOCAB)))
  params = params.astype(jnp.float32)
  loss_fn = objective.make_loss_fn(process, linear_model)
  loss, metrics = jax.jit(loss_fn, compiler_options=UNOPTIMISED)(
    params, batch_of(tokens, mask), jax.random.key(0)
  )
  # The same draws, taken apart.
  time_key, noise_key = jax.random.split(jax.random.key(0))
  t = objective.stratified_times(time_key, jnp.arange(BATCH) / BATCH)
  keys = process_lib.row_keys(noise_key, BATCH)
  latent = process.corrupt(keys, tokens, t)
  nll = numpy_nll(linear_model(params, latent, t), tokens)
  counted = np.asarray(mask) & ~np.asarray(latent.revealed)
  # -alpha' / (1 - alpha) = 1 / t.
  expected = (counted * nll / np.asarray(t, np.float64)[:, None]).sum()
  assert float(metrics["weight"]) == mask.sum()
  np.testing.assert_allclose(loss, expected / mask.sum(), rtol=2e-5)


@pytest.mark.parametrize("make", [mdlm.process, candi.process])
def test_micro_batches_weighted_by_tokens_equal_the_batch(make):
  _, tokens, mask = example()
  loss_fn = jax.jit(
    jax.value_and_grad(
      objective.make_loss_fn(make(VOCAB), linear_model), has_aux=True
    ),
    compiler_options=UNOPTIMISED,
  )
  params = 0.3 * jnp.eye(VOCAB)
  batch = batch_of(tokens, mask)
  (loss, _), gradient = loss_fn(params, batch, jax.random.key(3))
  parts = []
  for rows in (slice(0, 2), slice(2, 4)):
    part = {name: value[rows] for name, value in batch.items()}
    (part_loss, metrics), part_gradient = loss_fn(
      params, part, jax.random.key(3)
    )
    parts.append((float(metrics["weight"]), part_loss, part_gradient))
  total = sum(weight for weight, _, _ in parts)
  assert total == mask.sum()
  np.testing.assert_allclose(
    sum(weight * value for weight, value, _ in parts) / total, loss, rtol=1e-6
  )
  np.testing.assert_allclose(
    sum(weight * np.asarray(g) for weight, _, g in parts) / total,
    gradient,
    rtol=1e-5,
    atol=1e-6,
  )


def test_process_may_depend_on_the_parameters():
  rng = np.random.default_rng(0)
  table = jnp.asarray(rng.normal(size=(VOCAB, 3)), jnp.float32)

  def model(params, latent, t):
    del t
    return jnp.matmul(latent.embedded, params.T)

  loss_fn = objective.make_loss_fn(
    lambda params: candi.process(VOCAB, embedding=params), model
  )
  _, tokens, mask = example()
  (loss, _), gradient = jax.jit(jax.value_and_grad(loss_fn, has_aux=True))(
    table, batch_of(tokens, mask), jax.random.key(0)
  )
  assert np.isfinite(loss)
  assert np.all(np.isfinite(gradient))
  assert np.any(np.asarray(gradient))


def test_nothing_counted_gives_zero_loss_and_gradient():
  _, tokens, mask = example()
  loss_fn = objective.make_loss_fn(mdlm.process(VOCAB), linear_model)
  (loss, metrics), gradient = jax.value_and_grad(loss_fn, has_aux=True)(
    jnp.eye(VOCAB), batch_of(tokens, jnp.zeros_like(mask)), jax.random.key(0)
  )
  assert float(loss) == 0.0
  assert float(metrics["weight"]) == 0.0
  np.testing.assert_array_equal(gradient, np.zeros((VOCAB, VOCAB)))
