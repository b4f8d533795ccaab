"""What only a machine with an NVIDIA GPU can prove of both trainers. `make test-gpu` runs it; nothing else does.

Numbers are compared as movements of the weights, tensor by tensor: a tensor that is not trained differs by all of it.
"""

import subprocess
import sys

import numpy as np
import pytest
from gpu_runs import furthest, gpu_names, movements, start, train, try_horovod, weights_of

from common.run_folder.records import NotRecorded

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]

DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--batch-size", "32", "--lr-scaling", "none"]
MLP = [*DATA, "--model", "mlp", "--max-steps", "4"]
CNN = [*DATA, "--model", "cnn", "--no-dropout", "--max-steps", "4"]
DOUBLE = ["--dtype", "float64"]
BY_LAYER = ["--profile", "--profile-layers"]
EXACT = 1e-10  # of movements in float64, whose sums a GPU adds in another order
# The distance of two neighboring numbers above 1. Each product rounds its factors, sums of both signs lose digits, and
# a maximum may take the other side: on a CPU bfloat16 moves weights of the MLP by 1 of them, of the CNN by 13.
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "tf32": 2.0**-10, "float32": 2.0**-23}
ROUNDINGS = 32
DOUBLED = [*MLP[:-2], "--batch-size", "64", *MLP[-2:]]  # one process with the batches of two
both_models = pytest.mark.parametrize("model", [MLP, CNN], ids=["mlp", "cnn"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function that trains with these settings, once."""
    folder, done = tmp_path_factory.mktemp("gpu"), {}

    def run(framework, *arguments, ranks=1, **variables):
        key = (framework, arguments, ranks, *variables.items())
        if key not in done:
            done[key] = train(framework, f"run{len(done)}", *arguments, folder=folder, ranks=ranks, **variables)
        return done[key]

    return run


@pytest.fixture
def moved(runs, framework):
    """A function that returns the movements of a run's weights."""

    def of(model, *arguments, ranks=1, **variables):
        unmoved = runs(framework, *model[:-2], *[word for word in arguments if word in DOUBLE], "--epochs", "0")
        return movements(runs(framework, *model, *arguments, ranks=ranks, **variables), unmoved)

    return of


@both_models
def test_a_gpu_trains_as_the_cpu(moved, model):
    assert furthest(moved(model, *DOUBLE), moved(model, *DOUBLE, "--device", "cpu")) < EXACT
    difference = furthest(moved(model), moved(model, "--device", "cpu"))
    assert 0 < difference < 1000 * EPSILON["float32"]  # of the order of sums alone; TF32 is off by default


@pytest.mark.parametrize("settings", [[], ["--mixed-precision", "bfloat16"], ["--no-channels-last"], ["--compile"]])
def test_a_run_repeats_bit_for_bit_with_these_settings(runs, framework, settings, tmp_path):
    run, again = runs(framework, *CNN, *settings), train(framework, "again", *CNN, *settings, folder=tmp_path)
    assert run.record.hashes.final_weights == again.record.hashes.final_weights


def test_a_run_names_its_gpu_and_its_memory(runs, framework):
    run = runs(framework, *CNN)
    assert not run.record.world.on_cpu
    (model,) = run.record.world.gpus
    assert any(model.removeprefix("NVIDIA ") in line for line in gpu_names())
    # At least the weights and their gradients.
    assert run.record.isolation.peak_device_memory_bytes[0] > 2 * 4 * run.record.model.parameters


# Ranks and GPUs


def test_more_ranks_than_gpus_are_refused(framework, tmp_path):
    arguments = [*MLP, "--device", "gpu"]
    done = start(framework, arguments, folder=tmp_path, ranks=2, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert "each rank of a host needs its own GPU" in line and "--share-gpu" in line
    assert not (tmp_path / "runs").exists()


def test_ranks_that_share_a_gpu_train_as_one_process(moved, framework):
    two = moved(MLP, *DOUBLE, "--share-gpu", ranks=2, CUDA_VISIBLE_DEVICES="0")
    assert furthest(two, moved(DOUBLED, *DOUBLE)) < EXACT


@pytest.mark.needs(nccl=True)
def test_a_rank_alone_reaches_nccl(framework, tmp_path):
    timeline = tmp_path / "timeline.json"
    variables = {"HOROVOD_TIMELINE": str(timeline), "NCCL_DEBUG": "INFO"}
    done = try_horovod(framework, "--nccl", folder=tmp_path, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cpu" not in done.stdout.lower()
    assert "NCCL INFO" in done.stdout + done.stderr
    assert "NCCL_ALLREDUCE" in timeline.read_text()


@pytest.mark.needs(gpus=2, nccl=True)
def test_ranks_have_gpus_of_their_own_and_nccl_averages_gradients(runs, moved, framework):
    settings = [*DOUBLE, "--horovod-timeline"]
    two = moved(MLP, *settings, ranks=2)
    assert furthest(two, moved(DOUBLED, *DOUBLE)) < EXACT
    run = runs(framework, *MLP, *settings, ranks=2)
    assert len(set(run.record.world.devices)) == 2
    timeline = (run.folder / "timeline.json").read_text()
    assert "NCCL_ALLREDUCE" in timeline and "MPI_ALLREDUCE" not in timeline


@pytest.mark.needs(gpus=2)
def test_two_replicas_have_gpus_of_their_own(runs, moved, framework):
    if framework == "torch":
        pytest.skip("PyTorch has no such strategy")
    replicas = [*DOUBLE, "--strategy", "native", "--native", "mirrored", "--replicas", "2"]
    both = moved(MLP, *replicas)
    assert furthest(both, moved(DOUBLED, *DOUBLE)) < EXACT
    run = runs(framework, *MLP, *replicas)
    assert len(run.record.world.gpus) == 1 and run.record.isolation.peak_device_memory_bytes[0] > 0


# Precision and layout


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@both_models
def test_mixed_precision_moves_weights_as_float32_within_its_rounding(moved, model, name):
    difference = furthest(moved(model, "--mixed-precision", name), moved(model))
    assert EPSILON[name] / 100 < difference < ROUNDINGS * EPSILON[name]


@pytest.mark.needs(capability=8)
@both_models
def test_tf32_rounds_factors_to_ten_bits_and_only_where_it_is_on_also_in_compiled_products(moved, model):
    rounded, compiled = moved(model, "--tf32"), moved(model, "--tf32", "--compile")
    assert EPSILON["tf32"] / 100 < furthest(rounded, moved(model, "--no-tf32")) < ROUNDINGS * EPSILON["tf32"]
    assert furthest(compiled, rounded) < ROUNDINGS * EPSILON["tf32"]
    assert furthest(compiled, moved(model, "--no-tf32", "--compile")) > EPSILON["tf32"] / 100


KERNELS = """
import torch
from torch.profiler import ProfilerActivity, profile
images = torch.rand(8, 16, 32, 32, device="cuda").to(memory_format=torch.channels_last)
layers = [torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
model = torch.nn.Sequential(*layers).cuda()
model(images).sum().backward()
with profile(activities=[ProfilerActivity.CUDA]) as kernels:
    model(images).sum().backward()
names = [event.key.lower() for event in kernels.key_averages()]
print(any("conv" in name or "gemm" in name or "xmma" in name for name in names), [n for n in names if "nchw" in n])
"""


def test_images_stay_channels_last_beside_weights_that_are_not(framework):
    """Horovod exchanges contiguous gradients only; cuDNN takes the layout of the images for both."""
    if framework == "keras":
        pytest.skip("Keras has one layout for both")
    done = subprocess.run([sys.executable, "-c", KERNELS], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "True []"


def test_channels_first_and_last_compute_the_same(moved):
    assert furthest(moved(CNN, *DOUBLE, "--channels-last"), moved(CNN, *DOUBLE, "--no-channels-last")) < EXACT


@pytest.mark.parametrize("layout", ["--channels-last", "--no-channels-last"])
def test_pinned_memory_changes_no_bit(runs, framework, layout):
    pinned, pageable = runs(framework, *CNN, layout, "--pinned-memory"), runs(framework, *CNN, layout)
    if framework == "torch":
        assert (pinned.record.world.pinned_memory, pageable.record.world.pinned_memory) == (True, False)
    else:
        assert isinstance(pinned.record.world.pinned_memory, NotRecorded)
    for name, array in weights_of(pageable).items():
        assert np.array_equal(weights_of(pinned)[name], array), name


# Measurements


def test_energy_is_that_of_the_gpus_counter(framework, tmp_path):
    import pynvml

    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)
    options = [*CNN[:-2], "--epochs", "3", "--energy", "--power-interval", "0.05", "--idle-seconds", "1"]
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    run = train(framework, "metered", *options, folder=tmp_path, CUDA_VISIBLE_DEVICES=uuid)
    counted = (pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) - before) / 1000  # joules, of the whole process
    energy = run.record.energy
    device = next(device for device in energy.devices if device.name == "gpu0")
    assert (device.method, device.used) == ("counter", True)
    assert 0 < device.joules < sum(device.joules_by_phase.values()) <= counted
    metered = sum(energy.seconds_by_phase.values())
    watts = sum(device.joules_by_phase.values()) / metered
    assert device.idle_watts_before / 2 < watts < pynvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000 * 1.2


def test_the_parts_of_a_profiled_step_add_up(runs, framework):
    arguments = [*CNN[:-2], "--max-steps", "30"]
    profile = runs(framework, *arguments, "--profile").record.profile
    assert profile.parts_over_step == pytest.approx(1.0, abs=0.02)
    parts = {part for part, seconds in profile.parts_seconds.items() if seconds > 0}
    assert parts == {"input", "forward", "backward", "optimizer", "rest"}
    timed, profiled = weights_of(runs(framework, *arguments)), weights_of(runs(framework, *arguments, "--profile"))
    for name, array in timed.items():
        assert np.linalg.norm(profiled[name] - array) <= 1000 * EPSILON["float32"] * np.linalg.norm(array), name


def test_a_profile_by_layers_waits_for_no_copies_of_what_layers_hand_on(runs, framework):
    """Keras' once copied activations and gradients to the host: 16 MB of a layer here, more than a millisecond."""
    data = ["--dataset", "synthetic:600x64x64x3x10", "--batch-size", "32", "--model", "simplecnn", "--max-steps", "18"]
    whole, layers = (runs(framework, *data, *flags).record.profile for flags in (["--profile"], BY_LAYER))
    of_passes = [sum(profile.parts_seconds[part] for part in ("forward", "backward")) for profile in (whole, layers)]
    assert of_passes[1] < 2 * of_passes[0] + 18 * 1e-3
