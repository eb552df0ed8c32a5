"""A stack of equal blocks whose parameters lie in one array a leaf."""

from __future__ import annotations

import flax.linen as nn
import jax

from icml26_jax.layers import block, remat


class Stack(nn.Module):
  """Blocks one after the other.

  Parameters have a leading axis "layers" whether the blocks are scanned or
  unrolled, so the choice can change between runs.

  Attributes:
    num_layers: number of blocks.
    num_heads: see `block.Block`.
    d_ff: see `block.Block`.
    qk_norm: see `block.Block`.
    is_causal: see `block.Block`.
    use_kernel: see `block.Block`.
    remat: what the backward pass keeps; see `remat.policy_fn`.
    scan: True compiles one block and loops over it; False compiles every
      block, which is faster on a CPU, where the loop would copy what the
      backward pass needs.
  """

  num_layers: int
  num_heads: int
  d_ff: int
  qk_norm: bool = False
  is_causal: bool = False
  use_kernel: bool = False
  remat: str = "none"
  scan: bool = True

  @nn.compact
  def __call__(
    self,
    x: jax.Array,
    condition: jax.Array | None = None,
    mask: jax.Array | None = None,
  ) -> jax.Array:
    """Runs all blocks; see `block.Block` for the arguments."""

    class Step(block.Block):
      """A block in the form that scan wants."""

      def __call__(self, x, condition, mask):
        x = nn.with_logical_constraint(x, ("batch", None, None))
        return super().__call__(x, condition, mask), None

    scanned = nn.scan(
      remat.wrap(Step, self.remat, scanned=self.scan),
      variable_axes={"params": 0},
      split_rngs={"params": True},
      in_axes=(nn.broadcast, nn.broadcast),
      length=self.num_layers,
      unroll=1 if self.scan else self.num_layers,
      metadata_params={nn.PARTITION_NAME: "layers"},
    )
    blocks = scanned(
      self.num_heads,
      self.d_ff,
      self.qk_norm,
      self.is_causal,
      self.use_kernel,
      name="blocks",
    )
    x, _ = blocks(x, condition, mask)
    return x
