"""Tokenizers that come with pretrained weights, and their chat templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import json
import os
import pathlib
from typing import Any

import jinja2
import jinja2.sandbox
import numpy as np
import tokenizers

from icml26_jax.data import tokenizers as data_tokenizers
from icml26_jax.pretrained import gguf, safetensors

# Kinds of a token in GGUF.
_CONTROL, _USER_DEFINED = 3, 4

# How text is cut before byte pairs are merged, from the published tokenizers.
_LLAMA3_PATTERN = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
  r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_PATTERN = _LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
_CUTS = ("gpt-2", "smollm", "llama-bpe", "qwen2")


@dataclasses.dataclass(frozen=True)
class Tokenizer(data_tokenizers.BytePair):
  """Byte pairs with control tokens and a chat template.

  What `encode` is given is text through and through: the letters of a control
  token in it do not become that token. Only `encode_marked` and `chat` write
  control tokens.

  Attributes:
    model: turns text into tokens.
    marked: the same, but knows control tokens.
    missing_bytes: bytes of UTF-8 that no token holds. Byte pairs leave them
      out without a word; here they are refused.
    control_tokens: identifier of every control token by its text.
    bos_token: identifier of the token that begins a text, or None.
    eos_token: identifier of the token that ends a text, or None.
    chat_template: Jinja source, or None.
  """

  marked: tokenizers.Tokenizer
  missing_bytes: bytes
  control_tokens: Mapping[str, int]
  bos_token: int | None
  eos_token: int | None
  chat_template: str | None

  def encode(self, text: str) -> np.ndarray:
    """Tokens `[N]` int32 of a text.

    Raises:
      ValueError: naming the first character that the vocabulary lacks.
    """
    self._check_text(text)
    return super().encode(text)

  def encode_documents(self, documents: Iterable[str]) -> np.ndarray:
    """Tokens `[N]` int32 of several texts, one after the other.

    Raises:
      ValueError: naming the first character that the vocabulary lacks.
    """
    documents = list(documents)
    for text in documents:
      self._check_text(text)
    return super().encode_documents(documents)

  def encode_marked(self, text: str) -> np.ndarray:
    """Tokens `[N]` int32 of a text in which control tokens are written out.

    Raises:
      ValueError: naming the first character that the vocabulary lacks.
    """
    self._check_text(text)
    encoding = self.marked.encode(text, add_special_tokens=False)
    return np.asarray(encoding.ids, np.int32)

  def render(
    self,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
  ) -> str:
    """A conversation as text with control tokens.

    Args:
      messages: each with `role` and `content`.
      add_generation_prompt: whether the assistant's turn follows.

    Returns:
      The text.

    Raises:
      ValueError: if there is no template, a message lacks a part or holds a
        control token, or the template refuses the conversation.
    """
    if self.chat_template is None:
      raise ValueError("these weights come without a chat template")
    for i, message in enumerate(messages):
      self._check_message(i, message)
    names: dict[int | None, str] = {
      number: text for text, number in self.control_tokens.items()
    }
    try:
      return _compiled(self.chat_template).render(
        messages=[dict(message) for message in messages],
        add_generation_prompt=add_generation_prompt,
        bos_token=names.get(self.bos_token, ""),
        eos_token=names.get(self.eos_token, ""),
      )
    except jinja2.TemplateError as error:
      raise ValueError(
        f"the chat template refuses the conversation: {error}"
      ) from error

  def chat(
    self,
    messages: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
  ) -> np.ndarray:
    """Tokens `[N]` int32 of a conversation; see `render`."""
    return self.encode_marked(
      self.render(messages, add_generation_prompt=add_generation_prompt)
    )

  def _check_text(self, text):
    if not self.missing_bytes or not _has_any(text, self.missing_bytes):
      return
    for i, character in enumerate(text):
      if _has_any(character, self.missing_bytes):
        raise ValueError(
          f"the vocabulary lacks U+{ord(character):04X}, character {i} of the"
          " text"
        )

  def _check_message(self, i, message):
    for part in ("role", "content"):
      value = message.get(part)
      if not isinstance(value, str):
        raise ValueError(f"message {i} must have a text {part}, got {value!r}")
      for token in self.control_tokens:
        if token in value:
          raise ValueError(
            f"the {part} of message {i} holds the control token {token}"
          )


def from_gguf(file: gguf.File) -> Tokenizer:
  """The tokenizer in a GGUF file.

  Args:
    file: an open file.

  Returns:
    The tokenizer.

  Raises:
    ValueError: if it is of a kind that is not supported.
  """
  kind = file.get("tokenizer.ggml.model")
  if kind != "gpt2":
    raise ValueError(
      f"{file.path} has a tokenizer of kind {kind!r}; supported: 'gpt2' (byte"
      " pairs)"
    )
  texts = file.get("tokenizer.ggml.tokens")
  kinds = file.get("tokenizer.ggml.token_type", [1] * len(texts))
  cut = file.get("tokenizer.ggml.pre", "gpt-2")
  if cut not in _CUTS:
    raise ValueError(
      f"{file.path} cuts text as {cut!r}; supported: {', '.join(_CUTS)}"
    )
  control = [t for t, k in zip(texts, kinds, strict=True) if k == _CONTROL]
  extra = [t for t, k in zip(texts, kinds, strict=True) if k == _USER_DEFINED]

  def build():
    model = tokenizers.Tokenizer(
      tokenizers.models.BPE(
        vocab={text: i for i, text in enumerate(texts)},
        merges=[
          tuple(merge.split(" ", 1))
          for merge in file.get("tokenizer.ggml.merges")
        ],
        ignore_merges=cut == "llama-bpe",
      )
    )
    if cut == "qwen2":
      model.normalizer = tokenizers.normalizers.NFC()
    model.pre_tokenizer = _pre_tokenizer(cut)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_tokens([_added(text, special=False) for text in extra])
    model.add_special_tokens([_added(text, special=True) for text in control])
    return model

  return _make(
    build,
    {text: i for i, text in enumerate(texts) if kinds[i] == _CONTROL},
    file.get("tokenizer.ggml.bos_token_id", None),
    file.get("tokenizer.ggml.eos_token_id", None),
    file.get("tokenizer.chat_template", None),
  )


def from_folder(folder: str | os.PathLike) -> Tokenizer:
  """The tokenizer in a Hugging Face directory.

  Args:
    folder: with `tokenizer.json` and `tokenizer_config.json`.

  Returns:
    The tokenizer.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: if a file is damaged.
  """
  folder = pathlib.Path(folder)
  said = safetensors.read_json(folder / "tokenizer_config.json")
  path = folder / "tokenizer.json"
  added = safetensors.read_json(path).get("added_tokens", [])
  control = {t["content"]: t["id"] for t in added if t.get("special")}

  def build():
    try:
      return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
      raise ValueError(f"{path} is not a tokenizer: {error}") from error

  def number(name):
    token = said.get(name)
    text = token["content"] if isinstance(token, dict) else token
    return control.get(text)

  template = said.get("chat_template")
  beside = folder / "chat_template.jinja"
  if template is None and beside.is_file():
    template = beside.read_text(encoding="utf-8")
  return _make(
    build, control, number("bos_token"), number("eos_token"), template
  )


def _make(build, control, bos, eos, template: Any) -> Tokenizer:
  plain, marked = build(), build()
  plain.encode_special_tokens = True
  return Tokenizer(
    model=plain,
    marked=marked,
    missing_bytes=_missing_bytes(marked),
    control_tokens=control,
    bos_token=bos,
    eos_token=eos,
    chat_template=template,
  )


def _has_any(text: str, some: bytes) -> bool:
  data = text.encode("utf-8")
  return len(data.translate(None, some)) != len(data)


def _missing_bytes(model: tokenizers.Tokenizer) -> bytes:
  """Bytes without a token, of a vocabulary of byte pairs; else none."""
  said = json.loads(model.to_str())
  if "ByteLevel" not in json.dumps(said["pre_tokenizer"]):
    return b""
  if said["model"].get("unk_token") is not None:
    return b""
  vocabulary = model.get_vocab(with_added_tokens=False)
  # Printable bytes stand for themselves; the others follow from 256 on.
  own = {*range(33, 127), *range(161, 173), *range(174, 256)}
  other = [byte for byte in range(256) if byte not in own]
  letters = {byte: chr(byte) for byte in own}
  letters |= {byte: chr(256 + i) for i, byte in enumerate(other)}
  return bytes(byte for byte in range(256) if letters[byte] not in vocabulary)


def _added(text: str, *, special: bool) -> tokenizers.AddedToken:
  return tokenizers.AddedToken(text, special=special, normalized=False)


def _pre_tokenizer(cut: str) -> tokenizers.pre_tokenizers.PreTokenizer:
  pre = tokenizers.pre_tokenizers
  by_bytes = functools.partial(pre.ByteLevel, add_prefix_space=False)
  if cut == "gpt-2":
    return by_bytes(use_regex=True)
  if cut == "smollm":
    digits = pre.Digits(individual_digits=True)
    return pre.Sequence([digits, by_bytes(use_regex=True)])
  pattern = _LLAMA3_PATTERN if cut == "llama-bpe" else _QWEN2_PATTERN
  return pre.Sequence(
    [
      pre.Split(tokenizers.Regex(pattern), behavior="isolated"),
      by_bytes(use_regex=False),
    ]
  )


@functools.cache
def _compiled(template: str) -> jinja2.Template:
  # A template is a program out of a downloaded file: no access to anything.
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True
  )

  def refuse(message):
    raise jinja2.TemplateError(message)

  environment.globals["raise_exception"] = refuse
  return environment.from_string(template)
