"""Two runs that must train the same weights: on other ranks, by another strategy, in other parts, compiled or not.

One table for all of it, `same_training.toml`: the settings, which runs agree and how closely, and which must not, so
that the proofs can fail. Float64 shows it best: ranks add the same gradients in another order, and nothing else may
differ. In float32 that order alone moves a ReLU or a maximum to the other side now and then: there one update is
compared, and a whole epoch only for the model that has neither.
"""

import itertools
import tomllib
from pathlib import Path

import numpy as np
import pytest
from frameworks import need
from jobs import FRAMEWORKS, Jobs, cases_of, relative_difference, train, words_of

from common.checks.parity_cases import IMAGES, make_spec
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, load_weights
from common.run_folder.records import NotRecorded

pytestmark = pytest.mark.ranks

TABLE = tomllib.loads(Path(__file__).with_name("same_training.toml").read_text())
GLOBAL, STEPS, EPOCHS = 48, 5, 2  # images of an update, updates of an epoch, epochs
EXACT = 0.0  # bit for bit: a sum of two numbers is the same in either order
MORE_ROUNDING = 1e-11
MODELS = [name for name in IMAGES if all(weight.trainable for weight in make_spec(name).weights)]  # no BatchNorm


def all_rows():
    """Return the rows of the table, and for each model without BatchNorm one process and two ranks."""
    for name in MODELS:
        of_model = f"float64 --model {name} --no-dropout --batch-size"
        quick = {"mlp": FRAMEWORKS, "cnn": ("torch",)}.get(name, ())
        yield {"name": name, "settings": f"{of_model} {GLOBAL}", "launcher": "none"}
        row = {"name": f"{name} on 2", "settings": f"{of_model} {GLOBAL // 2}", "quick": quick}
        yield row | {"same": name, "within": MORE_ROUNDING} | ({"across": 1e-10} if name == "mlp" else {})
    yield from TABLE["run"]


ROWS = {row["name"]: row for row in all_rows()}


def job_of(row):
    launcher, patch = row.get("launcher", "mpirun2"), row.get("patch", "")
    return train(row["name"], *words_of(row["settings"], TABLE["settings"]), launcher=launcher, patch=patch)


def rows_with(key):
    """Return the rows that have a value in a column, a start of ranks after the other."""
    rows = sorted(ROWS.values(), key=lambda row: row.get("launcher", ""))
    return {row["name"]: row for row in rows if key in row}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("same"), map(job_of, ROWS.values()))


def differences(one, other):
    assert one.keys() == other.keys()
    return {name: relative_difference(one[name], other[name]) for name in other}


def check_same(run, other, *, tolerance):
    """Check that two runs started and trained alike: weights, losses and accuracies of every epoch, test."""
    assert run.record.hashes.initial_weights == other.record.hashes.initial_weights
    if tolerance == EXACT:
        assert run.record.hashes.final_weights == other.record.hashes.final_weights
    else:
        weights, expected = (load_weights(one.folder / "weights.safetensors") for one in (run, other))
        apart = differences(weights, expected)
        assert max(apart.values()) < tolerance, apart
    assert run.record.hashes.sample_order == other.record.hashes.sample_order
    near = max(10 * tolerance, 1e-12)
    for ours, theirs in zip(run.epochs, other.epochs, strict=True):
        assert ours.training_loss == pytest.approx(theirs.training_loss, rel=near)
        assert (ours.validation_loss is None) == (theirs.validation_loss is None)
        if ours.validation_loss is not None:
            assert ours.validation_loss == pytest.approx(theirs.validation_loss, rel=near)
        if tolerance <= MORE_ROUNDING:
            assert ours.training_accuracy == theirs.training_accuracy
            assert ours.validation_accuracy == theirs.validation_accuracy
        assert ours.learning_rate == theirs.learning_rate
    assert run.record.totals.test_loss == pytest.approx(other.record.totals.test_loss, rel=near)


