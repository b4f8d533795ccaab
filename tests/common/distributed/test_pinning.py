"""Device pinning, on fake lists of devices."""

import re
import threading

import pytest
from fake_ranks import run_ranks
from made_power import MadeGpu, MadeNvml

from common.config import DeviceConfig
from common.distributed import pinning
from common.distributed.pinning import check_own_gpu, choose_gpu, gpu_identity, gpu_uuids
from common.errors import UserError

GPUS = ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]


@pytest.mark.parametrize(
    ("settings", "gpus", "taken"),
    [
        ({}, GPUS, GPUS),
        ({"device": "gpu"}, [*GPUS, "GPU:4"], GPUS),
        ({}, ["GPU:0"], ["GPU:0"] * 4),  # each sees its own alone, as with srun --gpus-per-task
        ({"share_gpu": True}, GPUS[:2], ["GPU:0", "GPU:1"] * 2),
        ({}, [], [None] * 4),
        ({"device": "cpu"}, GPUS, [None] * 4),
        ({"mixed_precision": "bfloat16"}, [], [None] * 4),
        ({"mixed_precision": "float16"}, GPUS, GPUS),
        ({"pinned_memory": True}, GPUS, GPUS),
    ],
)
def test_four_ranks_of_a_host_take(settings, gpus, taken):
    config = DeviceConfig(**settings)
    assert [choose_gpu(gpus, config=config, local_rank=rank, local_size=4) for rank in range(4)] == taken


def pin(monkeypatch, uuids, variables, *, share=False):
    """Check a GPU per rank, each the first that its rank sees; return None or the error of each rank."""
    visible = threading.local()
    monkeypatch.setattr(pinning, "gpu_uuids", lambda: visible.uuids)
    monkeypatch.setattr(pinning.os.environ, "get", lambda _: visible.variable)

    def work(comm):
        visible.uuids, visible.variable = uuids[comm.rank : comm.rank + 1], variables[comm.rank]
        check_own_gpu(0, config=DeviceConfig(share_gpu=share), comm=comm)

    return run_ranks(len(variables), work)


def test_ranks_that_see_one_gpu_each_must_see_different_ones(monkeypatch):
    assert pin(monkeypatch, ["GPU-a", "GPU-b"], ["0", "0"]) == [None, None]  # cgroups: each GPU is number 0
    assert pin(monkeypatch, [], ["0", "1"]) == [None, None]  # no NVML
    assert pin(monkeypatch, ["GPU-a", "GPU-a"], ["0", "0"], share=True) == [None, None]
    for uuids, variables, gpu in (
        (["GPU-a", "GPU-a"], ["0", "0"], "GPU-a"),
        ([], ["1", "1"], "GPU 0 of CUDA_VISIBLE_DEVICES=1"),
    ):
        for error in pin(monkeypatch, uuids, variables):
            assert isinstance(error, UserError)
            assert re.search(rf"Received: ranks 0 and 1 of \S+ on the same one \({gpu}\)\. Start one rank", str(error))
            assert "or --share-gpu (not for timings)" in str(error)


@pytest.mark.parametrize(
    ("number", "variable", "expected"),
    [
        (1, None, "GPU-bb"),
        (0, "1", "GPU-bb"),
        (1, "1,0", "GPU-aa"),
        (0, "MIG-7", "GPU 0 of CUDA_VISIBLE_DEVICES=MIG-7"),
        (0, "", "GPU 0 of CUDA_VISIBLE_DEVICES="),
    ],
)
def test_a_gpu_is_identified_by_its_uuid(number, variable, expected):
    assert gpu_identity(number, variable, ["GPU-aa", "GPU-bb"]) == expected


def test_uuids_are_those_of_nvml():
    assert gpu_uuids(MadeNvml([MadeGpu(), MadeGpu()])) == ["GPU-0", "GPU-1"]
    assert gpu_uuids(MadeNvml([], init="no driver")) == []


@pytest.mark.parametrize(
    ("settings", "gpus", "ranks", "line"),
    [  # two more: `refusals/ranks.toml`
        ({}, GPUS, 5, r".*Received: 5 ranks, 4 GPUs\. Start 4 ranks per host, .*or --share-gpu.*"),
        ({"mixed_precision": "float16"}, [], 1, r".*Received: --mixed-precision float16\. Use bfloat16.*"),
        ({"pinned_memory": True}, [], 1, r".*Received: --pinned-memory and no GPU\. Leave it out"),
    ],
)
def test_what_needs_other_gpus_is_one_line_on_every_rank(settings, gpus, ranks, line):
    for rank in range(ranks):
        with pytest.raises(UserError, match=rf"^{line}\Z"):
            choose_gpu(gpus, config=DeviceConfig(**settings), local_rank=rank, local_size=ranks)
