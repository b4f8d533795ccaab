"""Projections by hand, their intervals and what they say of themselves; ratios of two devices."""

import math
from dataclasses import replace

import pytest
from made_steps import MACHINE, PEAKS

from analysis.projection.peaks import Peaks, peaks_of
from analysis.projection.project import project
from analysis.projection.ratio import speed_ratio
from analysis.projection.work import step_operations
from common.errors import UserError
from common.model.specs import model_spec
from common.sites.table import Cpu, read_sites

GPUS = read_sites().gpus


def projected(study, device=GPUS["v100"], **settings):
    return project("cnn", **{"image": (1, 28, 28), "batch": 64, "device": device, "study": study, **settings})


def test_the_parts_of_a_step_by_hand(study):
    found, fitted = projected(study), study.fits["torch"].efficiencies
    operations = step_operations(model_spec("cnn", input_shape=(1, 28, 28), outputs=10), batch=64)
    backward = sum(
        max(
            one.flops
            * (1 + fitted.half / one.smallest)
            / ((fitted.dense if one.layer.startswith("fc") else fitted.compute) * 15.7e12),
            one.bytes / (fitted.memory * 900e9),
        )
        for one in operations
        if one.part == "backward"
    )
    assert found.parts["backward"] == pytest.approx(backward)
    assert found.parts["overhead"] == pytest.approx(
        fitted.step_seconds + len(operations) * fitted.operation_seconds
    )  # a GPU has no threads to wake
    assert found.parts["exchange"] == 0 and found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.images_per_second == pytest.approx(64 / found.seconds)


def test_the_exchange_of_four_ranks_is_that_of_a_ring(study):
    fitted, sent = study.fits["torch"].efficiencies, 4 * 21_840
    found = projected(study, ranks=4, bandwidth=1e9)
    assert found.parts["exchange"] == pytest.approx(6 * fitted.latency_seconds + 6 / 4 * sent / 1e9)
    here = projected(study, ranks=4)
    assert here.parts["exchange"] == pytest.approx(6 * fitted.latency_seconds + 6 / 4 * sent * fitted.byte_seconds)
    assert found.images == 256 and found.epoch_seconds(1000)[1] == pytest.approx(3 * found.seconds)


def test_inference_is_the_input_and_the_forward_pass(study):
    found, whole = projected(study, training=False, ranks=2), projected(study, ranks=2)
    assert found.parts["backward"] == found.parts["update"] == found.parts["exchange"] == 0
    assert found.parts["forward"] == whole.parts["forward"] and found.parts["overhead"] < whole.parts["overhead"]


def test_the_interval_of_the_measured_machine_is_that_of_errors_on_left_out_models(study):
    found = projected(study, PEAKS[1])
    low, high = study.fits["torch"].errors
    assert found.validated and MACHINE in found.basis and "assumption" not in found.basis
    assert found.seconds_low == pytest.approx(min(1, low) * found.seconds) and found.seconds_high >= found.seconds
    assert found.seconds_high == pytest.approx(max(1, high) * found.seconds)


def test_a_machine_that_was_never_measured_has_the_interval_of_all_efficiencies(study):
    found = projected(study, batch=65536)
    assert not found.validated and found.basis.startswith("assumption: never measured there")
    spread = [fit.highest / fit.lowest for fit in study.fits.values()]
    # Large batches leave no overhead: the interval is as wide as all efficiencies together.
    assert found.seconds_high / found.seconds_low > 0.9 * max(spread) > 1.5
    assert found.seconds_low < found.seconds < found.seconds_high


def test_tensor_cores_count_in_mixed_precision_where_there_are_some(study):
    assert peaks_of(GPUS["v100"], dtype="float16").flops_per_second == 125e12
    assert peaks_of(GPUS["m60"], dtype="float16") == peaks_of(GPUS["m60"])
    assert projected(study, dtype="bfloat16").seconds < projected(study).seconds


def test_what_cannot_be_projected_is_one_line(study):
    cpu = Cpu(name="old", fp32_tflops=0.1, cores=1, threads=1, clock_ghz=1.0, source="")
    with pytest.raises(UserError, match=r"needs the memory bandwidth of the device. Received: old. State"):
        projected(study, cpu)
    with pytest.raises(UserError, match=r"no steps of this framework were measured. Received: jax. Use torch, keras"):
        projected(study, framework="jax")
    with pytest.raises(UserError, match="the images are too small"):
        projected(study, image=(1, 4, 4))


def test_ratios_lie_between_overhead_compute_and_memory(study):
    v100, m60 = GPUS["v100"], GPUS["m60"]
    compute, memory = 15.7 / 4.8, 900 / 160
    large = speed_ratio("resnet34", image=(3, 224, 224), batch=256, first=v100, second=m60, study=study)
    assert compute < large.ratio < memory and large.low == pytest.approx(compute, rel=0.02)
    assert large.high == pytest.approx(memory, rel=0.02)
    small = speed_ratio("mlp", image=(1, 28, 28), batch=1, first=v100, second=m60, study=study)
    assert 1 < small.ratio < 1.5  # overhead is the same on both
    slow = speed_ratio("mlp", image=(1, 28, 28), batch=64, ranks=8, bandwidths=(12.5e9, 1.25e8), first=v100, second=m60,
                       study=study)  # fmt: skip
    assert slow.ratio > memory  # the network makes more of a difference than the GPUs
    same = speed_ratio("cnn", image=(1, 28, 28), batch=64, first=v100, second=v100, study=study)
    assert (same.low, same.ratio, same.high) == (1, 1, 1)


def test_a_device_without_tensor_cores_computes_in_float32_beside_one_with_them(study):
    settings = {"image": (3, 224, 224), "batch": 64, "study": study}
    found = speed_ratio("resnet34", first=GPUS["v100"], second=GPUS["m60"], dtype="float16", **settings)
    # Compute alone: tensor cores against FP32, less some overhead; memory alone: half the bytes at 900 GB/s.
    assert 20 < found.high <= 125 / 4.8 and 900 / 160 < found.low <= 2 * 900 / 160
    mixed, single = (projected(study, GPUS["v100"], dtype=dtype) for dtype in ("float16", "float32"))
    assert mixed.parts["forward"] < single.parts["forward"]


def test_threads_of_a_processor_cost_time_to_wake(study):
    one = Peaks(device="x", threads=1, flops_per_second=1e12, bytes_per_second=1e11)
    found = [projected(study, replace(one, threads=threads)).parts["overhead"] for threads in (1, 2, 16)]
    each = found[1] - found[0]
    assert each > 0 and found[2] - found[0] == pytest.approx(4 * each) and math.isfinite(each)
