"""Models cut over several devices, and compiled for a TPU slice."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.models import kv_cache, llama
from icml26_jax.training import mesh as mesh_lib
from icml26_jax.training import sharding
from tpu import topology

SMOLLM2 = llama.Config(
  vocab_size=49152,
  d_model=576,
  num_layers=30,
  num_heads=9,
  num_kv_heads=3,
  head_dim=64,
  d_ff=1536,
  rope_base=1e5,
  max_length=8192,
  dtype="bfloat16",
)
# Three heads of keys and values cannot be cut in two.
WHOLE_HEADS = (*sharding.DEFAULT_RULES, ("heads", None))


def shardings(mesh, rules, config, cache):
  """Where parameters and cache live."""
  shapes = jax.eval_shape(
    functools.partial(llama.init, config=config), jax.random.key(0)
  )
  return shapes, sharding.param_shardings(
    mesh,
    {"params": llama.logical_axes(config), "cache": kv_cache.logical_axes()},
    rules,
    {"params": shapes, "cache": cache},
  )


def test_eight_devices_decode_what_one_does(slow_llama):
  config = slow_llama.config(vocab_size=32)
  params = slow_llama.params(config)
  tokens = np.stack(slow_llama.prompts([3] * 4)).astype(np.int32)
  mesh = mesh_lib.make_mesh({"data": 2, "fsdp": 2, "model": 2})
  empty = llama.init_cache(config, batch_size=4, num_slots=8)
  _, where = shardings(mesh, sharding.DEFAULT_RULES, config, empty)
  rows = sharding.batch_sharding(mesh, sharding.DEFAULT_RULES)

  @jax.jit
  def step(params, cache, tokens):
    output, cache = llama.extend(params, cache, tokens, config=config)
    return output.logits, cache

  def run(params, cache, tokens):
    logits, cache = step(params, cache, tokens)
    assert cache.keys.sharding.device_set == params["embedding"].devices()
    return logits

  expected = run(jax.device_put(params), empty, tokens)
  got = run(
    jax.device_put(params, where["params"]),
    jax.device_put(empty, where["cache"]),
    jax.device_put(tokens, rows),
  )
  assert len(got.sharding.device_set) == 8
  np.testing.assert_allclose(got, expected, atol=2e-5)


@pytest.mark.slow  # two programs through the TPU compiler
def test_prefill_and_decode_compile_for_a_tpu_slice():
  if importlib.util.find_spec("libtpu") is None:
    pytest.fail("libtpu is not installed: pip install 'icml26_jax[test]'")
  topology.prepare_environment()
  devices, _ = topology.describe("v5e:2x2")
  mesh = mesh_lib.make_mesh({"data": 2, "model": 2}, devices=devices)
  batch_size, length, num_slots = 8, 128, 1024
  cache = jax.eval_shape(
    functools.partial(
      llama.init_cache, SMOLLM2, batch_size=batch_size, num_slots=num_slots
    )
  )
  shapes, where = shardings(mesh, WHOLE_HEADS, SMOLLM2, cache)

  def struct(leaf, place):
    dtype = jnp.bfloat16 if leaf.dtype == jnp.float32 else leaf.dtype
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=place)

  params = jax.tree.map(struct, shapes, where["params"])
  cache = jax.tree.map(struct, cache, where["cache"])
  rows = sharding.batch_sharding(mesh, WHOLE_HEADS)

  def compile_for_tpu(function, *arguments, **options):
    return jax.jit(function, **options).lower(*arguments).compile()

  read = compile_for_tpu(
    functools.partial(llama.prefill, config=SMOLLM2, num_slots=num_slots),
    params,
    jax.ShapeDtypeStruct((batch_size, length), jnp.int32, sharding=rows),
    jax.ShapeDtypeStruct((batch_size, length), jnp.bool_, sharding=rows),
    out_shardings=(None, where["cache"]),
  )
  decode = compile_for_tpu(
    lambda params, cache, tokens: llama.extend(
      params, cache, tokens, config=SMOLLM2
    ),
    params,
    cache,
    jax.ShapeDtypeStruct((batch_size, 1), jnp.int32, sharding=rows),
    donate_argnums=1,
    out_shardings=(None, where["cache"]),
  )
  for compiled in (read, decode):
    memory = compiled.memory_analysis()
    used = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    assert used < 1e9
  # Half of the rows, all heads: 30 layers, keys and values of 2 bytes.
  stored = 2 * 2 * 30 * (batch_size // 2) * 3 * num_slots * 64
  memory = decode.memory_analysis()
  assert memory.alias_size_in_bytes >= stored
  assert memory.temp_size_in_bytes < stored
