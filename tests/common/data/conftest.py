"""A cache of a test's own."""

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache; returns its folder of data sets."""
    monkeypatch.setenv("HOROVOD_TWINS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HOROVOD_TWINS_DATA", raising=False)
    return tmp_path / "cache" / "datasets"
