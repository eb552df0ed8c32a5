"""Test setup: eight CPU devices, strict promotion, key-reuse checking."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Test workers may compile for TPU at the same time; libtpu otherwise takes a
# machine-wide lock, and asks a metadata server that is not there.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")

import hypothesis
import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)

hypothesis.settings.register_profile(
  "default", deadline=None, max_examples=25, derandomize=True
)
hypothesis.settings.load_profile("default")
