"""CANDI with 1.2B parameters on OpenWebText, for 64 or 256 chips.

  python -m experiments.train --config=configs/candi_1b.py --workdir=DIR \\
    --distributed

A recipe: no figure here was measured by running it. The latent lives in the
embedding space, so that no array over the vocabulary is formed but the logits.
`python -m tpu.aot --config=configs/candi_1b.py --topology=v5e:16x16` compiles
it and estimates memory and speed: 13.4 GiB a chip and 0.50 s a step, which
implies 60% of the peak for the model's own FLOPs. On v5p:4x4x4 it is 48 GiB,
0.78 s and 65%; on v6e:16x16, which has five times the FLOP/s of v5e but twice
its memory bandwidth, 32%, or 37% with 25 GiB and twice the batch.
"""

from __future__ import annotations

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  return base.make(
    "candi",
    process_options={"space": "embedding", "r_min": 0.05, "r_max": 0.25},
    model={
      "vocab_size": base.GPT2_VOCAB_SIZE,
      "d_model": 2048,
      "num_layers": 20,
      "num_heads": 16,
      "dtype": "bfloat16",
      "attention": "kernel",
      "remat": "qkv+context+attention_out+mlp_hidden+mlp_out",
    },
    data={**base.OPENWEBTEXT, "batch_size": 2048},
    optimizer={
      "learning_rate": 2e-4,
      "warmup_steps": 1250,
      "b2": 0.95,
      "weight_decay": 0.1,
    },
    mesh={"data": -1, "fsdp": 16},
    num_steps=125_000,
    ema_decay=0.9999,
    log_every=100,
    eval_every=10_000,
    checkpoint_every=2_500,
  )
