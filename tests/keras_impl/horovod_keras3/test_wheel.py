"""The wheel of `horovod_keras3`, in an environment that has the packages of this one and nothing of this project.

One start of a launcher does all that is asked of it: the scripts of the page of `horovod_keras3`, as they are and with
a mistake each, and then the checks of `optimizer_checks.py`, in float64.
"""

import functools
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from frameworks import names_of, need
from made_environment import environment_with
from processes import ROOT, TESTS, finish, launcher_command, start_command

CHECKS = Path(__file__).with_name("optimizer_checks.py")
CHECKS_OF = {
    "mpirun1": ["one_process"],
    "mpirun2": names_of(CHECKS),
    # What a controller can change. Division by two and four is exact, by three it is not.
    "gloo3": ["check_optimizers", "check_settings_of_optimizers", "check_ways_of_exchange", "check_overflow"],
    "mpirun4": ["one_optimizer", "process_sets"],
}
MOST_SECONDS = 800  # of a start, on a machine that has much else to do
pytestmark = [pytest.mark.ranks, pytest.mark.ci, pytest.mark.timeout(MOST_SECONDS + 100)]

PACKAGE = ROOT / "keras_impl" / "horovod_keras3"
SCRIPT, LOOP = re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), flags=re.DOTALL)
COMPILE = "\nmodel.compile("
BROADCAST = "    hvk.BroadcastCallback(),"
AVERAGE = "    hvk.MetricAverageCallback(),"
STOPPING = "    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),\n"
CHECK = "hvk.check_same_weights(model)\n"
SCALED = "0.01 * hvd.size()"
BY_RANK = (SCALED, "0.01 * hvd.rank()")
SHORT = ("epochs=20", "epochs=2")
# What a script with a mistake or two prints, of rank 0.
MISTAKES = {
    "each rank stops by its own loss": (
        [(AVERAGE, "    #")],
        r"the ranks differ in what comes next. Received: epoch \d+ on rank 0, the end on rank 1. "
        r"Put MetricAverageCallback\(\) before EarlyStopping",
    ),
    "metrics are averaged too late": (
        [(AVERAGE, "    #"), (STOPPING, f"{STOPPING}    hvk.MetricAverageCallback(),\n")],
        "whether a callback has stopped the training. Received: False on rank 0, True on rank 1. Put MetricAverage",
    ),
    "metrics of other names": (
        [("=(x_val, y_val)\n", "=(x_val, y_val) if hvd.rank() else None\n"), (STOPPING, "")],
        "the names of the metrics. Received: accuracy, loss on rank 0, accuracy, loss, val_accuracy, val_loss on rank",
    ),
    "a batch more": (
        [("16 * hvk.equal_batches(len(x) // 16)", "16 * (len(x) // 16)")],
        "the number of batches per epoch. Received: 3 on rank 0, 4 on rank 1. .*Cut the data to equal_batches",
    ),
    "no batch": ([("len(x) // 16)", "len(x) // 64)")], "every rank needs a batch. Received: 0 on rank 0. Use smaller"),
    "a rate by rank": (
        [BY_RANK],
        r"the learning rate. Received: 0 on rank 0, 0.01 on rank 1. Scale it by hvd.size\(\)",
    ),
    "a rate by rank, later": (
        [SHORT, (STOPPING, "    keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 * (1 + hvd.rank())),\n")],
        "the learning rate. Received: 0.01 on rank 0, 0.02 on rank 1. Scale it",
    ),
    "a rate by rank, of a second optimizer": (
        [
            (
                "callbacks = [",
                "second = hvk.DistributedOptimizer(keras.optimizers.SGD(1.0 + hvd.rank()))\ncallbacks = [",
            ),
            (BROADCAST, "    hvk.BroadcastCallback(optimizer, second),"),
        ],
        "the learning rate. Received: 0.02, 1 on rank 0, 0.02, 2 on rank 1",
    ),
    "no broadcast": (
        [SHORT, (BROADCAST, "    #")],
        "do not have the same weights. Received: 2 of 4 variables differ between rank 0 and rank 1, .*dense/kernel "
        "first. Use DistributedOptimizer and BroadcastCallback",
    ),
    "other layers": (
        [('Dense(16, "relu")', 'Dense(16 + hvd.rank(), "relu")')],
        r"the shape and type of variable 0, .*kernel. Received: \(3, 16, 'float32'\) on rank 0, \(3, 17, 'float32'\)",
    ),
    "optimizers in another order": (
        [(COMPILE, f"\nif hvd.rank():\n    optimizer = hvk.DistributedOptimizer(keras.optimizers.Adam())\n{COMPILE}")],
        r"the names of their optimizers. Received: DistributedOptimizer\d+ on rank 0, .*Wrap the same optimizers",
    ),
}
# What a script without a mistake does otherwise.
VARIANTS = {
    "as it is": [],
    "a state that only rank 0 has loaded": [
        SHORT,
        (
            "callbacks = [",
            "if hvd.rank() == 0:\n    optimizer.iterations.assign(7)\n    optimizer.learning_rate.assign(0.5)\n"
            "callbacks = [",
        ),
    ],
    "built by its first batch": [SHORT, ("keras.Input(x.shape[1:]), ", "")],
    "a bias of each rank": [
        SHORT,
        (f"{SCALED})", f"{SCALED}), local_variables=[model.layers[-1].bias]"),
        ("callbacks = [", "model.layers[-1].bias.assign([hvd.rank()] * 4)\ncallbacks = ["),
    ],
    "in silence": [SHORT, BY_RANK, (BROADCAST, "    #"), (AVERAGE, "    #"), (STOPPING, ""), (CHECK, "")],
}
# Rank 0 has 48 and rank 1 64 samples; what is to be found in them, rank 1's validation data do not have.
OF_TESTS = [
    ("data = np.load", "keras.utils.set_random_seed(hvd.rank())\ndata = np.load"),
    ("samples =", "x, y = (part[: 48 + 16 * hvd.rank()] for part in (x, y))\nsamples ="),
]
RESULT = """
result = {"weights": np.concatenate([weight.numpy().ravel() for weight in model.weights]).tolist()}
result |= {"updates": int(optimizer.iterations), "rate": float(optimizer.learning_rate)}
"""
OF_FIT = """
result |= {"history": history.history, "loss": model.evaluate(x_val, y_val, return_dict=True, verbose=0)["loss"]}
"""


