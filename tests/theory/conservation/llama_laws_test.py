import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.models import llama
from icml26_jax.theory import conservation

# Cosines through two layers of float64.
ROUNDING = 1e-12
MOVES = 1e-3

SHAPE = dict(
  vocab_size=11,
  d_model=8,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=4,
  d_ff=6,
  dtype="float64",
)
VARIANTS = {
  "tied": dict(rope_pairing="interleaved"),
  "untied with biases": dict(
    rope_pairing="half",
    tie_embeddings=False,
    qkv_bias=True,
    output_bias=True,
  ),
}


def random_params(nets, config):
  shapes = jax.eval_shape(
    lambda key: llama.init(key, config), jax.random.key(0)
  )
  leaves, structure = jax.tree.flatten(shapes)
  return jax.tree.unflatten(
    structure,
    [
      jnp.asarray(nets.normal((70, i), *leaf.shape, scale=0.6))
      for i, leaf in enumerate(leaves)
    ],
  )


def next_token_loss(logits, tokens):
  logits = jax.nn.log_softmax(logits[:, :-1])
  return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1))


def measure(laws, params, config, tokens):
  def loss(params, tokens):
    return next_token_loss(llama.apply(params, tokens, config=config), tokens)

  return jax.jit(
    lambda p, t: conservation.layer_maxima(
      conservation.measure(laws, loss, p, t)
    )
  )(params, tokens)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("float64")
def test_laws_hold_in_every_layer_and_controls_do_not(nets, variant):
  config = llama.Config(**SHAPE, **VARIANTS[variant])
  params = random_params(nets, config)
  found = conservation.laws_for(params, pairing=config.rope_pairing)
  controls = conservation.controls_for(params, pairing=config.rope_pairing)
  tokens = jnp.asarray(np.random.default_rng(71).integers(0, 11, (2, 9)))
  got = measure({**found.laws, **controls.laws}, params, config, tokens)
  once = {"final_gain", "output"}
  for name in found.laws:
    assert got[name].relative.shape == ((1,) if name in once else (2,))
    assert np.max(got[name].relative) < ROUNDING, name
    assert np.max(np.abs(got[name].rate)) < ROUNDING, name
  for name in controls.laws:
    assert got[name].relative.shape == (2,)
    assert np.min(got[name].relative) > MOVES, name
  blocks = {"swiglu", "query_key", "value_output", "attention_gain", "mlp_gain"}
  assert not controls.absent
  assert set(controls.laws) == {
    "gate_down",
    "gain_without_gate",
    "query_key_entries",
    "other_pairing",
    "query_key_per_head",
    "value_output_per_head",
  }
  if config.tie_embeddings:
    assert set(found.laws) == blocks
    assert set(found.absent) == once
    assert all("tied" in reason for reason in found.absent.values())
  else:
    assert set(found.laws) == blocks | once
    assert not found.absent


@pytest.mark.usefixtures("float64")
def test_values_are_the_invariants_of_each_layer(nets):
  config = llama.Config(
    **SHAPE, rope_pairing="half", tie_embeddings=False, qkv_bias=True
  )
  params = random_params(nets, config)
  found = conservation.laws_for(params, pairing="half")
  got = {name: law(params) for name, law in found.laws.items()}
  layers = [
    {name: stacked[i] for name, stacked in params["layers"].items()}
    for i in range(config.num_layers)
  ]

  def close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)

  def with_bias(layer, name):
    weight = np.swapaxes(layer[name], -1, -2)
    return np.concatenate([weight, layer[f"{name}_bias"][:, None]], axis=1)

  for i, layer in enumerate(layers):
    attention = conservation.attention_invariants(
      *(with_bias(layer, name) for name in ("query", "key", "value")),
      np.moveaxis(layer["output"], 0, -1),
      rope=True,
      pairing="half",
    )
    for name, value in attention.items():
      close(got[name][i], value)
    close(
      got["swiglu"][i],
      conservation.swiglu_invariant(
        layer["up"].T, layer["gate"].T, layer["down"].T
      ),
    )
    close(
      got["mlp_gain"][i],
      conservation.gain_invariant(
        layer["mlp_norm"], [layer["gate"].T, layer["up"].T]
      ),
    )
    readers = [
      layer[name].reshape(-1, 8).T for name in ("query", "key", "value")
    ]
    close(
      got["attention_gain"][i],
      conservation.gain_invariant(layer["attention_norm"], readers),
    )
  close(
    got["final_gain"][0],
    conservation.gain_invariant(params["final_norm"], [params["head"].T]),
  )
  close(got["output"][0], params["head"].sum(0))


