"""The law of the draw, above all in the tail."""

import fractions

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from icml26_jax.diffusion import categorical

# Most tests share one shape: each other one is a compilation.
SHAPE = (4, 64, 7)

draw = jax.jit(categorical.draw)


def row_keys(seed, batch_size):
  """Fresh keys each time: a key may be consumed only once."""
  return jax.random.split(jax.random.key(seed), batch_size)


def log_probs(shape, seed):
  return 2.0 * jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("vocab_size", [1, 2, 3, 27])
def test_frequencies_pass_a_chi_square_test(vocab_size):
  logits = log_probs((vocab_size,), seed=1)
  shape = (64, 2048)
  tokens = draw(
    jax.random.key(2), jnp.broadcast_to(logits, (*shape, vocab_size))
  )
  assert tokens.shape == shape
  assert tokens.dtype == jnp.int32
  counts = np.bincount(np.ravel(tokens), minlength=vocab_size)
  expected = scipy.special.softmax(np.float64(logits)) * tokens.size
  assert len(counts) == vocab_size
  if vocab_size > 1:
    assert scipy.stats.chisquare(counts, expected).pvalue > 1e-3


def test_tokens_of_probability_1e_9_are_drawn_at_their_rate():
  # 65,535 rare tokens beside a certain one. Float32 Gumbel noise, bounded at
  # 15.94, cannot make up their gap of 20.7 nats: it draws none at all.
  vocab_size, num_draws = 65_536, 2**20
  logits = jnp.full((1, 1, vocab_size), np.log(1e-9)).at[0, 0, 0].set(0.0)

  @jax.jit
  def histogram(key):
    keys = jax.random.split(key, (num_draws, 1))
    # One set of logits for all keys: their tree is built once.
    tokens = jax.vmap(categorical.draw, in_axes=(0, None))(keys, logits)
    eighths = jnp.where(tokens == 0, 8, tokens // (vocab_size // 8))
    return jnp.bincount(eighths.ravel(), length=9)

  counts = np.asarray(histogram(jax.random.key(0)))
  assert counts.sum() == num_draws
  rare = counts[:8]
  expected = num_draws * 65_535e-9 / (1.0 + 65_535e-9)  # 69 +- 8
  assert abs(rare.sum() - expected) < 4 * np.sqrt(expected)
  assert scipy.stats.chisquare(rare).pvalue > 1e-3


@pytest.mark.parametrize(
  "probability", [0.5, 0.3, 1e-3, 1e-9, 1e-12, 1e-18, 2.0**-64, 1e-25, 0.0]
)
def test_coin_is_exact_to_64_bits(probability):
  probability = np.float32(probability)
  threshold = int(fractions.Fraction(float(probability)) * 2**64)
  numbers = [threshold + i for i in (-(2**33), -2, -1, 0, 1, 2, 2**33)]
  numbers = [n for n in [*numbers, 0, 2**64 - 1] if 0 <= n < 2**64]
  high = jnp.array([n >> 32 for n in numbers], jnp.uint32)
  low = jnp.array([n & 0xFFFFFFFF for n in numbers], jnp.uint32)
  heads = categorical._coin(high, low, jnp.full(len(numbers), probability))
  np.testing.assert_array_equal(heads, [n < threshold for n in numbers])


def test_token_of_logit_minus_infinity_is_never_drawn():
  allowed = jnp.array([False, True, True, False, False, True, False])
  logits = jnp.where(allowed, 0.0, -jnp.inf)
  tokens = draw(jax.random.key(3), jnp.broadcast_to(logits, (64, 512, 7)))
  counts = np.bincount(np.ravel(tokens), minlength=7)
  np.testing.assert_array_equal(counts > 0, allowed)
  assert scipy.stats.chisquare(counts[np.asarray(allowed)]).pvalue > 1e-3


@pytest.mark.parametrize("value", [0.0, -1e30, 3e38, -3e38])
def test_single_finite_logit_is_certain(value):
  tokens = jnp.arange(4 * 64).reshape(4, 64) % 7
  is_token = jnp.arange(7)[None, None] == tokens[..., None]
  logits = jnp.where(is_token, value, -jnp.inf)
  np.testing.assert_array_equal(draw(row_keys(0, 4), logits), tokens)


def test_very_large_logits_keep_their_differences():
  small = jnp.broadcast_to(jnp.linspace(-3.0, 0.0, 7), SHAPE)
  # The differences, multiples of 1/2, are exact in float32 at 2^20.
  np.testing.assert_array_equal(
    draw(row_keys(4, 4), small), draw(row_keys(4, 4), small + 2.0**20)
  )
  extreme = jnp.zeros(SHAPE).at[..., 1].set(1e38)
  np.testing.assert_array_equal(draw(row_keys(4, 4), extreme), 1)


def test_bfloat16_logits_mean_what_their_float32_values_mean():
  logits = log_probs(SHAPE, seed=6).astype(jnp.bfloat16)
  np.testing.assert_array_equal(
    draw(row_keys(5, 4), logits),
    draw(row_keys(5, 4), logits.astype(jnp.float32)),
  )


@pytest.mark.parametrize(
  "row",
  [
    [-np.inf] * 7,
    [0.0] * 6 + [np.nan],
    [0.0] * 6 + [np.inf],
  ],
)
def test_position_without_a_distribution_gives_minus_one(row):
  logits = np.zeros(SHAPE, np.float32)
  logits[1, 0] = row
  tokens = np.asarray(draw(row_keys(7, 4), logits))
  assert tokens[1, 0] == -1
  assert np.sum(tokens < 0) == 1


def test_batch_gives_what_its_rows_give_one_by_one():
  logits = log_probs(SHAPE, seed=9)
  together = draw(row_keys(8, 4), logits)
  for b in range(4):
    alone = draw(row_keys(8, 4)[b : b + 1], logits[b : b + 1])
    np.testing.assert_array_equal(together[b], alone[0])


def test_one_key_gives_each_row_its_own():
  logits = jnp.zeros(SHAPE)
  tokens = draw(jax.random.key(10), logits)
  assert len(np.unique(tokens, axis=0)) == 4
  np.testing.assert_array_equal(
    tokens[:2], draw(jax.random.key(10), logits[:2])
  )


def test_jit_equals_eager_and_traces_once():
  traces = []

  @jax.jit
  def traced(key, logits):
    traces.append(logits.shape)
    return categorical.draw(key, logits)

  logits = log_probs(SHAPE, seed=11)
  eager = categorical.draw(jax.random.key(12), logits)
  np.testing.assert_array_equal(traced(jax.random.key(12), logits), eager)
  traced(jax.random.key(13), logits + 1.0)
  assert len(traces) == 1


def test_draw_inside_a_loss_leaves_its_gradient_finite():
  logits = log_probs((2, 4, 5), seed=14).at[0, 0].set(-jnp.inf)
  logits = logits.at[0, 0, 2].set(0.0)

  def nll(logits):
    tokens = categorical.draw(jax.random.key(15), logits)
    picked = jnp.take_along_axis(
      jax.nn.log_softmax(logits), tokens[..., None], axis=-1
    )
    return -jnp.sum(picked)

  with jax.debug_nans(True):
    gradient = jax.jit(jax.grad(nll))(logits)
  assert np.all(np.isfinite(gradient))


@hypothesis.given(
  seed=st.integers(0, 2**31 - 1),
  values=st.lists(
    st.sampled_from([-np.inf, -1e30, -200.0, -1.0, 0.0, 2.5, 1e30]),
    min_size=7,
    max_size=7,
  ).filter(lambda values: max(values) > -np.inf),
)
def test_drawn_token_has_positive_probability(seed, values):
  logits = np.float32(values)
  tokens = draw(row_keys(seed, 4), np.broadcast_to(logits, SHAPE))
  # exp(-87) is the smallest normal number of float32.
  assert np.all(logits[np.asarray(tokens)] - logits.max() >= -87.0)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (1, 2, 3, 4), (2, 3, 0)])
def test_logits_of_another_shape_are_an_error(shape):
  with pytest.raises(ValueError, match=r"logits must have shape \[B, L, V\]"):
    categorical.draw(jax.random.key(0), jnp.zeros(shape))


def test_integer_logits_are_an_error():
  with pytest.raises(TypeError, match="logits must be floats, got int32"):
    categorical.draw(jax.random.key(0), jnp.zeros((1, 2, 3), jnp.int32))


def test_keys_that_do_not_fit_the_rows_are_an_error():
  with pytest.raises(ValueError, match="one a row"):
    categorical.draw(
      jax.random.split(jax.random.key(0), 3), jnp.zeros((2, 2, 2))
    )
  with pytest.raises(TypeError, match="typed key"):
    categorical.draw(jnp.zeros(2, jnp.uint32), jnp.zeros((2, 2, 2)))


def test_nan_known_to_the_compiler_has_no_distribution():
  draw = jax.jit(
    lambda key: categorical.draw(key, jnp.full((2, 16, 27), jnp.nan))
  )
  np.testing.assert_array_equal(draw(jax.random.key(0)), np.full((2, 16), -1))
