"""The scripts of the page of `horovod_keras3`, on two ranks: as they are, and with a mistake each."""

import re

import numpy as np
import pytest
from processes import ROOT

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

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
def outcomes(in_turn, tmp_path_factory):
    """What each script came to, on each rank; one start does all."""
    folder = tmp_path_factory.mktemp("scripts")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(128, 3)).astype("float32")
    y = (x @ draw.normal(size=(3, 4))).argmax(axis=1)
    x_val, y_val = x[:80], np.where(np.arange(80) % 2, draw.integers(4, size=80), y[:80])
    np.savez(folder / "data.npz", x=x, y=y, x_val=x_val, y_val=y_val)
    edits = VARIANTS | {name: edits for name, (edits, _) in MISTAKES.items()}
    scripts = {name: edited(SCRIPT, edits) + RESULT + OF_FIT for name, edits in edits.items()}
    own_loop = edited(f"{SCRIPT.partition(COMPILE)[0]}\n{LOOP}{RESULT}", [])
    scripts |= {"own loop": own_loop, "own loop, not wrapped": own_loop.replace("hvk.DistributedOptimizer(", "(")}
    files = {name: folder / f"{name}.py" for name in scripts}
    for name, script in scripts.items():
        files[name].write_text(script)
    of_jobs = in_turn("mpirun2", [str(file) for file in files.values()], folder=folder)
    return {name: of_jobs[str(file)] for name, file in files.items()} | {"folder": folder}


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
