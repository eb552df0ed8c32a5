"""Memory of kernel-entropy guidance at the size of GPT-2, for a TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.diffusion import guidance

LENGTH, VOCAB, WIDTH = 1024, 50257, 768


@pytest.mark.slow  # compiles for TPU at full size
@pytest.mark.parametrize("mode", ["tilt", "temperature"])
def test_guidance_needs_few_arrays_of_positions_times_vocabulary(
  tpu_slice, mode
):
  here = jax.NamedSharding(tpu_slice.mesh, jax.P())

  def struct(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=here)

  compiled = (
    jax.jit(
      lambda logits, embed, masked: guidance.guide(
        logits, embed, masked, lam=jnp.float32(1.0), h=1.0, mode=mode
      )
    )
    .lower(
      struct((1, LENGTH, VOCAB)),
      struct((VOCAB, WIDTH)),
      struct((1, LENGTH), np.bool_),
    )
    .compile()
  )
  memory = compiled.memory_analysis()
  # Besides arguments and result (each of that size) two such arrays at most: a
  # thousandth of positions squared times vocabulary, 196 GiB.
  assert memory.temp_size_in_bytes < 2 * 4 * LENGTH * VOCAB
