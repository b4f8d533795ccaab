"""The script of keras_impl/README.md, "In your own script", on two ranks: as it is, and with a mistake each."""

import re

import numpy as np
import pytest
from frameworks import need
from jobs import Job, do_job, start_of
from processes import ROOT

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

SECTION = (ROOT / "keras_impl/README.md").read_text().split("## In your own script")[1]
(SCRIPT,) = re.findall(r"```python\n(.*?)```", SECTION, flags=re.DOTALL)
BROADCAST = "    BroadcastCallback(),"
AVERAGE = "    MetricAverageCallback(),"
STOPPING = "    keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),\n"
CHECK = "check_same_weights(model)\n"
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
        [(AVERAGE, "    #"), (STOPPING, f"{STOPPING}    MetricAverageCallback(),\n")],
        "whether a callback has stopped the training. Received: False on rank 0, True on rank 1. Put MetricAverage",
    ),
    "metrics of other names": (
        [("(x_val, y_val), callbacks", "(x_val, y_val) if hvd.rank() else None, callbacks"), (STOPPING, "")],
        "the names of the metrics. Received: accuracy, loss on rank 0, accuracy, loss, val_accuracy, val_loss on rank",
    ),
    "a batch more": (
        [("16 * equal_batches(len(x) // 16)", "16 * (len(x) // 16)")],
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
            ("callbacks = [", "second = DistributedOptimizer(keras.optimizers.SGD(1.0 + hvd.rank()))\ncallbacks = ["),
            (BROADCAST, "    BroadcastCallback(optimizer, second),"),
        ],
        "the learning rate. Received: 0.02, 1 on rank 0, 0.02, 2 on rank 1",
    ),
    "no broadcast": (
        [SHORT, (BROADCAST, "    #")],
        "do not hold the same weights. Received: 2 of 4 variables differ between rank 0 and rank 1, .*dense/kernel "
        "first. Use DistributedOptimizer and BroadcastCallback",
    ),
    "other layers": (
        [('Dense(16, "relu")', 'Dense(16 + hvd.rank(), "relu")')],
        r"the shape and type of variable 0, .*kernel. Received: \(3, 16, 'float32'\) on rank 0, \(3, 17, 'float32'\)",
    ),
    "optimizers in another order": (
        [("\nloss =", "\nif hvd.rank():\n    optimizer = DistributedOptimizer(keras.optimizers.Adam())\nloss =")],
        r"the names of their optimizers. Received: DistributedOptimizer\d+ on rank 0, .*Wrap the same optimizers",
    ),
}


def do(folder, *edits):
    """Run the script with some edits on two ranks; return the outcome of each.

    Rank 0 has 48 and rank 1 64 samples; what is to be found in them, rank 1's validation data do not have.
    """
    need("keras")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(128, 3)).astype("float32")
    y = (x @ draw.normal(size=(3, 4))).argmax(axis=1)
    x_val, y_val = x[:80], np.where(np.arange(80) % 2, draw.integers(4, size=80), y[:80])
    np.savez(folder / "data.npz", x=x, y=y, x_val=x_val, y_val=y_val)
    script = SCRIPT
    for old, new in [("samples =", "x, y = (part[: 48 + 16 * hvd.rank()] for part in (x, y))\nsamples ="), *edits]:
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    (folder / "script.py").write_text(script)
    job = Job("own script", (folder / "script.py",), program="own_script_worker:run")
    return do_job(job, start=start_of("keras", launcher="mpirun2", arguments=()), folder=folder)


def test_ranks_stop_together_by_the_mean_of_their_losses_and_hold_the_same_weights(tmp_path):
    outcomes = do(tmp_path)
    assert [(outcome.code, outcome.stderr) for outcome in outcomes] == [(0, ""), (0, "")]
    zero, other = (outcome.value for outcome in outcomes)
    assert zero["history"] == other["history"] and zero["weights"] == other["weights"]
    losses = zero["history"]["val_loss"]
    assert 3 <= len(losses) < 20
    assert zero["updates"] == other["updates"] == 3 * len(losses)
    assert abs(zero["loss"] - other["loss"]) > 0.1
    assert (zero["loss"] + other["loss"]) / 2 == pytest.approx(min(losses), abs=1e-6)
    assert (tmp_path / "model.keras").exists()


def test_a_state_that_only_rank_0_has_loaded_is_that_of_all(tmp_path):
    loaded = "if hvd.rank() == 0:\n    optimizer.iterations.assign(7)\n    optimizer.learning_rate.assign(0.5)\n"
    zero, other = (outcome.value for outcome in do(tmp_path, SHORT, ("callbacks = [", f"{loaded}callbacks = [")))
    assert zero["rate"] == other["rate"] == 0.5
    assert zero["updates"] == other["updates"] == 7 + 3 * 2
    assert zero["weights"] == other["weights"]


def test_a_model_that_its_first_batch_builds_is_broadcast_then(tmp_path):
    unbuilt = ("keras.Input(x.shape[1:]), ", "")
    zero, other = (outcome.value for outcome in do(tmp_path, SHORT, unbuilt))
    assert zero["weights"] == other["weights"]


def test_what_ranks_keep_to_themselves_is_neither_sent_nor_compared(tmp_path):
    edits = (SCALED + ")", f"{SCALED}), local_variables=[model.layers[-1].bias]")
    own = ("callbacks = [", "model.layers[-1].bias.assign([hvd.rank()] * 4)\ncallbacks = [")
    zero, other = (np.array(outcome.value["weights"]) for outcome in do(tmp_path, SHORT, edits, own))
    assert np.array_equal(zero[:-4], other[:-4])
    assert np.all(other[-4:] - zero[-4:] > 0.5)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_of_rank_0_and_exit_code_2_of_every_rank(mistake, tmp_path):
    edits, line = MISTAKES[mistake]
    zero, other = do(tmp_path, *edits)
    assert (zero.code, other.code, other.stderr) == (2, 2, "")
    assert re.fullmatch(f"error: .*{line}.*\n", zero.stderr), zero.stderr


def test_without_the_callbacks_ranks_drift_apart_in_silence(tmp_path):
    outcomes = do(tmp_path, SHORT, BY_RANK, (BROADCAST, "    #"), (AVERAGE, "    #"), (STOPPING, ""), (CHECK, ""))
    zero, other = (outcome.value for outcome in outcomes)
    assert [(outcome.code, outcome.stderr) for outcome in outcomes] == [(0, ""), (0, "")]
    assert zero["weights"] != other["weights"]
