"""Two runs that must train the same weights: on other ranks, by another strategy, in other parts, compiled or not.

One table for all of it: `RUNS` are the settings, `SAME` says which runs agree and how closely, `DIFFERENT` which must
not, so that the proofs of `SAME` can fail. Float64 shows it best: ranks add the same gradients in another order, and
nothing else may differ. In float32 that order alone moves a ReLU or a maximum to the other side now and then: there one
update is compared, and a whole epoch only for the model that has neither.
"""

import itertools

import numpy as np
import pytest
from frameworks import need
from jobs import FRAMEWORKS, Jobs, on_frameworks, relative_difference, train

from common.checks.parity_cases import IMAGES, make_spec
from common.model.specs import model_spec
from common.model.weights import draw_initial_weights, load_weights
from common.run_folder.records import NotRecorded

pytestmark = pytest.mark.ranks

FREE = [name for name in IMAGES if all(weight.trainable for weight in make_spec(name).weights)]  # no BatchNorm
GLOBAL, STEPS, EPOCHS = 48, 5, 2  # 48 images an update: 1, 2, 3 and 4 ranks divide them

DATA = ["--dataset", "synthetic:1200x28x28x1x10", "--validation-share", "0.1", "--steps-per-epoch", str(STEPS)]
DATA += ["--epochs", str(EPOCHS), "--lr-scaling", "none"]
FLOAT64 = ["--dtype", "float64", "--learning-rate", "0.05"]
ADAM = ["--optimizer", "adam", "--learning-rate", "0.002", "--weight-decay", "0.01"]
# Few updates and no momentum: rounding grows fast in batches as small as these.
RESNET34 = ["--dataset", "synthetic:96x17x19x1x3", "--model", "resnet34", "--dtype", "float64", "--momentum", "0"]
RESNET34 += ["--epochs", "1", "--steps-per-epoch", "3", "--lr-scaling", "none"]
FROZEN = ["--dataset", "synthetic:64x32x32x1x3", "--model", "resnet34", "--dtype", "float64", "--batch-size", "8"]
FROZEN += ["--validation-share", "0.25", "--steps-per-epoch", "2", "--epochs", "3", "--validate-every", "2"]
FROZEN += ["--batch-norm", "frozen_after_validation", "--threads", "1"]


def model(name):
    """Return the settings of a model in float64 without dropout."""
    if name == "resnet34":
        return RESNET34
    flags = ADAM if name == "cnn_adam" else []
    return [*DATA, *FLOAT64, "--model", name.removesuffix("_adam"), "--no-dropout", *flags]


