"""Gram matrices of soft embeddings, their entropy and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics.pairwise as pairwise

from icml26_jax.diffusion.guidance import kernel_entropy

INF = float("inf")
every_kind = pytest.mark.parametrize("kind", kernel_entropy.KINDS)
every_position_kind = pytest.mark.parametrize(
  "position_kind", kernel_entropy.POSITION_KINDS
)


def embeddings(count=7, width=4, seed=0):
  return np.random.default_rng(seed).normal(size=(count, width))


def numpy_position_kernel(count, ell, kind):
  distance = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
  if kind == "gaussian":
    return np.exp(-(distance**2) / (2 * ell**2))
  return 1 / (1 + distance / ell)


@every_kind
@every_position_kind
@pytest.mark.parametrize("ell", [0.7, 3.0, INF])
def test_gram_equals_scikit_learn(kind, position_kind, ell):
  e, h = embeddings(), 0.8
  similar = {
    "rbf": lambda: pairwise.rbf_kernel(e, gamma=1 / (2 * h**2)),
    "cosine2": lambda: pairwise.cosine_similarity(e) ** 2,
  }[kind]()
  expected = similar * numpy_position_kernel(7, ell, position_kind)
  got = kernel_entropy.gram(
    jnp.asarray(e, jnp.float32), h, ell, kind, position_kind=position_kind
  )
  np.testing.assert_allclose(got, expected, atol=2e-6)
  np.testing.assert_array_equal(np.diag(got), 1.0)
  assert np.linalg.eigvalsh(np.asarray(got, np.float64)).min() > -1e-6


@every_kind
def test_positions_may_repeat_and_skip(kind):
  e = jnp.asarray(embeddings(3), jnp.float32)
  got = kernel_entropy.gram(e, 1.0, 2.0, kind, positions=jnp.array([4, 4, 7]))
  flat = kernel_entropy.gram(e, 1.0, INF, kind)
  np.testing.assert_allclose(got[0, 1], flat[0, 1], rtol=1e-6)
  np.testing.assert_allclose(got[0, 2], flat[0, 2] * np.exp(-9 / 8), rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_entropy_of_the_identity_and_of_ones(count):
  np.testing.assert_allclose(
    kernel_entropy.renyi2(jnp.eye(count)), np.log(count), atol=1e-6
  )
  np.testing.assert_allclose(
    kernel_entropy.renyi2(jnp.ones((count, count))), 0.0, atol=1e-6
  )


@pytest.mark.parametrize(
  ("groups", "expected"),
  [
    ([2, 2, 2], np.log(3)),
    ([4, 4], np.log(2)),
    ([3, 2, 1], 0.944462),
  ],
)
def test_groups_of_equal_tokens_count_by_their_share(groups, expected):
  e = jnp.repeat(jnp.eye(5)[: len(groups)], np.array(groups), axis=0)
  got = kernel_entropy.renyi2(kernel_entropy.gram(e, 1.0, INF, "cosine2"))
  np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("k", [0.0, 0.5, 1.0])
def test_two_tokens(k):
  got = kernel_entropy.renyi2(jnp.array([[1.0, k], [k, 1.0]]))
  np.testing.assert_allclose(got, np.log(4) - np.log(2 + 2 * k**2), atol=1e-6)
  if k == 0.5:
    np.testing.assert_allclose(got, 0.470004, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 50.0])
def test_entropy_is_that_of_the_eigenvalues_and_knows_no_scale(scale):
  root = embeddings(6, 6, seed=3)
  matrix = root @ root.T
  spectrum = np.linalg.eigvalsh(matrix / np.trace(matrix))
  got = kernel_entropy.renyi2(jnp.asarray(scale * matrix, jnp.float32))
  np.testing.assert_allclose(got, -np.log(np.sum(spectrum**2)), rtol=1e-5)


@every_kind
@every_position_kind
@pytest.mark.parametrize("ell", [1.5, INF])
def test_gradient_equals_autodiff_and_differences(kind, position_kind, ell):
  with jax.enable_x64(True):
    e, h = jnp.asarray(embeddings(6, 3, seed=1)), 1.1

    def entropy(e):
      return kernel_entropy.renyi2(
        kernel_entropy.gram(e, h, ell, kind, position_kind=position_kind)
      )

    got = kernel_entropy.entropy_gradient(
      e, h, ell, kind, position_kind=position_kind
    )
    np.testing.assert_allclose(got, jax.grad(entropy)(e), atol=1e-12)
    step = 1e-5
    differences = np.zeros(e.shape)
    for index in np.ndindex(e.shape):
      up, down = (entropy(e.at[index].add(s)) for s in (step, -step))
      differences[index] = (up - down) / (2 * step)
    # The error is step^2 / 6 times a third derivative, and rounding / step.
    np.testing.assert_allclose(got, differences, atol=1e-9)


@every_kind
def test_first_order_error_is_of_second_order(kind):
  with jax.enable_x64(True):
    e = jnp.asarray(embeddings(5, 3, seed=2))
    direction = jnp.asarray(embeddings(5, 3, seed=4))

    def entropy(e):
      return kernel_entropy.renyi2(kernel_entropy.gram(e, 1.0, 2.0, kind))

    slope = jnp.sum(
      kernel_entropy.entropy_gradient(e, 1.0, 2.0, kind) * direction
    )
    error = [
      abs(entropy(e + eps * direction) - entropy(e) - eps * slope)
      for eps in (1e-3, 1e-4)
    ]
    # A tenth of the step, a hundredth of the error.
    np.testing.assert_allclose(error[0] / error[1], 100, rtol=0.05)


@every_kind
def test_order_does_not_matter_without_a_position_kernel(kind):
  e = embeddings()
  order = np.random.default_rng(5).permutation(7)
  e, moved = (jnp.asarray(x, jnp.float32) for x in (e, e[order]))
  np.testing.assert_allclose(
    kernel_entropy.renyi2(kernel_entropy.gram(moved, 1.0, INF, kind)),
    kernel_entropy.renyi2(kernel_entropy.gram(e, 1.0, INF, kind)),
    atol=1e-6,
  )
  np.testing.assert_allclose(
    kernel_entropy.entropy_gradient(moved, 1.0, INF, kind),
    kernel_entropy.entropy_gradient(e, 1.0, INF, kind)[order],
    atol=2e-6,
  )


@every_kind
@pytest.mark.parametrize("ell", [2.0, INF])
def test_equal_embeddings_have_no_gradient_and_least_entropy(kind, ell):
  e = jnp.tile(jnp.array([[0.6, 0.8]]), (5, 1))
  gradient = kernel_entropy.entropy_gradient(e, 0.5, ell, kind)
  # Cosines of float32 directions are 1 up to 1e-7.
  np.testing.assert_allclose(gradient, 0.0, atol=1e-6)
  near = numpy_position_kernel(5, ell, "gaussian")
  np.testing.assert_allclose(
    kernel_entropy.renyi2(kernel_entropy.gram(e, 0.5, ell, kind)),
    2 * np.log(5) - np.log(np.sum(near**2)),
    atol=1e-6,
  )


def test_embedding_without_direction_is_like_no_other():
  e = jnp.asarray(embeddings(4), jnp.float32).at[2].set(1e-8)
  matrix = kernel_entropy.gram(e, 1.0, INF, "cosine2")
  np.testing.assert_array_equal(matrix[2], [0, 0, 1, 0])
  gradient = kernel_entropy.entropy_gradient(e, 1.0, INF, "cosine2")
  np.testing.assert_array_equal(gradient[2], 0.0)
  assert np.all(np.isfinite(gradient))
  by_autodiff = jax.grad(
    lambda e: kernel_entropy.renyi2(kernel_entropy.gram(e, 1.0, INF, "cosine2"))
  )(e)
  np.testing.assert_allclose(gradient, by_autodiff, atol=1e-6)


def test_token_gain_has_mean_zero_and_is_the_inner_product():
  rng = np.random.default_rng(6)
  p = rng.dirichlet(np.ones(5), size=7)
  table = rng.normal(size=(5, 4))
  e, g = p @ table, embeddings()
  got = kernel_entropy.token_gain(
    *(jnp.asarray(x, jnp.float32) for x in (g, table, e))
  )
  expected = np.einsum("nd,nvd->nv", g, table[None] - e[:, None])
  np.testing.assert_allclose(got, expected, atol=5e-6)
  np.testing.assert_allclose(np.sum(p * got, axis=1), 0.0, atol=5e-6)


def test_entropy_is_the_mean_of_the_local_ones():
  matrix = kernel_entropy.gram(jnp.asarray(embeddings(), jnp.float32), 1.0, 2.0)
  local = kernel_entropy.local_entropy(matrix)
  np.testing.assert_allclose(
    np.exp(-kernel_entropy.renyi2(matrix)), np.exp(-local).mean(), rtol=1e-6
  )


@pytest.mark.parametrize(("count", "rows"), [(2, 1024), (9, 1024), (40, 10)])
def test_median_distance_equals_numpy(count, rows):
  e = embeddings(count)
  kept = e[np.linspace(0, count - 1, min(count, rows)).astype(int)]
  first, second = np.triu_indices(len(kept), k=1)
  distances = np.linalg.norm(kept[first] - kept[second], axis=1)
  got = kernel_entropy.median_distance(
    jnp.asarray(e, jnp.float32), max_rows=rows
  )
  np.testing.assert_allclose(got, np.median(distances), rtol=1e-5)


def test_median_distance_of_one_row_is_one():
  assert kernel_entropy.median_distance(jnp.ones((1, 3))) == 1.0


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ((0.0, 1.0), "h must be"),
    ((-1.0, 1.0), "h must be"),
    ((1.0, 0.0), "ell must be"),
    ((1.0, float("nan")), "ell must be"),
    ((1.0, 1.0, "linear"), "kind must be one of"),
  ],
)
def test_bad_argument_is_an_error(arguments, message):
  e = jnp.ones((3, 2))
  with pytest.raises(ValueError, match=message):
    kernel_entropy.gram(e, *arguments)
  with pytest.raises(ValueError, match=message):
    kernel_entropy.entropy_gradient(e, *arguments)


def test_bad_shapes_and_equal_embeddings_are_errors():
  with pytest.raises(ValueError, match="must be square"):
    kernel_entropy.renyi2(jnp.ones((2, 3)))
  with pytest.raises(ValueError, match=r"e must have shape \[N, d\]"):
    kernel_entropy.gram(jnp.ones(3), 1.0, 1.0)
  with pytest.raises(ValueError, match="position_kind must be one of"):
    kernel_entropy.gram(jnp.ones((3, 2)), 1.0, 1.0, position_kind="far")
  with pytest.raises(ValueError, match="median distance of 0"):
    kernel_entropy.median_distance(jnp.ones((5, 2)))
  with pytest.raises(ValueError, match="max_rows must be"):
    kernel_entropy.median_distance(jnp.ones((5, 2)), max_rows=1)
