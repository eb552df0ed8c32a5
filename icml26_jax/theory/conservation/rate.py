"""How fast a candidate law changes under gradient flow, for any network.

Under `d theta / dt = -grad L` a quantity h changes at the rate
`-<grad h, grad L>`. Divided by the norms of both gradients, restricted to the
parameters on which h depends, that is a cosine: rounding for a law, of order
one for anything else, whatever the scale of the loss and of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from icml26_jax.theory.conservation import law as law_lib

Params = Any
Loss = Callable[[Params, Any], jax.Array]
# A law with norms of its own, or any function of the parameters.
AnyLaw = law_lib.Law | Callable[[Params], Any]


class Rates(NamedTuple):
  """How fast the components of a law change.

  Attributes:
    rate: time derivative under gradient flow, a pytree like the law.
    relative: see `relative_rate`, likewise.
  """

  rate: Any
  relative: Any


def conservation_rate(
  law: AnyLaw, loss: Loss, params: Params, batch: Any
) -> Any:
  """Time derivative of a law under gradient flow, by forward mode.

  Args:
    law: function of the parameters, differentiable.
    loss: `loss(params, batch)`, a scalar.
    params: pytree of float arrays.
    batch: whatever the loss takes.

  Returns:
    A pytree like the law, in its unit times that of the loss a squared unit
    of the parameters; 0 for a law, up to rounding.

  Raises:
    TypeError: if a parameter is not floating, or the loss not a scalar.

  References:
    Tran et al., "Conservation Laws for Modern Neural Architectures", ICML
    2026, section 3.
  """
  check_floating("params", params)
  return _rate(law, params, jax.grad(loss)(params, batch))


def relative_rate(law: AnyLaw, loss: Loss, params: Params, batch: Any) -> Any:
  """Rate of every component in units of the gradients that enter it.

  `|rate_c| / (||grad h_c|| ||g_c||)`, where `g_c` is the gradient of the loss
  restricted to the support of `h_c`, the parameters on which it depends: the
  gradient of all parameters would hide a broken law by orders of magnitude.

  Args:
    law: a `Law`, whose norms and supports are known in closed form, or any
      function of the parameters. For the latter every component is
      differentiated in turn, and its support is where that gradient is not 0
      at these parameters; a parameter that is exactly 0 in a quadratic law is
      then left out.
    loss: `loss(params, batch)`, a scalar.
    params: pytree of float arrays.
    batch: whatever the loss takes.

  Returns:
    A pytree like the law, each entry in [0, 1] up to rounding; 0 where the
    rate is 0, NaN where a parameter or gradient that enters is. Of a law some
    1e-7 is left of gradients computed in float32, and 1e-2 in bfloat16.

  Raises:
    TypeError: see `conservation_rate`.
  """
  check_floating("params", params)
  return rates(law, params, jax.grad(loss)(params, batch)).relative


def measure(
  laws: Mapping[str, AnyLaw], loss: Loss, params: Params, batch: Any
) -> dict[str, Rates]:
  """Rates of many laws from one gradient of the loss.

  Args:
    laws: laws by name, see `relative_rate`.
    loss: `loss(params, batch)`, a scalar.
    params: pytree of float arrays.
    batch: whatever the loss takes.

  Returns:
    Rates by name.

  Raises:
    TypeError: see `conservation_rate`.
  """
  check_floating("params", params)
  grads = jax.grad(loss)(params, batch)
  return {name: rates(law, params, grads) for name, law in laws.items()}


def rates(law: AnyLaw, params: Params, grads: Params) -> Rates:
  """Rates of a law where the gradient of the loss is known already.

  Args:
    law: see `relative_rate`.
    params: pytree of float arrays.
    grads: gradient of the loss, a pytree like the parameters.

  Returns:
    Rate and relative rate.

  Raises:
    TypeError: if a parameter or gradient is not floating.
  """
  check_floating("params", params)
  check_floating("grads", grads)
  rate = _rate(law, params, grads)
  if isinstance(law, law_lib.Law):
    slopes, supported = law.gradient_norm(params), law.support_norm(grads)
  else:
    slopes, supported = _norms(law, params, grads)

  def relative(rate, slope, support):
    still = rate == 0  # perhaps because a norm is 0
    slope = jnp.where(still, jnp.ones_like(slope), slope)
    support = jnp.where(still, jnp.ones_like(support), support)
    # One division after the other: the product could underflow.
    return jnp.abs(rate) / slope / support

  return Rates(rate, jax.tree.map(relative, rate, slopes, supported))


def check_floating(name: str, tree: Any) -> None:
  """Raises TypeError naming the first leaf that is not real floating."""
  for path, leaf in jax.tree.leaves_with_path(tree):
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.floating):
      where = f"{name}{jax.tree_util.keystr(path)}"
      raise TypeError(f"{where} must be floating, got {dtype}")


def _rate(law, params, grads):
  downhill = jax.tree.map(jnp.negative, grads)
  return jax.jvp(law, (params,), (downhill,))[1]


def _norms(law, params, grads):
  """Gradient and support norms of every component, one pullback each."""
  value, pullback = jax.vjp(law, params)
  leaves, structure = jax.tree.flatten(value)
  zeros = [jnp.zeros_like(leaf) for leaf in leaves]
  found: list[tuple[jax.Array, jax.Array]] = []
  for i, leaf in enumerate(leaves):

    def norms_of(c, i=i, leaf=leaf):
      one = zeros[i].reshape(-1).at[c].set(1).reshape(leaf.shape)
      cotangents = [*zeros[:i], one, *zeros[i + 1 :]]
      (slope,) = pullback(jax.tree.unflatten(structure, cotangents))
      supported = jax.tree.map(
        lambda s, g: jnp.where(s == 0, jnp.zeros_like(g), g), slope, grads
      )
      return optax.tree.norm(slope), optax.tree.norm(supported)

    slope, support = jax.lax.map(norms_of, jnp.arange(leaf.size))
    found.append((slope.reshape(leaf.shape), support.reshape(leaf.shape)))
  return tuple(
    jax.tree.unflatten(structure, [pair[part] for pair in found])
    for part in (0, 1)
  )
