"""Horovod is imported in ranks that a launcher started, and its absence is one line with the remedy."""

import os

import pytest

from common.distributed.horovod_module import NoHorovod, horovod_module, lost_rank_errors
from common.errors import UserError


def test_one_process_alone_imports_nothing(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    missing = horovod_module("json")
    assert isinstance(missing, NoHorovod) and lost_rank_errors() == ()
    with pytest.raises(UserError, match=r"several ranks need Horovod\. Received: one process without a launcher"):
        missing.allreduce()


def test_ranks_import_it_and_say_why_they_cannot(monkeypatch):
    monkeypatch.setattr(os, "environ", {"OMPI_COMM_WORLD_SIZE": "2"})
    assert horovod_module("json").dumps([1]) == "[1]"
    error = horovod_module("json.no_such_part").error
    assert "Received: ModuleNotFoundError: No module named 'json.no_such_part'. Run `make setup`" in str(error)
