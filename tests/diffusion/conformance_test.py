"""What every corruption process must do; a row of PROCESSES a process."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import candi, continuous, mdlm, objective, sampling
from icml26_jax.diffusion import process as process_lib

BATCH, LENGTH, VOCAB, STEPS = 8, 5, 6, 3
TABLE = jnp.asarray(
  np.random.default_rng(9).normal(size=(VOCAB, 4)), jnp.float32
)


def log_prob_of_class(one_hots):
  return jax.nn.log_sigmoid(jnp.sum(one_hots[:, :, 0] - 0.3, axis=1))


GUIDANCE = candi.ClassifierGuidance(log_prob_of_class, 2.0)

# Options are spread over few rows: each row costs several compilations.
PROCESSES = {
  "mdlm": mdlm.process(VOCAB),
  "candi": candi.process(VOCAB),
  "candi_release_mean": candi.process(
    VOCAB, update="release", x0_mode="mean", accidental_reveal=True
  ),
  "candi_guided": candi.process(VOCAB, guidance=GUIDANCE),
  "candi_embedded_guided": candi.process(
    VOCAB,
    update="release",
    embedding=TABLE,
    guidance=GUIDANCE._replace(straight_through=True),
  ),
  "continuous": continuous.process(VOCAB),
}
# The numbers are the same; programs that run once need not be fast.
UNOPTIMISED = {"xla_backend_optimization_level": 0}
every_process = pytest.mark.parametrize("name", PROCESSES)


def apply_fn(params, latent, t, dtype=jnp.float32):
  """A small network: every position sees its neighbour and the row's mean."""
  x = jax.nn.one_hot(latent.tokens, VOCAB) * latent.revealed[..., None]
  if latent.values is not None:
    x = x + latent.values / (1.0 + latent.sigma)[:, None, None]
  if latent.embedded is not None:
    noisy = jnp.einsum("bld,vd->blv", latent.embedded, TABLE)
    x = x + noisy / (1.0 + latent.sigma)[:, None, None]
  x = x + jnp.roll(x, 1, axis=1) + jnp.mean(x, axis=1, keepdims=True)
  return (jnp.matmul(jnp.tanh(x), params) + t[:, None, None]).astype(dtype)


def inputs(seed=0):
  rng = np.random.default_rng(seed)
  shape = (BATCH, LENGTH)
  params = jnp.asarray(rng.normal(size=(VOCAB, VOCAB)), jnp.float32)
  keys = process_lib.row_keys(jax.random.key(seed), BATCH)
  tokens = jnp.asarray(rng.integers(0, VOCAB, shape), jnp.int32)
  t = jnp.asarray(1 - rng.random(BATCH), jnp.float32)
  mask = jnp.asarray(rng.random(shape) < 0.8)
  prompt_mask = jnp.asarray(rng.random(shape) < 0.3)
  return params, keys, tokens, t, mask, prompt_mask


def everything(
  params, keys, tokens, t, mask, prompt_mask, *, name, dtype=jnp.float32
):
  """Losses, their gradient, and samples, from one set of arguments."""
  process = PROCESSES[name]
  network = functools.partial(apply_fn, dtype=dtype)

  def total(params):
    latent = process.corrupt(process_lib.fold_rows(keys, 0), tokens, t)
    losses = process.loss(network(params, latent, t), tokens, latent, t, mask)
    return jnp.sum(losses), losses

  (_, losses), gradient = jax.value_and_grad(total, has_aux=True)(params)
  samples, stats = sampling.sample(
    process_lib.fold_rows(keys, 1),
    process,
    functools.partial(network, params),
    tokens.shape,
    sampling.time_grid(STEPS),
    prompt=tokens,
    prompt_mask=prompt_mask,
  )
  return {
    "losses": losses,
    "gradient": gradient,
    "samples": samples,
    "nfe": stats.nfe,
    "committed": stats.committed,
  }


TRACES = collections.Counter()


@functools.cache
def compiled(name):
  def run(*arguments):
    TRACES[name] += 1
    return everything(*arguments, name=name)

  return jax.jit(run, compiler_options=UNOPTIMISED)


def assert_same(got, expected):
  """Equal integers; floats up to the order of sums of about 40 numbers."""
  for field, value in expected.items():
    if jnp.issubdtype(value.dtype, jnp.integer):
      np.testing.assert_array_equal(got[field], value, err_msg=field)
    else:
      np.testing.assert_allclose(
        got[field], value, rtol=1e-4, atol=1e-4, err_msg=field
      )


@every_process
def test_results_are_finite_and_of_the_promised_types(name):
  arguments = inputs()
  got = compiled(name)(*arguments)
  assert got["losses"].dtype == jnp.float32
  assert got["losses"].shape == (BATCH,)
  assert np.all(np.isfinite(got["losses"]))
  assert np.asarray(got["losses"]).min() >= 0
  assert np.all(np.isfinite(got["gradient"]))
  assert np.any(np.asarray(got["gradient"]))
  samples = np.asarray(got["samples"])
  assert samples.dtype == np.int32
  assert samples.min() >= 0
  assert samples.max() < VOCAB
  prompt_mask = np.asarray(arguments[-1])
  np.testing.assert_array_equal(
    samples[prompt_mask], np.asarray(arguments[2])[prompt_mask]
  )
  np.testing.assert_array_equal(
    np.asarray(got["committed"]).sum(1), (~prompt_mask).sum(1)
  )
  assert np.asarray(got["nfe"]).max() <= STEPS


