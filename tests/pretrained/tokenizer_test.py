import dataclasses
import itertools
import json
import re

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from icml26_jax.pretrained import gguf, tokenizer

SYSTEM = (
  "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by"
  " Hugging Face<|im_end|>\n"
)
# Printable ASCII as byte-level tokenizers write it.
_SPACE, _NEWLINE = "\u0120", "\u010a"


class SlowBytePairs:
  """Merges the pair of the lowest rank, over and over; ASCII only."""

  def __init__(self, file):
    texts = file.get("tokenizer.ggml.tokens")
    self.ids = {text: i for i, text in enumerate(texts)}
    merges = file.get("tokenizer.ggml.merges")
    self.ranks = {
      tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)
    }

  def encode(self, text):
    # Every digit stands alone; then the words of GPT-2.
    pieces = []
    for part in re.findall(r"[0-9]|[^0-9]+", text):
      pieces += re.findall(
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+"
        r"|\s+(?!\S)|\s+",
        part,
      )
    assert "".join(pieces) == text
    ids = []
    for piece in pieces:
      piece = piece.replace(" ", _SPACE).replace("\n", _NEWLINE)
      ids += [self.ids[token] for token in self.merge(list(piece))]
    return ids

  def merge(self, parts):
    while len(parts) > 1:
      pairs = list(itertools.pairwise(parts))
      ranks = [self.ranks.get(pair, len(self.ranks)) for pair in pairs]
      if min(ranks) == len(self.ranks):
        break
      i = int(np.argmin(ranks))
      parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]
    return parts


@pytest.fixture(scope="module")
def file(smollm2_path):
  return gguf.File(smollm2_path)


@pytest.fixture(scope="module")
def words(file):
  return tokenizer.from_gguf(file)


@pytest.fixture(scope="module")
def slow(file):
  return SlowBytePairs(file)


def test_vocabulary_is_that_of_the_file(words):
  assert words.vocab_size == 49_152
  assert len(words.control_tokens) == 17
  assert words.control_tokens["<|im_start|>"] == words.bos_token == 1
  assert words.control_tokens["<|im_end|>"] == words.eos_token == 2


@hypothesis.given(
  st.text(st.sampled_from("abcdeithnsor ETAS019.,'!\n_(){}=+"), max_size=40)
)
def test_text_becomes_what_slow_merging_makes_of_it(words, slow, text):
  assert words.encode(text).tolist() == slow.encode(text)


@pytest.mark.parametrize(
  "text",
  [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "def f(x):\n    return x ** 2  # 1024 items\n\n\n",
    "In 1984 we'll've paid 3.14 (or so) for it's worth",
    "",
  ],
)
def test_sentences_become_what_slow_merging_makes_of_them(words, slow, text):
  got = words.encode(text)
  assert got.dtype == np.int32
  assert got.tolist() == slow.encode(text)


@hypothesis.given(st.text(max_size=30))
def test_any_text_comes_back_or_is_refused(words, text):
  # The vocabulary was learnt from text in which six control characters and
  # most unassigned planes of Unicode never came.
  lacking = [
    character
    for character in text
    if character in "\x04\x06\x13\x14\x16\x1d"
    or 0x40000 <= ord(character) < 0xC0000
  ]
  if not lacking:
    assert words.decode(words.encode(text)) == text
    return
  at = text.index(lacking[0])
  message = rf"lacks U\+{ord(lacking[0]):04X}, character {at} of the text"
  for encode in (words.encode, words.encode_marked):
    with pytest.raises(ValueError, match=message):
      encode(text)


def test_documents_are_refused_like_texts(words):
  np.testing.assert_array_equal(
    words.encode_documents(["one", "two"]),
    [*words.encode("one\n\n"), *words.encode("two\n\n")],
  )
  with pytest.raises(ValueError, match=r"lacks U\+0004, character 1"):
    words.encode_documents(["one", "t\x04o"])


def test_letters_of_a_control_token_are_text(words):
  text = "<|im_end|>"
  as_text = words.encode(text)
  assert len(as_text) > 1
  assert not set(as_text.tolist()) & set(words.control_tokens.values())
  assert words.decode(as_text) == text
  assert words.encode_marked(text).tolist() == [2]
  assert words.decode(np.array([2])) == text


def test_conversation_is_rendered_by_the_template(words):
  messages = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
  ]
  turns = (
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n"
  )
  prompt = "<|im_start|>assistant\n"
  assert words.render(messages) == SYSTEM + turns + prompt
  closed = words.render(messages, add_generation_prompt=False)
  assert closed == SYSTEM + turns
  own = [{"role": "system", "content": "Be brief."}, *messages]
  assert words.render(own).startswith("<|im_start|>system\nBe brief.<|im_end|>")
  tokens = words.chat(messages)
  assert words.decode(tokens) == SYSTEM + turns + prompt
  # Five turns are begun, four of them ended.
  assert tokens.tolist().count(1) == 5
  assert tokens.tolist().count(2) == 4


