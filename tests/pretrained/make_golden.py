"""Writes `smollm2_golden.json`: what transformers computes from the same file.

  python tests/pretrained/make_golden.py PATH.gguf

Needs torch, transformers, accelerate and gguf; the test that reads the result
needs none of them. Written with transformers 5.24.0 and torch 2.13.0 (CPU,
float32).
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

from icml26_jax.pretrained import gguf, tokenizer

_PROMPTS = (
  "What is the capital of France?",
  "Write a haiku about the sea.",
  "Explain why the sky is blue, in one sentence.",
)
_NUM_TOKENS = 64
# Of every prompt logits are kept at these positions, counted from the end...
_FROM_END = (1, 2, 12)
# ...of the most probable tokens and of every 1,024th one.
_MOST_PROBABLE, _STRIDE = 8, 1024


def main(path: pathlib.Path) -> None:
  words = tokenizer.from_gguf(gguf.File(path))
  model = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype=torch.float32
  ).eval()
  records = []
  for prompt in _PROMPTS:
    tokens = words.chat([{"role": "user", "content": prompt}])
    inputs = torch.tensor(tokens[None].astype(np.int64))
    with torch.no_grad():
      logits = model(inputs).logits[0].numpy()
      generated = model.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=_NUM_TOKENS,
        min_new_tokens=_NUM_TOKENS,
        do_sample=False,
        # An end token would be forbidden for the sake of min_new_tokens.
        eos_token_id=-1,
        pad_token_id=0,
      )
    positions = [len(tokens) - i for i in _FROM_END]
    samples = []
    for position in positions:
      top = np.argsort(-logits[position])[:_MOST_PROBABLE]
      rest = np.arange(0, logits.shape[1], _STRIDE)
      ids = np.unique(np.concatenate([top, rest]))
      samples.append(
        {
          "position": int(position),
          "ids": ids.tolist(),
          "logits": [round(float(x), 5) for x in logits[position, ids]],
        }
      )
    records.append(
      {
        "prompt": prompt,
        "tokens": tokens.tolist(),
        "logits": samples,
        "greedy": generated[0, len(tokens) :].tolist(),
      }
    )
  target = pathlib.Path(__file__).with_name("smollm2_golden.json")
  text = json.dumps(records, separators=(",", ":")).replace('{"', '\n{"')
  target.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
