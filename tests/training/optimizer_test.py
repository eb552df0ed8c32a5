import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icml26_jax.training import optimizer


def _numpy_rate(config, n):
  """The schedule of the docstring, in float64."""
  rate = config.learning_rate
  if config.decay_steps:
    u = (n - config.warmup_steps) / (config.decay_steps - config.warmup_steps)
    u = min(max(u, 0.0), 1.0)
    f = config.final_fraction
    rate *= f + (1 - f) * 0.5 * (1 + math.cos(math.pi * u))
  if n < config.warmup_steps:
    rate *= (n + 1) / config.warmup_steps
  return rate


def _numpy_adamw(config, params, gradients, decays):
  """Clipped AdamW, one parameter at a time, in float64."""
  params = {k: v.astype(np.float64) for k, v in params.items()}
  first = {k: np.zeros_like(v) for k, v in params.items()}
  second = {k: np.zeros_like(v) for k, v in params.items()}
  for n, grads in enumerate(gradients):
    norm = math.sqrt(sum(np.sum(np.square(g)) for g in grads.values()))
    scale = min(1.0, config.clip_norm / norm) if config.clip_norm else 1.0
    for k, p in params.items():
      g = grads[k].astype(np.float64) * scale
      first[k] = config.b1 * first[k] + (1 - config.b1) * g
      second[k] = config.b2 * second[k] + (1 - config.b2) * g * g
      m = first[k] / (1 - config.b1 ** (n + 1))
      v = second[k] / (1 - config.b2 ** (n + 1))
      update = m / (np.sqrt(v) + config.eps)
      if decays[k]:
        update = update + config.weight_decay * p
      params[k] = p - _numpy_rate(config, n) * update
  return params


@pytest.mark.parametrize("clip_norm", [0.5, None])
def test_updates_equal_float64_adamw(clip_norm):
  config = optimizer.OptimizerConfig(
    learning_rate=0.02,
    warmup_steps=3,
    decay_steps=9,
    weight_decay=0.1,
    clip_norm=clip_norm,
  )
  rng = np.random.default_rng(0)
  shapes = {"kernel": (4, 3), "scale": (2, 3), "table": (5, 4)}
  axes = {
    "kernel": ("embed", "mlp"),
    "scale": ("layers", "embed"),
    "table": ("vocab", "embed"),
  }
  start = {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
  # Gradients from tiny to large, so that clipping acts on some only.
  gradients = [
    {
      k: (10.0 ** (n - 4) * rng.normal(size=s)).astype(np.float32)
      for k, s in shapes.items()
    }
    for n in range(8)
  ]
  transform = optimizer.make(config, axes)
  params = jax.tree.map(jnp.asarray, start)
  state = transform.init(params)
  update = jax.jit(transform.update)
  for grads in gradients:
    updates, state = update(grads, state, params)
    params = optax.apply_updates(params, updates)
  expected = _numpy_adamw(
    config, start, gradients, {"kernel": True, "scale": False, "table": False}
  )
  # Reference: float64. Eight updates of at most 0.02 * (1 + decay), each right
  # to a few float32 roundings.
  for k in shapes:
    np.testing.assert_allclose(params[k], expected[k], rtol=3e-6, atol=3e-7)


def test_schedule_passes_through_its_known_points():
  config = optimizer.OptimizerConfig(
    learning_rate=0.4, warmup_steps=4, decay_steps=14, final_fraction=0.25
  )
  rate = optimizer.schedule(config)
  expected = {0: 0.1, 1: 0.2, 3: 0.4, 4: 0.4, 9: 0.25, 14: 0.1, 1000: 0.1}
  for n, value in expected.items():
    np.testing.assert_allclose(rate(n), value, rtol=1e-6)
  for n in range(20):
    np.testing.assert_allclose(rate(n), _numpy_rate(config, n), rtol=1e-6)


def test_schedule_without_warmup_or_decay_is_constant():
  rate = optimizer.schedule(optimizer.OptimizerConfig(learning_rate=0.5))
  assert [float(rate(n)) for n in (0, 1, 10**6)] == [0.5, 0.5, 0.5]


def test_only_matrices_of_the_layers_decay():
  axes = {
    "embedding": ("vocab", "embed"),
    "blocks": {
      "query": ("layers", "embed", "heads", "head_dim"),
      "bias": ("layers", "heads", "head_dim"),
      "scale": ("layers", "embed"),
    },
    "head": ("embed", "vocab"),
    "special": ("embed",),
  }
  assert optimizer.decay_mask(axes) == {
    "embedding": False,
    "blocks": {"query": True, "bias": False, "scale": False},
    "head": False,
    "special": False,
  }


def test_without_axes_every_parameter_decays():
  config = optimizer.OptimizerConfig(learning_rate=0.1, weight_decay=0.5)
  transform = optimizer.make(config)
  params = {"a": jnp.ones(3)}
  updates, _ = transform.update(
    {"a": jnp.zeros(3)}, transform.init(params), params
  )
  np.testing.assert_allclose(updates["a"], -0.05 * np.ones(3), rtol=1e-6)


def test_first_moment_may_be_bfloat16():
  config = optimizer.OptimizerConfig(moment_dtype="bfloat16")
  state = optimizer.make(config).init({"a": jnp.ones(3)})
  dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(state) if leaf.ndim}
  assert dtypes == {"bfloat16", "float32"}


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("learning_rate", -1.0),
    ("learning_rate", math.nan),
    ("warmup_steps", -1),
    ("decay_steps", -1),
    ("final_fraction", 1.5),
    ("b1", 1.0),
    ("b2", -0.1),
    ("eps", 0.0),
    ("weight_decay", -0.1),
    ("clip_norm", 0.0),
    ("moment_dtype", "float16"),
  ],
)
def test_bad_setting_is_refused(field, value):
  with pytest.raises(ValueError, match=field):
    optimizer.OptimizerConfig(**{field: value})


def test_decay_must_outlast_warmup():
  with pytest.raises(ValueError, match="warmup_steps must be less than"):
    optimizer.OptimizerConfig(warmup_steps=10, decay_steps=10)
