"""Threads per rank: ranks that share cores divide them, ranks that are bound to cores of their own do not."""

import json
import os
import subprocess
import sys

import pytest
from processes import ROOT, child_environment, launcher_command

from common.distributed.core_sharing import CoreShare, core_share, share_of_cores, threads_per_rank

FIRST, SECOND = frozenset(range(40)), frozenset(range(40, 80))


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([FIRST, SECOND], [40, 40]),  # bound by srun --cpus-per-task=40
        ([FIRST | SECOND] * 2, [40, 40]),
        ([frozenset(range(20))] * 2, [10, 10]),
        ([frozenset({0, 1, 2}), frozenset({2, 3})], [2, 1]),  # 2.5 and 1.5 cores
        ([frozenset({0})] * 3, [1, 1, 1]),
        ([frozenset(range(9))] * 3 + [frozenset({9})], [3, 3, 3, 1]),
    ],
)
def test_threads_are_the_cores_of_a_rank(ranks, expected):
    total = len(frozenset().union(*ranks))
    shares = [CoreShare(total, share_of_cores(own, ranks)) for own in ranks]
    assert sum(share.own for share in shares) == pytest.approx(total)
    assert [threads_per_rank(None, share=share) for share in shares] == expected
    assert [threads_per_rank(7, share=share) for share in shares] == [7] * len(ranks)
    assert [share.is_exceeded_by(threads) for share, threads in zip(shares, expected, strict=True)] == [
        share.own < 1 for share in shares
    ]


def test_one_process_has_the_cores_it_may_use():
    cores = len(os.sched_getaffinity(0))
    assert core_share(local_size=1) == CoreShare(cores, cores)
    assert core_share(local_size=4) == CoreShare(cores, cores / 4)  # no launcher: the others are not found


RANK = """
import json, os, sys, time
from pathlib import Path
from common.distributed.core_sharing import core_share
folder, number = Path(sys.argv[1]), os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"]
(folder / f"there-{number}").touch()
while len(list(folder.glob("there-*"))) < 2:
    time.sleep(0.01)
share = core_share(local_size=2)
(folder / f"share-{number}").write_text(json.dumps([share.total, share.own]))
while len(list(folder.glob("share-*"))) < 2:
    time.sleep(0.01)
"""


@pytest.mark.ranks
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two cores are needed")
@pytest.mark.parametrize(
    ("launcher", "bound"), [("mpirun2", True), ("mpirun2", False), pytest.param("gloo2", True, marks=pytest.mark.ci)]
)
def test_real_ranks_find_the_cores_of_each_other(tmp_path, launcher, bound):
    """Each is bound by taskset, inside a shell that is not."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    number = "${OMPI_COMM_WORLD_RANK:-$HOROVOD_RANK}"
    cores = f"$([ {number} = 0 ] && echo {first} || echo {second})" if bound else f"{first},{second}"
    (tmp_path / "rank.py").write_text(RANK)
    script = tmp_path / "rank.sh"
    script.write_text(f"taskset -c {cores} {sys.executable} {tmp_path}/rank.py {tmp_path}\nexit $?\n")
    environment = child_environment(tmp_path) | {"PYTHONPATH": str(ROOT)}
    command = [*launcher_command(launcher), "bash", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shares = [json.loads((tmp_path / f"share-{rank}").read_text()) for rank in range(2)]
    assert shares == [[2, 1.0], [2, 1.0]]
