import functools

import chex
import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from icml26_jax.decoding import autoregressive
from icml26_jax.models import kv_cache, llama
from icml26_jax.models import prompts as prompts_lib

VOCAB = 11
CONFIG = llama.Config(
  vocab_size=VOCAB,
  d_model=8,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=4,
  d_ff=8,
  max_length=32,
)
MODEL = llama.cached_model(CONFIG, num_slots=16)


@pytest.fixture(scope="module")
def params():
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(
    functools.partial(llama.init, config=CONFIG), jax.random.key(0)
  )
  return jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32), shapes
  )


@functools.cache
def counting_model(sharpness=50.0):
  """After token v comes v + 1; the cache counts what it was asked to read."""

  def logits_after(tokens):
    return sharpness * jax.nn.one_hot((tokens + 1) % VOCAB, VOCAB)

  def prefill(params, tokens, mask):
    cache = {"calls": jnp.int32(0), "read": jnp.sum(mask, axis=1)}
    return logits_after(tokens[:, -1]), cache

  def extend(params, cache, tokens, mask):
    cache = {
      "calls": cache["calls"] + 1,
      "read": cache["read"] + jnp.sum(mask, axis=1),
    }
    return logits_after(tokens), cache

  return kv_cache.CachedModel(prefill, extend, VOCAB, num_slots=100)


@functools.cache
def constant_model(logits):
  """The same predictions after every token."""

  def prefill(params, tokens, mask):
    row = jnp.asarray(logits, jnp.float32)[None]
    return jnp.repeat(row, tokens.shape[0], axis=0), ()

  def extend(params, cache, tokens, mask):
    return prefill(params, tokens, mask)[0][:, None], ()

  return kv_cache.CachedModel(prefill, extend, len(logits), num_slots=100)


@pytest.mark.parametrize("side", ["left", "right"])
def test_greedy_equals_reading_everything_again(params, side):
  prompts = [[3, 1, 4, 1], [5], [9, 2]]
  tokens, mask = prompts_lib.pad(prompts, side=side)
  got = autoregressive.generate(params, tokens, mask, model=MODEL, num_tokens=8)
  apply = jax.jit(llama.apply, static_argnames="config")
  for row, prompt in enumerate(prompts):
    seen = list(prompt)
    for i in range(8):
      # One shape for all, so that it is compiled once: later tokens have no
      # influence.
      whole = np.zeros((1, 12), np.int32)
      whole[0, : len(seen)] = seen
      logits = apply(params, whole, config=CONFIG)[0, len(seen) - 1]
      token = int(np.argmax(logits))
      assert got.tokens[row, i] == token
      assert float(got.log_probs[row, i]) == pytest.approx(
        float(jax.nn.log_softmax(logits)[token]), abs=1e-4
      )
      seen.append(token)
  np.testing.assert_array_equal(got.lengths, [8, 8, 8])


def test_rows_end_on_their_own_and_the_loop_with_the_last():
  tokens = np.array([[4], [6], [1]], np.int32)
  got = autoregressive.generate(
    None,
    tokens,
    model=counting_model(),
    num_tokens=50,
    end_tokens=(7, 3),
    pad_token=9,
  )
  np.testing.assert_array_equal(
    got.tokens[:, :4], [[5, 6, 7, 9], [7, 9, 9, 9], [2, 3, 9, 9]]
  )
  assert (np.asarray(got.tokens[:, 4:]) == 9).all()
  np.testing.assert_array_equal(got.lengths, [3, 1, 2])
  assert (np.asarray(got.log_probs[1, 1:]) == 0).all()
  # The first token costs no call; nor does what comes after the last end.
  assert int(got.cache["calls"]) == 2
  # Each row has read its prompt and all of its tokens but the last.
  np.testing.assert_array_equal(got.cache["read"], [3, 1, 2])


def test_without_an_end_token_all_are_decoded():
  got = autoregressive.generate(
    None, np.array([[4]], np.int32), model=counting_model(), num_tokens=9
  )
  np.testing.assert_array_equal(got.tokens[0], np.arange(5, 14) % VOCAB)
  assert int(got.cache["calls"]) == 8
  # 50 against ten zeros.
  np.testing.assert_allclose(got.log_probs, -10 * np.exp(-50.0), atol=1e-6)


def test_one_token_needs_no_further_call():
  got = autoregressive.generate(
    None, np.array([[4]], np.int32), model=counting_model(), num_tokens=1
  )
  assert got.tokens.tolist() == [[5]]
  assert int(got.cache["calls"]) == 0


