"""Dataclasses from nested dictionaries, checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import types
import typing
from typing import Any

from icml26_jax import checks


def make(kind: type, fields: Mapping[str, Any], prefix: str) -> Any:
  """A dataclass from its fields, each checked by name and type.

  Args:
    kind: the dataclass.
    fields: its fields by name.
    prefix: what stands before a field's name in messages.

  Returns:
    An instance.

  Raises:
    ValueError: if a field is unknown or missing.
    TypeError: if a value of a simple type has another.
  """
  known = {field.name: field for field in dataclasses.fields(kind)}
  for name in fields:
    if name not in known:
      raise ValueError(
        checks.unknown("field", prefix + name, [prefix + k for k in known])
      )
  for name, field in known.items():
    required = (
      field.default is dataclasses.MISSING
      and field.default_factory is dataclasses.MISSING
    )
    if required and name not in fields:
      raise ValueError(f"field {prefix}{name} is missing")
  hints = typing.get_type_hints(kind)
  for name, value in fields.items():
    if not _fits(value, hints[name]):
      raise TypeError(
        f"{prefix}{name} must be {_type_name(hints[name])}, got {value!r}"
      )
  return kind(**fields)


_SIMPLE = (int, float, str, bool, type(None))


def _fits(value: Any, hint: Any) -> bool:
  """False if a simple type is asked for and the value has another."""
  choices = (
    typing.get_args(hint)
    if isinstance(hint, types.UnionType)
    or typing.get_origin(hint) is typing.Union
    else (hint,)
  )
  if not all(choice in _SIMPLE for choice in choices):
    return True
  if isinstance(value, bool):
    return bool in choices
  if isinstance(value, int) and float in choices:
    return True
  return isinstance(value, choices)


def _type_name(hint: Any) -> str:
  return getattr(hint, "__name__", str(hint)).replace("NoneType", "None")
