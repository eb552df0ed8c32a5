import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.theory import conservation

ROUNDING = 1e-13
MOVES = 1e-3


def select(p):
  """Biases are one more row."""

  def with_bias(name):
    if f"b{name}" not in p:
      return p[name]
    return jnp.concatenate([p[name], p[f"b{name}"][:, None]], axis=1)

  return with_bias("Q"), with_bias("K"), with_bias("V"), p["O"]


def relative(nets, params, law, *, n=6, **options):
  """Rates on three random sequences."""
  d = params["Q"].shape[1]
  x = jnp.asarray(nets.normal(20, 3, n, d))
  y = jnp.asarray(nets.normal(21, 3, n, d))

  def loss(p, batch):
    x, y = batch
    outputs = jax.vmap(
      lambda x: x + nets.attention(p, x, **options)  # with a skip
    )(x)
    return nets.squared_error(outputs, y)

  return jax.jit(
    lambda p, batch: conservation.relative_rate(law, loss, p, batch)
  )(params, (x, y))


def largest(x):
  return float(jnp.max(x))


def without_biases(p):
  return p["Q"], p["K"], p["V"], p["O"]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.usefixtures("float64")
def test_full_matrices_are_kept_without_positions(nets, kv_heads):
  params = nets.attention_params(1, kv_heads=kv_heads, biases=True)
  laws = {
    "law": conservation.attention_law(select, rope=False),
    "no biases": conservation.attention_law(without_biases, rope=False),
  }
  got = relative(nets, params, conservation.combine(laws))
  assert got["law"]["query_key"].shape == (kv_heads, 4, 4)
  for name in ("query_key", "value_output"):
    assert largest(got["law"][name]) < ROUNDING
    assert largest(got["no biases"][name]) > MOVES


@pytest.mark.parametrize(
  ("kv_heads", "pairing", "biases"),
  [
    (4, "interleaved", False),
    (2, "half", False),
    (2, "interleaved", True),
    (1, "half", True),
  ],
)
@pytest.mark.usefixtures("float64")
def test_pairs_are_kept_with_rotary_positions(nets, kv_heads, pairing, biases):
  params = nets.attention_params(2, kv_heads=kv_heads, biases=biases)
  law = functools.partial(conservation.attention_law, select)
  (other,) = {"interleaved", "half"} - {pairing}
  laws = {
    "law": law(rope=True, pairing=pairing),
    "other": law(rope=True, pairing=other),
    "entries": law(rope=False),
  }
  got = relative(
    nets,
    params,
    conservation.combine(laws),
    frequencies=jnp.asarray([1.0, 0.3]),
    pairing=pairing,
  )
  assert got["law"]["query_key"].shape == (kv_heads, 2)
  assert largest(got["law"]["query_key"]) < ROUNDING
  assert largest(got["law"]["value_output"]) < ROUNDING
  assert largest(got["other"]["query_key"]) > MOVES
  assert largest(got["entries"]["query_key"]) > MOVES


@pytest.mark.usefixtures("float64")
def test_group_is_not_kept_head_by_head(nets):
  params = nets.attention_params(3, heads=4, kv_heads=2)
  law = conservation.attention_law(
    lambda p: (
      p["Q"],
      jnp.repeat(p["K"], 2, axis=0),
      jnp.repeat(p["V"], 2, axis=0),
      p["O"],
    ),
    rope=False,
  )
  got = relative(nets, params, law)
  assert largest(got["query_key"]) > MOVES
  assert largest(got["value_output"]) > MOVES


@pytest.mark.parametrize(
  ("frequency", "keeps_matrix"),
  [
    (0.0, True),
    (0.7, False),
    (math.pi / 2, False),
    (math.pi, True),
    (2 * math.pi, True),
  ],
)
@pytest.mark.usefixtures("float64")
def test_only_multiples_of_pi_keep_the_matrix_of_a_pair(
  nets, frequency, keeps_matrix
):
  params = nets.attention_params(4, heads=2, kv_heads=1, dk=2)
  laws = {
    "pair": conservation.attention_law(select, rope=True),
    "entries": conservation.attention_law(select, rope=False),
  }
  got = relative(
    nets,
    params,
    conservation.combine(laws),
    frequencies=jnp.asarray([frequency]),
  )
  assert largest(got["pair"]["query_key"]) < ROUNDING
  entries = got["entries"]["query_key"][0]
  if keeps_matrix:
    assert largest(entries) < ROUNDING
  else:
    assert float(jnp.min(entries)) > MOVES


