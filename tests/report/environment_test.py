"""What a report says about the machine."""

import json
import platform

import jax

from icml26_jax.report import environment


def test_versions_and_device_are_named():
  found = environment.describe()
  assert found["jax"] == jax.__version__
  assert found["devices"] == 8
  assert found["cores"] >= 1
  assert found["device"] == jax.devices()[0].device_kind


def test_nothing_personal_is_named(monkeypatch):
  monkeypatch.setenv("USER", "somebody")
  monkeypatch.setattr(platform, "node", lambda: "my-machine")
  text = json.dumps(environment.describe())
  assert "my-machine" not in text
  assert "somebody" not in text
