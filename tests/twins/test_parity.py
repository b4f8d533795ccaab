"""`python -m launch parity`: both frameworks compute and train alike, and the proof fails where they do not.

The tolerances are written down here once more, and what must have been compared is worked out here, so that a proof
that was left out, or made easier, is seen. What the command refuses: `refusals/launch-parity.toml`.
"""

import itertools
import re
import signal
import sys
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from processes import HANG_SECONDS, environment, finish, start_command
from waiting import wait_until

from common.checks.differences import relative_difference as their_difference
from common.checks.differences import worst_difference
from common.checks.parity_cases import DTYPES, IMAGES, MODES, STRATEGIES, make_spec, make_task
from common.checks.parity_record import read_parity
from common.checks.parity_worker import ParityJob
from common.model.weights import save_weights
from common.run_folder.records import read_run
from launch.__main__ import main
from launch.checks import parity_proofs
from launch.checks.parity_compare import ParitySide, compare_frameworks, compare_ranks
from launch.checks.parity_jobs import strategy_runs

ROOT = Path(__file__).resolve().parents[2]
FREE = tuple(model for model in IMAGES if all(weight.trainable for weight in make_spec(model).weights))  # no BatchNorm
TABLE = tomllib.loads(Path(__file__).with_name("parity.toml").read_text())

pytestmark = pytest.mark.filterwarnings("error")


def call_of(row):
    """Return a call of the command, and what must come of it."""
    flags, models = (row[name].replace("FREE", " ".join(FREE)).split() for name in ("flags", "models"))
    return SimpleNamespace(**row | {"flags": flags, "models": models})


CALLS = {name: call_of(row) for name, row in TABLE["calls"].items()}
FULL = pytest.param("full", marks=[pytest.mark.long, pytest.mark.timeout(7200)])
cases = ["quick", *(pytest.param(name, marks=pytest.mark.ci) for name in CALLS if name not in ("quick", "full")), FULL]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


def start_proofs(folder, *flags):
    return start_command([sys.executable, "-m", "launch", "parity", *flags, "--folder", str(folder)], folder=ROOT)


@cache
def _carry_out(name, folders):
    return finish(start_proofs(folders / name, *CALLS[name].flags), within_seconds=7200)


def record_of(name, folders):
    """Return what a call has left; it is made once."""
    done = _carry_out(name, folders)
    assert done.code == 0, done
    return read_parity(folders / name)


def expected(call):
    """Return (model, what, optimizer, between, dtype) -> tolerance of all that must have been compared."""
    rows = {}
    frameworks = ("keras np 1", "torch np 1")
    once = {"float64": 1e-10, "float32": 1e-4}
    for model, dtype in itertools.product(call.models, DTYPES):
        rows[model, "names, shapes, first weights", None, frameworks, dtype] = 0.0
        for mode in MODES:
            rows[model, f"outputs, losses, {mode}", None, frameworks, dtype] = once[dtype]
            unsure = model == "resnet34" and (mode, dtype) == ("training", "float32")
            rows[model, f"gradients, {mode}", None, frameworks, dtype] = None if unsure else once[dtype]
        if model == "resnet34":
            rows[model, f"{call.updates} updates, free", call.optimizers[0], frameworks, dtype] = None
    updates = f"{call.updates} updates"
    for model, np_, optimizer in itertools.product(call.models, call.np, call.optimizers):
        both = (f"keras np {np_}", f"torch np {np_}")
        if model == "resnet34":
            updates_here = call.exchanged_updates if np_ == 1 else min(5, call.exchanged_updates)
            what = f"{updates_here} updates, each from the same state"
            rows[model, what, optimizer, both, "float64"] = 1e-8
            continue
        rows[model, updates, optimizer, both, "float64"] = 1e-8
        if optimizer == call.optimizers[0]:
            rows[model, updates, optimizer, both, "float32"] = None
        if np_ == 2 and (model, optimizer) == (call.models[0], call.optimizers[-1]):
            rows[model, f"{updates}, averaging", optimizer, both, "float64"] = 1e-8
        for framework in ("torch", "keras") if np_ > 1 else ():
            ranks = (f"{framework} np {np_}", f"{framework} np 1")
            rows[model, updates, optimizer, ranks, "float64"] = 1e-11
            if optimizer == call.optimizers[0]:
                rows[model, "1 update", optimizer, ranks, "float32"] = 1e-6
                rows[model, updates, optimizer, ranks, "float32"] = 1e-5 if model == "mlp" else None
    return rows


