"""Adaptive normalisation."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from icml26_jax.layers import modulation


def test_modulate_scales_and_shifts_each_row():
  rng = np.random.default_rng(0)
  x, shift, scale = (
    rng.normal(size=s).astype(np.float32) for s in ((2, 3, 4), (2, 4), (2, 4))
  )
  got = modulation.modulate(*(jnp.asarray(z) for z in (x, shift, scale)))
  for b in range(2):
    np.testing.assert_allclose(
      got[b], x[b] * (1 + scale[b]) + shift[b], rtol=1e-6, atol=1e-6
    )


def test_starts_as_no_change():
  module = modulation.Modulation(features=4, count=3)
  condition = jax.random.normal(jax.random.key(0), (2, 5))
  vectors, _ = module.init_with_output(jax.random.key(1), condition)
  assert len(vectors) == 3
  for vector in vectors:
    np.testing.assert_array_equal(vector, np.zeros((2, 4)))


def test_vectors_are_linear_in_the_condition():
  module = modulation.Modulation(features=4, count=3)
  condition = jax.random.normal(jax.random.key(0), (2, 5))
  params = nn.meta.unbox(module.init(jax.random.key(1), condition))["params"]
  rng = np.random.default_rng(0)
  params = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), params)
  expected = condition @ params["linear"]["kernel"]
  expected = expected + params["linear"]["bias"][None]
  got = module.apply({"params": params}, condition)
  for i in range(3):
    np.testing.assert_allclose(
      got[i], expected[:, 4 * i : 4 * i + 4], atol=1e-5
    )
