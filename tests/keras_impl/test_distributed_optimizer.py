"""`keras_impl.distributed_optimizer`: real ranks, over Gloo and over MPI, against one process, in float64.

One start of two ranks per controller, and one of four for process sets, hold all proofs (see
`distributed_optimizer_worker.py`); each test here judges some. Every proof carries what an optimizer that averages
nothing would have given, and must differ from it.
"""

import ast
import dataclasses
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import relative_difference
from processes import TESTS, environment, launcher_command

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

TOLERANCE = 1e-12
CONTROLLERS = ["gloo", "mpi"]
SIZES = {"three": 3, "sets": 4}  # ranks of a part; else 2
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
OPTIMIZERS = [
    *(f"keras_{name}" for name in KERAS_OPTIMIZERS),
    *(f"ours_{name}" for name in ("SGD", "Adam", "AdamW", "RMSprop")),
    *["loss_scale", "multi"],
]
PROOFS = [
    *OPTIMIZERS,
    *[
        "loss_scale_accumulation",
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
        "sparse_keras_SGD_dense",
        "sparse_keras_SGD_rows",
        "sparse_keras_Adam_dense",
        "sparse_keras_Adam_rows",
        "fit",
        "late_layer",
    ],
]
PROOFS_OVER_GLOO = [
    "fit_callback",
    "fit_passes",
    "overflow_in_a_pass",
    "from_config",
    "resumed",
]
EMBEDDINGS = ["embedding_dense", "embedding_rows", "embedding_passes"]
SPARSE_PROOFS = [*(f"sparse_{name}_{kind}" for name in OPTIMIZERS for kind in ("dense", "rows")), *EMBEDDINGS]
SPARSE_PROOFS_ON_FOUR = [*(name for name in PROOFS if name.startswith("sparse_")), *EMBEDDINGS]
# Where no controller can make a difference.
over_gloo = pytest.mark.parametrize("run", ["gloo"], indirect=True)


@dataclasses.dataclass(frozen=True)
class Run:
    """A finished run: its folder and the arrays of all ranks."""

    folder: Path
    ranks: list[dict[str, np.ndarray]]


@functools.cache
def start(controller, folder, part):
    """Starts the worker for one of its parts; returns its output if it fails, so as not to try again."""
    worker = [sys.executable, str(TESTS / "distributed_optimizer_worker.py"), str(folder), part]
    # Only horovodrun can start Gloo; mpirun is quicker.
    size = SIZES.get(part, 2)
    launcher = launcher_command({"none": "none", "mpi": f"mpirun{size}", "gloo": f"gloo{size}"}[controller])
    command = [*launcher, *worker]
    # Without a launcher, MPI does not know where it is installed.
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
def base_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("distributed_optimizer")


@pytest.fixture(params=CONTROLLERS)
def run(request, base_folder):
    folder = base_folder / request.param
    folder.mkdir(exist_ok=True)
    finished = start(request.param, folder, "two" if request.param == "gloo" else "fewer")
    assert isinstance(finished, Run), finished
    assert len(finished.ranks) == 2
    yield finished


@pytest.fixture(params=CONTROLLERS)
def four(request, base_folder):
    folder = base_folder / f"{request.param}_sets"
    folder.mkdir(exist_ok=True)
    finished = start(request.param, folder, "sets")
    assert isinstance(finished, Run), finished
    assert len(finished.ranks) == 4
    yield finished


@pytest.fixture
def three(base_folder):
    """Three ranks, as division by two and four is exact."""
    folder = base_folder / "three"
    folder.mkdir(exist_ok=True)
    finished = start("mpi", folder, "three")
    assert isinstance(finished, Run), finished
    assert len(finished.ranks) == 3
    return finished


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_three_ranks_equal_one_process(three, name):
    check_proof(three, name)


@pytest.mark.parametrize("name", PROOFS)
def test_two_ranks_equal_one_process(run, name):
    check_proof(run, name)


@over_gloo
@pytest.mark.parametrize("name", PROOFS_OVER_GLOO)
def test_two_ranks_equal_one_process_over_gloo(run, name):
    check_proof(run, name)


@over_gloo
@pytest.mark.parametrize("name", SPARSE_PROOFS)
def test_sparse_gradients_on_two_ranks_equal_one(run, name):
    check_sparse_proof(run, name)


