import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.layers import rotary

HEAD_DIM = 8
POSITIONS = np.array([[0, 1, 2, 7], [3, 4, 1000, 5]], np.int32)


def as_complex(x, pairing):
  """Pairs as complex numbers, float64."""
  x = np.asarray(x, np.float64)
  if pairing == "interleaved":
    return x[..., 0::2] + 1j * x[..., 1::2]
  half = x.shape[-1] // 2
  return x[..., :half] + 1j * x[..., half:]


@pytest.mark.parametrize("pairing", rotary.PAIRINGS)
def test_rotation_is_multiplication_by_a_complex_number(pairing):
  x = np.random.default_rng(0).normal(size=(2, 4, HEAD_DIM)).astype(np.float32)
  turn = rotary.frequencies(HEAD_DIM, base=100.0)
  cosine, sine = rotary.angles(jnp.asarray(POSITIONS), turn)
  got = rotary.rotate(jnp.asarray(x), cosine, sine, pairing=pairing)
  j = np.arange(HEAD_DIM // 2)
  angle = POSITIONS[..., None] * 100.0 ** (-2 * j / HEAD_DIM)
  expected = as_complex(x, pairing) * np.exp(1j * angle)
  # An angle of 1,000 has an error of 1,000 times the float32 eps.
  np.testing.assert_allclose(
    as_complex(got, pairing), expected, atol=1000 * 2**-23 * np.abs(x).max()
  )


@pytest.mark.parametrize("pairing", rotary.PAIRINGS)
def test_products_depend_on_the_distance_only(pairing):
  query, key = np.random.default_rng(1).normal(size=(2, HEAD_DIM))
  turn = rotary.frequencies(HEAD_DIM, base=10.0)

  def product(query_at, key_at):
    with jax.enable_x64(True):
      at = rotary.angles(jnp.array([query_at, key_at]), turn, dtype=jnp.float64)
      both = rotary.rotate(
        jnp.stack([jnp.asarray(query), jnp.asarray(key)]), *at, pairing=pairing
      )
      return float(both[0] @ both[1])

  assert product(5, 3) == pytest.approx(product(12, 10), rel=1e-12)
  assert product(5, 3) != pytest.approx(product(5, 4), rel=1e-3)


def test_position_zero_changes_nothing():
  x = jnp.arange(HEAD_DIM, dtype=jnp.float32)[None]
  turn = rotary.frequencies(HEAD_DIM, base=1e4)
  at = rotary.angles(jnp.zeros(1, jnp.int32), turn)
  np.testing.assert_array_equal(rotary.rotate(x, *at, pairing="half"), x)


def test_narrow_type_is_kept():
  x = jnp.ones((1, HEAD_DIM), jnp.bfloat16)
  at = rotary.angles(
    jnp.ones(1, jnp.int32), rotary.frequencies(HEAD_DIM, base=1e4)
  )
  assert rotary.rotate(x, *at, pairing="half").dtype == jnp.bfloat16


def test_reordered_weights_have_the_products_of_the_other_pairing():
  rng = np.random.default_rng(2)
  query, key = jnp.asarray(rng.normal(size=(2, 4, HEAD_DIM)), jnp.float32)
  at = rotary.angles(jnp.arange(4), rotary.frequencies(HEAD_DIM, base=1e4))

  def products(query, key, pairing):
    query = rotary.rotate(query, *at, pairing=pairing)
    return query @ rotary.rotate(key, *at, pairing=pairing).T

  moved = [
    rotary.reorder(x, source="interleaved", target="half") for x in (query, key)
  ]
  np.testing.assert_allclose(
    products(*moved, "half"),
    products(query, key, "interleaved"),
    atol=8 * HEAD_DIM * 2**-23,
  )
  back = rotary.reorder(moved[0], source="half", target="interleaved")
  np.testing.assert_array_equal(back, query)
  same = rotary.reorder(query, source="half", target="half")
  np.testing.assert_array_equal(same, query)


def test_divisors_slow_pairs_down():
  plain = rotary.frequencies(4, base=10.0)
  slowed = rotary.frequencies(4, base=10.0, divisors=(1.0, 8.0))
  np.testing.assert_allclose(slowed, plain / [1, 8])


def test_long_context_divisors_have_three_regimes():
  # Frequencies 1, 0.1, 0.01 and 0.001: 100, 10, 1 and 0.1 turns within the
  # original length.
  divisors = rotary.long_context_divisors(
    8,
    base=1e4,
    factor=4.0,
    low_frequency_factor=1.0,
    high_frequency_factor=19.0,
    original_length=round(200 * np.pi),
  )
  # Ten turns are half of the way from 1 to 19: (1 + 1/4) / 2 of the frequency.
  np.testing.assert_allclose(divisors, [1, 1 / 0.625, 4, 4], rtol=2e-3)


def test_factor_one_extends_nothing():
  divisors = rotary.long_context_divisors(
    8,
    base=1e4,
    factor=1.0,
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
    original_length=100,
  )
  np.testing.assert_allclose(divisors, np.ones(4), rtol=1e-15)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"head_dim": 7, "base": 1e4}, "head_dim must be even.*got 7"),
    ({"head_dim": 0, "base": 1e4}, "at least 2, got 0"),
    ({"head_dim": 8, "base": 0.0}, "base must be above 0, got 0"),
    ({"head_dim": 8, "base": 1e4, "divisors": (1.0,)}, "divisors must be 4"),
    (
      {"head_dim": 4, "base": 1e4, "divisors": (1.0, 0.0)},
      "numbers above 0",
    ),
  ],
)
def test_bad_frequencies_are_named(arguments, message):
  with pytest.raises(ValueError, match=message):
    rotary.frequencies(**arguments)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"factor": 0.5}, "factor must be at least 1, got 0.5"),
    ({"low_frequency_factor": 4.0}, "below high_frequency_factor"),
    ({"low_frequency_factor": 0.0}, "above 0"),
  ],
)
def test_bad_extension_is_named(change, message):
  good = dict(
    base=1e4,
    factor=8.0,
    low_frequency_factor=1.0,
    high_frequency_factor=4.0,
    original_length=100,
  )
  with pytest.raises(ValueError, match=message):
    rotary.long_context_divisors(8, **good | change)


def test_unknown_pairing_is_named():
  x = jnp.ones((1, 4))
  with pytest.raises(ValueError, match="interleaved, half, got 'pairs'"):
    rotary.rotate(x, x[:, :2], x[:, :2], pairing="pairs")
  with pytest.raises(ValueError, match="target must be one of"):
    rotary.reorder(x, source="half", target="quarter")
