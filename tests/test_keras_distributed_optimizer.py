"""`keras_impl.distributed_optimizer`: two real ranks, over Gloo and over MPI, against one process, in float64.

One start per controller holds all proofs (see `distributed_optimizer_worker.py`); each test here judges some. Every
proof carries what an optimizer that averages nothing would have given, and must differ from it.
"""

import dataclasses
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rule_workers import TESTS, environment, relative_difference

TOLERANCE = 1e-12
CONTROLLERS = ("gloo", "mpi")
KERAS_OPTIMIZERS = [
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "Adamax",
    "AdamW",
    "Ftrl",
    "Lamb",
    "Lion",
    "Muon",
    "Nadam",
    "RMSprop",
    "ScheduleFreeAdamW",
    "SGD",
]
PROOFS = [
    *(f"keras_{name}" for name in KERAS_OPTIMIZERS),
    *(f"ours_{name}" for name in ("SGD", "Adam", "AdamW", "RMSprop")),
    *[
        "loss_scale",
        "multi",
        "graph",
        "none",
        "two_groups",
        "many_groups",
        "per_tensor",
        "per_tensor_graph",
        "clipvalue",
        "clipnorm",
    ],
    *[
        "global_clipnorm",
        "weight_decay",
        "ema",
        "accumulation",
        "accumulation_graph",
        "schedule",
        "callable_rate",
        "passes",
    ],
    *[
        "wrapped_late",
        "sparse_sgd_dense",
        "sparse_sgd_rows",
        "sparse_adam_dense",
        "sparse_adam_rows",
        "fit",
        "late_layer",
    ],
]


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: its folder and the arrays of both ranks."""

    folder: Path
    ranks: list[dict[str, np.ndarray]]


@functools.cache
def start(controller: str, folder: Path) -> Run | str:
    """Starts the worker on two ranks (or alone, for "none"); returns its output if it fails, so as not to try again."""
    worker = [sys.executable, str(TESTS / "distributed_optimizer_worker.py"), str(folder)]
    launcher = [str(Path(sys.executable).parent / "horovodrun"), "-np", "2", f"--{controller}"]
    command = [*worker, "alone"] if controller == "none" else [*launcher, *worker]
    # Without a launcher nobody tells MPI where it is installed.
    alone = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"} if controller == "none" else {}
    with subprocess.Popen(
        command,
        env=environment() | alone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # ranks that wait for each other would stay for ever
            return f"{controller}: not finished after 300 s\n{process.communicate()[0][-6000:]}"
    if process.returncode != 0:
        return f"{controller}: ended with {process.returncode}\n{output[-6000:]}"
    ranks = []
    for file in sorted(folder.glob("rank*.npz")):
        with np.load(file) as arrays:
            ranks.append(dict(arrays))
    return Run(folder, ranks)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distributed_optimizer")


@pytest.fixture(params=CONTROLLERS)
def run(request: pytest.FixtureRequest, base_folder: Path) -> Iterator[Run]:
    folder = base_folder / request.param
    folder.mkdir(exist_ok=True)
    finished = start(request.param, folder)
    assert isinstance(finished, Run), finished
    assert len(finished.ranks) == 2
    yield finished


@pytest.mark.parametrize("name", PROOFS)
def test_two_ranks_equal_one_process(run: Run, name: str) -> None:
    first, second = (rank[f"{name}/received"] for rank in run.ranks)
    assert np.array_equal(first, second), "the ranks hold different weights"
    for rank in run.ranks:
        assert relative_difference(rank[f"{name}/received"], rank[f"{name}/expected"]) < TOLERANCE
        assert relative_difference(rank[f"{name}/alone"], rank[f"{name}/expected"]) > 1e-5


def test_no_optimizer_of_keras_was_forgotten(run: Run) -> None:
    found = {key.split("/")[0] for key in run.ranks[0] if key.startswith("keras_")}
    assert found == {name for name in PROOFS if name.startswith("keras_")}


@pytest.mark.parametrize(
    ("name", "grouped", "single"),
    [
        ("ours_SGD", 4, 0),  # eager: one grouped call for each of the 4 updates
        ("loss_scale", 4, 0),
        ("graph", 1, 0),  # traced once
        ("none", 1, 0),
        ("two_groups", 8, 0),
        ("many_groups", 12, 0),  # never more groups than tensors
        ("per_tensor", 0, 12),
        ("per_tensor_graph", 0, 3),
        ("two_dtypes", 2, 0),
        ("accumulation", 2, 0),  # two updates of two gradients each
        ("passes", 2, 0),
        ("sparse_sgd_dense", 1, 0),
        ("sparse_sgd_rows", 2, 0),
        ("own_process_set", 0, 0),
    ],
)
def test_number_of_allreduces(run: Run, name: str, grouped: int, single: int) -> None:
    for rank in run.ranks:
        assert rank[f"calls/{name}"].tolist() == [grouped, single]


def test_fit_traces_one_grouped_allreduce(run: Run) -> None:
    """Keras may trace a step more than once; each trace holds one grouped call and no other."""
    grouped, single = run.ranks[0]["calls/fit"].tolist()
    assert single == 0
    assert grouped in (1, 2)


def test_mixed_dtypes(run: Run) -> None:
    """Two of three variables are float32, so the agreement is that of float32."""
    first, second = (rank["two_dtypes/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    assert relative_difference(first, run.ranks[0]["two_dtypes/expected"]) < 1e-6
    assert relative_difference(first[12:15], run.ranks[0]["two_dtypes/expected"][12:15]) < TOLERANCE  # the float64 one


def test_fp16_compression(run: Run) -> None:
    """Near the exact weights, not equal to them (float16 was really on the wire), and the same on both ranks."""
    first, second = (rank["fp16/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    assert 1e-7 < relative_difference(first, run.ranks[0]["fp16/expected"]) < 1e-3


def test_sum_is_not_average(run: Run) -> None:
    """Momentum SGD is linear in the gradients: from the start point the sum goes twice as far as the average."""
    draw = np.random.default_rng(1)
    begin = np.concatenate([draw.normal(size=shape).ravel() for shape in [(4, 3), (3,), (5, 4)]])
    expected = begin + 2 * (run.ranks[0]["sum/expected"] - begin)
    for rank in run.ranks:
        assert relative_difference(rank["sum/received"], expected) < TOLERANCE


def test_process_set_of_one_trains_alone(run: Run) -> None:
    for rank in run.ranks:
        assert np.array_equal(rank["own_process_set/received"], rank["own_process_set/alone"])


def test_local_variables_stay_local(run: Run) -> None:
    """The last variable (20 entries) follows this rank's gradient over the number of ranks; the others are shared."""
    first, second = (rank["local/received"] for rank in run.ranks)
    assert np.array_equal(first[:-20], second[:-20])
    assert not np.any(first[-20:] == second[-20:])
    for rank in run.ranks:
        assert relative_difference(rank["local/received"], rank["local/expected"]) < TOLERANCE


