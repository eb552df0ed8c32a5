import dataclasses
import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from icml26_jax.models import llama

apply = jax.jit(llama.apply, static_argnames="config")
forward = jax.jit(llama.forward, static_argnames=("config", "taps"))

VARIANTS = {
  "interleaved": dict(
    rope_pairing="interleaved", num_kv_heads=1, tie_embeddings=False
  ),
  "half": dict(qkv_bias=True, output_bias=True),
  "no groups": dict(num_kv_heads=4, rope_divisors=(1.0, 2.0, 4.0)),
}


@pytest.fixture(scope="module")
def small(slow_llama):
  config = slow_llama.config()
  return config, slow_llama.params(config)


def padded(prompts, side, length, pad=0):
  """Prompts in one array; `between` spreads the padding."""
  tokens = np.full((len(prompts), length), pad, np.int32)
  mask = np.zeros((len(prompts), length), bool)
  for i, prompt in enumerate(prompts):
    n = len(prompt)
    where = {
      "right": np.arange(n),
      "left": np.arange(length - n, length),
      "between": np.linspace(0, length - 1, n).round().astype(int),
    }[side]
    tokens[i, where], mask[i, where] = prompt, True
  return tokens, mask


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_equals_the_slow_model_in_float64(slow_llama, variant):
  config = slow_llama.config(dtype="float64", **variant)
  params = slow_llama.params(config)
  (tokens,) = slow_llama.prompts([7])
  logits, streams, attention = slow_llama.forward(params, tokens, config)
  with jax.enable_x64(True):
    output = forward(
      jax.tree.map(lambda x: jnp.asarray(np.float64(x)), params),
      jnp.asarray(tokens[None]),
      config=config,
      taps=llama.TAPS,
    )
  np.testing.assert_allclose(output.logits[0], logits, rtol=0, atol=1e-12)
  np.testing.assert_allclose(output.hidden_states[:, 0], streams, atol=1e-12)
  np.testing.assert_allclose(output.attention[:, 0], attention, atol=1e-13)


@pytest.mark.parametrize(
  ("dtype", "eps"), [("float32", 2**-24), ("bfloat16", 2**-9)]
)
def test_narrow_types_are_as_near_as_their_rounding(slow_llama, dtype, eps):
  config = slow_llama.config(dtype=dtype)
  params = slow_llama.params(config)
  (tokens,) = slow_llama.prompts([9])
  expected, _, _ = slow_llama.forward(params, tokens, config)
  got = apply(params, jnp.asarray(tokens[None], jnp.int32), config=config)
  assert got.dtype == jnp.float32
  error = np.sqrt(np.mean((np.asarray(got[0], np.float64) - expected) ** 2))
  # Some ten roundings in a row each layer, independent, amplified a little.
  assert error < 3 * np.sqrt(20) * eps * np.sqrt(np.mean(expected**2))


@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padded_rows_equal_rows_alone(slow_llama, small, side):
  config, params = small
  prompts = slow_llama.prompts([3, 8, 1, 5])
  tokens, mask = padded(prompts, side, length=8)
  got = apply(params, tokens, mask, config=config)
  for row, prompt in enumerate(prompts):
    alone, _, _ = slow_llama.forward(params, prompt, config)
    np.testing.assert_allclose(
      np.asarray(got[row])[mask[row]], alone, atol=2e-5
    )


def test_what_padding_consists_of_does_not_matter(slow_llama, small):
  config, params = small
  prompts = slow_llama.prompts([3, 6])
  results = [
    forward(
      params,
      *map(jnp.asarray, padded(prompts, "left", length=6, pad=pad)),
      config=config,
      taps=llama.TAPS,
    )
    for pad in (0, 17, -5, 10_000)
  ]
  for other in results[1:]:
    jax.tree.map(np.testing.assert_array_equal, other, results[0])
  assert all(np.isfinite(x).all() for x in results[0])