def batch(copies, passes=1):
    """Return the batch of one pass of each copy of the model."""
    return ["--batch-size", str(GLOBAL // copies // passes)]


def layers(*flags, stages=2):
    return ["--strategy", "layers", "--stages", str(stages), *flags]


def served(servers, workers):
    # TensorFlow takes its number of threads once, and workers have other shares of the cores than ranks.
    return [*batch(workers), "--strategy", "server", "--servers", str(servers), "--threads", "1"]


def native(name):
    return ["--strategy", "native", "--native", name]


SPLIT = ["--strategy", "split", "--model-ranks", "2"]
EVERY1 = ["--strategy", "averaging", "--average-every", "1"]
AVERAGING = ["--strategy", "averaging", "--average-every", "3"]
AVERAGED_ADAM = [*DATA, *FLOAT64, "--model", "mlp", "--optimizer", "adam", "--learning-rate", "0.001", "--epochs", "5"]
AVERAGED_ADAM += ["--steps-per-epoch", "10", *AVERAGING]
DROPOUT = [*DATA, *FLOAT64, "--model", "cnn", *ADAM]  # by rank and epoch: only runs on the same ranks agree
FLOAT32 = [*DATA, "--model", "mlp", "--dtype", "float32", "--learning-rate", "0.01", *batch(2)]


def all_runs():
    """Return the jobs."""
    models = [*FREE, "cnn_adam"]
    mlp, cnn, adam = model("mlp"), model("cnn"), model("cnn_adam")
    ranks = {2: models, 3: ["mlp", "cnn_adam"], 4: ["mlp", "cnn_adam"]}
    yield from (train(f"{name}", *model(name), *batch(1), launcher="none") for name in models)
    for size, of_size in ranks.items():
        yield from (
            train(f"{name} on {size}", *model(name), *batch(size), launcher=f"mpirun{size}") for name in of_size
        )
    yield train("mlp on gloo", *mlp, *batch(2), launcher="gloo2")

    update = [*DATA, "--dtype", "float32", "--max-steps", "1", "--no-dropout"]
    yield train("cnn update", *update, "--model", "cnn", *batch(1), launcher="none")
    yield train("cnn update on 2", *update, "--model", "cnn", *batch(2))
    epoch = [*DATA[:4], "--lr-scaling", "none", "--model", "mlp", "--epochs", "1", "--steps-per-epoch", "22"]
    yield train("float32", *epoch, *batch(1), launcher="none")
    yield train("float32 on 2", *epoch, *batch(2))

    # The ways to exchange gradients.
    for groups in ("2", "each"):
        yield train(f"groups {groups}", *mlp, *batch(2), "--gradient-groups", groups)
    yield train("unlike starts", *mlp, *batch(2), patch="unlike_starts")
    yield train("shared gpu", *mlp, *batch(2), "--share-gpu", patch="without_gpu+unlike_starts")
    yield train("replicated validation", *mlp, *batch(2), "--validation", "replicated")
    yield train("channels first", *cnn, *batch(2), "--no-channels-last")
    yield train("plain", *FLOAT32)
    yield train("float16 gradients", *FLOAT32, "--compression", "fp16")
    yield train("bfloat16", *FLOAT32, "--mixed-precision", "bfloat16")

    # Parts of a batch.
    yield train("passes", *cnn, *batch(2, passes=4), "--backward-passes-per-step", "4")
    yield train("shares", *mlp, *batch(2), "--shares", "2.4:1")
    yield train("resnet34 shares", *RESNET34, *batch(6), "--shares", "5:3", patch="shallow")
    yield train("resnet34 every1 shares", *RESNET34, *batch(6), "--shares", "5:3", *EVERY1, patch="shallow")
    unweighted = "shallow+unweighted_statistics"
    yield train("resnet34 unweighted", *RESNET34, *batch(6), "--shares", "5:3", patch=unweighted)

    # Averaged weights.
    plain_sgd = [*mlp, *batch(2), "--momentum", "0"]
    yield train("plain sgd", *plain_sgd)
    yield train("every1", *plain_sgd, *EVERY1)
    yield train("averaging", *cnn, *batch(2), *AVERAGING)
    yield train("averaged adam", *AVERAGED_ADAM, *batch(2))
    yield train("resnet34 on 2", *RESNET34, *batch(12), patch="shallow")
    yield train("resnet34 every1", *RESNET34, *batch(12), *EVERY1, patch="shallow")
    twice = [*RESNET34, *batch(12), "--epochs", "2"]  # the warm-up ends with the first
    yield train("resnet34 twice", *twice, patch="shallow")
    yield train("resnet34 warm-up", *twice, *EVERY1, "--warmup-allreduce", "3", patch="shallow")
    yield train("averaging alone", *mlp, *batch(1), *AVERAGING, "--no-average-state", launcher="none")

    # A model in parts.
    yield train("mlp layers", *mlp, *batch(1), *layers("--microbatches", "2"))
    yield train("cnn layers", *adam, *batch(1), *layers("--cut-after", "relu2"))
    yield train("cnn gpipe", *adam, *batch(1), *layers("--pipeline-schedule", "gpipe", "--microbatches", "8"))
    yield train("simplecnn layers", *model("simplecnn"), *batch(1), *layers("--microbatches", "1"))
    yield train("dense500 layers", *model("dense500"), *batch(1), *layers())
    passes = ["--batch-size", "4", "--backward-passes-per-step", "2"]  # BatchNorm sees the microbatches of the pipeline
    yield train("resnet34 passes", *RESNET34, *passes, launcher="none", patch="shallow")
    yield train("resnet34 layers", *RESNET34, "--batch-size", "8", *layers("--microbatches", "2"), patch="shallow")
    for name in ("mlp", "cnn_adam", "simplecnn", "dense500"):
        yield train(f"{name} split", *model(name), *batch(1), *SPLIT)
    yield train("copies of layers", *adam, *batch(2), *layers("--microbatches", "2"), launcher="mpirun4")
    yield train("copies of split", *adam, *batch(2), *SPLIT, launcher="mpirun4")
    yield train("four stages", *adam, *batch(1), *layers("--microbatches", "8", stages=4), launcher="mpirun4")
    dropout = [*DROPOUT, *batch(1)]
    yield train("dropout layers", *dropout, *layers())
    yield train("dropout gpipe", *dropout, *layers("--pipeline-schedule", "gpipe"))

    # Servers.
    yield train("cnn served", *cnn, *served(1, 3), launcher="mpirun4")
    yield train("adam served", *adam, *served(2, 2), launcher="mpirun4")

    # The frameworks' own strategies.
    for name, settings in {"mlp": mlp, "dropout": DROPOUT, "resnet34": RESNET34}.items():
        size, patch = batch(12 if name == "resnet34" else 2), "shallow" if name == "resnet34" else ""
        if name == "dropout":
            yield train("dropout on 2", *settings, *size)
        yield train(f"{name} ddp", *settings, *size, *native("ddp"), patch=patch)
        yield train(f"{name} multiworker", *settings, *size, *native("multiworker"), patch=patch)
        mirrored = [*native("mirrored"), "--replicas", "2"]
        yield train(f"{name} mirrored", *settings, *size, *mirrored, launcher="none", patch=patch)

    # Compiled; the C++ compiler takes most of the time, and what does not depend on it is tried without.
    traced = {"patch": "without_compiler"}
    one_thread = ["--threads", "1", "--compile"]
    yield train("traced", *mlp, *batch(2), "--compile", **traced)
    yield train("cnn compiled", *cnn, *batch(1), *one_thread, launcher="none")
    yield train("compiled on 2", *cnn, *batch(2), *one_thread)
    yield train("dropout compiled", *DROPOUT, *batch(2), *one_thread)
    passes = [*batch(1, passes=2), "--backward-passes-per-step", "2"]
    yield train("passes compiled", *cnn, *passes, *one_thread, launcher="none", **traced)
    yield train("slow compiled", *cnn, *batch(2), *one_thread, "--slow", "1:1.5", **traced)
    yield train("averaging compiled", *cnn, *batch(2), *one_thread, *AVERAGING, **traced)
    yield train("served compiled", *cnn, *served(1, 1), "--compile", **traced)

    # What must be found.
    yield train("unsharded", *mlp, *batch(2), patch="unsharded")
    yield train("half the batch", *mlp, *batch(2), launcher="none")
    yield train("frozen", *FROZEN, launcher="none", patch="shallow")
    yield train("frozen compiled", *FROZEN, "--compile", launcher="none", patch="shallow+without_compiler")
    yield train("scaled", *FLOAT32, "--lr-scaling", "linear")
    yield train("unscaled", *FLOAT32, "--lr-scaling", "linear", patch="unscaled")


RUNS = {job.name: job for job in all_runs()}

EXACT = 0.0  # bit for bit: a sum of two numbers is the same in either order
ROUNDING, MORE_ROUNDING = 1e-12, 1e-11
QUICK = {  # of the frameworks in brackets; all else is left to CI
    "mlp on 2": FRAMEWORKS,
    **dict.fromkeys(("cnn on 2", "cnn update on 2", "float32 on 2"), ("torch",)),
    **dict.fromkeys(("groups 2", "groups each", "unlike starts", "shared gpu", "replicated validation"), FRAMEWORKS),
    **dict.fromkeys(("channels first", "passes", "shares", "every1", "traced"), ("torch",)),
    **dict.fromkeys(("mlp layers", "cnn layers", "mlp split", "cnn_adam split", "dropout gpipe"), ("torch",)),
}
ON_TORCH = ("channels first", "dropout compiled", *(name for name in RUNS if name.endswith("ddp")))
ON_KERAS = tuple(name for name in RUNS if name.endswith(("multiworker", "mirrored")))

SAME = {  # run -> the run that it equals, and the largest relative difference of a tensor
    **{f"{name} on 2": (name, MORE_ROUNDING) for name in [*FREE, "cnn_adam"]},
    **{f"{name} on {size}": (name, MORE_ROUNDING) for name in ("mlp", "cnn_adam") for size in (3, 4)},
    "mlp on gloo": ("mlp", MORE_ROUNDING),
    "cnn update on 2": ("cnn update", 1e-6),
    "float32 on 2": ("float32", 1e-5),
    **{f"groups {groups}": ("mlp on 2", EXACT) for groups in ("2", "each")},
    "unlike starts": ("mlp on 2", EXACT),  # the broadcast mends them
    "shared gpu": ("mlp on 2", EXACT),  # through host memory, and from unlike starts
    "replicated validation": ("mlp on 2", EXACT),
    "channels first": ("cnn on 2", MORE_ROUNDING),
    "passes": ("cnn on 2", MORE_ROUNDING),
    "shares": ("mlp on 2", ROUNDING),
    # Averaging after every update is all-reduce, with plain SGD; with BatchNorm its statistics, too: they are linear.
    "every1": ("plain sgd", ROUNDING),
    "resnet34 every1": ("resnet34 on 2", MORE_ROUNDING),
    "resnet34 every1 shares": ("resnet34 shares", 1e-9),
    "resnet34 warm-up": ("resnet34 twice", MORE_ROUNDING),
    "averaging alone": ("mlp", EXACT),
    "mlp layers": ("mlp", ROUNDING),
    "cnn layers": ("cnn_adam", ROUNDING),
    "cnn gpipe": ("cnn_adam", ROUNDING),
    "simplecnn layers": ("simplecnn", ROUNDING),
    "dense500 layers": ("dense500", ROUNDING),
    "resnet34 layers": ("resnet34 passes", MORE_ROUNDING),
    **{f"{name} split": (name, ROUNDING) for name in ("mlp", "cnn_adam", "simplecnn", "dense500")},
    **dict.fromkeys(("copies of layers", "copies of split"), ("cnn_adam", MORE_ROUNDING)),
    "four stages": ("cnn_adam", ROUNDING),
    "dropout gpipe": ("dropout layers", ROUNDING),  # masks do not depend on the schedule
    "cnn served": ("cnn", ROUNDING),
    "adam served": ("cnn_adam", ROUNDING),
    **{f"mlp {way}": ("mlp on 2", ROUNDING) for way in ("ddp", "multiworker", "mirrored")},
    **{f"dropout {way}": ("dropout on 2", ROUNDING) for way in ("ddp", "multiworker", "mirrored")},
    **{f"resnet34 {way}": ("resnet34 on 2", MORE_ROUNDING) for way in ("ddp", "multiworker", "mirrored")},
    "traced": ("mlp on 2", MORE_ROUNDING),
    "cnn compiled": ("cnn", MORE_ROUNDING),
    "passes compiled": ("cnn", MORE_ROUNDING),
    "compiled on 2": ("cnn on 2", MORE_ROUNDING),
    "slow compiled": ("cnn on 2", MORE_ROUNDING),
    "averaging compiled": ("averaging", MORE_ROUNDING),
    "served compiled": ("cnn", MORE_ROUNDING),
    "dropout compiled": ("dropout on 2", MORE_ROUNDING),  # only PyTorch keeps the masks
    "frozen compiled": ("frozen", MORE_ROUNDING),
}
PARTS = {"copies of layers": 2, "copies of split": 2, "four stages": 4}  # ranks that hold a copy of the model
ACROSS = {  # run -> the largest relative difference of a tensor between the frameworks
    "mlp on 2": 1e-10,
    "averaged adam": 1e-8,
    "frozen": 1e-6,
    "cnn layers": 1e-9,
    "cnn_adam split": 1e-9,
    "cnn compiled": 1e-8,
    "compiled on 2": 1e-8,
    "mlp on 4": 1e-10,
}
DIFFERENT = {  # run -> the run that it must not equal, the least relative difference of each tensor, frameworks
    "unsharded": ("mlp on 2", 1e-6, FRAMEWORKS),
    "half the batch": ("mlp", 1e-6, FRAMEWORKS),
    "averaging": ("cnn on 2", 1e-6, FRAMEWORKS),
    "unscaled": ("scaled", 1e-3, FRAMEWORKS),
    "dropout compiled": ("dropout on 2", 1e-6, ("keras",)),
}


def frameworks_of(name):
    return ("torch",) if name in ON_TORCH else ("keras",) if name in ON_KERAS else FRAMEWORKS


def by_start(table):
    """Return the runs of a table, a start of ranks after the other."""
    return sorted(table, key=lambda name: RUNS[name].launcher)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("same"), RUNS.values())


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


@on_frameworks(by_start(SAME), frameworks=frameworks_of, quick=lambda name: QUICK.get(name, ()))
def test_runs_train_the_same_weights(jobs, framework, name):
    other, tolerance = SAME[name]
    run = jobs.run(framework, name)
    check_same(run, jobs.run(framework, other), tolerance=tolerance)
    if name in PARTS:
        assert run.record.world.parts == PARTS[name]


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
SENT = {  # by the two ranks, for each image
    "mlp layers": (192, 192),  # the outputs of fc1, and their gradient
    "cnn layers": (320, 320),
    "simplecnn layers": (8 * 12 * 12, 8 * 12 * 12),
    "mlp split": (10, 10),  # of fc2; the gradient of the images is not needed
    # Forward: 5 channels of relu1 and 10 of relu2, the sum of fc2. Backward: sums over the inputs of conv2 and fc1.
    "cnn_adam split": (5 * 144 + 10 * 16 + 10 + 10 * 144 + 320,) * 2,
}


@on_frameworks(SENT, frameworks=lambda name: FRAMEWORKS, quick=lambda name: QUICK.get(name, ()))
def test_bytes_of_a_model_in_parts_are_counted_where_they_are_sent(jobs, framework, name):
    record = jobs.run(framework, name).record
    assert [worker.updates for worker in record.sharing.workers] == [STEPS * EPOCHS] * 2
    assert [worker.sent_bytes for worker in record.sharing.workers] == [VALUE * GLOBAL * sent for sent in SENT[name]]
    if "split" not in name:
        assert record.sharing.formula_bytes == VALUE * GLOBAL * sum(SENT[name]) / 2
    # And the memory of each rank.
    assert len(record.isolation.memory_before_bytes) == len(record.model.forecast_bytes) == 2
    assert all(0 < forecast < 10**7 for forecast in record.model.forecast_bytes)


@on_frameworks(["cnn layers", "cnn gpipe"], frameworks=lambda name: FRAMEWORKS, quick=lambda name: QUICK.get(name, ()))
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


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "mlp on 2" else pytest.mark.ci) for n in ACROSS])
def test_both_frameworks_train_the_same_weights(jobs, name):
    for framework in FRAMEWORKS:
        need(framework)
    check_same(*(jobs.run(framework, name) for framework in ("keras", "torch")), tolerance=ACROSS[name])


@on_frameworks(by_start(DIFFERENT), frameworks=lambda name: DIFFERENT[name][2], quick=lambda name: ())
def test_runs_that_must_not_agree_do_not(jobs, framework, name):
    other, least, _ = DIFFERENT[name]
    apart = differences(jobs.weights(framework, name), jobs.weights(framework, other))
    assert min(apart.values()) > least, apart


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