@pytest.mark.parametrize(
  ("message", "expected"),
  [
    ({"role": "user"}, "message 0 must have a text content, got None"),
    ({"role": 3, "content": ""}, "message 0 must have a text role, got 3"),
    (
      {"role": "user", "content": "a<|im_end|>b"},
      r"content of message 0 holds the control token <\|im_end\|>",
    ),
  ],
)
def test_bad_messages_are_named(words, message, expected):
  with pytest.raises(ValueError, match=expected):
    words.render([message])


def test_template_may_refuse_or_be_missing(words):
  refusing = dataclasses.replace(
    words, chat_template="{{ raise_exception('roles must alternate') }}"
  )
  with pytest.raises(ValueError, match=r"refuses.*roles must alternate"):
    refusing.render([])
  without = dataclasses.replace(words, chat_template=None)
  with pytest.raises(ValueError, match="without a chat template"):
    without.render([])


def test_template_sees_its_tokens_and_cannot_reach_out(words):
  tokens = dataclasses.replace(
    words, chat_template="{{ bos_token }}{{ messages[0].content }}"
  )
  message = [{"role": "user", "content": "x"}]
  assert tokens.render(message) == "<|im_start|>x"
  reaching = dataclasses.replace(
    words, chat_template="{{ ''.__class__.__mro__ }}"
  )
  with pytest.raises(ValueError, match="refuses"):
    reaching.render(message)


def small_file(**metadata):
  """A file whose vocabulary is the letters of "I'LL 1234\n"."""
  letters = sorted(set("I'LL1234") | {_SPACE, _NEWLINE})
  values = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [*letters, "11", "1I", "<end>"],
    "tokenizer.ggml.token_type": [1] * (len(letters) + 1) + [4, 3],
    "tokenizer.ggml.merges": ["1 1"],
  } | metadata
  stub = gguf.File.__new__(gguf.File)
  stub.path, stub.metadata = "small.gguf", values
  return stub


@pytest.mark.parametrize(
  ("cut", "pieces"),
  [
    ("gpt-2", ["I", "'", "LL", "\u01201234", _NEWLINE]),
    ("smollm", ["I", "'", "LL", _SPACE, "1", "2", "3", "4", _NEWLINE]),
    ("llama-bpe", ["I", "'LL", _SPACE, "123", "4", _NEWLINE]),
    ("qwen2", ["I", "'LL", _SPACE, "1", "2", "3", "4", _NEWLINE]),
  ],
)
def test_text_is_cut_as_the_file_says(cut, pieces):
  made = tokenizer.from_gguf(small_file(**{"tokenizer.ggml.pre": cut}))
  cutter = made.model.pre_tokenizer
  assert [x for x, _ in cutter.pre_tokenize_str("I'LL 1234\n")] == pieces


def test_user_defined_tokens_are_part_of_any_text():
  made = tokenizer.from_gguf(small_file())
  assert made.encode("LL1I").tolist()[-1] == made.vocab_size - 2
  assert made.control_tokens == {"<end>": made.vocab_size - 1}
  assert made.bos_token is None
  assert made.chat_template is None


def test_unknown_cut_is_named():
  unknown = small_file(**{"tokenizer.ggml.pre": "poro-chat"})
  with pytest.raises(ValueError, match="cuts text as 'poro-chat'; supported"):
    tokenizer.from_gguf(unknown)


def test_hugging_face_folder_gives_the_same_tokenizer(words, tmp_path):
  (tmp_path / "tokenizer.json").write_text(
    words.marked.to_str(), encoding="utf-8"
  )
  said = {
    "bos_token": {"content": "<|im_start|>"},
    "eos_token": "<|im_end|>",
    "chat_template": words.chat_template,
  }
  config = tmp_path / "tokenizer_config.json"
  config.write_text(json.dumps(said), encoding="utf-8")
  read = tokenizer.from_folder(tmp_path)
  message = [{"role": "user", "content": "What is 2 + 2?"}]
  np.testing.assert_array_equal(read.chat(message), words.chat(message))
  assert read.control_tokens == words.control_tokens
  assert (read.bos_token, read.eos_token) == (1, 2)
  # The template may lie beside it.
  del said["chat_template"]
  config.write_text(json.dumps(said), encoding="utf-8")
  assert tokenizer.from_folder(tmp_path).chat_template is None
  beside = tmp_path / "chat_template.jinja"
  beside.write_text("{{ eos_token }}", encoding="utf-8")
  assert tokenizer.from_folder(tmp_path).render([]) == "<|im_end|>"


def test_damaged_folder_is_named(tmp_path):
  with pytest.raises(FileNotFoundError, match=r"tokenizer_config\.json"):
    tokenizer.from_folder(tmp_path)
  (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
  with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
    tokenizer.from_folder(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
  with pytest.raises(ValueError, match="is not a tokenizer"):
    tokenizer.from_folder(tmp_path)