@pytest.mark.parametrize("name", SPARSE_PROOFS_ON_FOUR)
def test_sparse_gradients_on_four_ranks_equal_one(four, name):
    check_sparse_proof(four, name)


def test_keras_alone_takes_repeated_rows_one_by_one(four):
    """Why an embedding trains otherwise under a wrapped AdamW, on one rank too: see keras_impl/README.md."""
    (rank, *_) = four.ranks
    assert relative_difference(rank["embedding_plain"], rank["embedding_rows/wrapped"]) > 1e-3


def check_sparse_proof(run, name):
    """As any proof, and one rank that is wrapped holds the same weights."""
    check_proof(run, name)
    for rank in run.ranks:
        assert relative_difference(rank[f"{name}/wrapped"], rank[f"{name}/expected"]) < TOLERANCE


def check_proof(run, name):
    """All ranks hold the weights of the one process, which are not those of a rank alone."""
    for rank in run.ranks:
        assert np.array_equal(rank[f"{name}/received"], run.ranks[0][f"{name}/received"])
        assert relative_difference(rank[f"{name}/received"], rank[f"{name}/expected"]) < TOLERANCE
        assert relative_difference(rank[f"{name}/alone"], rank[f"{name}/expected"]) > 1e-5


def test_no_optimizer_of_keras_was_forgotten(run):
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
        ("four_passes_mean", 1, 0),
        ("sparse_keras_SGD_dense", 1, 0),
        ("sparse_keras_SGD_rows", 2, 0),
        ("own_process_set", 0, 0),
    ],
)
def test_number_of_allreduces(run, name, grouped, single):
    for rank in run.ranks:
        assert rank[f"calls/{name}"].tolist() == [grouped, single]


def test_fit_traces_one_grouped_allreduce(run):
    """Keras may trace a step more than once; each trace holds one grouped call and no other."""
    grouped, single = run.ranks[0]["calls/fit"].tolist()
    assert single == 0
    assert grouped in (1, 2)


