import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.models import prompts as prompts_lib


def test_prompts_are_padded_on_either_side():
  tokens, mask = prompts_lib.pad([[1, 2, 3], [4]], pad_token=7)
  np.testing.assert_array_equal(tokens, [[1, 2, 3], [7, 7, 4]])
  np.testing.assert_array_equal(mask, [[1, 1, 1], [0, 0, 1]])
  tokens, mask = prompts_lib.pad([[1, 2], [4]], side="right")
  np.testing.assert_array_equal(tokens, [[1, 2], [4, 0]])
  np.testing.assert_array_equal(mask, [[1, 1], [1, 0]])
  assert tokens.dtype == np.int32


@pytest.mark.parametrize(
  ("prompts", "side", "error", "message"),
  [
    ([], "left", ValueError, "at least one prompt"),
    ([[1], []], "left", ValueError, "prompt 1 must be a vector"),
    ([[[1]]], "left", ValueError, "prompt 0 must be a vector"),
    ([[1.5]], "left", TypeError, "prompt 0 must be integers"),
    ([[-1]], "left", ValueError, "prompt 0 must be in"),
    ([[1]], "middle", ValueError, "left or right, got 'middle'"),
  ],
)
def test_what_cannot_be_padded_is_named(prompts, side, error, message):
  with pytest.raises(error, match=message):
    prompts_lib.pad(prompts, side=side)


def test_mask_defaults_to_everywhere():
  mask = prompts_lib.check(np.array([[1, 2]]), None, 3)
  np.testing.assert_array_equal(mask, [[True, True]])


def test_tokens_behind_the_mask_are_not_looked_at():
  mask = np.array([[True, False]])
  assert prompts_lib.check(np.array([[1, 99]]), mask, 3) is mask


def test_traced_prompts_pass():
  @jax.jit
  def run(tokens, mask):
    prompts_lib.check(tokens, mask, 3)
    # A mask that is known does not become traced on the way.
    prompts_lib.check(tokens, np.array([[True, False]]), 3)
    return tokens

  run(jnp.array([[1, 99]]), jnp.zeros((1, 2), bool))


def test_rows_may_be_empty_where_allowed():
  nothing = np.zeros((2, 1), bool)
  tokens = np.zeros((2, 1), int)
  prompts_lib.check(tokens, nothing, 3, allow_empty=True)
  nothing[0] = True
  with pytest.raises(ValueError, match="row 1 of tokens is an empty prompt"):
    prompts_lib.check(tokens, nothing, 3)