def key_of(one):
    return (one.model, one.what, one.optimizer, one.between, one.dtype)


@pytest.mark.ranks
@pytest.mark.parametrize("name", cases)
def test_everything_is_compared_and_nothing_differs(folders, name):
    record, call = record_of(name, folders), CALLS[name]
    rows = {key_of(one): one for one in record.comparisons if not one.what.startswith("train.py")}
    wanted = expected(call)
    assert set(rows) == set(wanted)
    assert {key: one.tolerance for key, one in rows.items()} == wanted
    too_far = {key: one.difference for key, one in rows.items() if one.tolerance is not None
               and not one.difference <= one.tolerance}  # fmt: skip
    assert too_far == {}
    assert {one.model: one.dropout for one in record.comparisons} == {
        model: "off" if model == "cnn" else "none" for model in {*call.models, *(("cnn",) if call.runs else ())}
    }
    # Nothing is equal for no reason: float32 rounds, and 50 updates in another order do, too.
    assert max(one.difference for one in record.comparisons if one.dtype == "float32") > 1e-9
    assert record.ended_at is not None


@pytest.mark.ranks
@pytest.mark.parametrize("name", cases)
def test_curves_are_those_of_every_update(folders, name):
    record, call = record_of(name, folders), CALLS[name]
    for curve in record.curves:
        several = not curve.between[0].endswith("np 1")
        exchanged_updates = min(5, call.exchanged_updates) if several else call.exchanged_updates
        count = exchanged_updates if curve.exchanged else call.updates
        assert [len(losses) for losses in curve.losses] == [count, count]
        assert np.isfinite(curve.losses).all() and min(min(losses) for losses in curve.losses) > 0
        kept = curve.exchanged or (curve.model != "resnet34" and curve.optimizer == call.optimizers[0])
        assert len(curve.weights_difference) == (count if kept else 0)
    traced = {
        (c.model, c.dtype) for c in record.curves if c.between == ("keras np 1", "torch np 1") and not c.exchanged
    }
    assert traced == set(itertools.product(call.models, DTYPES))
    if call.updates == 50:  # what does not learn proves little
        both = ("keras np 1", "torch np 1")
        of_all = [c for c in record.curves if c.between == both and not c.exchanged and c.dtype == "float64"]
        assert all(np.mean(curve.losses[1][-10:]) < np.mean(curve.losses[1][:10]) for curve in of_all)


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize("name", ["two_ranks", FULL])
def test_two_ordinary_runs_are_beside_the_record(folders, name):
    record = record_of(name, folders)
    assert record.runs == ["torch", "keras"]
    assert sorted(path.name for path in (folders / name).iterdir()) == ["keras", "parity.json", "plots", "torch"]
    torch, keras = (read_run(folders / name / run) for run in record.runs)
    assert [(run.state, run.record.world.size) for run in (torch, keras)] == [("finished", 2)] * 2
    by_train = [one for one in record.comparisons if "train.py" in one.what]
    compared = {one.what.partition(": ")[2]: one.tolerance for one in by_train if "np 1" not in one.between[1]}
    strategies = {one.what.split(": ")[0].rpartition(", ")[2] for one in record.comparisons if "updates, " in one.what}
    by_mpi = {run.name for run in strategy_runs(record.settings)}
    alone = {one.between for one in by_train if one.tolerance == 1e-11}
    assert alone == ({(f"{name} np 4", f"{name} np 1") for name in record.runs} if "alone" in by_mpi else set())
    assert strategies - {"each from the same state", "free"} == {*STRATEGIES, *by_mpi}
    assert compared == {"first weights, order": 0.0, "losses of the epochs": 1e-8, "final weights": 1e-8}


def test_the_learning_rate_goes_up_and_down():
    rates = make_task("mlp", "momentum", dtype="float64", updates=50, size=1)[1]
    highest = int(rates.argmax())
    assert 0 < highest < len(rates) - 1 and rates[0] < rates[highest] / 2 and rates[-1] < rates[highest] / 5


# That a proof can fail


