"""Embedding of a noise level."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import noise_level


def test_waves_equal_numpy():
  level = np.array([0.0, 1e-3, 0.7, 6.9], np.float32)
  frequency = 10.0 * 1e-3 ** (np.arange(4) / 3)
  angle = level.astype(np.float64)[:, None] * frequency
  expected = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
  got = noise_level.waves(jnp.asarray(level), 8)
  # Angles up to 69 radians, rounded to 2^-24 of themselves.
  np.testing.assert_allclose(got, expected, atol=69 * 2**-23)


@pytest.mark.parametrize("features", [-2, 2, 5])
def test_odd_or_too_few_features_are_refused(features):
  with pytest.raises(ValueError, match="features must be even"):
    noise_level.waves(jnp.zeros(1), features)


def test_module_equals_numpy():
  module = noise_level.NoiseLevel(features=6, num_waves=8)
  level = jnp.array([0.01, 2.0])
  params = nn.meta.unbox(module.init(jax.random.key(0), level))["params"]
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), params
  )
  x = np.asarray(noise_level.waves(level, 8), np.float64)
  for name in ("hidden", "out"):
    linear = {k: np.asarray(v, np.float64) for k, v in params[name].items()}
    x = x @ linear["kernel"] + linear["bias"]
    x = x / (1 + np.exp(-x))
  np.testing.assert_allclose(
    module.apply({"params": params}, level), x, atol=1e-5
  )


def test_levels_are_told_apart():
  module = noise_level.NoiseLevel(features=16)
  level = jnp.array([1e-3, 2e-3, 1.0, 6.9])
  embedded, _ = module.init_with_output(jax.random.key(0), level)
  distance = np.linalg.norm(embedded[:, None] - embedded[None], axis=-1)
  assert np.min(distance[~np.eye(4, dtype=bool)]) > 1e-3
