"""A recipe: everything that decides how a language model is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import functools
import hashlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from icml26_jax import checks
from icml26_jax.data import corpora, token_files, tokenizers, windows
from icml26_jax.diffusion import candi, continuous, mdlm, objective
from icml26_jax.diffusion import process as process_lib
from icml26_jax.models import causal, dit
from icml26_jax.objectives import next_token
from icml26_jax.training import fields as fields_lib
from icml26_jax.training import optimizer as optimizer_lib
from icml26_jax.training import sharding, step

OptimizerConfig = optimizer_lib.OptimizerConfig

AUTOREGRESSIVE = "autoregressive"
_PROCESSES: dict[str, Callable[..., process_lib.Process]] = {
  "candi": candi.process,
  "continuous": continuous.process,
  "mdlm": mdlm.process,
}
PROCESSES = (AUTOREGRESSIVE, *sorted(_PROCESSES))

# Options of processes that only code can give: functions and arrays.
CODE_OPTIONS = ("embedding", "guidance")

# Options that name where a process with Gaussian noise lives.
_SPACE = "space"
_SPACES = ("one_hot", "embedding")

# What may change when a run is resumed: it moves work about, or decides how
# far to go and what to write, but not what is learnt.
FREE_FIELDS = (
  "accumulation",
  "checkpoint_every",
  "eval_batches",
  "eval_every",
  "keep",
  "log_every",
  "mesh",
  "model.attention",
  "model.remat",
  "model.scan_layers",
  "num_steps",
  "rules",
  "steps_per_call",
)


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What is learnt from.

  Attributes:
    corpus: see `data.corpora.load`.
    tokenizer: see `data.tokenizers.load`.
    length: tokens in a row, L.
    batch_size: rows of the global batch, B.
  """

  corpus: str
  tokenizer: str
  length: int
  batch_size: int

  def __post_init__(self):
    checks.check_range("data.length", self.length, low=1)
    checks.check_range("data.batch_size", self.batch_size, low=1)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a language model is trained.

  Mappings may be given for the fields that are kept as sorted pairs.

  Attributes:
    process: "candi", "mdlm", "continuous" or "autoregressive".
    model: the network; its vocabulary must be the tokenizer's.
    data: what is learnt from.
    optimizer: the optimizer.
    num_steps: updates in all.
    process_options: keyword arguments of the process, such as `r_max`, and
      `space`: "one_hot" (the default) or "embedding", where noise lives.
    seed: of the parameters, the batches and the noise.
    ema_decay: decay of the parameters' average; None for no average.
    mesh: devices along "data", "fsdp" and "model".
    rules: mesh axes of logical axes for which `sharding.DEFAULT_RULES` are not
      wanted; None for whole.
    accumulation: micro-batches a step.
    steps_per_call: most steps in one dispatch; more than 1 helps where a step
      takes a few milliseconds.
    log_every: steps a line of metrics.
    eval_every: steps between evaluations on held-out text; 0 for none.
    eval_batches: batches of an evaluation.
    checkpoint_every: steps between checkpoints; 0 for one at the end only.
    keep: checkpoints kept.
  """

  process: str
  model: dit.Config | causal.Config
  data: DataConfig
  optimizer: OptimizerConfig
  num_steps: int
  process_options: tuple[tuple[str, Any], ...] = ()
  seed: int = 0
  ema_decay: float | None = None
  mesh: tuple[tuple[str, int], ...] = (("data", 1),)
  rules: tuple[tuple[str, sharding.MeshAxes], ...] = ()
  accumulation: int = 1
  steps_per_call: int = 1
  log_every: int = 50
  eval_every: int = 0
  eval_batches: int = 8
  checkpoint_every: int = 1000
  keep: int = 3

  def __post_init__(self):
    if self.process not in PROCESSES:
      raise ValueError(checks.unknown("process", self.process, PROCESSES))
    for name in ("process_options", "mesh", "rules"):
      pairs = getattr(self, name)
      pairs = pairs.items() if isinstance(pairs, Mapping) else pairs
      pairs = tuple(
        (key, tuple(value) if isinstance(value, list) else value)
        for key, value in sorted(pairs, key=lambda pair: pair[0])
      )
      object.__setattr__(self, name, pairs)
    kind = model_config_type(self.process)
    if type(self.model) is not kind:
      raise TypeError(
        f"model of process {self.process!r} must be"
        f" {_qualified(kind)}, got {_qualified(type(self.model))}"
      )
    for name in ("num_steps", "steps_per_call", "log_every", "keep"):
      checks.check_range(name, getattr(self, name), low=1)
    for name in ("accumulation", "eval_batches"):
      checks.check_range(name, getattr(self, name), low=1)
    for name in ("seed", "eval_every", "checkpoint_every"):
      checks.check_range(name, getattr(self, name), low=0)
    if self.ema_decay is not None:
      checks.check_range(
        "ema_decay", self.ema_decay, low=0.0, high=1.0, open_high=True
      )
    _make_process(self, None)  # Checks the options now, not at the first use.

  @property
  def all_rules(self) -> sharding.Rules:
    """The logical axis rules, with this recipe's own instead of defaults."""
    own = dict(self.rules)
    kept = tuple(rule for rule in sharding.DEFAULT_RULES if rule[0] not in own)
    return (*self.rules, *kept)