def test_overflow_on_one_rank_makes_all_skip(run: Run) -> None:
    first, second = (rank["overflow/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    for rank in run.ranks:
        assert relative_difference(rank["overflow/received"], rank["overflow/expected"]) < TOLERANCE
        assert rank["overflow_state"].tolist() == [2, 2.0]  # two of three updates done, scale 4 halved


def test_ranks_may_trace_different_graphs(run: Run) -> None:
    first, second = (rank["retracing/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    assert relative_difference(first, run.ranks[0]["retracing/expected"]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not_initialised", "hvd.init()"),
        ("not_keras", "TypeError"),
        ("twice", "already"),
        ("op", "hvd.Average or hvd.Sum"),
        ("compression", "'zip'"),
        ("groups", "groups=0"),
        ("passes", "backward_passes_per_step"),
        ("local_passes", "local_variables"),
        ("model_alone", "this rank's gradients alone"),
        ("model_xla", "jit_compile=False"),
        ("xla", "jit_compile=False"),
        ("model_loss_scale", "DistributedOptimizer(LossScaleOptimizer(...))"),
        ("loss_scale_outside", "DistributedOptimizer(LossScaleOptimizer(...))"),
        ("model_right", "no error"),
    ],
)
def test_messages(run: Run, name: str, words: str) -> None:
    for rank in run.ranks:
        assert words in str(rank[f"message/{name}"])


@pytest.mark.parametrize("run", ["gloo"], indirect=True)
def test_saved_models_load_without_horovod(run: Run) -> None:
    command = [sys.executable, str(TESTS / "load_without_horovod_worker.py"), str(run.folder)]
    output = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert output.returncode == 0, output.stderr[-6000:]
    assert output.stdout.splitlines() == [
        "keras_adam Adam keras.src.optimizers.adam 8 9",
        "loss_scale LossScaleOptimizer keras.src.optimizers.loss_scale_optimizer 8 9",
        "our_adam Adam keras_impl.update_rules 8 9",
    ]


def test_one_process_calls_nothing(base_folder: Path) -> None:
    folder = base_folder / "none"
    folder.mkdir()
    finished = start("none", folder)
    assert isinstance(finished, Run), finished
    (rank,) = finished.ranks
    assert rank["calls/one_process"].tolist() == [0, 0]
    for name in ("one_process", "one_process_xla"):
        assert relative_difference(rank[f"{name}/received"], rank[f"{name}/expected"]) < TOLERANCE
