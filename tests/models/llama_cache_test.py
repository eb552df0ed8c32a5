import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.models import llama

prefill = jax.jit(
  llama.prefill, static_argnames=("config", "num_slots", "taps")
)
extend = jax.jit(
  llama.extend, static_argnames=("config", "taps"), donate_argnames="cache"
)
SLOTS = 12
LENGTHS = (4, 2, 1)


@pytest.fixture(scope="module")
def small(slow_llama):
  config = slow_llama.config()
  return config, slow_llama.params(config)


def padded(prompts, side):
  length = max(map(len, prompts))
  tokens = np.zeros((len(prompts), length), np.int32)
  mask = np.zeros((len(prompts), length), bool)
  for i, prompt in enumerate(prompts):
    n = len(prompt)
    where = slice(n) if side == "right" else slice(length - n, None)
    tokens[i, where], mask[i, where] = prompt, True
  return tokens, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_cached_predictions_equal_those_from_scratch(slow_llama, side):
  config = slow_llama.config(dtype="float64", rope_pairing="interleaved")
  params = slow_llama.params(config)
  prompts = slow_llama.prompts(LENGTHS)
  coming = np.stack(slow_llama.prompts([6] * 3, seed=1)).astype(np.int32)
  expected = [
    slow_llama.forward(params, np.concatenate([p, c]), config)[0]
    for p, c in zip(prompts, coming, strict=True)
  ]
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params)
    tokens, mask = padded(prompts, side)
    output, cache = prefill(wide, tokens, mask, config=config, num_slots=SLOTS)
    got = [output.logits[:, None]]
    # One token at a time, then three at once.
    for piece in (coming[:, :1], coming[:, 1:2], coming[:, 2:3], coming[:, 3:]):
      output, cache = extend(wide, cache, piece, config=config)
      got.append(output.logits)
    got = np.concatenate(got, axis=1)
  for row, length in enumerate(LENGTHS):
    np.testing.assert_allclose(
      got[row], expected[row][length - 1 :], rtol=0, atol=1e-12
    )
  assert int(cache.next_slot) == max(LENGTHS) + 6
  np.testing.assert_array_equal(cache.next_position, np.add(LENGTHS, 6))


def test_extending_an_empty_cache_is_reading(slow_llama, small):
  config, params = small
  tokens = jnp.asarray(np.stack(slow_llama.prompts([4, 4])), jnp.int32)
  empty = llama.init_cache(config, batch_size=2, num_slots=SLOTS)
  output, _ = extend(params, empty, tokens, config=config)
  expected = llama.apply(params, tokens, config=config)
  np.testing.assert_allclose(output.logits, expected, atol=2e-5)


def test_row_that_reads_nothing_is_left_alone(slow_llama, small):
  config, params = small
  first, second = slow_llama.prompts([3, 3])
  more = np.array([[5], [7]], np.int32)
  _, cache = prefill(
    params,
    *padded([first, second], "left"),
    config=config,
    num_slots=SLOTS,
  )
  _, cache = extend(
    params, cache, more, np.array([[True], [False]]), config=config
  )
  output, cache = extend(params, cache, more, config=config)
  np.testing.assert_array_equal(cache.next_position, [5, 4])
  for row, whole in enumerate(([*first, 5, 5], [*second, 7])):
    expected, _, _ = slow_llama.forward(params, np.array(whole), config)
    np.testing.assert_allclose(output.logits[row, 0], expected[-1], atol=2e-5)


def test_taps_show_slots(slow_llama, small):
  config, params = small
  prompts = slow_llama.prompts([3, 2])
  output, cache = prefill(
    params,
    *padded(prompts, "left"),
    config=config,
    num_slots=SLOTS,
    taps=llama.TAPS,
  )
  assert output.attention.shape == (2, 2, 4, 3, 3)
  piece = np.array([[4, 6], [8, 9]], np.int32)
  output, _ = extend(params, cache, piece, config=config, taps=llama.TAPS)
  for row, prompt in enumerate(prompts):
    whole = np.concatenate([prompt, piece[row]])
    _, streams, attention = slow_llama.forward(params, whole, config)
    np.testing.assert_allclose(
      output.hidden_states[:, row], streams[:, -2:], atol=2e-5
    )
    expected = np.zeros((2, 4, 2, SLOTS))
    expected[..., 3 - len(prompt) : 5] = attention[:, :, -2:]
    np.testing.assert_allclose(output.attention[:, row], expected, atol=1e-5)


def test_narrow_model_has_a_narrow_cache(slow_llama):
  config = slow_llama.config(dtype="bfloat16")
  cache = llama.init_cache(config, batch_size=1, num_slots=SLOTS)
  assert cache.keys.dtype == jnp.bfloat16


def test_cache_is_updated_in_place(small):
  config, params = small
  cache = llama.init_cache(config, batch_size=2, num_slots=SLOTS)
  stored = sum(x.nbytes for x in jax.tree.leaves(cache))
  compiled = extend.lower(
    params, cache, jnp.zeros((2, 1), jnp.int32), config=config
  ).compile()
  assert compiled.memory_analysis().alias_size_in_bytes == stored


def test_full_cache_is_refused_or_nan(small):
  config, params = small
  tokens = jnp.ones((1, SLOTS), jnp.int32)
  _, cache = prefill(params, tokens, config=config, num_slots=SLOTS)
  with pytest.raises(ValueError, match=r"1 tokens do not fit.*12 of its 12"):
    llama.extend(params, cache, tokens[:, :1], config=config)
  output, cache = extend(params, cache, tokens[:, :1], config=config)
  output, cache = extend(params, cache, tokens[:, :1], config=config)
  assert np.isnan(output.logits).all()


def test_equal_arguments_give_one_cached_model(small):
  config, _ = small
  model = llama.cached_model(config, num_slots=SLOTS)
  same = llama.cached_model(dataclasses.replace(config), num_slots=SLOTS)
  assert model is same
  assert model is not llama.cached_model(config, num_slots=SLOTS + 1)


def test_bad_sizes_are_named(small):
  config, params = small
  tokens = jnp.ones((1, 5), jnp.int32)
  with pytest.raises(ValueError, match=r"prompt of 5 tokens.*num_slots 4"):
    llama.prefill(params, tokens, config=config, num_slots=4)
  for num_slots in (0, 33):
    with pytest.raises(ValueError, match=r"num_slots must be in \[1, 32\]"):
      llama.init_cache(config, batch_size=1, num_slots=num_slots)
    with pytest.raises(ValueError, match=r"num_slots must be in \[1, 32\]"):
      llama.cached_model(config, num_slots=num_slots)
