"""Conservation laws of gradient flow.

What some functions of the weights keep, whatever the data and the loss. Closed
forms of the laws of a block (`*_invariant`), laws of a whole language model
(`laws_for`), the rate of any candidate law of any network
(`conservation_rate`, `relative_rate`), how far discrete steps drift
(`simulate`), and how many laws there are (`num_laws`).

References:
  Tran et al., "Conservation Laws for Modern Neural Architectures", ICML 2026.
"""

from icml26_jax.theory.conservation.attention import (
  attention_invariants,
  attention_law,
)
from icml26_jax.theory.conservation.blocks import (
  gain_invariant,
  homogeneous_glu_invariants,
  linear_invariant,
  normalised_weight_invariant,
  relu_invariant,
  softmax_output_invariants,
  swiglu_invariant,
  swiglu_law,
)
from icml26_jax.theory.conservation.counting import lie_rank, num_laws
from icml26_jax.theory.conservation.flow import (
  drift_order,
  euler_drift,
  relative_drift,
  simulate,
)
from icml26_jax.theory.conservation.law import (
  Law,
  combine,
  entry_law,
  gram_law,
  norm_law,
  sum_law,
)
from icml26_jax.theory.conservation.llama_laws import (
  FoundLaws,
  controls_for,
  laws_for,
  layer_maxima,
)
from icml26_jax.theory.conservation.mixture import (
  Counterexample,
  moe_invariants,
  moe_law,
  normalized_sigmoid_counterexample,
)
from icml26_jax.theory.conservation.rate import (
  Rates,
  conservation_rate,
  measure,
  rates,
  relative_rate,
)

__all__ = [
  "Counterexample",
  "FoundLaws",
  "Law",
  "Rates",
  "attention_invariants",
  "attention_law",
  "combine",
  "conservation_rate",
  "controls_for",
  "drift_order",
  "entry_law",
  "euler_drift",
  "gain_invariant",
  "gram_law",
  "homogeneous_glu_invariants",
  "laws_for",
  "layer_maxima",
  "lie_rank",
  "linear_invariant",
  "measure",
  "moe_invariants",
  "moe_law",
  "norm_law",
  "normalised_weight_invariant",
  "normalized_sigmoid_counterexample",
  "num_laws",
  "rates",
  "relative_drift",
  "relative_rate",
  "relu_invariant",
  "simulate",
  "softmax_output_invariants",
  "sum_law",
  "swiglu_invariant",
  "swiglu_law",
]
