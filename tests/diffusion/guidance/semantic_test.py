"""SAKE: guidance by kernel entropy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import guidance, mdlm, sampling
from icml26_jax.diffusion import process as process_lib
from icml26_jax.diffusion.guidance import kernel_entropy

BATCH, LENGTH, VOCAB, WIDTH = 3, 6, 7, 4
RNG = np.random.default_rng(0)
EMBED = jnp.asarray(RNG.normal(size=(VOCAB, WIDTH)), jnp.float32)
UNIT = np.asarray(EMBED, np.float64)
UNIT = UNIT / np.linalg.norm(UNIT, axis=1, keepdims=True)
MASKED = jnp.asarray(RNG.random((BATCH, LENGTH)) < 0.6).at[:, 0].set(True)
TOKENS = jnp.asarray(RNG.integers(0, VOCAB, (BATCH, LENGTH)), jnp.int32)
LOGITS = process_lib.carry_over(
  jnp.asarray(2 * RNG.normal(size=(BATCH, LENGTH, VOCAB)), jnp.float32),
  TOKENS,
  ~MASKED,
)
every_mode = pytest.mark.parametrize("mode", ["tilt", "temperature"])
every_kind = pytest.mark.parametrize("kind", ["rbf", "cosine2"])
across = pytest.mark.parametrize("across_samples", [False, True])


def softmax(x):
  x = np.exp(x - x.max(-1, keepdims=True))
  return x / x.sum(-1, keepdims=True)


def numpy_gram(e, positions, h, ell, kind):
  """The slow obvious way, a pair at a time."""
  count = len(e)
  matrix = np.eye(count)
  for i in range(count):
    for j in range(count):
      if i == j:
        continue
      if kind == "rbf":
        similar = np.exp(-np.sum((e[i] - e[j]) ** 2) / (2 * h**2))
      else:
        cosine = e[i] @ e[j] / np.linalg.norm(e[i]) / np.linalg.norm(e[j])
        similar = cosine**2
      away = positions[i] - positions[j]
      matrix[i, j] = similar * np.exp(-(away**2) / (2 * ell**2))
  return matrix


def numpy_guide(p, masked, *, lam, target, h, ell, kind, mode, kappa=1.0):
  """Guided probabilities of the rows of one Gram matrix, p `[G, L, V]`."""
  rows, length, vocab_size = p.shape
  positions = np.tile(np.arange(length), rows)
  flat = p.reshape(-1, vocab_size)
  count = len(flat)

  def entropy(e):
    return -np.log(
      np.sum((numpy_gram(e, positions, h, ell, kind) / count) ** 2)
    )

  e = flat @ UNIT
  h2 = entropy(e)
  out = flat.copy()
  for i in np.flatnonzero(masked.reshape(-1)):
    if mode == "tilt":
      eta = lam * (target - h2 / np.log(count))
      gradient = np.zeros(WIDTH)
      for k in range(WIDTH):
        moved = np.zeros_like(e)
        moved[i, k] = 1e-5
        gradient[k] = (entropy(e + moved) - entropy(e - moved)) / 2e-5
      out[i] = flat[i] * np.exp(eta * ((UNIT - e[i]) @ gradient))
    else:
      row = numpy_gram(e, positions, h, ell, kind)[i]
      eta = lam * (target + np.log(np.mean(row**2)) / np.log(count))
      out[i] = flat[i] ** np.exp(-kappa * eta)
    out[i] /= out[i].sum()
  return out.reshape(p.shape), h2


@every_mode
@every_kind
@across
@pytest.mark.parametrize("lam", [3.0, -2.0])
def test_equals_the_slow_obvious_way(mode, kind, across_samples, lam):
  options = dict(lam=lam, target=0.8, h=0.9, ell=3.0, kind=kind, mode=mode)
  guided, info = guidance.guide(
    LOGITS, EMBED, MASKED, across_samples=across_samples, **options
  )
  p = softmax(np.asarray(LOGITS, np.float64))
  groups = [slice(0, BATCH)]
  if not across_samples:
    groups = [slice(b, b + 1) for b in range(BATCH)]
  for group in groups:
    expected, h2 = numpy_guide(p[group], np.asarray(MASKED)[group], **options)
    np.testing.assert_allclose(softmax(guided[group]), expected, atol=5e-6)
    np.testing.assert_allclose(info.h2[group], h2, atol=5e-6)
    if mode == "tilt":
      count = p[group].shape[0] * LENGTH
      np.testing.assert_allclose(
        info.eta[group], lam * (0.8 - h2 / np.log(count)), atol=2e-5
      )


@pytest.mark.parametrize(("size", "groups"), [(2, [2, 1]), (1, [1, 1, 1])])
def test_samples_beyond_a_group_do_not_matter(size, groups):
  guided, _ = guidance.guide(
    LOGITS, EMBED, MASKED, lam=3.0, across_samples=True, group_size=size
  )
  start = 0
  for rows in groups:
    group = slice(start, start + rows)
    alone, _ = guidance.guide(
      LOGITS[group], EMBED, MASKED[group], lam=3.0, across_samples=rows > 1
    )
    np.testing.assert_allclose(guided[group], alone, rtol=2e-5, atol=2e-5)
    start += rows


@every_mode
@every_kind
def test_visible_positions_and_a_strength_of_zero_change_nothing(mode, kind):
  guide = functools.partial(
    guidance.guide, LOGITS, EMBED, MASKED, kind=kind, mode=mode
  )
  guided, _ = guide(lam=5.0)
  visible = ~np.asarray(MASKED)
  np.testing.assert_array_equal(
    np.asarray(guided)[visible], np.asarray(LOGITS)[visible]
  )
  moved = np.asarray(guided)[~visible] - np.asarray(LOGITS)[~visible]
  assert np.abs(moved).max() > 0.05
  np.testing.assert_array_equal(guide(lam=0.0)[0], LOGITS)


def test_target_at_the_entropy_changes_nothing():
  _, info = guidance.guide(LOGITS[:1], EMBED, MASKED[:1], lam=1.0)
  guided, info = guidance.guide(
    LOGITS[:1],
    EMBED,
    MASKED[:1],
    lam=1.0,
    target=float(info.h2[0]) / np.log(LENGTH),
  )
  # The quotient is rounded once: eta is at most a few eps.
  np.testing.assert_allclose(info.eta, 0.0, atol=3e-7)
  np.testing.assert_allclose(guided, LOGITS[:1], atol=1e-6)


@every_mode
def test_constant_added_to_a_row_of_logits_does_not_matter(mode):
  shift = jnp.arange(BATCH * LENGTH * 1.0).reshape(BATCH, LENGTH, 1)
  first, _ = guidance.guide(LOGITS, EMBED, MASKED, lam=2.0, mode=mode)
  second, _ = guidance.guide(LOGITS + shift, EMBED, MASKED, lam=2.0, mode=mode)
  # Logits of 20 carry an error of 1e-6.
  np.testing.assert_allclose(softmax(first), softmax(second), atol=5e-6)


@every_mode
def test_impossible_tokens_stay_impossible(mode):
  logits = LOGITS.at[:, :, 3].set(jnp.where(MASKED, -jnp.inf, LOGITS[:, :, 3]))
  guided, info = guidance.guide(logits, EMBED, MASKED, lam=3.0, mode=mode)
  masked = np.asarray(MASKED)
  assert np.all(np.asarray(guided)[masked][:, 3] == -np.inf)
  assert np.all(np.isfinite(np.asarray(guided)[masked][:, :3]))
  assert all(np.all(np.isfinite(leaf)) for leaf in info)


@pytest.mark.parametrize("q", [0.1, 0.4, 0.9])
def test_masked_position_beside_a_visible_one_in_closed_form(q):
  # Position 1 shows token s; position 0 holds (1 - q, q) on (s, o).
  h, ell, eta_scale = 0.7, 2.0, 4.0
  embed = jnp.asarray([[1.0, 0.0], [0.6, 0.8]])
  distance2 = 0.4**2 + 0.8**2
  k = np.exp(-1 / (2 * ell**2)) * np.exp(-(q**2) * distance2 / (2 * h**2))
  c = 4 * k**2 / ((2 + 2 * k**2) * h**2)
  p = jnp.array([[1 - q, q], [1.0, 0.0]])
  e = p @ embed
  gain = kernel_entropy.token_gain(
    kernel_entropy.entropy_gradient(e, h, ell), embed, e
  )
  np.testing.assert_allclose(
    gain[0],
    [-c * q**2 * distance2, c * q * (1 - q) * distance2],
    atol=2e-6,
  )
  guided, info = guidance.guide(
    jnp.log(p)[None],
    embed,
    jnp.array([[True, False]]),
    lam=eta_scale,
    h=h,
    ell=ell,
  )
  odds = np.exp(guided[0, 0, 1] - guided[0, 0, 0]) / (q / (1 - q))
  np.testing.assert_allclose(
    odds, np.exp(info.eta[0] * c * q * distance2), rtol=1e-5
  )


def test_of_two_masked_positions_the_surer_one_gains_the_shared_token():
  embed = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])
  e = jnp.array([[0.9, 0.1], [0.8, 0.2]]) @ embed
  gain = kernel_entropy.token_gain(
    kernel_entropy.entropy_gradient(e, 1.0, 2.0), embed, e
  )
  assert gain[0, 0] > 0 > gain[1, 0]


@every_mode
@pytest.mark.parametrize("kind", ["rbf", "cosine2"])
def test_equal_predictions_are_left_alone_by_the_tilt(mode, kind):
  logits = jnp.tile(LOGITS[:1, :1], (1, LENGTH, 1))
  masked = jnp.ones((1, LENGTH), bool)
  guided, info = guidance.guide(
    logits, EMBED, masked, lam=5.0, kind=kind, mode=mode
  )
  assert np.all(np.isfinite(guided))
  assert info.eta[0] > 0
  if mode == "tilt":
    np.testing.assert_allclose(guided, logits, atol=1e-5)
  else:
    assert np.abs(guided - logits).max() > 0.1


@pytest.mark.parametrize("mode", ["tilt", "temperature"])
@pytest.mark.parametrize("redundant", [True, False])
def test_redundant_rows_move_away_from_repetition(mode, redundant):
  # Position 0 favours token 0; around it stand token 0 alone, or all others.
  embed = jnp.eye(LENGTH)
  p = np.full(LENGTH, 0.1)
  p[0] = 1 - 0.1 * (LENGTH - 1)
  tokens = jnp.arange(LENGTH)[None] * (0 if redundant else 1)
  revealed = jnp.arange(LENGTH)[None] > 0
  logits = jnp.tile(jnp.log(p)[None, None], (1, LENGTH, 1))
  guided, info = guidance.guide(
    process_lib.carry_over(logits, tokens, revealed),
    embed,
    ~revealed,
    lam=2.0,
    ell=float("inf"),
    h=0.5,
    mode=mode,
  )
  change = softmax(guided)[0, 0] - p
  assert (info.eta[0] > 0) == redundant
  if redundant:
    # Both flatten it.
    assert change[0] < 0 < change[1:].min()
  elif mode == "tilt":
    # What stands around gains, and that is not token 0.
    assert change[0] < 0 < change[1:].min()
  else:
    assert change[0] > 0 > change[1:].max()


def test_shuffled_control_keeps_the_strength_and_moves_the_tilt():
  shuffled = guidance.shuffle_embeddings(jax.random.key(0), EMBED)
  assert sorted(map(tuple, shuffled.tolist())) == sorted(
    map(tuple, EMBED.tolist())
  )
  guided, info = guidance.guide(LOGITS, EMBED, MASKED, lam=3.0)
  control, control_info = guidance.guide(
    LOGITS, EMBED, MASKED, lam=3.0, tilt_embed=shuffled
  )
  np.testing.assert_array_equal(info.eta, control_info.eta)
  np.testing.assert_array_equal(info.h2, control_info.h2)
  assert np.abs(softmax(guided) - softmax(control)).max() > 0.01
  same, _ = guidance.guide(LOGITS, EMBED, MASKED, lam=3.0, tilt_embed=EMBED)
  np.testing.assert_array_equal(guided, same)


def test_gain_is_the_expected_size_over_masked_positions():
  _, info = guidance.guide(LOGITS, EMBED, MASKED, lam=3.0, h=1.0, ell=2.0)
  p = softmax(np.asarray(LOGITS, np.float64))
  unit = jnp.asarray(UNIT, jnp.float32)
  for b in range(BATCH):
    e = jnp.asarray(p[b] @ UNIT, jnp.float32)
    gain = kernel_entropy.token_gain(
      kernel_entropy.entropy_gradient(e, 1.0, 2.0), unit, e
    )
    sizes = np.sum(p[b] * np.abs(gain), axis=1)[np.asarray(MASKED[b])]
    np.testing.assert_allclose(info.gain[b], sizes.mean(), rtol=1e-4)


def test_default_bandwidth_is_the_median_distance_of_unit_embeddings():
  first, _ = guidance.guide(LOGITS, 5 * EMBED, MASKED, lam=3.0)
  h = kernel_entropy.median_distance(jnp.asarray(UNIT, jnp.float32))
  second, _ = guidance.guide(LOGITS, EMBED, MASKED, lam=3.0, h=h)
  np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-5)


@every_mode
def test_one_position_and_nothing_masked_are_unchanged(mode):
  one, info = guidance.guide(
    LOGITS[:, :1], EMBED, MASKED[:, :1], lam=3.0, mode=mode
  )
  np.testing.assert_array_equal(one, LOGITS[:, :1])
  np.testing.assert_array_equal(info.eta, 0.0)
  none = jnp.zeros_like(MASKED)
  guided, info = guidance.guide(LOGITS, EMBED, none, lam=3.0, mode=mode)
  np.testing.assert_array_equal(guided, LOGITS)
  np.testing.assert_array_equal(info.gain, 0.0)


def test_one_position_a_sample_still_has_neighbours_across_samples():
  logits, masked = LOGITS[:, :1], MASKED[:, :1]
  guided, info = guidance.guide(
    logits, EMBED, masked, lam=3.0, across_samples=True
  )
  assert np.all(np.asarray(info.eta) != 0)
  assert np.abs(np.asarray(guided) - np.asarray(logits)).max() > 0


def sizes(jaxpr):
  """Sizes of all values that a program computes, inner programs included."""
  for equation in jaxpr.eqns:
    yield from (v.aval.size for v in equation.outvars)
    for value in jax.tree.leaves(
      list(equation.params.values()),
      is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns"),
    ):
      inner = getattr(value, "jaxpr", value)
      if hasattr(inner, "eqns"):
        yield from sizes(inner)


@every_mode
@every_kind
def test_no_value_has_positions_squared_times_vocabulary(mode, kind):
  length, vocab_size, width = 32, 100, 8
  program = jax.make_jaxpr(
    lambda logits, embed, masked: guidance.guide(
      logits, embed, masked, lam=1.0, h=1.0, kind=kind, mode=mode
    )
  )(
    jnp.zeros((1, length, vocab_size)),
    jnp.ones((vocab_size, width)),
    jnp.ones((1, length), bool),
  )
  largest = max(sizes(program.jaxpr))
  assert largest == max(length * vocab_size, length**2)


def test_transform_guides_hidden_positions_in_a_sampler():
  transform = guidance.sake(EMBED, lam=4.0, target=0.9)
  step = process_lib.Step(
    process_lib.row_keys(jax.random.key(0), BATCH),
    process_lib.Latent(TOKENS, ~MASKED),
    0,
    1.0,
    0.5,
    False,
  )
  got, state = transform.update(LOGITS, transform.init(TOKENS), step)
  expected, info = guidance.guide(LOGITS, EMBED, MASKED, lam=4.0, target=0.9)
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  np.testing.assert_allclose(state.eta, info.eta, rtol=1e-5)

  # A bigram network that likes to repeat: guided text repeats less.
  def sticky(latent, t):
    del t
    known = jax.nn.one_hot(latent.tokens, VOCAB) * latent.revealed[..., None]
    near = jnp.roll(known, 1, axis=1) + jnp.roll(known, -1, axis=1)
    return 2.0 * near

  repeats, strengths = [], []
  for lam in (0.0, 200.0):
    tokens, stats = jax.jit(
      lambda key, lam=lam: sampling.sample(
        key,
        mdlm.process(VOCAB),
        sticky,
        (256, 8),
        sampling.time_grid(8),
        transform=guidance.sake(
          jnp.eye(VOCAB), lam=lam, target=0.98, ell=1.0, h=1.0
        ),
        record=lambda state, _: state,
      )
    )(jax.random.key(1))
    tokens = np.asarray(tokens)
    strengths.append(np.asarray(stats.record.eta))  # [steps, rows]
    repeats.append(np.mean(tokens[:, 1:] == tokens[:, :-1]))
  assert strengths[0].shape == (8, 256)
  assert not strengths[0].any()
  assert strengths[1].any()
  # Shares of 256 * 7 pairs: four standard errors of a difference are 0.067.
  assert repeats[1] < repeats[0] - 0.067


@pytest.mark.parametrize(
  ("kwargs", "message"),
  [
    ({"lam": float("nan")}, "lam must be"),
    ({"target": 0.0}, "target must be"),
    ({"target": 1.0}, "target must be"),
    ({"h": 0.0}, "h must be"),
    ({"h": -1.0}, "h must be"),
    ({"ell": 0.0}, "ell must be"),
    ({"kind": "linear"}, "kind must be one of"),
    ({"mode": "sharpen"}, "mode must be one of"),
    ({"position_kind": "far"}, "position_kind must be one of"),
    ({"group_size": 0}, "group_size must be"),
    ({"kappa": float("inf")}, "kappa must be"),
  ],
)
def test_bad_argument_is_an_error(kwargs, message):
  with pytest.raises(ValueError, match=message):
    guidance.guide(LOGITS, EMBED, MASKED, **({"lam": 1.0} | kwargs))
  with pytest.raises(ValueError, match=message):
    guidance.sake(EMBED, **({"lam": 1.0} | kwargs))


def test_bad_shapes_and_zero_embeddings_are_errors():
  with pytest.raises(ValueError, match=r"a row a token \[7, d\]"):
    guidance.guide(LOGITS, EMBED[:-1], MASKED, lam=1.0)
  with pytest.raises(ValueError, match=r"masked must have shape \(3, 6\)"):
    guidance.guide(LOGITS, EMBED, MASKED[:2], lam=1.0)
  with pytest.raises(ValueError, match="tilt_embed must have shape"):
    guidance.guide(LOGITS, EMBED, MASKED, lam=1.0, tilt_embed=EMBED[:, :2])
  with pytest.raises(ValueError, match="tilt_embed must be None"):
    guidance.guide(
      LOGITS, EMBED, MASKED, lam=1.0, mode="temperature", tilt_embed=EMBED
    )
  for bad in (0.0, jnp.nan):
    with pytest.raises(ValueError, match=r"positive length, got .* at row 5"):
      guidance.guide(LOGITS, EMBED.at[5].set(bad), MASKED, lam=1.0)
    with pytest.raises(ValueError, match="row 5"):
      guidance.sake(EMBED.at[5].set(bad), lam=1.0, h=1.0)
