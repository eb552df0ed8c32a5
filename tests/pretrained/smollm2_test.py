"""The pretrained model does what other programs make of the same file."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.decoding import autoregressive
from icml26_jax.models import llama
from icml26_jax.models import prompts as prompts_lib

TEXT = (
  "Return a new list containing all items from the iterable in ascending"
  " order. A custom key function can be supplied to customize the sort order,"
  " and the reverse flag can be set to request the result in descending"
  " order. Serialize obj to a JSON formatted string. The sea was calm that"
  " morning, and the fishermen had already pulled their boats up onto the"
  " sand. A girl walked along the water with her dog, looking for shells that"
  " the storm had left behind. She found a green bottle with a letter in it,"
  " but the ink had run and she could read only a single word."
)

apply = jax.jit(llama.apply, static_argnames="config")


@pytest.fixture(scope="module")
def golden():
  """What transformers computes, from `make_golden.py`."""
  path = pathlib.Path(__file__).with_name("smollm2_golden.json")
  return json.loads(path.read_text(encoding="utf-8"))


def losses(checkpoint, config):
  """Nats of each token of the text."""
  tokens = checkpoint.tokenizer.encode(TEXT)[None]
  log_probs = jax.nn.log_softmax(
    apply(checkpoint.params, tokens[:, :-1], config=config)
  )
  chosen = jnp.take_along_axis(log_probs, tokens[:, 1:, None], axis=-1)
  return -np.asarray(chosen[0, :, 0])


def test_tokens_are_those_of_the_golden_values(smollm2, golden):
  for record in golden:
    tokens = smollm2.tokenizer.chat(
      [{"role": "user", "content": record["prompt"]}]
    )
    np.testing.assert_array_equal(tokens, record["tokens"])


@pytest.mark.slow  # 64 tokens of a real model
def test_logits_and_greedy_tokens_equal_those_of_transformers(smollm2, golden):
  prompts = [record["tokens"] for record in golden]
  tokens, mask = prompts_lib.pad(prompts)
  logits = np.asarray(
    apply(smollm2.params, tokens, mask, config=smollm2.config)
  )
  for row, record in enumerate(golden):
    start = tokens.shape[1] - len(record["tokens"])
    for sample in record["logits"]:
      got = logits[row, start + sample["position"], sample["ids"]]
      np.testing.assert_allclose(got, sample["logits"], rtol=0, atol=2e-3)
  generation = autoregressive.generate(
    smollm2.params,
    tokens,
    mask,
    model=llama.cached_model(smollm2.config, num_slots=128),
    num_tokens=64,
  )
  np.testing.assert_array_equal(
    generation.tokens, [record["greedy"] for record in golden]
  )


@pytest.mark.slow  # two compilations of a real model
def test_loss_on_text_settles_the_pairing(smollm2):
  config = smollm2.config
  assert config.rope_pairing == "interleaved"
  right = losses(smollm2, config)
  wrong = losses(smollm2, dataclasses.replace(config, rope_pairing="half"))
  # Uniform guessing costs ln 49,152 = 10.8 nats.
  assert right.mean() < 4.0
  worse = wrong - right
  assert worse.mean() > 1.0
  assert worse.mean() > 3 * worse.std() / np.sqrt(worse.size)


def test_config_is_that_of_the_published_model(smollm2):
  assert dataclasses.asdict(smollm2.config) == dict(
    vocab_size=49152,
    d_model=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    d_ff=1536,
    rope_base=100_000.0,
    rope_pairing="interleaved",
    rope_divisors=None,
    norm_eps=pytest.approx(1e-5, rel=1e-6),
    max_length=8192,
    tie_embeddings=True,
    qkv_bias=False,
    output_bias=False,
    dtype="float32",
    remat="none",
  )
  llama.check_params(smollm2.params, smollm2.config)