class Task(NamedTuple):
  """A recipe as functions.

  Attributes:
    recipe: the recipe.
    init: key to parameters.
    logical_axes: tree of tuples of logical axis names, as the parameters'.
    loss_fn: for `step.make_train_step`.
    process: `(params, **options) -> Process` to sample with; options replace
      the recipe's, such as `update` or `guidance`. Raises ValueError for an
      autoregressive model.
    denoise_fn: parameters to the network of that process; raises likewise.
    apply_causal: `(params, tokens [B, L]) -> logits [B, L, V]` of an
      autoregressive model, None of a diffusion model.
    batch_spec: shapes and dtypes of a global batch.
  """

  recipe: Recipe
  init: Callable[[jax.Array], Any]
  logical_axes: Any
  loss_fn: step.LossFn
  process: Callable[..., process_lib.Process]
  denoise_fn: Callable[[Any], process_lib.DenoiseFn]
  apply_causal: Callable[[Any, jax.Array], jax.Array] | None
  batch_spec: dict[str, jax.ShapeDtypeStruct]


class Data(NamedTuple):
  """What a recipe learns from, loaded.

  Attributes:
    tokenizer: the tokenizer.
    train: windows to train on.
    validation: windows of held-out text; None if they were not asked for.
    fingerprint: hexadecimal digest of the tokens' origin.
  """

  tokenizer: tokenizers.Tokenizer
  train: windows.TokenWindows
  validation: windows.TokenWindows | None
  fingerprint: str


def model_config_type(process: str) -> type:
  """The dataclass that describes the network of a process."""
  return causal.Config if process == AUTOREGRESSIVE else dit.Config


def from_config(config: Any) -> Recipe:
  """A recipe from an `ml_collections.ConfigDict`.

  Args:
    config: fields of `Recipe`, with groups `model`, `data` and `optimizer`.

  Returns:
    The recipe.

  Raises:
    ValueError: if a field is unknown or missing, or its value not allowed.
    TypeError: if a value has the wrong type.
  """
  return from_dict(config.to_dict())


def from_dict(fields: Mapping[str, Any]) -> Recipe:
  """A recipe from nested dictionaries, such as those of `to_dict`.

  Args:
    fields: fields of `Recipe`, with groups `model`, `data` and `optimizer`.

  Returns:
    The recipe.

  Raises:
    ValueError: if a field is unknown or missing, or its value not allowed.
    TypeError: if a value has the wrong type.
  """
  fields = dict(fields)
  process = fields.get("process")
  if process not in PROCESSES:
    raise ValueError(checks.unknown("process", str(process), PROCESSES))
  groups = {
    "model": model_config_type(process),
    "data": DataConfig,
    "optimizer": OptimizerConfig,
  }
  for name, kind in groups.items():
    if name in fields:
      if not isinstance(fields[name], Mapping):
        raise TypeError(f"{name} must be a group of fields")
      fields[name] = fields_lib.make(kind, fields[name], f"{name}.")
  return fields_lib.make(Recipe, fields, "")


def to_dict(recipe: Recipe) -> dict[str, Any]:
  """A recipe as nested dictionaries that JSON can hold; see `from_dict`."""
  fields = dataclasses.asdict(recipe)
  for name in ("process_options", "mesh", "rules"):
    fields[name] = {
      key: list(value) if isinstance(value, tuple) else value
      for key, value in fields[name]
    }
  return fields