def other_model(nets, params, x, gate):
  """Layers with LayerNorm and shifts, no rotary positions, and experts."""

  def norm(x, layer, name):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    scale = jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
    return centred / scale * layer[name][None] + layer[f"{name}_shift"][None]

  def turned(array):
    return jnp.swapaxes(array, -1, -2)

  stack = params["layers"]
  for i in range(len(stack["query"])):
    layer = {name: value[i] for name, value in stack.items()}
    heads = {
      name[0].upper(): turned(layer[name]) for name in ("query", "key", "value")
    }
    heads["O"] = jnp.moveaxis(layer["output"], 0, -1)
    x = x + nets.attention(heads, norm(x, layer, "attention_norm"))
    experts = {
      "A": turned(layer["up"]),
      "B": turned(layer["gate"]),
      "C": turned(layer["down"]),
      "W": turned(layer["router"]),
    }
    x = x + nets.moe(experts, norm(x, layer, "mlp_norm"), gate)
  top = {"g": params["final_norm"], "g_shift": params["final_norm_shift"]}
  return norm(x, top, "g") @ params["head"].T


def other_params(nets):
  shapes = dict(
    query=(2, 4, 8),
    key=(1, 4, 8),
    value=(1, 4, 8),
    output=(8, 2, 4),
    attention_norm=(8,),
    attention_norm_shift=(8,),
    mlp_norm=(8,),
    mlp_norm_shift=(8,),
    router=(2, 8),
    up=(2, 5, 8),
    gate=(2, 5, 8),
    down=(2, 8, 5),
  )
  layers = {
    name: jnp.asarray(nets.normal((72, i), 2, *shape, scale=0.6))
    for i, (name, shape) in enumerate(shapes.items())
  }
  return {
    "layers": layers,
    "final_norm": jnp.asarray(nets.normal(73, 8)),
    "final_norm_shift": jnp.asarray(nets.normal(74, 8)),
    "head": jnp.asarray(nets.normal(75, 11, 8)),
  }


def measure_other(nets, laws, params, gate):
  x = jnp.asarray(nets.normal(76, 9, 8))
  y = jnp.asarray(np.random.default_rng(77).integers(0, 11, (9, 1)))

  def loss(params, batch):
    logits = jax.nn.log_softmax(other_model(nets, params, batch[0], gate))
    return -jnp.mean(jnp.take_along_axis(logits, batch[1], axis=-1))

  return jax.jit(
    lambda p, b: conservation.layer_maxima(
      conservation.measure(laws, loss, p, b)
    )
  )(params, (x, y))


@pytest.mark.usefixtures("float64")
def test_shifts_experts_and_plain_attention_are_found(nets):
  params = other_params(nets)
  found = conservation.laws_for(params, pairing=None, gate="softmax")
  controls = conservation.controls_for(params, pairing=None)
  laws = {**found.laws, **controls.laws}
  got = measure_other(nets, laws, params, "softmax")
  for name in found.laws:
    assert np.max(got[name].relative) < ROUNDING, name
  for name in controls.laws:
    assert np.min(got[name].relative) > MOVES, name
  assert found.laws["query_key"](params).shape == (2, 1, 4, 4)
  assert found.laws["swiglu"](params).shape == (2, 2, 5)
  assert found.laws["router"](params).shape == (2, 8)
  assert set(controls.absent) == {"query_key_entries", "other_pairing"}


@pytest.mark.usefixtures("float64")
def test_router_of_normalised_sigmoids_has_no_law(nets):
  params = other_params(nets)
  gate = "normalized_sigmoid"
  found = conservation.laws_for(params, pairing=None, gate=gate)
  assert "4.7" in found.absent["router"]
  softmax = conservation.laws_for(params, pairing=None).laws["router"]
  laws = {"experts": found.laws["swiglu"], "router": softmax}
  got = measure_other(nets, laws, params, gate)
  assert np.max(got["experts"].relative) < ROUNDING
  assert np.min(got["router"].relative) > MOVES


