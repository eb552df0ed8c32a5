"""Values of a run as strict JSON."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from typing import Any

import numpy as np


def dumps(value: Any, *, indent: int | None = None) -> str:
  """JSON text of a result, readable by any JSON parser.

  Arrays become lists, dataclasses objects, enumerations their values and
  paths strings. JSON has no word for NaN or infinity: they become null.

  Args:
    value: what to encode; NumPy and JAX arrays are fetched.
    indent: spaces of indentation, or None for one line.

  Returns:
    The text, without a final line break.

  Raises:
    TypeError: if a part has no JSON form, or a key is not a string.
  """
  return json.dumps(
    _plain(value), indent=indent, allow_nan=False, ensure_ascii=False
  )


def _plain(value: Any) -> Any:
  if value is None or isinstance(value, str | bool | int):
    return value.value if isinstance(value, enum.Enum) else value
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if isinstance(value, enum.Enum):
    return _plain(value.value)
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if isinstance(value, dict):
    for key in value:
      if not isinstance(key, str):
        raise TypeError(f"JSON keys must be strings, got {key!r}")
    return {key: _plain(item) for key, item in value.items()}
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {
      field.name: _plain(getattr(value, field.name))
      for field in dataclasses.fields(value)
    }
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  if hasattr(value, "__array__"):
    return _plain(np.asarray(value).tolist())
  raise TypeError(f"{type(value).__name__} has no JSON form: {value!r}")