def build(recipe: Recipe) -> Task:
  """Turns a recipe into functions; loads no data and touches no device.

  Args:
    recipe: the recipe.

  Returns:
    The task.
  """
  network = causal if recipe.process == AUTOREGRESSIVE else dit
  apply_fn = functools.partial(network.apply, config=recipe.model)
  if recipe.process == AUTOREGRESSIVE:
    loss_fn = next_token.make_loss_fn(apply_fn)
  else:
    loss_fn = objective.make_loss_fn(
      lambda params: _make_process(recipe, params), apply_fn
    )

  def process(params, **options):
    _check_diffusion(recipe)
    return _make_process(recipe, params, **options)

  def denoise_fn(params):
    _check_diffusion(recipe)
    return functools.partial(apply_fn, params)

  rows = (recipe.data.batch_size,)
  shape = (*rows, recipe.data.length)
  return Task(
    recipe=recipe,
    init=functools.partial(network.init, config=recipe.model),
    logical_axes=network.logical_axes(recipe.model),
    loss_fn=loss_fn,
    process=process,
    denoise_fn=denoise_fn,
    apply_causal=apply_fn if recipe.process == AUTOREGRESSIVE else None,
    batch_spec={
      "tokens": jax.ShapeDtypeStruct(shape, jnp.int32),
      "mask": jax.ShapeDtypeStruct(shape, jnp.bool_),
      "index": jax.ShapeDtypeStruct(rows, jnp.int32),
      "stratum": jax.ShapeDtypeStruct(rows, jnp.float32),
    },
  )


def load_data(recipe: Recipe, *, with_validation: bool = False) -> Data:
  """Loads the text of a recipe and encodes it.

  Args:
    recipe: the recipe.
    with_validation: whether to load held-out text as well.

  Returns:
    The data.

  Raises:
    ValueError: if the corpus or tokenizer is unknown or unusable, the text is
      shorter than a window, or the tokenizer does not fit the model.
  """
  data = recipe.data
  corpus = corpora.load(data.corpus, split="train")
  tokenizer = tokenizers.load(data.tokenizer, corpus)
  if tokenizer.vocab_size != recipe.model.vocab_size:
    raise ValueError(
      f"model.vocab_size must be the {tokenizer.vocab_size} tokens of"
      f" {data.tokenizer}, got {recipe.model.vocab_size}"
    )

  def cut(corpus):
    tokens = token_files.encode(tokenizer, corpus)
    try:
      return windows.TokenWindows(tokens, data.length)
    except ValueError as error:
      raise ValueError(
        f"{data.corpus}, {corpus.split} part: {error}"
      ) from error

  held_out = None
  if with_validation:
    held_out = cut(corpora.load(data.corpus, split="validation"))
  facts = f"{tokenizer.fingerprint}\n{corpus.fingerprint}"
  return Data(
    tokenizer=tokenizer,
    train=cut(corpus),
    validation=held_out,
    fingerprint=hashlib.sha256(facts.encode()).hexdigest(),
  )


def check_process_options(recipe: Recipe, options: Mapping[str, Any]) -> None:
  """Raises unless a process can be made with these options.

  Args:
    recipe: the recipe, whose own options they replace.
    options: keyword arguments of the process, of plain values.

  Raises:
    ValueError: if an option is unknown, needs code, or its value is wrong.
  """
  for name, value in options.items():
    if name in CODE_OPTIONS:
      raise ValueError(
        f"process option {name} is a function or an array, which only code can"
        f" give, got {value!r}"
      )
  try:
    _make_process(recipe, None, **options)
  except (TypeError, ValueError) as error:
    raise ValueError(f"process options {dict(options)}: {error}") from error


def load_tokenizer(recipe: Recipe) -> tokenizers.Tokenizer:
  """The tokenizer of a recipe; its corpus is read only if it was trained."""
  spec = recipe.data.tokenizer
  corpus = None
  if spec.startswith("bpe:"):
    corpus = corpora.load(recipe.data.corpus, split="train")
  return tokenizers.load(spec, corpus)


def _make_process(recipe, params, **options):
  """The process of a recipe, or None of an autoregressive one.

  Without parameters it only checks the options.
  """
  merged = dict(recipe.process_options) | options
  if recipe.process == AUTOREGRESSIVE:
    if merged:
      raise ValueError(
        f"process_options must be empty for {AUTOREGRESSIVE}, got {merged}"
      )
    return None
  space = merged.pop(_SPACE, "one_hot")
  if space not in _SPACES:
    raise ValueError(
      checks.unknown(f"process_options.{_SPACE}", space, _SPACES)
    )
  make = _PROCESSES[recipe.process]
  known = set(make.__kwdefaults__ or {})
  for name in merged:
    if name not in known:
      raise ValueError(
        checks.unknown("process option", name, sorted(known - {*CODE_OPTIONS}))
      )
  if space == "embedding":
    if make is mdlm.process:
      raise ValueError(
        f"process_options.{_SPACE} 'embedding' needs a process with Gaussian"
        " noise, got 'mdlm'"
      )
    if params is not None:
      merged["embedding"] = dit.embedding_table(params)
  return make(recipe.model.vocab_size, **merged)


def _check_diffusion(recipe):
  if recipe.process == AUTOREGRESSIVE:
    raise ValueError("an autoregressive model has no corruption process")


def _qualified(kind: type) -> str:
  return f"{kind.__module__}.{kind.__qualname__}"
