"""A small model with every kind of parameter, for tests of training."""

import os
from typing import NamedTuple

import jax
from jax.experimental.compilation_cache import compilation_cache
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from icml26_jax.models import causal, dit
from icml26_jax.training import mesh as mesh_lib
from icml26_jax.training import recipe as recipe_lib
from icml26_jax.training import sharding
from icml26_jax.training import state as state_lib


@pytest.fixture(scope="session", autouse=True)
def shared_compilations(tmp_path_factory):
  """Programs that several tests compile anew are compiled once."""
  folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
  folder = folder or str(tmp_path_factory.mktemp("compilations"))
  settings = {
    "jax_compilation_cache_dir": folder,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
  }
  before = {name: getattr(jax.config, name) for name in settings}
  for name, value in settings.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()
  yield folder
  for name, value in before.items():
    jax.config.update(name, value)
  compilation_cache.reset_cache()


class Toy(NamedTuple):
  """Predicts a token's successor through one hidden layer, under dropout."""

  vocab: int = 16
  width: int = 8
  hidden: int = 16

  def init(self, key):
    keys = jax.random.split(key, 3)
    return {
      "table": jax.random.normal(keys[0], (self.vocab, self.width)),
      "up": jax.random.normal(keys[1], (1, self.width, self.hidden)),
      "out": 0.1 * jax.random.normal(keys[2], (self.hidden, self.vocab)),
      "scale": jnp.ones((1, self.hidden)),
    }

  @property
  def logical_axes(self):
    return {
      "table": ("vocab", "embed"),
      "up": ("layers", "embed", "mlp"),
      "out": ("mlp", "vocab"),
      "scale": ("layers", "mlp"),
    }

  def loss(self, params, batch, key):
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, batch["index"])
    keep = jax.vmap(lambda k: jax.random.bernoulli(k, 0.9, (self.width,)))(keys)
    x = params["table"][batch["tokens"]] * keep[:, None]
    h = jax.nn.gelu(x @ params["up"][0]) * params["scale"][0][None, None]
    log_probs = jax.nn.log_softmax(h @ params["out"])
    target = (batch["tokens"] * 3 + 1) % self.vocab
    nll = -jnp.take_along_axis(log_probs, target[..., None], axis=-1)[..., 0]
    weight = jnp.sum(batch["mask"], dtype=jnp.float32)
    loss = jnp.sum(nll, where=batch["mask"]) / jnp.maximum(weight, 1.0)
    hits = jnp.argmax(log_probs, axis=-1) == target
    share = jnp.sum(hits, where=batch["mask"]) / jnp.maximum(weight, 1.0)
    return loss, {"weight": weight, "accuracy": share}

  def batch(self, step, rows=16, length=5):
    rng = np.random.default_rng((7, step))
    mask = rng.random((rows, length)) < 0.7
    mask[0] = False  # rows of very unequal weight
    mask[1] = True
    return {
      "tokens": rng.integers(self.vocab, size=(rows, length), dtype=np.int32),
      "mask": mask,
      "index": np.arange(rows, dtype=np.int32),
    }


class Trainer(NamedTuple):
  """What a test needs to take steps on a mesh."""

  mesh: jax.sharding.Mesh
  optimizer: optax.GradientTransformation
  abstract: state_lib.TrainState
  state: state_lib.TrainState

  @property
  def shardings(self):
    return state_lib.shardings(self.abstract)


@pytest.fixture
def toy():
  return Toy()


@pytest.fixture
def make_trainer(toy):
  def make(shape, *, model=toy, with_ema=False, optimizer=None, seed=0):
    mesh = mesh_lib.make_mesh(shape)
    optimizer = optimizer or optax.adam(1e-2)
    abstract = state_lib.abstract(
      model.init,
      optimizer,
      mesh,
      sharding.DEFAULT_RULES,
      model.logical_axes,
      with_ema=with_ema,
    )
    state = state_lib.init(
      jax.random.key(seed), model.init, optimizer, abstract
    )
    return Trainer(mesh, optimizer, abstract, state)

  return make


_WORDS = "the quick brown fox jumps over a lazy dog while some zebras watch "


@pytest.fixture
def corpus(tmp_path):
  """A small text file, as a corpus."""
  rng = np.random.default_rng(0)
  words = rng.choice(_WORDS.split(), size=3000)
  path = tmp_path / "corpus.txt"
  path.write_text(
    "\n".join(" ".join(words[i : i + 10]) for i in range(0, 3000, 10))
  )
  return f"file:{path}"


@pytest.fixture
def make_recipe(corpus):
  """Makes recipes of a tiny model; fields given replace those here."""

  def make(process="candi", **fields):
    kind = causal if process == recipe_lib.AUTOREGRESSIVE else dit
    defaults = {
      "model": kind.Config(27, d_model=16, num_layers=2, num_heads=4),
      "data": recipe_lib.DataConfig(corpus, "char27", length=12, batch_size=8),
      "optimizer": recipe_lib.OptimizerConfig(
        learning_rate=1e-2, warmup_steps=2, decay_steps=20
      ),
      "num_steps": 8,
      "log_every": 2,
      "checkpoint_every": 4,
      "ema_decay": 0.9,
    }
    return recipe_lib.Recipe(process=process, **(defaults | fields))

  return make