@pytest.mark.parametrize(
  ("frequencies", "kept"), [((0.7, 0.7), True), ((0.7, 0.3), False)]
)
@pytest.mark.usefixtures("float64")
def test_equal_frequencies_keep_more(nets, frequencies, kept):
  params = nets.attention_params(5, heads=1, kv_heads=1)

  def law(p):
    """Hermitian product of the two pairs, real and imaginary part."""

    def product(matrix):
      first, second = matrix[0, :, 0::2].T + 1j * matrix[0, :, 1::2].T
      return jnp.vdot(first, second)

    gap = product(p["Q"]) - product(p["K"])
    return jnp.stack([gap.real, gap.imag])

  got = relative(nets, params, law, frequencies=jnp.asarray(frequencies))
  if kept:
    assert largest(got) < ROUNDING
  else:
    assert float(jnp.min(got)) > MOVES


def slow_values(Q, K, V, O, rope, pairing):  # noqa: E741
  """Sums over groups and pairs, one at a time."""
  groups, dk = len(Q) // len(K), Q.shape[-1]
  query_key, value_output = [], []
  for g in range(len(K)):
    heads = range(g * groups, (g + 1) * groups)
    balance = sum(Q[h].T @ Q[h] for h in heads) - K[g].T @ K[g]
    if rope:
      half = dk // 2
      pairs = [
        (2 * j, 2 * j + 1) if pairing == "interleaved" else (j, j + half)
        for j in range(half)
      ]
      balance = [balance[a, a] + balance[b, b] for a, b in pairs]
    query_key.append(balance)
    value_output.append(V[g].T @ V[g] - sum(O[h] @ O[h].T for h in heads))
  return {"query_key": query_key, "value_output": value_output}


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.usefixtures("float64")
def test_values_equal_the_slow_sums(nets, kv_heads, rope, pairing):
  p = nets.attention_params(6, kv_heads=kv_heads)
  arguments = [p[name] for name in "QKVO"]
  options = dict(rope=rope, pairing=pairing)
  got = jax.jit(
    functools.partial(conservation.attention_invariants, **options)
  )(*arguments)
  expected = slow_values(*map(np.asarray, arguments), **options)
  law = conservation.attention_law(select, **options)(p)
  for name, value in expected.items():
    np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-13)
    np.testing.assert_allclose(law[name], value, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
  ("change", "options", "error", "match"),
  [
    ({}, dict(rope=True, pairing="odd"), ValueError, "pairing must be one of"),
    ({"K": 3, "V": 3}, dict(rope=False), ValueError, "divides the 4 of Q"),
    ({"V": 1}, dict(rope=False), ValueError, "V must have as many heads as K"),
    ({"O": 2}, dict(rope=False), ValueError, "O must have as many heads as Q"),
  ],
)
def test_bad_arguments_are_named(nets, change, options, error, match):
  p = nets.attention_params(0, kv_heads=4)
  arguments = [p[name][: change.get(name, 4)] for name in "QKVO"]
  with pytest.raises(error, match=match):
    conservation.attention_invariants(*arguments, **options)


def test_shapes_and_types_are_checked(nets):
  p = nets.attention_params(0, dk=3)
  arguments = [p[name] for name in "QKVO"]
  conservation.attention_invariants(*arguments, rope=False)
  with pytest.raises(ValueError, match="must be even with rope, got 3"):
    conservation.attention_invariants(*arguments, rope=True)
  with pytest.raises(TypeError, match="Q must be floating, got int32"):
    conservation.attention_invariants(
      arguments[0].astype(jnp.int32), *arguments[1:], rope=False
    )
  with pytest.raises(ValueError, match="K must have as many inputs"):
    conservation.attention_invariants(
      arguments[0], arguments[1][:, 1:], *arguments[2:], rope=False
    )
  with pytest.raises(ValueError, match=r"V must have axes of heads"):
    conservation.attention_invariants(
      *arguments[:2], arguments[2][0], arguments[3], rope=False
    )
  with pytest.raises(ValueError, match=r"O must have as many columns"):
    conservation.attention_invariants(
      *arguments[:3], arguments[3][:, 1:], rope=False
    )
