"""Writes `small_golden.json`: logits of tiny models by transformers.

  python tests/pretrained/make_small_golden.py

Needs torch and transformers; the test that reads the result needs neither.
Written with transformers 5.24.0 and torch 2.13.0 (CPU, float32).
"""

from __future__ import annotations

import json
import pathlib

import numpy as np
import torch
import transformers

# One for every thing that a config can say.
_COMMON = {
  "vocab_size": 17,
  "hidden_size": 16,
  "intermediate_size": 24,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-5,
}
_CONFIGS = {
  "llama": {"tie_word_embeddings": True},
  "llama with biases and wide heads": {
    "attention_bias": True,
    "head_dim": 8,
    "tie_word_embeddings": False,
  },
  "llama extended": {
    "rope_parameters": {
      "rope_type": "llama3",
      "rope_theta": 500.0,
      "factor": 8.0,
      "low_freq_factor": 1.0,
      "high_freq_factor": 4.0,
      "original_max_position_embeddings": 16,
    },
  },
  "llama stretched": {
    "rope_parameters": {
      "rope_type": "linear",
      "rope_theta": 1000.0,
      "factor": 2.0,
    },
  },
  "mistral": {"model_type": "mistral", "sliding_window": None},
  "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
}
_TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 16, 0]


def weights(shapes: dict, seed: int) -> dict:
  """Numbers that the test can draw again, in the order of the names."""
  rng = np.random.default_rng(seed)
  return {
    name: rng.normal(scale=0.3, size=shapes[name]).astype(np.float32)
    for name in sorted(shapes)
  }


def main() -> None:
  records = []
  for seed, (name, changes) in enumerate(_CONFIGS.items()):
    said = {"model_type": "llama", **_COMMON, **changes}
    config = transformers.AutoConfig.for_model(**said)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    shapes = {
      key: list(value.shape)
      for key, value in model.state_dict().items()
      if not (config.tie_word_embeddings and key == "lm_head.weight")
    }
    tensors = {k: torch.tensor(v) for k, v in weights(shapes, seed).items()}
    found = model.load_state_dict(tensors, strict=False)
    assert not found.unexpected_keys
    model.tie_weights()
    with torch.no_grad():
      logits = model(torch.tensor([_TOKENS])).logits[0]
    records.append(
      {
        "name": name,
        "seed": seed,
        # What `save_pretrained` writes.
        "config": json.loads(config.to_json_string()),
        "shapes": shapes,
        "tokens": _TOKENS,
        "logits": [[round(x, 5) for x in row] for row in logits.tolist()],
      }
    )
  target = pathlib.Path(__file__).with_name("small_golden.json")
  lines = ",\n".join(json.dumps(r, separators=(",", ":")) for r in records)
  target.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
  main()
