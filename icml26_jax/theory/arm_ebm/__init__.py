"""Next-token logits and energies of whole sequences, one made of the other.

An autoregressive model scores a token at a time, `q(s, y)` in a state s (what
was written so far); an energy-based one scores a whole sequence, as the sum of
rewards `r(s, y)`, and needs a partition function. The map between them is the
soft Bellman equation, and is exact both ways:

    q(s, y) = r(s, y) + V_q(s + y),    V_q(s) = log sum_y exp q(s, y).

Tables are lists over depth: row i of `q[t]` belongs to the state whose t tokens
are the digits of i in base V, the first token leading. With an end token (EOS)
responses have 1 to T tokens, the last of which is EOS, the last column of every
table; at the last step only EOS is allowed, and what stands in the other
columns there is taken as -inf. Without, responses have exactly T tokens. An
entry of -inf forbids a token. Results have the precision of the tables: use
`jax.enable_x64` and float64 for exact ones.

References:
  Blondel et al., "Autoregressive Language Models are Secretly Energy-Based
  Models: Insights into the Lookahead Capabilities of Next-Token Prediction",
  arXiv 2512.15605, ICML 2026.
"""

from icml26_jax.theory.arm_ebm.bijection import (
  log_partition,
  logits_to_rewards,
  rewards_to_logits,
)
from icml26_jax.theory.arm_ebm.divergence import (
  exact_kl,
  kl_bounds,
  visit_probabilities,
)
from icml26_jax.theory.arm_ebm.energies import (
  implicit_energy,
  sequence_rewards,
  values_after,
)
from icml26_jax.theory.arm_ebm.lookahead import lookahead_share
from icml26_jax.theory.arm_ebm.markov import (
  markov_log_partition,
  markov_rewards_to_logits,
)
from icml26_jax.theory.arm_ebm.sequences import (
  arm_log_probs,
  ebm_log_probs,
  enumerate_sequences,
  sequence_scores,
)

__all__ = [
  "arm_log_probs",
  "ebm_log_probs",
  "enumerate_sequences",
  "exact_kl",
  "implicit_energy",
  "kl_bounds",
  "log_partition",
  "logits_to_rewards",
  "lookahead_share",
  "markov_log_partition",
  "markov_rewards_to_logits",
  "rewards_to_logits",
  "sequence_rewards",
  "sequence_scores",
  "values_after",
  "visit_probabilities",
]
