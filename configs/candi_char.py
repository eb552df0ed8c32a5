"""CANDI on the text of Python's language reference, 27 characters.

  python -m experiments.train --config=configs/candi_char.py --workdir=runs/x

0.33M parameters, 2,000 steps of 64 rows of 64 characters: 1 min 50 s on two
cores. Loss on held-out text at the end, one seed: 1.10 (no likelihood: noisy vectors
let the network see what is hidden).
"""

from __future__ import annotations

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  return base.char(
    "candi",
    process_options={
      "r_min": 0.01,
      "r_max": 0.25,
      "update": "pf_ode",
      "x0_mode": "draw",
    },
  )
