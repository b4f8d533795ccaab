"""Device pinning, on fake lists of devices."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import DeviceConfig
from common.distributed.pinning import choose_gpu, visible_gpus
from common.errors import UserError

GPUS = ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]


@given(count=st.integers(1, 16), data=st.data())
def test_every_rank_of_a_host_has_its_own_gpu(count: int, data: st.DataObject) -> None:
    local_size = data.draw(st.integers(1, count))
    gpus = [f"GPU:{number}" for number in range(count)]
    for config in (DeviceConfig(), DeviceConfig(device="gpu")):
        taken = [choose_gpu(gpus, config=config, local_rank=rank, local_size=local_size) for rank in range(local_size)]
        assert taken == gpus[:local_size]


def test_without_gpus_auto_is_the_cpu() -> None:
    assert choose_gpu([], config=DeviceConfig(), local_rank=0, local_size=4) is None


def test_the_cpu_can_be_chosen_on_a_host_with_gpus() -> None:
    assert choose_gpu(GPUS, config=DeviceConfig(device="cpu"), local_rank=3, local_size=99) is None


def test_a_missing_gpu_is_reported_in_one_line() -> None:
    with pytest.raises(UserError, match=r"no GPU was found. Received: --device gpu") as error:
        choose_gpu([], config=DeviceConfig(device="gpu"), local_rank=0, local_size=1)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("config", [DeviceConfig(), DeviceConfig(device="gpu")], ids=["auto", "gpu"])
@pytest.mark.parametrize("local_rank", [0, 4])
def test_more_ranks_than_gpus_is_refused_on_every_rank(config: DeviceConfig, local_rank: int) -> None:
    with pytest.raises(UserError, match=r"Received: 5 ranks, 4 GPUs. Start 4 ranks per host"):
        choose_gpu(GPUS, config=config, local_rank=local_rank, local_size=5)


@pytest.mark.parametrize("device", ["auto", "gpu"])
def test_mixed_precision_needs_a_gpu(device: Literal["auto", "gpu"]) -> None:
    config = DeviceConfig(device=device, mixed_precision=True)
    with pytest.raises(UserError, match=r"mixed precision needs a GPU. Received: --mixed-precision"):
        choose_gpu([], config=config, local_rank=0, local_size=1)
    assert choose_gpu(GPUS, config=config, local_rank=1, local_size=2) == "GPU:1"


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["V100", "P100", "T4"]),
        ("", []),
        ("2", ["T4"]),
        ("2, 0", ["T4", "V100"]),
        ("GPU-b", ["P100"]),
        ("0,7,1", ["V100"]),  # CUDA stops at the first invalid entry
        ("-1", []),
    ],
)
def test_gpus_visible_to_a_process(variable: str | None, expected: list[str]) -> None:
    gpus = [("0", "GPU-aa", "V100"), ("1", "GPU-bb", "P100"), ("2", "GPU-cc", "T4")]
    assert visible_gpus(gpus, variable) == expected