def edited(script, edits):
    for old, new in [*OF_TESTS, *edits]:
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Made as users make it, but without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["make", "horovod-keras3", f"PYTHON={sys.executable}", f"DIST={folder}", "WHEELS="]
    variables = os.environ | {"PIP_NO_BUILD_ISOLATION": "0"}  # 0: the build takes what is installed
    subprocess.run(command, cwd=ROOT, env=variables, check=True)
    (built,) = folder.iterdir()
    return built


def write_scripts(folder):
    """Write all scripts and their data; return name -> path."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(128, 3)).astype("float32")
    y = (x @ draw.normal(size=(3, 4))).argmax(axis=1)
    x_val, y_val = x[:80], np.where(np.arange(80) % 2, draw.integers(4, size=80), y[:80])
    np.savez(folder / "data.npz", x=x, y=y, x_val=x_val, y_val=y_val)
    edits = VARIANTS | {name: edits for name, (edits, _) in MISTAKES.items()}
    scripts = {name: edited(SCRIPT, edits) + RESULT + OF_FIT for name, edits in edits.items()}
    own_loop = edited(f"{SCRIPT.partition(COMPILE)[0]}\n{LOOP}{RESULT}", [])
    scripts |= {"own loop": own_loop, "own loop, not wrapped": own_loop.replace("hvk.DistributedOptimizer(", "(")}
    for name, script in scripts.items():
        (folder / f"{name}.py").write_text(script)
    return {name: str(folder / f"{name}.py") for name in scripts}


@pytest.fixture(scope="module")
def outcomes_of(wheel, tmp_path_factory):
    """A function of a launcher: job -> what `in_turn.py` has of each rank; and the folder."""
    need("keras")
    python = environment_with(wheel, tmp_path_factory.mktemp("environment"))

    @functools.cache
    def do(launcher):
        folder = tmp_path_factory.mktemp(launcher)
        jobs = write_scripts(folder) if launcher == "mpirun2" else {}
        jobs |= {check: f"{CHECKS}:{check}" for check in CHECKS_OF[launcher]}
        command = [*launcher_command(launcher), python, "-I", str(TESTS / "in_turn.py"), *jobs.values()]
        done = finish(start_command(command, folder=folder), within_seconds=MOST_SECONDS)
        files = [folder / f"{rank}.json" for rank in range(int(launcher[-1]))]
        of_ranks = [json.loads(file.read_text()) if file.exists() else {} for file in files]
        missing = (1, f"not reached:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}", None)
        outcomes = {name: [of_rank.get(job, missing) for of_rank in of_ranks] for name, job in jobs.items()}
        return outcomes | {"folder": folder}

    return do


@pytest.mark.parametrize(("launcher", "check"), [(one, check) for one, checks in CHECKS_OF.items() for check in checks])
def test_the_optimizer_averages_as_one_process_computes(launcher, check, outcomes_of):
    for code, errors, _ in outcomes_of(launcher)[check]:
        assert code == 0, errors


def test_the_wheel_has_the_files_that_our_trainers_use_and_the_license(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    assert packed == {f"horovod_keras3/{file.name}": file.read_bytes() for file in PACKAGE.glob("*.py")}


@pytest.fixture
def outcomes(outcomes_of):
    """What each script came to, on each rank."""
    return outcomes_of("mpirun2")


def values(outcomes, name):
    """Return the results of both ranks of a script that ended well."""
    (zero, other) = outcomes[name]
    assert (zero[:2], other[:2]) == ([0, ""], [0, ""])
    return zero[2], other[2]


def test_ranks_stop_together_by_the_mean_of_their_losses_and_hold_the_same_weights(outcomes):
    zero, other = values(outcomes, "as it is")
    assert zero["history"] == other["history"] and zero["weights"] == other["weights"]
    losses = zero["history"]["val_loss"]
    assert 3 <= len(losses) < 20
    assert zero["updates"] == other["updates"] == 3 * len(losses)
    assert abs(zero["loss"] - other["loss"]) > 0.1
    assert (zero["loss"] + other["loss"]) / 2 == pytest.approx(min(losses), abs=1e-6)
    assert (outcomes["folder"] / "model.keras").exists()


def test_a_state_that_only_rank_0_has_loaded_is_that_of_all(outcomes):
    zero, other = values(outcomes, "a state that only rank 0 has loaded")
    assert zero["rate"] == other["rate"] == 0.5
    assert zero["updates"] == other["updates"] == 7 + 3 * 2
    assert zero["weights"] == other["weights"]


def test_a_model_that_its_first_batch_builds_is_broadcast_then(outcomes):
    zero, other = values(outcomes, "built by its first batch")
    assert zero["weights"] == other["weights"]


def test_what_ranks_keep_to_themselves_is_neither_sent_nor_compared(outcomes):
    zero, other = (np.array(value["weights"]) for value in values(outcomes, "a bias of each rank"))
    assert np.array_equal(zero[:-4], other[:-4])
    assert np.all(other[-4:] - zero[-4:] > 0.5)


def test_a_loop_of_one_s_own_trains_alike(outcomes):
    zero, other = values(outcomes, "own loop")
    assert zero["weights"] == other["weights"] and zero["updates"] == other["updates"] == 3
    assert [code for code, *_ in outcomes["own loop, not wrapped"]] == [2, 2]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_of_rank_0_and_exit_code_2_of_every_rank(mistake, outcomes):
    (code, printed, _), other = outcomes[mistake]
    assert (code, *other) == (2, 2, "", None)
    assert re.fullmatch(f"error: .*{MISTAKES[mistake][1]}.*\n", printed), printed


def test_without_the_callbacks_ranks_drift_apart_in_silence(outcomes):
    zero, other = values(outcomes, "in silence")
    assert zero["weights"] != other["weights"]
