"""Likelihoods of held-out text against exact ones."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import mdlm, oracle, process
from icml26_jax.evaluation import likelihood


def _tokens(shape=(7, 5), vocab_size=4, seed=0):
  return jnp.asarray(
    np.random.default_rng(seed).integers(vocab_size, size=shape), jnp.int32
  )


def _uniform(latent, t):
  """A denoiser that knows nothing of four tokens."""
  del t
  return jnp.zeros((*latent.tokens.shape, 4))


def _with_neighbour(table):
  """A denoiser that looks at the token before, if it is revealed."""
  table = jnp.asarray(table, jnp.float32)  # [V + 1, V], row V: not known

  def denoise(latent, t):
    del t
    known = jnp.where(latent.revealed, latent.tokens, table.shape[1])
    before = jnp.roll(known, 1, axis=1).at[:, 0].set(table.shape[1])
    return table[before]

  return denoise


_NEIGHBOUR = _with_neighbour(np.random.default_rng(1).normal(size=(5, 4)))
_bound = jax.jit(
  likelihood.mdlm_bound,
  static_argnames=("denoise_fn", "num_draws", "num_replicates", "batch_size"),
)


def _exact_bound(denoise, tokens):
  """The mean over all reveals, with the times integrated in closed form.

  A hidden set of k of L positions has the weight integral u^(k-1)
  (1-u)^(L-k) du = (k-1)! (L-k)! / L!.
  """
  size, length = tokens.shape
  total = np.zeros(size)
  for hidden in itertools.product([False, True], repeat=length):
    k = sum(hidden)
    if not k:
      continue
    revealed = jnp.broadcast_to(~np.array(hidden), tokens.shape)
    latent = process.Latent(jnp.where(revealed, tokens, 0), revealed)
    log_probs = np.asarray(jax.nn.log_softmax(denoise(latent, None)))
    nll = -np.take_along_axis(log_probs, np.asarray(tokens)[..., None], 2)
    weight = math.factorial(k - 1) * math.factorial(length - k)
    weight /= math.factorial(length)
    total += weight * np.sum(nll[..., 0], axis=1, where=np.array(hidden))
  return total


def test_uniform_predictions_give_the_log_of_the_vocabulary():
  # At whatever number of hidden positions: no draw is off.
  tokens = _tokens((40, 8))
  got = likelihood.mdlm_bound(jax.random.key(0), _uniform, tokens)
  # float32 sums over 8 positions and 40 rows.
  np.testing.assert_allclose(got.bits_per_character, 2.0, rtol=1e-6)
  np.testing.assert_allclose(got.nats, 8 * math.log(4), rtol=1e-6)
  np.testing.assert_allclose(got.standard_error, 0.0, atol=1e-6)


def test_agrees_with_the_sum_over_all_reveals():
  tokens = _tokens((30, 4))
  got = _bound(
    jax.random.key(0), _NEIGHBOUR, tokens, num_draws=64, num_replicates=4
  )
  exact = _exact_bound(_NEIGHBOUR, tokens)
  bits = exact.sum() / math.log(2) / tokens.size
  error = float(got.standard_error)
  assert error < 0.01
  np.testing.assert_allclose(got.bits_per_character, bits, atol=4 * error)
  np.testing.assert_allclose(
    got.bits_per_character,
    got.nats.sum() / math.log(2) / tokens.size,
    rtol=1e-5,
  )


def test_exact_conditionals_give_the_likelihood_itself():
  initial = jnp.array([0.5, 0.3, 0.2])
  transition = jnp.array([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25], [0.2, 0.2, 0.6]])
  tokens = _tokens((50, 6), vocab_size=3)
  # Row r holds the first tokens of a text; the rest is not part of it.
  mask = np.arange(6)[None] < 1 + np.arange(50)[:, None] % 6
  got = likelihood.mdlm_bound(
    jax.random.key(0),
    oracle.denoise_fn(initial, transition),
    tokens,
    mask=jnp.asarray(mask),
    num_draws=32,
  )
  x = np.asarray(tokens)
  each = -np.log(np.asarray(initial))[x]
  each[:, 1:] = -np.log(np.asarray(transition)[x[:, :-1], x[:, 1:]])
  bits = each[mask].sum() / math.log(2) / mask.sum()
  error = float(got.standard_error)
  assert error < 0.01
  np.testing.assert_allclose(got.bits_per_character, bits, atol=4 * error)


def test_agrees_with_the_loss_of_the_process_over_an_even_grid_of_times():
  # The loss as it is trained, without the times at which its variance grows
  # (t < 0.05), against the same part of our bound: a network that is certain
  # there costs nothing.
  tokens = _tokens((64, 5))
  table = jnp.asarray(np.random.default_rng(1).normal(size=(5, 4)))
  free = 100.0 * jax.nn.one_hot(tokens, 4)

  def denoise(latent, t):
    logits = _with_neighbour(table)(latent, t) * (1 + t)[:, None, None]
    return jnp.where(t[:, None, None] < 0.05, free, logits)

  masked = mdlm.process(4, eps=0.0)
  keys = jax.random.split(jax.random.key(1), 2000)

  def loss(key, t):
    t = jnp.full(64, t)
    latent = masked.corrupt(jax.random.split(key, 64), tokens, t)
    logits = denoise(latent, t)
    return jnp.sum(masked.loss(logits, tokens, latent, t, tokens >= 0))

  times = (jnp.arange(2000) + 0.5) / 2000
  losses = np.asarray(jax.jit(jax.vmap(loss))(keys, times))
  expected = losses.mean() / math.log(2) / tokens.size
  # Neighbouring times have one mean, so that their differences are noise.
  noise = np.sqrt(np.mean(np.diff(losses) ** 2) / 2 / 2000)
  noise /= math.log(2) * tokens.size
  got = likelihood.mdlm_bound(
    jax.random.key(0),
    denoise,
    tokens,
    eps=0.0,
    num_draws=64,
    num_replicates=8,
    batch_size=64,
  )
  error = math.hypot(noise, float(got.standard_error))
  assert error < 0.03
  np.testing.assert_allclose(got.bits_per_character, expected, atol=4 * error)


def test_standard_error_is_that_of_repeated_runs():
  tokens = _tokens()
  run = jax.jit(
    jax.vmap(
      lambda key: likelihood.mdlm_bound(key, _NEIGHBOUR, tokens, num_draws=4)[
        :2
      ]
    )
  )
  values, errors = run(jax.random.split(jax.random.key(0), 200))
  # The standard deviation of 200 values is known to 1/sqrt(400), 5 %.
  spread = np.std(values, ddof=1)
  np.testing.assert_allclose(
    np.sqrt(np.mean(np.square(errors))), spread, rtol=4 * 0.05
  )


def test_masked_tokens_neither_count_nor_are_seen():
  tokens = _tokens()
  mask = jnp.asarray(np.random.default_rng(2).random((7, 5)) < 0.6)
  results = [
    _bound(jax.random.key(0), _NEIGHBOUR, other, mask=mask)
    for other in (
      tokens,
      jnp.where(mask, tokens, 3),
      jnp.where(mask, tokens, 9),
    )
  ]
  for got in results[1:]:
    for a, b in zip(results[0], got, strict=True):
      np.testing.assert_array_equal(a, b)
  np.testing.assert_array_equal(results[0].num_tokens, mask.sum(axis=1))


def test_text_that_does_not_count_costs_nothing():
  tokens = _tokens()
  got = likelihood.mdlm_bound(
    jax.random.key(0),
    _uniform,
    tokens,
    mask=jnp.zeros((7, 5), bool),
  )
  assert [float(x) for x in got[:2]] == [0.0, 0.0]
  np.testing.assert_array_equal(got.nats, np.zeros(7))


def test_batches_do_not_change_rows():
  tokens = _tokens()
  whole = _bound(jax.random.key(0), _NEIGHBOUR, tokens)
  parts = _bound(jax.random.key(0), _NEIGHBOUR, tokens, batch_size=3)
  for a, b in zip(whole, parts, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_characters_rescale_bits():
  tokens = _tokens()
  one = _bound(jax.random.key(0), _NEIGHBOUR, tokens)
  two = _bound(jax.random.key(0), _NEIGHBOUR, tokens, num_characters=70)
  np.testing.assert_allclose(one.bits_per_character, 2 * two.bits_per_character)
  np.testing.assert_allclose(one.standard_error, 2 * two.standard_error)


def _bigram(table):
  """Logits of the next token, given the current."""
  table = jnp.asarray(table, jnp.float32)
  return lambda tokens: table[tokens]


def test_ar_nll_is_that_of_the_chain():
  table = np.random.default_rng(0).normal(size=(4, 4))
  tokens = np.asarray(_tokens())
  mask = np.random.default_rng(2).random((7, 5)) < 0.6
  log_probs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
  each = np.where(mask, -log_probs[np.roll(tokens, 1, 1), tokens], 0.0)[:, 1:]
  for size in (3, 100):
    got = jax.jit(
      lambda tokens, mask, size=size: likelihood.ar_nll(
        _bigram(table), tokens, mask=mask, batch_size=size
      )
    )(tokens, mask)
    np.testing.assert_allclose(got.nats, each.sum(axis=1), rtol=1e-5, atol=1e-6)
    expected = each.sum() / mask[:, 1:].sum()
    np.testing.assert_allclose(got.nats_per_token, expected, rtol=1e-5)
    np.testing.assert_array_equal(got.num_tokens, mask[:, 1:].sum(axis=1))


def test_ar_nll_reads_padding_as_token_0():
  table = np.random.default_rng(0).normal(size=(4, 4))
  tokens = np.array([[2, 9, 1, -1]])
  mask = np.array([[True, False, True, False]])
  got = likelihood.ar_nll(_bigram(table), tokens, mask=jnp.asarray(mask))
  log_probs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
  np.testing.assert_allclose(got.nats, [-log_probs[0, 1]], rtol=1e-5)
  with pytest.raises(ValueError, match=r"tokens must be in \[0, 4\), got 9"):
    likelihood.ar_nll(_bigram(table), tokens)


def test_ar_nll_of_uniform_predictions():
  got = likelihood.ar_nll(_bigram(np.zeros((4, 4))), _tokens())
  np.testing.assert_allclose(got.nats_per_token, math.log(4), rtol=1e-6)
  np.testing.assert_array_equal(got.num_tokens, np.full(7, 4))
  single = likelihood.ar_nll(_bigram(np.zeros((4, 4))), _tokens((7, 1)))
  assert float(single.nats_per_token) == 0.0


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"num_draws": 0}, ValueError, "num_draws must be in .*got 0"),
    ({"eps": 1.0}, ValueError, r"eps must be in \[0, 1\), got 1.0"),
    ({"num_replicates": 1}, ValueError, "num_replicates must be in .*got 1"),
    ({"batch_size": 0}, ValueError, "batch_size must be in .*got 0"),
    ({"num_characters": 0}, ValueError, "num_characters must be in .*got 0"),
    ({"mask": jnp.ones((2, 2), bool)}, ValueError, r"and mask \(2, 2\)"),
    ({"mask": jnp.ones((7, 5))}, TypeError, "mask must be bool"),
    ({"tokens": _tokens((5,))}, ValueError, r"tokens must be \[N, L\]"),
    ({"tokens": _tokens((0, 5))}, ValueError, "at least one row"),
    ({"tokens": _tokens() + 1}, ValueError, r"tokens must be in \[0, 4\)"),
  ],
)
def test_bad_arguments_are_named(changes, error, message):
  arguments = {"tokens": _tokens()} | changes
  with pytest.raises(error, match=message):
    likelihood.mdlm_bound(
      jax.random.key(0),
      _uniform,
      arguments.pop("tokens"),
      **arguments,
    )
  shared = {k: v for k, v in changes.items() if k in ("mask", "batch_size")}
  if shared:
    with pytest.raises(error, match=message):
      likelihood.ar_nll(_bigram(np.zeros((4, 4))), _tokens(), **shared)
