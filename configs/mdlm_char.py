"""CANDI on the text of Python's language reference, 27 characters.

python -m experiments.train --config=configs/mdlm_char.py --workdir=runs/x
"""

from __future__ import annotations

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  return base.char("mdlm", process_options={"eps": 1e-3})