def test_later_tokens_have_no_influence_and_no_gradient(slow_llama, small):
  config, params = small
  tokens = jnp.arange(6, dtype=jnp.int32)[None]

  untied = dataclasses.replace(config, tie_embeddings=False)
  separate = {**params, "head": params["embedding"]}

  def early(table):
    logits = llama.apply(
      {**separate, "embedding": table}, tokens, config=untied
    )
    return jnp.sum(logits[0, :3] ** 2)

  gradient = jax.jit(jax.grad(early))(params["embedding"])
  norms = np.linalg.norm(gradient, axis=1)
  assert (norms[:3] > 0).all()
  assert (norms[3:] == 0).all()


def test_one_token_attends_to_itself(small):
  config, params = small
  output = forward(params, jnp.array([[3]]), config=config, taps=("attention",))
  np.testing.assert_array_equal(
    output.attention, np.ones((2, 1, config.num_heads, 1, 1))
  )
  assert output.hidden_states is None


def test_attention_of_padding_is_zero_and_of_tokens_sums_to_one(
  slow_llama, small
):
  config, params = small
  tokens, mask = padded(slow_llama.prompts([2, 5]), "left", length=5)
  attention = np.asarray(
    forward(params, tokens, mask, config=config, taps=llama.TAPS).attention
  )
  sums = attention.sum(axis=-1)
  expected = np.broadcast_to(mask[None, :, None], sums.shape)
  np.testing.assert_allclose(sums, expected, atol=5 * 2**-23)
  hidden = np.broadcast_to(~mask[None, :, None, None], attention.shape)
  assert (attention[hidden] == 0).all()


def test_other_pairing_of_moved_weights_predicts_the_same(slow_llama):
  config = slow_llama.config(rope_pairing="interleaved", qkv_bias=True)
  params = slow_llama.params(config)
  tokens = jnp.asarray(np.stack(slow_llama.prompts([6, 6])), jnp.int32)
  moved, moved_config = llama.with_pairing(params, config, "half")
  assert moved_config.rope_pairing == "half"
  expected = apply(params, tokens, config=config)
  got = apply(moved, tokens, config=moved_config)
  np.testing.assert_allclose(got, expected, atol=2e-5)
  # Without moving the weights it is another function.
  wrong = apply(params, tokens, config=moved_config)
  assert np.abs(wrong - expected).max() > 0.1


def test_computing_again_leaves_the_gradient(slow_llama, small):
  config, params = small
  tokens = jnp.asarray(np.stack(slow_llama.prompts([5, 5])), jnp.int32)

  @functools.partial(jax.jit, static_argnames="config")
  def gradient(params, config):
    def loss(params):
      logits = llama.apply(params, tokens, config=config)
      return -jnp.mean(jax.nn.log_softmax(logits)[..., 0])

    return jax.grad(loss)(params)

  expected = gradient(params, config)
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(expected))
  for remat in ("full", "dots"):
    got = gradient(params, dataclasses.replace(config, remat=remat))
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), got, expected
    )


def test_gradient_is_that_of_finite_differences(slow_llama):
  config = slow_llama.config(dtype="float64", num_layers=1)
  tokens = jnp.array([[3, 1, 4]])
  mask = jnp.array([[False, True, True]])
  with jax.enable_x64(True):
    params = jax.tree.map(
      lambda x: jnp.asarray(np.float64(x)), slow_llama.params(config)
    )

    @jax.jit
    def loss(params):
      logits = llama.apply(params, tokens, mask, config=config)
      return jnp.mean(jax.nn.log_softmax(logits[:, 1:])[..., 2])

    jax.test_util.check_grads(loss, (params,), order=1, modes=["rev"])


def test_token_outside_the_vocabulary_is_refused_or_nan(slow_llama, small):
  config, params = small
  tokens = np.stack(slow_llama.prompts([4, 4])).astype(np.int32)
  for bad in (29, -1):
    tokens[0, 2] = bad
    with pytest.raises(ValueError, match=rf"\[0, 29\), got {bad}"):
      llama.apply(params, tokens, config=config)
    logits = apply(params, tokens, config=config)
    assert np.isnan(logits[0, 2:]).all()
    assert np.isfinite(logits[1]).all()