def test_mixed_dtypes(run):
    """Two of three variables are float32, so the agreement is that of float32."""
    first, second = (rank["two_dtypes/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    assert relative_difference(first, run.ranks[0]["two_dtypes/expected"]) < 1e-6
    assert relative_difference(first[12:15], run.ranks[0]["two_dtypes/expected"][12:15]) < TOLERANCE  # the float64 one


def test_fp16_compression(run):
    """Near the exact weights, not equal to them (float16 was really on the wire), and the same on both ranks."""
    first, second = (rank["fp16/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    assert 1e-7 < relative_difference(first, run.ranks[0]["fp16/expected"]) < 1e-3


def test_sum_is_not_average(run):
    """Momentum SGD is linear in the gradients: from the start point the sum goes twice as far as the average."""
    draw = np.random.default_rng(1)
    begin = np.concatenate([draw.normal(size=shape).ravel() for shape in [(4, 3), (3,), (5, 4)]])
    expected = begin + 2 * (run.ranks[0]["sum/expected"] - begin)
    for rank in run.ranks:
        assert relative_difference(rank["sum/received"], expected) < TOLERANCE


def test_process_set_of_one_trains_alone(run):
    for rank in run.ranks:
        assert np.array_equal(rank["own_process_set/received"], rank["own_process_set/alone"])


def test_local_variables_stay_local(run):
    """The last variable (20 entries) follows this rank's gradient over the number of ranks; the others are shared."""
    first, second = (rank["local/received"] for rank in run.ranks)
    assert np.array_equal(first[:-20], second[:-20])
    assert not np.any(first[-20:] == second[-20:])
    for rank in run.ranks:
        assert relative_difference(rank["local/received"], rank["local/expected"]) < TOLERANCE


@pytest.mark.parametrize(("name", "factor"), [("four_passes_mean", 1), ("four_passes_sum", 4)])
def test_four_passes_an_update(run, name, factor):
    """Gradients of rank r: 1, none, and -(r + 1) for the first row of a shared table and of a local one."""
    for number, rank in enumerate(run.ranks):
        for passes, weights in enumerate(rank[name], start=1):
            total = factor * (passes // 4)
            expected = [total, 7, 1 - 1.5 * total, 2, 1 - (number + 1) / 2 * total, 2]
            assert np.allclose(weights, expected, rtol=0, atol=TOLERANCE), f"after pass {passes}"
        assert rank[f"{name}_iterations"] == 2  # Keras counts updates, Horovod passes


@over_gloo
def test_overflow_ruins_weights_without_a_loss_scale(run):
    """The proof that nothing of it is left in the accumulators would show nothing otherwise."""
    for rank in run.ranks:
        assert not np.all(np.isfinite(rank["overflow_in_a_pass/ruined"]))


@over_gloo
def test_embedding_waits_for_its_second_pass(run):
    """Three passes of two: one is still pending, as in the plain optimizer that the weights are compared with."""
    assert run.ranks[0]["embedding_pending"] == 1


@over_gloo
def test_config_is_that_of_the_plain_optimizer(run):
    for rank in run.ranks:
        assert rank["same_config"].tolist() == [True, True, True]


@over_gloo
def test_custom_optimizer_loads_with_its_state(run):
    assert run.ranks[0]["resumed_facts"].tolist() == [True, True]  # the plain class, the saved slots and rate


@over_gloo
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_local_layers_stay_local(run, layers):
    """After a broadcast that leaves them out and a step of SGD; a Dense of 16 weights, then one of 10."""
    name, local = f"local_layers_{layers}", [0, 16, 26][layers]
    first, second = (rank[f"{name}/received"] for rank in run.ranks)
    assert np.array_equal(first[local:], second[local:])
    assert not np.any(first[:local] == second[:local])
    for rank in run.ranks:
        assert rank[f"{name}/broadcast"].all()
        assert relative_difference(rank[f"{name}/received"], rank[f"{name}/expected"]) < TOLERANCE


@over_gloo
def test_elastic_state_synchronizes_and_restores(run):
    """Three weights, then the optimizer's iterations, rate and momentum, then batch and epoch."""
    for rank in run.ranks:
        state = {name: rank[f"elastic/{name}"] for name in ("synchronized", "moved", "restored", "committed")}
        assert state["synchronized"].tolist() == [1, 1, 1, 0, 0.1, 0, 0, 0, 20, 10]
        assert np.array_equal(state["restored"], state["synchronized"])
        assert np.array_equal(rank["elastic/restored_again"], state["committed"])
        for name in ("moved", "committed"):
            changed = state[name] != state["synchronized"]
            assert changed.tolist() == [True] * 4 + [False] + [True] * 5
            assert np.array_equal(state[name], run.ranks[0][f"elastic/{name}"])


def test_overflow_on_one_rank_makes_all_skip(run):
    first, second = (rank["overflow/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    for rank in run.ranks:
        assert relative_difference(rank["overflow/received"], rank["overflow/expected"]) < TOLERANCE
        assert rank["overflow_state"].tolist() == [2, 2.0]  # two of three updates done, scale 4 halved


def test_ranks_may_trace_different_graphs(run):
    first, second = (rank["retracing/received"] for rank in run.ranks)
    assert np.array_equal(first, second)
    assert relative_difference(first, run.ranks[0]["retracing/expected"]) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("not_initialized", "hvd.init()"),
        ("not_keras", "TypeError"),
        ("twice", "already"),
        ("op", "hvd.Average, hvd.Sum or"),
        ("compression", "'zip'"),
        ("groups", "groups=0"),
        ("passes", "backward_passes_per_step"),
        ("passes_loss_scale", "backward_passes_per_step"),
        ("process_set", "hvd.init(process_sets=[...])"),
        ("model_alone", "this rank's gradients alone"),
        ("model_xla", "jit_compile=False"),
        ("xla", "jit_compile=False"),
        ("model_loss_scale", "DistributedOptimizer(LossScaleOptimizer(...))"),
        ("loss_scale_outside", "DistributedOptimizer(LossScaleOptimizer(...))"),
        ("loss_scale_outside_accumulation", "DistributedOptimizer(LossScaleOptimizer(...))"),
        ("model_right", "no error"),
    ],
)
def test_messages(run, name, words):
    for rank in run.ranks:
        assert words in str(rank[f"message/{name}"])


@over_gloo
def test_saved_models_load_without_horovod(run):
    command = [sys.executable, str(TESTS / "load_without_horovod_worker.py"), str(run.folder)]
    output = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120, check=False)
    assert output.returncode == 0, output.stderr[-6000:]
    assert output.stdout.splitlines() == [
        "keras_adam Adam keras.src.optimizers.adam 8 9",
        "loss_scale LossScaleOptimizer keras.src.optimizers.loss_scale_optimizer 8 9",
        "our_adam Adam keras_impl.update_rules 8 9",
    ]


@pytest.mark.ci
def test_one_process_calls_nothing(base_folder):
    folder = base_folder / "none"
    folder.mkdir()
    finished = start("none", folder, "alone")
    assert isinstance(finished, Run), finished
    (rank,) = finished.ranks
    assert rank["calls/one_process"].tolist() == [0, 0]
    for name in ("one_process", "one_process_xla"):
        assert relative_difference(rank[f"{name}/received"], rank[f"{name}/expected"]) < TOLERANCE


SETS = ["sets_eager", "sets_graph", "sets_per_tensor", "sets_passes", "sparse_sets_dense", "sparse_sets_rows"]


@pytest.mark.parametrize("name", SETS)
def test_process_sets_average_among_themselves(four, name):
    received = [rank[f"{name}/received"] for rank in four.ranks]
    assert np.array_equal(received[0], received[2])
    assert np.array_equal(received[1], received[3])
    assert relative_difference(received[0], received[1]) > 1e-5
    for rank in four.ranks:
        assert relative_difference(rank[f"{name}/received"], rank[f"{name}/expected"]) < TOLERANCE
        assert relative_difference(rank[f"{name}/alone"], rank[f"{name}/expected"]) > 1e-5


@pytest.mark.parametrize(("name", "calls"), [("even_eager", 4), ("even_graph", 1)])
def test_ranks_outside_the_process_set_train_alone(four, name, calls):
    received = [rank[f"{name}/received"] for rank in four.ranks]
    assert np.array_equal(received[0], received[2])
    for number, rank in enumerate(four.ranks):
        kind = "expected" if number in (0, 2) else "alone"
        assert relative_difference(received[number], rank[f"{name}/{kind}"]) < TOLERANCE
        assert relative_difference(received[number], rank["everyone"]) > 1e-5
        assert rank[f"calls/{name}"].tolist() == ([calls, 0] if number in (0, 2) else [0, 0])
    assert relative_difference(four.ranks[0][f"{name}/alone"], received[0]) > 1e-5


@pytest.mark.parametrize(
    ("name", "grouped", "single"), [("sets_eager", 4, 0), ("sets_per_tensor", 0, 12), ("sparse_sets_rows", 4, 0)]
)
def test_number_of_allreduces_in_process_sets(four, name, grouped, single):
    for rank in four.ranks:
        assert rank[f"calls/{name}"].tolist() == [grouped, single]


def test_process_sets_compress(four):
    for rank, partner in zip(four.ranks, [2, 3, 0, 1], strict=True):
        assert np.array_equal(rank["sets_fp16/received"], four.ranks[partner]["sets_fp16/received"])
        assert 1e-7 < relative_difference(rank["sets_fp16/received"], rank["sets_fp16/expected"]) < 1e-3


def test_process_sets_divide_local_gradients_by_their_size(four):
    for rank in four.ranks:
        assert relative_difference(rank["sets_local/received"], rank["sets_local/expected"]) < TOLERANCE


def test_overflow_makes_its_process_set_skip(four):
    """Rank 1 overflows: 1 and 3 skip, 0 and 2 do not."""
    for rank, state in zip(four.ranks, [[3, 4.0], [2, 2.0], [3, 4.0], [2, 2.0]], strict=True):
        assert relative_difference(rank["overflow/received"], rank["overflow/expected"]) < TOLERANCE
        assert rank["overflow_state"].tolist() == state


def test_it_can_be_lifted_into_another_project():
    """Two files, the first under 200 lines, that import nothing else of this project."""
    folder = TESTS.parents[1] / "keras_impl"
    assert len((folder / "distributed_optimizer.py").read_text().splitlines()) < 200
    imported = set()
    for name in ("distributed_optimizer", "gradient_exchange"):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module)
    assert {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names} == {
        "horovod.tensorflow",
        "keras",
        "keras_impl.gradient_exchange",
        "tensorflow",
        "tensorflow.python.ops",
    }
