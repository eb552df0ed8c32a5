"""CANDI on the text of Python's language reference, 27 characters.

python -m experiments.train --config=configs/candi_char.py --workdir=runs/x
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
