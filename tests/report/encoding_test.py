"""Results as strict JSON."""

import dataclasses
import enum
import json
import math
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from icml26_jax.report import encoding


class Colour(enum.StrEnum):
  RED = "red"


@dataclasses.dataclass
class Point:
  x: float
  y: tuple


def test_every_kind_of_value_reads_back():
  value = {
    "text": "größer ±1",
    "flag": True,
    "none": None,
    "int": np.int64(3),
    "float": np.float32(0.5),
    "array": np.arange(4).reshape(2, 2),
    "device": jnp.float32(1.5),
    "enum": Colour.RED,
    "path": pathlib.PurePosixPath("a/b"),
    "point": Point(1.0, (2, [3])),
  }
  assert json.loads(encoding.dumps(value)) == {
    "text": "größer ±1",
    "flag": True,
    "none": None,
    "int": 3,
    "float": 0.5,
    "array": [[0, 1], [2, 3]],
    "device": 1.5,
    "enum": "red",
    "path": "a/b",
    "point": {"x": 1.0, "y": [2, [3]]},
  }


@pytest.mark.parametrize(
  "value", [math.nan, math.inf, np.float32(-np.inf), jnp.float32(jnp.nan)]
)
def test_what_json_cannot_say_is_null(value):
  assert encoding.dumps([value]) == "[null]"


@pytest.mark.parametrize("value", [{1: 2}, {"a": object()}, {"a": {3, 4}}])
def test_values_without_a_json_form_are_rejected(value):
  with pytest.raises(TypeError):
    encoding.dumps(value)
