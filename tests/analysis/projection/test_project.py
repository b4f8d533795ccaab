"""What a step computes and moves, and projections of its time: by hand, their intervals, ratios of two devices."""

import math

import pytest
from made_steps import MACHINE, PEAKS

from analysis.projection.project import project
from analysis.projection.ratio import speed_ratio
from analysis.projection.work import Operation, step_operations
from common.errors import UserError
from common.model.specs import model_spec
from common.sites.table import Cpu, read_sites

GPUS = read_sites().gpus
V100, M60 = GPUS["v100"], GPUS["m60"]
COMPUTE, MEMORY = 15.7 / 4.8, 900 / 160  # of the V100 over the M60: FP32, memory bandwidth


def operations_of(model, **settings):
    spec = model_spec(model, input_shape=(1, 28, 28), outputs=10)
    return {(one.part, one.layer): one for one in step_operations(spec, **{"batch": 3, **settings})}


def projected(study, device=V100, **settings):
    return project("cnn", **{"image": (1, 28, 28), "batch": 64, "device": device, "study": study, **settings})


# Work


def test_products_by_hand():
    found = operations_of("mlp")
    flops, moved = 2 * 3 * 784 * 192, 4 * (3 * 784 + 3 * 192 + 784 * 192 + 192)
    assert found["forward", "fc1"] == Operation("forward", "fc1", flops, moved, 192, is_dense=True)
    assert found["backward", "fc1, by weights"].flops == flops
    assert ("backward", "fc1, by input") not in found  # nobody asks for the gradient of the images
    assert found["backward", "fc2, by input"].flops == 2 * 3 * 192 * 10 and found["forward", "fc2"].smallest == 10
    assert ("forward", "flatten") not in found  # which moves nothing
    found = operations_of("simplecnn")
    convolution = found["forward", "conv2"]  # the product of its positions
    assert convolution.flops == 2 * 3 * 24 * 24 * 8 * (4 * 3 * 3) and convolution.smallest == 8
    assert convolution.bytes == 4 * (3 * 4 * 26 * 26 + 3 * 8 * 24 * 24 + 8 * 4 * 9 + 8)
    assert found["forward", "conv1"].smallest == 4 and found["forward", "relu2"].smallest == math.inf


@pytest.mark.parametrize("model", ["mlp", "cnn", "simplecnn", "dense500", "resnet34"])
def test_a_step_computes_three_times_the_forward_pass_but_the_first_gradient(model):
    spec = model_spec(model, input_shape=(1, 64, 64), outputs=10)
    products = sum(one.flops for one in step_operations(spec, batch=5) if one.smallest < math.inf)
    first = next(row for row in spec.rows if row.multiply_adds)
    assert products == 2 * 5 * (3 * spec.multiply_adds - first.multiply_adds)


def test_the_update_moves_weights_and_states_and_mixed_precision_halves_what_layers_move():
    parameters = model_spec("mlp", input_shape=(1, 28, 28), outputs=10).parameters
    moved = {name: operations_of("mlp", optimizer=name)["update", ""].bytes for name in ("sgd", "adam")}
    # Gradient: set to zero, read; weight and velocity, or weight and two moments: read, written.
    assert moved == {"sgd": 4 * 6 * parameters, "adam": 4 * 8 * parameters}
    single, half = operations_of("cnn"), operations_of("cnn", value_bytes=2)
    assert half["forward", "conv1"].bytes == single["forward", "conv1"].bytes / 2
    assert half["update", ""] == single["update", ""] and half["input", ""] == single["input", ""]
    assert half["forward", "conv1"].flops == single["forward", "conv1"].flops


# Projections