def test_published_size_is_counted():
  smollm2 = llama.Config(
    vocab_size=49152,
    d_model=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    d_ff=1536,
  )
  assert llama.num_params(smollm2) == 134_515_008


def test_initial_parameters_have_names_and_scale(slow_llama):
  config = slow_llama.config(
    d_model=64, vocab_size=1000, qkv_bias=True, tie_embeddings=False
  )
  params = jax.jit(llama.init, static_argnums=1)(jax.random.key(0), config)
  assert llama.num_params(config) == sum(
    x.size for x in jax.tree.leaves(params)
  )
  llama.check_params(params, config)
  is_axes = lambda node: isinstance(node, tuple)  # noqa: E731
  ranks = jax.tree.map(len, llama.logical_axes(config), is_leaf=is_axes)
  assert ranks == jax.tree.map(jnp.ndim, params)
  logits = apply(params, jnp.arange(20)[None], config=config)
  # Normalised vectors of length sqrt(64) times rows of variance 1 / 64.
  assert 0.9 < np.std(logits) < 1.2


def test_parameters_that_do_not_fit_are_named(small):
  config, params = small
  layers = params["layers"]
  wrong = {**layers, "gate": layers["gate"][:, :3]}
  with pytest.raises(ValueError, match=r"layers.gate must have shape \(2, 16"):
    llama.check_params({**params, "layers": wrong}, config)
  with pytest.raises(ValueError, match="lacks head"):
    llama.check_params(
      params, dataclasses.replace(config, tie_embeddings=False)
    )
  with pytest.raises(ValueError, match="has extra"):
    llama.check_params({**params, "extra": params["final_norm"]}, config)


@pytest.mark.parametrize(
  ("tokens", "mask", "error", "message"),
  [
    (np.zeros((2, 0), np.int32), None, ValueError, "at least one row and one"),
    (np.zeros((0, 2), np.int32), None, ValueError, "at least one row and one"),
    (np.zeros(3, np.int32), None, ValueError, r"shape \[B, T\]"),
    (np.zeros((1, 3), np.float32), None, TypeError, "integers, got float32"),
    (
      np.zeros((1, 3), np.int32),
      np.ones((1, 3), np.int32),
      TypeError,
      "mask must be bool, got int32",
    ),
    (
      np.zeros((1, 3), np.int32),
      np.ones((1, 2), bool),
      ValueError,
      r"mask \(1, 2\) and tokens \(1, 3\)",
    ),
    (
      np.zeros((2, 3), np.int32),
      np.array([[True] * 3, [False] * 3]),
      ValueError,
      "row 1 of tokens is an empty prompt",
    ),
    (np.zeros((1, 33), np.int32), None, ValueError, "33 tokens.*max_length 32"),
  ],
)
def test_bad_prompts_are_named(small, tokens, mask, error, message):
  config, params = small
  with pytest.raises(error, match=message):
    llama.apply(params, tokens, mask, config=config)


def test_unknown_tap_is_named(small):
  config, params = small
  with pytest.raises(ValueError, match=r"among hidden_states.*got 'logits'"):
    llama.forward(params, jnp.array([[1]]), config=config, taps=("logits",))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (dict(num_layers=0), "num_layers must be in"),
    (dict(num_kv_heads=3), "num_heads 4 must be a multiple of num_kv_heads 3"),
    (dict(head_dim=5), "head_dim must be even"),
    (dict(rope_pairing="pairs"), "rope_pairing must be one of"),
    (dict(rope_base=-1.0), "base must be above 0"),
    (dict(rope_divisors=(1.0,)), "divisors must be 3 numbers"),
    (dict(norm_eps=0.0), "norm_eps must be in"),
    (dict(dtype="float16"), "dtype must be one of float32, bfloat16"),
    (dict(remat="some"), "remat must be one of"),
  ],
)
def test_bad_configs_are_named(slow_llama, change, message):
  with pytest.raises(ValueError, match=message):
    slow_llama.config(**change)