TRAINING = ParityJob(kind="training", model="mlp", optimizer="momentum", updates=2, traced=True)
EXCHANGE = ParityJob(kind="exchange", model="resnet34", updates=2)
OUTPUTS = ParityJob(kind="outputs", model="mlp", mode="training")
START = ParityJob(kind="start", model="mlp")


def arrays_of(job):
    draw = np.random.default_rng(1)
    if job.kind == "training":
        return {
            "losses": np.array([2.0, 1.5]),
            "weights/fc1.weight": draw.normal(size=(3, 2)),
            "state/step": np.array([2]),
            "state/fc1.weight.momentum_buffer": draw.normal(size=(3, 2)),
            "moved": np.array([0.1]),
            "trace/fc1.weight": draw.normal(size=(2, 3, 2)),
        }
    if job.kind == "exchange":
        return {
            "losses": np.array([2.0, 1.5]),
            "weights_difference": np.array([1e-14, 1e-13]),
            "state_difference": np.array([1e-14, 1e-13]),
            "moved": np.array([0.1, 0.1]),
        }
    if job.kind == "outputs":
        return {"outputs": draw.normal(size=(3, 4)), "loss/mse": np.array([1.5]), "gradient/fc1.bias": np.ones(4)}
    return {"fc1.bias": draw.normal(size=4)}


def sides(folder, job, changes, titles):
    """Return two sides with the same results of a job, but for the changes in the first."""
    made = []
    for number, title in enumerate(titles):
        arrays = arrays_of(job) | {name: value for name, value in changes.items() if value is not None and number == 0}
        for name, value in changes.items():
            if value is None and number == 0:
                del arrays[name]
        framework, np_ = title.split(" np ")
        side = ParitySide(framework, int(np_), folder / str(number))
        side.folder.mkdir()
        save_weights(side.folder / f"{job.name}.safetensors", arrays)
        made.append(side)
    return made


TRAINED = arrays_of(TRAINING)


@pytest.mark.parametrize(
    ("job", "changes", "where"),
    [
        (TRAINING, {"weights/fc1.weight": TRAINED["weights/fc1.weight"] * (1 + 1.1e-8)}, "weights/fc1.weight"),
        (TRAINING, {"losses": np.array([2.0, 1.5 + 3e-8])}, "losses"),
        (TRAINING, {"state/step": np.array([1])}, "state/step"),
        (TRAINING, {"state/fc1.weight.momentum_buffer": None}, "state/fc1.weight.momentum_buffer"),
        (TRAINING, {"moved": np.array([0.9e-6])}, "a weight that hardly changed"),
        (TRAINING, {"moved": np.array([np.nan])}, "a weight that hardly changed"),
        (EXCHANGE, {"weights_difference": np.array([1e-14, 1.1e-8])}, "update 2"),
        (EXCHANGE, {"state_difference": np.array([np.inf, 0.0])}, "update 1"),
        (EXCHANGE, {"state_difference": np.array([0.0, np.nan])}, "update 2"),
        (EXCHANGE, {"losses": np.array([2.0, 1.5 + 3e-8])}, "update 2"),
        (EXCHANGE, {"moved": np.array([0.1, 0.0])}, "a weight that hardly changed"),
        (OUTPUTS, {"outputs": arrays_of(OUTPUTS)["outputs"] * (1 + 1.1e-10)}, "outputs"),
        (OUTPUTS, {"loss/mse": np.array([1.5 + 2e-10])}, "loss/mse"),
        (OUTPUTS, {"gradient/fc1.bias": np.array([1.0, 1.0, 1.0, 1.0 + 1.1e-10])}, "gradient/fc1.bias"),
        (START, {"fc1.bias": np.nextafter(arrays_of(START)["fc1.bias"], 9.0)}, "fc1.bias"),
    ],
)
def test_a_difference_between_the_frameworks_is_found(tmp_path, job, changes, where):
    same, changed = tmp_path / "same", tmp_path / "changed"
    same.mkdir()
    changed.mkdir()
    titles = ("keras np 1", "torch np 1")
    assert not any(one.differs for one in compare_frameworks(job, *sides(same, job, {}, titles)).comparisons)
    found = compare_frameworks(job, *sides(changed, job, changes, titles)).comparisons
    assert [one.where for one in found if one.differs] == [where]