def test_the_parts_of_a_step_by_hand(study):
    found, fitted = projected(study), study.fits["torch"].efficiencies
    operations = step_operations(model_spec("cnn", input_shape=(1, 28, 28), outputs=10), batch=64)
    backward = 0.0
    for one in (one for one in operations if one.part == "backward"):
        efficiency = fitted.dense if one.layer.startswith("fc") else fitted.compute
        compute = one.flops * (1 + fitted.half / one.smallest) / (efficiency * 15.7e12)
        backward += max(compute, one.bytes / (fitted.memory * 900e9))
    assert found.parts["backward"] == pytest.approx(backward)
    overhead = fitted.step_seconds + len(operations) * fitted.operation_seconds
    assert found.parts["overhead"] == pytest.approx(overhead)  # a GPU has no threads to wake
    assert found.parts["exchange"] == 0 and found.seconds == pytest.approx(sum(found.parts.values()))
    assert found.images_per_second == pytest.approx(64 / found.seconds)


def test_the_exchange_of_four_ranks_is_that_of_a_ring_and_inference_has_none(study):
    fitted, sent = study.fits["torch"].efficiencies, 4 * 21_840
    found = projected(study, ranks=4, bandwidth=1e9)
    assert found.parts["exchange"] == pytest.approx(6 * fitted.latency_seconds + 6 / 4 * sent / 1e9)
    here = projected(study, ranks=4)
    assert here.parts["exchange"] == pytest.approx(6 * fitted.latency_seconds + 6 / 4 * sent * fitted.byte_seconds)
    assert found.images == 256 and found.epoch_seconds(1000)[1] == pytest.approx(3 * found.seconds)
    inference = projected(study, training=False, ranks=4).parts
    assert inference["backward"] == inference["update"] == inference["exchange"] == 0
    assert inference["forward"] == here.parts["forward"] and inference["overhead"] < here.parts["overhead"]


def test_intervals_of_the_measured_machine_and_of_one_that_was_never_measured(study):
    found = projected(study, PEAKS[1])
    low, high = study.fits["torch"].errors  # on models that were left out
    assert found.validated and MACHINE in found.basis and "assumption" not in found.basis
    assert found.seconds_low == pytest.approx(min(1, low) * found.seconds) and found.seconds_high >= found.seconds
    assert found.seconds_high == pytest.approx(max(1, high) * found.seconds)
    found = projected(study, batch=65536)
    assert not found.validated and found.basis.startswith("assumption: never measured there")
    spread = [fit.highest / fit.lowest for fit in study.fits.values()]
    # Large batches leave no overhead: the interval is as wide as all efficiencies together.
    assert found.seconds_high / found.seconds_low > 0.9 * max(spread) > 1.5
    assert found.seconds_low < found.seconds < found.seconds_high


def test_what_cannot_be_projected_is_one_line(study):
    cpu = Cpu(name="old", fp32_tflops=0.1, cores=1, threads=1, clock_ghz=1.0, source="")
    with pytest.raises(UserError, match=r"needs the memory bandwidth of the device. Received: old. State"):
        projected(study, cpu)
    with pytest.raises(UserError, match=r"no steps of this framework were measured. Received: jax. Use torch, keras"):
        projected(study, framework="jax")
    with pytest.raises(UserError, match="the images are too small"):
        projected(study, image=(1, 4, 4))


def test_ratios_lie_between_overhead_compute_and_memory(study):
    def ratio(model="mlp", *, image=(1, 28, 28), batch=64, second=M60, **settings):
        return speed_ratio(model, image=image, batch=batch, first=V100, second=second, study=study, **settings)

    large = ratio("resnet34", image=(3, 224, 224), batch=256)
    assert COMPUTE < large.ratio < MEMORY and large.low == pytest.approx(COMPUTE, rel=0.02)
    assert large.high == pytest.approx(MEMORY, rel=0.02)
    assert 1 < ratio(batch=1).ratio < 1.5  # overhead is the same on both
    assert ratio(ranks=8, bandwidths=(12.5e9, 1.25e8)).ratio > MEMORY  # the network makes more of a difference
    same = ratio("cnn", second=V100)
    assert (same.low, same.ratio, same.high) == (1, 1, 1)
    # Compute alone: tensor cores against FP32, less some overhead; memory alone: half the bytes at 900 GB/s.
    mixed = ratio("resnet34", image=(3, 224, 224), dtype="float16")
    assert 20 < mixed.high <= 125 / 4.8 and MEMORY < mixed.low <= 2 * MEMORY