@cases_of(rows_with("same"))
def test_runs_train_the_same_weights(jobs, framework, name):
    row, run = ROWS[name], jobs.run(framework, name)
    check_same(run, jobs.run(framework, row["same"]), tolerance=row["within"])
    assert run.record.world.parts == row.get("parts", run.record.world.parts)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("framework", "name"), [("torch", "ddp"), ("keras", "multiworker"), ("keras", "mirrored")], indirect=["framework"]
)
def test_the_record_says_who_shared_the_work_of_a_native_strategy(jobs, framework, name):
    """Two workers, of which mirrored has both in one process; PyTorch's gradients are counted."""
    record, updates = jobs.run(framework, f"mlp {name}").record, EPOCHS * STEPS
    assert record.world.size == (1 if name == "mirrored" else 2)
    of_worker = (GLOBAL // 2, GLOBAL // 2 * updates, updates)
    workers = record.sharing.workers
    assert [(worker.batch_size, worker.images, worker.updates) for worker in workers] == [of_worker] * 2
    hidden = NotRecorded("TensorFlow exchanges gradients inside its strategy")
    sent = VALUE * MLP_VALUES if name == "ddp" else hidden
    assert all(worker.sent_bytes == worker.received_bytes == sent for worker in workers)
    assert record.sharing.formula_bytes == VALUE * MLP_VALUES


VALUE, MLP_VALUES = 8, 152_650  # bytes; weights


@cases_of(rows_with("sent"))
def test_bytes_of_a_model_in_parts_are_counted_where_they_are_sent(jobs, framework, name):
    record, sent = jobs.run(framework, name).record, ROWS[name]["sent"]
    assert [worker.updates for worker in record.sharing.workers] == [STEPS * EPOCHS] * 2
    assert [worker.sent_bytes for worker in record.sharing.workers] == [VALUE * GLOBAL * one for one in sent]
    if "split" not in name:
        assert record.sharing.formula_bytes == VALUE * GLOBAL * sum(sent) / 2
    # And the memory of each rank.
    assert len(record.isolation.memory_before_bytes) == len(record.model.forecast_bytes) == 2
    assert all(0 < forecast < 10**7 for forecast in record.model.forecast_bytes)


@cases_of({name: ROWS[name] for name in ("cnn layers", "cnn gpipe")})
def test_the_record_tells_what_each_stage_did(jobs, framework, name):
    record = jobs.run(framework, name).record
    first, last = record.sharing.pipeline
    assert (first.first_layer, last.last_layer) == ("conv1", "fc2")
    microbatches = 8 if name == "cnn gpipe" else 4
    assert (first.held_microbatches, last.held_microbatches) == ((8, 8) if name == "cnn gpipe" else (2, 1))
    for stage in (first, last):
        assert len(stage.passes) == 2 * microbatches
        assert all(0 <= one.start <= one.end < 60 for one in stage.passes)
        assert 0 < stage.waiting_seconds < record.totals.training_seconds
    for number in range(microbatches):  # forward on the first stage, then on the last; backward the other way round
        times = [
            next(one for one in stage.passes if (one.is_forward, one.microbatch) == (is_forward, number))
            for stage, is_forward in ((first, True), (last, True), (last, False), (first, False))
        ]
        assert all(one.end <= other.end for one, other in itertools.pairwise(times))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "mlp on 2" else pytest.mark.ci) for n in rows_with("across")]
)
def test_both_frameworks_train_the_same_weights(jobs, name):
    for framework in FRAMEWORKS:
        need(framework)
    check_same(*(jobs.run(framework, name) for framework in ("keras", "torch")), tolerance=ROWS[name]["across"])


@cases_of(
    {name: row | {"frameworks": row.get("differs_in", FRAMEWORKS)} for name, row in rows_with("differs_from").items()}
)
def test_runs_that_must_not_agree_do_not(jobs, framework, name):
    row = ROWS[name]
    apart = differences(jobs.weights(framework, name), jobs.weights(framework, row["differs_from"]))
    assert min(apart.values()) > row["by"], apart


@pytest.mark.ci
def test_statistics_of_batch_norm_are_weighted_by_images(jobs, framework):
    """Of ranks with 5 and 3 of 8 images; the weights themselves do not depend on the statistics."""
    weighted, unweighted = (jobs.weights(framework, f"resnet34 {name}") for name in ("shares", "unweighted"))
    apart = differences(unweighted, weighted)
    assert max(value for name, value in apart.items() if "running" in name) > 1e-3
    assert max(value for name, value in apart.items() if "running" not in name) < MORE_ROUNDING


EPSILON = {"float16 gradients": 2.0**-11, "bfloat16": 2.0**-8}  # largest relative error of one rounding


@pytest.mark.parametrize("name", EPSILON)
@pytest.mark.ci
def test_less_precise_numbers_move_each_tensor_nearly_as_far(jobs, framework, name):
    """By a few roundings of the format; a tensor that never trains would not move at all."""
    plain, run = jobs.run(framework, "plain"), jobs.run(framework, name)
    first = draw_initial_weights(model_spec("mlp", input_shape=(1, 28, 28), outputs=10), seed=1, dtype="float32")
    for tensor, final in load_weights(plain.folder / "weights.safetensors").items():
        movement = final.astype(float) - first[tensor]
        moved = load_weights(run.folder / "weights.safetensors")[tensor].astype(float) - first[tensor]
        apart = np.linalg.norm(moved - movement) / np.linalg.norm(movement)
        assert 0 < apart < 8 * EPSILON[name], (tensor, apart / EPSILON[name])