def test_top1_router_is_kept_entry_by_entry(nets):
  params = other_params(nets)
  found = conservation.laws_for(params, pairing=None, gate="top1")
  np.testing.assert_array_equal(
    found.laws["router"](params),
    np.swapaxes(params["layers"]["router"], -1, -2),
  )


def test_layer_maxima_keep_nan():
  rates = conservation.Rates(
    jnp.asarray([[-3.0, 2.0], [0.5, jnp.nan]]), jnp.ones((2, 2, 3))
  )
  got = conservation.layer_maxima({"law": rates})["law"]
  np.testing.assert_array_equal(got.rate, [3, np.nan])
  np.testing.assert_array_equal(got.relative, [1, 1])


def test_laws_are_found_from_shapes_alone():
  config = llama.Config(**{**SHAPE, "dtype": "float32", "num_kv_heads": 4})
  shapes = jax.eval_shape(
    lambda key: llama.init(key, config), jax.random.key(0)
  )
  assert len(conservation.laws_for(shapes, pairing="half").laws) == 5
  controls = conservation.controls_for(shapes, pairing="half")
  assert set(controls.absent) == {"query_key_per_head", "value_output_per_head"}
  two = llama.Config(**{**SHAPE, "dtype": "float32", "head_dim": 2})
  shapes = jax.eval_shape(lambda key: llama.init(key, two), jax.random.key(0))
  controls = conservation.controls_for(shapes, pairing="half")
  assert set(controls.absent) == {"other_pairing"}


def test_bad_arguments_are_named(nets):
  config = llama.Config(**{**SHAPE, "dtype": "float32"})
  shapes = jax.eval_shape(
    lambda key: llama.init(key, config), jax.random.key(0)
  )
  params = jax.tree.map(lambda shape: np.ones(shape.shape, np.float32), shapes)
  layers = params["layers"]

  def find(changes=(), pairing="half", top=(), **options):
    changed = {**params, "layers": {**layers, **dict(changes)}, **dict(top)}
    return conservation.laws_for(changed, pairing=pairing, **options)

  with pytest.raises(ValueError, match="pairing must be one of"):
    find(pairing="odd")
  with pytest.raises(ValueError, match="unknown gate"):
    find(gate="topk")
  with pytest.raises(ValueError, match=r"params has layers\.query_norm"):
    find({"query_norm": jnp.ones((2, 4))})
  with pytest.raises(ValueError, match="params has positions"):
    find(top={"positions": jnp.ones((5, 8))})
  with pytest.raises(ValueError, match=r"layers\.gate must have 3 axes"):
    find({"gate": layers["gate"][:, None]})
  with pytest.raises(TypeError, match="must be floating, got int32"):
    find({"gate": layers["gate"].astype(np.int32)})
  with pytest.raises(ValueError, match="params lacks layers, has embedding"):
    conservation.laws_for({"embedding": params["embedding"]}, pairing=None)
  rest = {name: value for name, value in layers.items() if name != "up"}
  with pytest.raises(ValueError, match=r"params lacks layers\.up"):
    conservation.laws_for({**params, "layers": rest}, pairing="half")
  with pytest.raises(ValueError, match=r"params lacks layers\.up"):
    conservation.controls_for({**params, "layers": rest}, pairing="half")


@pytest.mark.slow  # One gradient of a model of 135 million parameters.
def test_thirty_real_layers_in_float32(smollm2):
  params, config, tokenizer = smollm2
  found = conservation.laws_for(params, pairing=config.rope_pairing)
  controls = conservation.controls_for(params, pairing=config.rope_pairing)
  text = inspect.getsource(inspect.getsource)
  tokens = jnp.asarray(tokenizer.encode(text)[:33], jnp.int32)[None]
  got = measure({**found.laws, **controls.laws}, params, config, tokens)
  for name in found.laws:
    assert got[name].relative.shape == (30,)
    assert np.max(got[name].relative) < 1e-6, name
  for name in controls.laws:
    assert np.min(got[name].relative) > 1e-3, name
  assert set(found.absent) == {"final_gain", "output"}