@pytest.mark.parametrize(
    ("dtype", "optimizer", "model", "name", "factor", "differs"),
    [
        ("float64", "momentum", "cnn", "weights/fc1.weight", 1 + 1.1e-11, ["2 updates"]),
        ("float64", "momentum", "cnn", "weights/fc1.weight", 1 + 0.9e-11, []),
        ("float64", "adam", "cnn", "weights/fc1.weight", 1 + 1.1e-11, ["2 updates"]),
        ("float32", "momentum", "cnn", "trace/fc1.weight", 1 + 1.1e-6, ["1 update"]),
        ("float32", "momentum", "cnn", "weights/fc1.weight", 1 + 1e-2, []),
        ("float32", "momentum", "mlp", "weights/fc1.weight", 1 + 1.1e-5, ["2 updates"]),
    ],
)
def test_a_difference_between_numbers_of_ranks_is_found(tmp_path, dtype, optimizer, model, name, factor, differs):
    job = ParityJob(kind="training", model=model, optimizer=optimizer, updates=2, traced=True, dtype=dtype)
    changes = {name: TRAINED[name] * factor}
    found = compare_ranks(job, *sides(tmp_path, job, changes, ("torch np 2", "torch np 1"))).comparisons
    assert [one.what for one in found if one.differs] == differs


def test_relative_difference():
    reference = np.array([1.0, -4.0])
    assert their_difference(np.array([1.0, -4.0]), reference) == 0.0
    assert their_difference(np.array([1.5, -4.0]), reference) == 0.125
    assert their_difference(np.array([1.0]), reference) == np.inf
    assert their_difference(np.zeros(2), np.zeros(2)) == 0.0
    assert their_difference(np.array([0.0, 1e-30]), np.zeros(2)) == np.inf
    assert their_difference(np.zeros((0, 2)), np.zeros((0, 2))) == 0.0
    assert their_difference(np.ones(2, np.float32), np.ones(2)) == np.inf
    assert their_difference(np.ones(2, np.int32), np.ones(2, np.int64)) == 0.0


@pytest.mark.parametrize(("name", "wrong"), list(itertools.product("ab", [np.nan, np.inf])))
def test_nan_and_infinity_differ_on_either_side(name, wrong):
    arrays = {"a": np.ones(2), "b": np.ones(2)}
    spoiled = arrays | {name: np.array([1.0, wrong])}
    for ours, theirs in itertools.permutations((spoiled, spoiled, arrays), 2):
        assert worst_difference(ours, theirs) == (np.inf, name)


@pytest.fixture
def broken_root(tmp_path, monkeypatch):
    """Folder of workers in place of the project's: both as they are until one is written over."""
    root = tmp_path / "root"
    for program in ("torch_impl/train.py", "keras_impl/train.py"):
        (root / program).parent.mkdir(parents=True)
        (root / program).symlink_to(ROOT / program)
        write_worker(root, program.split("_")[0], "")
    monkeypatch.setattr(parity_proofs, "ROOT", root)
    monkeypatch.setattr(sys, "argv", ["parity"])
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    return root


def write_worker(root, framework, patch):
    """Write a worker that does something before the project's."""
    lines = [
        f"import sys; sys.path.insert(0, {str(ROOT)!r})",
        patch,
        f"from {framework}_impl.parity_worker import main",
        "sys.exit(main())",
    ]
    (root / f"{framework}_impl" / "parity_worker.py").write_text("\n".join(lines))


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize("part", TABLE["broken"])
def test_what_is_broken_in_one_framework_is_found(tmp_path, broken_root, capfd, part):
    write_worker(broken_root, "keras", TABLE["broken"][part])
    folder = tmp_path / "proofs"
    # Over Gloo, where no other strategies are tried.
    ranks = ["--np", "1", "2", "--controller", "gloo"] if part == "averaging" else ["--np", "1"]
    code = main(["parity", "--models", "mlp", "--optimizers", "momentum", "--updates", "2", "--epochs", "0", *ranks,
                 "--folder", str(folder)])  # fmt: skip
    output = capfd.readouterr().out
    assert code == 1, output
    start = "flag: differs: mlp, 2 updates, momentum, float64"
    differs = [line for line in output.splitlines() if line.startswith(start)]
    of_ranks = ["keras np 2 against torch np 2", "keras np 2 against keras np 1"]
    pairs = of_ranks if part == "averaging" else ["keras np 1 against torch np 1"]
    assert all(pair in line for pair, line in zip(pairs, differs, strict=True))
    assert read_parity(folder).ended_at is not None