@every_process
def test_second_call_with_new_values_is_not_traced(name):
  first = compiled(name)(*inputs(0))
  second = compiled(name)(*inputs(1))
  assert np.any(np.asarray(first["samples"]) != np.asarray(second["samples"]))
  assert TRACES[name] == 1


@every_process
def test_jit_equals_eager(name):
  assert_same(compiled(name)(*inputs(2)), everything(*inputs(2), name=name))


@every_process
def test_vmap_equals_a_loop(name):
  many = [inputs(seed) for seed in (3, 4)]
  stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
  got = jax.jit(
    jax.vmap(functools.partial(everything, name=name)),
    compiler_options=UNOPTIMISED,
  )(*stacked)
  for i, arguments in enumerate(many):
    assert_same(
      jax.tree.map(lambda leaf, i=i: leaf[i], got), compiled(name)(*arguments)
    )


@every_process
def test_eight_devices_equal_one(name):
  mesh = jax.make_mesh(
    (8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  rows = jax.NamedSharding(mesh, jax.P("data"))
  params, *batch = inputs(5)
  expected = compiled(name)(params, *batch)
  params = jax.device_put(params, jax.NamedSharding(mesh, jax.P()))
  got = jax.jit(
    functools.partial(everything, name=name), compiler_options=UNOPTIMISED
  )(params, *jax.device_put(batch, rows))
  assert len(got["samples"].sharding.device_set) == 8
  assert_same(got, expected)


@every_process
def test_bfloat16_logits_give_float32_losses(name):
  process = PROCESSES[name]
  params, keys, tokens, t, mask, _ = inputs(6)
  latent = process.corrupt(keys, tokens, t)

  def total(params, dtype):
    logits = apply_fn(params, latent, t, dtype)
    return jnp.sum(process.loss(logits, tokens, latent, t, mask))

  value, gradient = jax.value_and_grad(total)(params, jnp.bfloat16)
  exact, exact_gradient = jax.value_and_grad(total)(params, jnp.float32)
  assert value.dtype == jnp.float32
  # bfloat16 keeps 8 bits of each logit, and of each part of the gradient.
  np.testing.assert_allclose(value, exact, rtol=2e-2)
  scale = np.abs(exact_gradient).max()
  np.testing.assert_allclose(gradient, exact_gradient, atol=2e-2 * scale)


@every_process
def test_rows_do_not_feel_each_other(name):
  params, *batch = inputs(7)
  _, *other = inputs(8)
  mixed = [x.at[1:].set(y[1:]) for x, y in zip(batch, other, strict=True)]
  got, expected = compiled(name)(params, *mixed), compiled(name)(params, *batch)
  for field in ("losses", "samples", "nfe", "committed"):
    np.testing.assert_array_equal(got[field][0], expected[field][0])


@every_process
def test_padding_may_hold_nan_logits(name):
  process = PROCESSES[name]
  params, keys, tokens, t, mask, _ = inputs(9)
  latent = process.corrupt(keys, tokens, t)
  logits = apply_fn(params, latent, t)

  def total(logits):
    return jnp.sum(process.loss(logits, tokens, latent, t, mask))

  poisoned = jnp.where(mask[..., None], logits, jnp.nan)
  value, gradient = jax.value_and_grad(total)(poisoned)
  assert float(value) == float(total(logits))
  assert np.all(np.isfinite(gradient))
  assert not np.any(np.asarray(gradient)[~np.asarray(mask)])


@every_process
def test_time_zero_trains_without_nan(name):
  process = PROCESSES[name]
  params, keys, tokens, _, mask, _ = inputs(10)
  t = jnp.zeros(BATCH)
  latent = process.corrupt(keys, tokens, t)
  value, gradient = jax.value_and_grad(
    lambda p: jnp.sum(
      process.loss(apply_fn(p, latent, t), tokens, latent, t, mask)
    )
  )(params)
  assert np.isfinite(value)
  assert np.all(np.isfinite(gradient))
  if name != "continuous":
    assert np.asarray(latent.revealed).all()
    assert float(value) == 0.0


@every_process
def test_loss_function_of_training_takes_the_process(name):
  params, _, tokens, _, mask, _ = inputs(11)
  loss_fn = objective.make_loss_fn(PROCESSES[name], apply_fn)
  batch = {
    "tokens": tokens,
    "mask": mask,
    "index": jnp.arange(BATCH),
    "stratum": jnp.arange(BATCH) / BATCH,
  }
  loss, metrics = loss_fn(params, batch, jax.random.key(0))
  assert loss.shape == ()
  assert np.isfinite(loss)
  assert float(metrics["weight"]) == np.asarray(mask).sum()
