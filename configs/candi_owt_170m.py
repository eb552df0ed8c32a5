"""CANDI on OpenWebText at the scale of its paper: 170M parameters, 64 chips.

  python -m experiments.train --config=configs/candi_owt_170m.py --workdir=DIR \\
    --distributed

A recipe: no figure here was measured. Sequences of 1,024 GPT-2 tokens, batch
512, a million steps; days on a v5p-64. `python -m tpu.aot` compiles it for a
slice.
"""

from __future__ import annotations

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  return base.owt_170m(
    "candi",
    process_options={"space": "embedding", "r_min": 0.05, "r_max": 0.25},
  )
