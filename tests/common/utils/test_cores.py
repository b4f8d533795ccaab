"""Cores whose time a container may use."""

import pytest

from common.distributed.core_sharing import CoreShare, limited
from common.utils import cores
from common.utils.cores import cpu_quota, usable_cores

V1 = "7:devices:/docker/abc\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/\n"
V1_QUOTA, V1_PERIOD = "sys/fs/cgroup/cpu/{}cpu.cfs_quota_us", "sys/fs/cgroup/cpu/{}cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        (V1, {V1_QUOTA.format("docker/abc/"): "150000", V1_PERIOD.format("docker/abc/"): "100000"}, 1.5),
        (V1, {V1_QUOTA.format(""): "50000", V1_PERIOD.format(""): "100000"}, 0.5),  # in the container's own namespace
        (V1, {V1_QUOTA.format("docker/abc/"): "-1", V1_PERIOD.format("docker/abc/"): "100000"}, None),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        ("0::/a/b\n", {"sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 3.0),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ("0::/\n", {}, None),
        (None, {}, None),
    ],
)  # fmt: skip
def test_a_quota_of_processor_time(tmp_path, groups, files, quota):
    for name, text in {**files, **({"proc/self/cgroup": groups} if groups else {})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("quota", "usable"), [(None, 4), (9.0, 4), (2.5, 2), (0.5, 1)])
def test_a_quota_counts_as_cores(monkeypatch, quota, usable):
    monkeypatch.setattr(cores, "own_cores", lambda: frozenset(range(4)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert usable_cores() == usable


def test_ranks_share_a_quota():
    share = CoreShare(total=4, own=2.0)  # of two ranks
    assert limited(share, quota=None) == limited(share, quota=4.0) == share
    half = limited(share, quota=2.5)
    assert (half.total, half.own) == (2, 1.25)
    assert not half.is_exceeded_by(1) and half.is_exceeded_by(2)
    assert limited(share, quota=0.5).is_exceeded_by(1)
