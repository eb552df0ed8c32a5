import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.objectives import next_token


def _numpy_nll(logits, tokens, mask):
  """One token at a time, in float64."""
  out = np.zeros((tokens.shape[0], tokens.shape[1] - 1))
  for b in range(tokens.shape[0]):
    for i in range(1, tokens.shape[1]):
      if mask[b, i]:
        row = logits[b, i - 1].astype(np.float64)
        row = row - row.max()
        out[b, i - 1] = np.log(np.exp(row).sum()) - row[tokens[b, i]]
  return out


@pytest.fixture
def example():
  rng = np.random.default_rng(0)
  logits = rng.normal(scale=5, size=(3, 6, 7)).astype(np.float32)
  tokens = rng.integers(7, size=(3, 6), dtype=np.int32)
  mask = rng.random((3, 6)) < 0.6
  return logits, tokens, mask


def test_equals_float64_numpy(example):
  logits, tokens, mask = example
  expected = _numpy_nll(logits, tokens, mask)
  got = jax.jit(next_token.nll)(logits, tokens, mask)
  # Reference: float64. Logits of at most 20, a sum of 7 exponentials.
  np.testing.assert_allclose(got, expected, rtol=1e-6, atol=4e-6)
  batch = {"tokens": tokens, "mask": mask}
  loss_fn = next_token.make_loss_fn(lambda params, tokens: params)
  loss, metrics = loss_fn(jnp.asarray(logits), batch, jax.random.key(0))
  assert float(metrics["weight"]) == mask[:, 1:].sum()
  np.testing.assert_allclose(
    loss, expected.sum() / mask[:, 1:].sum(), rtol=1e-6
  )


def test_uniform_predictions_cost_log_v():
  tokens = np.arange(8, dtype=np.int32).reshape(2, 4)
  got = next_token.nll(jnp.zeros((2, 4, 10)), tokens, np.ones((2, 4), bool))
  np.testing.assert_allclose(got, np.log(10) * np.ones((2, 3)), rtol=1e-6)


def test_what_does_not_count_has_no_influence(example):
  logits, tokens, mask = example
  batch = {"tokens": tokens, "mask": mask}
  loss_fn = next_token.make_loss_fn(lambda params, tokens: params)

  def loss(logits):
    return loss_fn(logits, batch, jax.random.key(0))[0]

  spoilt = logits.copy()
  spoilt[:, -1] = np.nan  # predicts nothing
  spoilt[:, :-1][~mask[:, 1:]] = np.nan
  value, grads = jax.value_and_grad(loss)(jnp.asarray(spoilt))
  assert float(value) == float(loss(jnp.asarray(logits)))
  assert np.all(np.isfinite(grads))
  assert not np.any(np.asarray(grads)[np.isnan(spoilt)])


def test_nothing_counted_is_zero_with_zero_gradient(example):
  logits, tokens, _ = example
  batch = {"tokens": tokens, "mask": np.zeros((3, 6), bool)}
  loss_fn = next_token.make_loss_fn(lambda params, tokens: params)
  (value, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(
    jnp.asarray(logits), batch, jax.random.key(0)
  )
  assert float(value) == float(metrics["weight"]) == 0.0
  assert not np.any(grads)


def test_bad_input_is_refused(example):
  logits, tokens, mask = example
  with pytest.raises(ValueError, match=r"logits \(3, 5, 7\), tokens \(3, 6\)"):
    next_token.nll(logits[:, :-1], tokens, mask)
  with pytest.raises(ValueError, match=r"mask \(3, 5\) must be"):
    next_token.nll(logits, tokens, mask[:, :-1])
  with pytest.raises(ValueError, match="L at least 2"):
    next_token.nll(logits[:, :1], tokens[:, :1], mask[:, :1])
  with pytest.raises(TypeError, match="must be bool, got int32"):
    next_token.nll(logits, tokens, mask.astype(np.int32))
  with pytest.raises(ValueError, match=r"must be in \[0, 7\), got 7"):
    next_token.nll(logits, np.where(tokens == 3, 7, tokens), mask)