# What goes wrong on the way


def test_parity_needs_both_frameworks(monkeypatch, capsys):
    monkeypatch.setattr("launch.checks.parity.missing_packages", lambda name: [name] if name == "keras" else [])
    assert main(["parity"]) == 2
    assert "Received: no keras." in capsys.readouterr().err


QUICK = ["--models", "mlp", "--optimizers", "sgd", "--np", "1", "--updates", "1", "--epochs", "0"]
FAILS = {
    "raise ValueError('no luck today')": ("ValueError: no luck today", 1),
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))": (
        "error: .*(No space left on device|File too large)",
        2,
    ),
}


@pytest.mark.ranks
@pytest.mark.ci
@pytest.mark.parametrize("patch", FAILS)
def test_a_worker_that_fails_is_shown(tmp_path, broken_root, capfd, patch):
    """Also one whose disk is full."""
    words, code = FAILS[patch]
    write_worker(broken_root, "torch", patch)
    assert main(["parity", *QUICK, "--folder", str(tmp_path / "proofs")]) == 2
    *_, of_worker, last = capfd.readouterr().err.splitlines()
    log = tmp_path / "proofs" / "logs" / "torch-np-1.log"
    assert re.search(words, of_worker) and re.search(words, log.read_text())
    assert f"the ranks of torch np 1 failed. Received: exit code {code}." in last and str(log) in last
    assert sorted(path.name for path in (tmp_path / "proofs").iterdir()) == ["logs", "parity.json"]
    assert read_parity(tmp_path / "proofs").ended_at is None


@pytest.mark.ranks
@pytest.mark.ci
def test_deadlocked_ranks_are_stopped(tmp_path, broken_root, capfd, monkeypatch):
    write_worker(broken_root, "torch", "import signal; signal.pause()")
    monkeypatch.setattr(parity_proofs, "STUCK_SECONDS", -9.0)
    before = psutil.Process().children(recursive=True)
    assert main(["parity", *QUICK, "--folder", str(tmp_path / "proofs")]) == 2
    assert "no new result for" in capfd.readouterr().err
    started = [process for process in psutil.Process().children(recursive=True) if process not in before]
    assert not [process for process in started if process.status() != "zombie"]


@pytest.mark.ranks
@pytest.mark.ci
def test_interrupted_proofs_are_kept_and_none_is_made_twice(tmp_path):
    # Over Gloo, where no other strategies are tried.
    folder, flags = tmp_path / "proofs", [*QUICK, "--np", "1", "2", "--updates", "2", "--controller", "gloo"]
    process = start_proofs(folder, *flags)
    wait_until((folder / "work/alone-torch-2").exists, process=process)
    ranks = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    done = finish(process, within_seconds=60)
    assert (done.code, done.stderr) == (130, "") and "interrupted" in done.stdout
    # What was killed takes a moment to end.
    wait_until(lambda: not [rank for rank in ranks if rank.is_running() and rank.status() != "zombie"])
    assert sorted(path.name for path in folder.iterdir()) == ["logs", "parity.json"]
    before = read_parity(folder)
    assert before.ended_at is None
    assert {one.what for one in before.comparisons} > {"names, shapes, first weights", "2 updates"}
    assert [part.name for part in before.parts] == ["np 1"]
    assert main(["parity", "--folder", str(folder), "--resume"]) == 2  # other things would be proven

    kept = before.comparisons[: before.parts[-1].comparisons]
    resumed = finish(start_proofs(folder, *flags, "--resume"), within_seconds=HANG_SECONDS)
    assert resumed.code == 0, resumed
    record = read_parity(folder)
    assert record.ended_at is not None
    assert [part.name for part in record.parts] == ["np 1", "np 2", "strategies", "runs"]
    assert record.comparisons[: len(kept)] == kept
    compared = [(one.model, one.what, one.optimizer, one.dtype, one.between) for one in record.comparisons]
    assert len(set(compared)) == len(compared)
    assert "keras np 2" in {between for *_, (between, _) in compared}
    again = finish(start_proofs(folder, *flags, "--resume"), within_seconds=60)
    assert again.code == 2 and "these proofs are complete" in again.stderr
