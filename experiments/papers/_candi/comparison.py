"""When CANDI's text counts as better than masked diffusion's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.papers._candi import figures
from icml26_jax.evaluation import intervals, sample_quality
from icml26_jax.report import claims


def checks(
  differences: Mapping[int, sample_quality.Quality],
  entropies: Mapping[int, intervals.Interval],
  expected: float,
  tolerance: float,
) -> list[claims.Check]:
  """Three conditions at each number of network calls.

  Args:
    differences: number of calls to CANDI's measures minus MDLM's.
    entropies: number of calls to CANDI's unigram entropy in nats.
    expected: unigram entropy of text.
    tolerance: largest distance from it.

  Returns:
    That NLL and bigram KL are lower, and entropy is that of text.
  """
  found = []
  for n, difference in differences.items():
    nll, kl = map(figures.estimate, (difference.nll, difference.kl))
    entropy = figures.estimate(entropies[n])
    found += [
      claims.below(_nll_name(n), nll, 0.0),
      claims.below(f"bigram KL minus MDLM's at N={n}", kl, 0.0),
      claims.within(f"unigram entropy at N={n}", entropy, expected, tolerance),
    ]
  return found


def gains(
  differences: Mapping[int, sample_quality.Quality],
  conditions: Sequence[claims.Check],
) -> str:
  """NLL minus MDLM's, in words, but for what a claim names anyway.

  Args:
    differences: number of calls to CANDI's measures minus MDLM's.
    conditions: those of the claim, from `checks`.
  """
  named = claims.deciding(conditions).name
  values = ", ".join(
    f"{float(difference.nll.estimate):+.3f} at N={n}"
    for n, difference in differences.items()
    if _nll_name(n) != named
  )
  return f"NLL minus MDLM's: {values}"


def _nll_name(n: int) -> str:
  return f"NLL minus MDLM's at N={n}"
