"""A cache of the tests' own."""

import pytest


@pytest.fixture(scope="session")
def _cache(tmp_path_factory):
  return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(_cache, monkeypatch):
  """`ICML26_CACHE`, shared by the tests of this folder."""
  monkeypatch.setenv("ICML26_CACHE", str(_cache))
  monkeypatch.delenv("ICML26_DATA", raising=False)
  return _cache
