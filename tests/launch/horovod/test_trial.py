"""The trial of a Horovod: which libraries it refuses."""

from pathlib import Path

import pytest

from launch.horovod import trial


def test_libraries_of_another_place_or_twice_are_found():
    ours = Path("/clone/.venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2")
    elsewhere = Path("/usr/lib/x86_64-linux-gnu/libnccl.so.2")
    maps = f"7f0-7f1 r-xp 00000000 08:01 12  {ours}\n7f1-7f2 rw-p 00000000 00:00 0\n7f2-7f3 r-xp 0 08:01 9  {ours}\n"
    assert trial.loaded_libraries(maps) == [ours]
    venv = Path("/clone/.venv")
    trial.check_libraries([ours], environment=venv, needed=["libnccl.so"])
    for paths, words in (
        ([], "did not load libnccl.so"),
        ([elsewhere], "not this environment's"),
        ([ours, elsewhere], "two copies"),
    ):
        with pytest.raises(trial.TrialError, match=words):
            trial.check_libraries(paths, environment=venv, needed=["libnccl.so"])