def test_draws_follow_the_law_of_the_temperature():
  logits, temperature = (0.0, 1.0, 2.0, -1.0), 0.5
  rows, length = 500, 8
  got = autoregressive.generate(
    None,
    np.zeros((rows, 1), np.int32),
    None,
    jax.random.key(0),
    model=constant_model(logits),
    num_tokens=length,
    temperature=temperature,
  )
  law = np.exp(np.array(logits) / temperature)
  law /= law.sum()
  counts = np.bincount(np.asarray(got.tokens).ravel(), minlength=4)
  assert scipy.stats.chisquare(counts, law * rows * length).pvalue > 1e-3
  # Log-probabilities are the model's own, at temperature 1.
  expected = np.array(logits) - np.log(np.exp(logits).sum())
  np.testing.assert_allclose(
    got.log_probs, expected[np.asarray(got.tokens)], atol=1e-6
  )


def test_batch_draws_what_its_rows_draw(params):
  tokens, mask = prompts_lib.pad([[1, 2, 3], [4]])
  keys = jax.random.split(jax.random.key(1), 2)
  generate = functools.partial(
    autoregressive.generate,
    params,
    model=MODEL,
    num_tokens=6,
    temperature=2.0,
  )
  both = generate(tokens, mask, keys)
  for row in range(2):
    alone = generate(
      tokens[row : row + 1], mask[row : row + 1], keys[row : row + 1]
    )
    np.testing.assert_array_equal(alone.tokens[0], both.tokens[row])


def test_low_temperature_is_greedy(params):
  tokens, mask = prompts_lib.pad([[1, 2, 3], [4]])
  generate = functools.partial(
    autoregressive.generate, params, tokens, mask, model=MODEL, num_tokens=6
  )
  cold = generate(jax.random.key(2), temperature=1e-4)
  np.testing.assert_array_equal(cold.tokens, generate().tokens)


def test_second_call_traces_nothing():
  counting = counting_model()
  model = counting._replace(
    prefill=chex.assert_max_traces(counting.prefill, n=1),
    # The loop traces its body twice to find the types of its state.
    extend=chex.assert_max_traces(counting.extend, n=2),
  )
  for first in (1, 2, 3):
    autoregressive.generate(
      None, np.array([[first]], np.int32), model=model, num_tokens=4
    )


def test_works_inside_jit(params):
  tokens = jnp.array([[1, 2, 3]])

  @jax.jit
  def run(params, tokens):
    return autoregressive.generate(
      params, tokens, model=MODEL, num_tokens=4
    ).tokens

  expected = autoregressive.generate(params, tokens, model=MODEL, num_tokens=4)
  np.testing.assert_array_equal(run(params, tokens), expected.tokens)


@pytest.mark.parametrize(
  ("change", "error", "message"),
  [
    (dict(num_tokens=0), ValueError, "num_tokens must be in"),
    (dict(temperature=-1.0), ValueError, "temperature must be in"),
    (dict(temperature=1.0), ValueError, "key is needed"),
    (dict(num_tokens=15), ValueError, r"need 17 slots; the cache has 16"),
    (dict(end_tokens=(11,)), ValueError, r"end_tokens must be in \[0, 11\)"),
    (dict(tokens=np.array([[1, 2, 11]])), ValueError, r"\[0, 11\), got 11"),
    (dict(tokens=np.ones((1, 3))), TypeError, "tokens must be integers"),
    (dict(tokens=np.ones((1, 0), int)), ValueError, "at least one row and one"),
    (dict(mask=np.zeros((1, 3), bool)), ValueError, "row 0.*empty prompt"),
    (dict(mask=np.ones((1, 2), bool)), ValueError, "must have one shape"),
    (dict(mask=np.ones((1, 3))), TypeError, "mask must be bool"),
    (
      dict(temperature=1.0, key=jax.random.PRNGKey(0)),
      TypeError,
      "key must be a typed key",
    ),
  ],
)
def test_bad_arguments_are_named(params, change, error, message):
  good = dict(tokens=np.array([[1, 2, 3]], np.int32), num_tokens=2)
  with pytest.raises(error, match=message):
    autoregressive.generate(params, model=MODEL, **good | change)


values = st.sampled_from([-np.inf, -1.0, 0.0, 2.0, 2.0, np.inf, np.nan])


@hypothesis.given(st.lists(values, min_size=5, max_size=5))
def test_most_probable_is_the_first_maximum(row):
  row = np.array(row, np.float32)
  got = int(autoregressive.most_probable(jnp.asarray(row)))
  assert got == (-1 if np.isnan(row).any() else np.argmax(row))
