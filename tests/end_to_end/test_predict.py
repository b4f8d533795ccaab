"""`predict.py`, `export.py` and `--resume` on runs of this framework and of the other one."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from jobs import Job, Jobs, relative_difference, train
from PIL import Image

from common.data.loading import load_dataset

pytestmark = [pytest.mark.ranks, pytest.mark.ci]

DATASET = "synthetic:1200x28x28x1x10"
OTHER = {"torch": "keras", "keras": "torch"}
EXPORTED = {"torch": ".pt", "keras": ".keras"}
SETTINGS = ["--dataset", DATASET, "--batch-size", "32", "--validation-share", "0.1", "--epochs", "3"]
IMAGE_COUNT = 6
EVALUATED = {
    "whole": [],
    "layers": ["--strategy", "layers", "--stages", "2"],
    "split": ["--strategy", "split", "--model-ranks", "2"],
}


def image_files():
    """Return the files of the fixture: test images in folders named as their classes."""
    labels = load_dataset(DATASET).test.labels[:IMAGE_COUNT]
    return [Path(f"images/class {label}/{number}.png") for number, label in enumerate(labels)]


def all_jobs():
    """Return the jobs; those of the other framework's runs find these beside the own ones."""
    yield train("whole", *SETTINGS)
    yield train("mlp", *SETTINGS, "--model", "mlp", "--epochs", "2", launcher="none")
    alone = {"launcher": "none", "after": ("whole",)}
    images = tuple(map(str, image_files()))
    for name, flags in EVALUATED.items():
        if name != "whole":
            yield train(name, *SETTINGS, "--epochs", "1", *flags)
        watched = {"watch": f"runs/{name}", "launcher": "none", "after": (name,)}
        yield Job(f"evaluate {name}", (f"runs/{name}",), program="predict", **watched)
    yield Job("classify", ("runs/whole", *images), program="predict", **alone)
    yield Job("outputs", ("runs/whole",), program="outputs", **alone)
    lacking = {"patch": "without_onednn", "launcher": "none", "after": ("mlp",)}
    yield Job("predict without oneDNN", ("runs/mlp",), program="predict", **lacking)
    for framework, suffix in EXPORTED.items():
        yield Job(f"{framework} without oneDNN", ("runs/mlp", "--output", f"mlp{suffix}"), program="export", **lacking)
    for framework in OTHER:
        run, file = f"../{framework}/runs/whole", f"model{EXPORTED[OTHER[framework]]}"
        yield Job(f"{framework} evaluate", (run,), program="predict", watch=run, launcher="none")
        yield Job(f"{framework} classify", (run, *images), program="predict", launcher="none")
        yield Job(f"{framework} outputs", (run,), program="outputs", launcher="none")
        yield Job(f"{framework} export", (run, "--output", file), program="export", watch=run, launcher="none")
        yield Job(f"{framework} resume", ("--resume", run, "--epochs", "9"), watch=run, launcher="none")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    made = Jobs(tmp_path_factory.mktemp("predict"), all_jobs())
    images = load_dataset(DATASET).test.images
    for framework in OTHER:
        place = made.place(framework)
        for number, file in enumerate(image_files()):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number, :, :, 0]).save(place / file)
    return made


@pytest.fixture
def other(framework, jobs):
    if importlib.util.find_spec(OTHER[framework]) is None:
        pytest.skip("only one framework is installed")
    jobs.run(OTHER[framework], "whole")
    return OTHER[framework]


def printed(jobs, framework, name):
    (outcome,) = jobs.outcomes(framework, name)
    assert (outcome.code, outcome.stderr) == (0, ""), outcome
    assert outcome.untouched in (None, True)
    return outcome.stdout


def check_evaluation(shown, run):
    """Check that `predict.py` found the test loss and accuracy of the run folder."""
    match = re.match(rf"{DATASET}: test loss (\d\.\d+), accuracy \d+\.\d\d % \((\d+)/200\)\n", shown)
    assert match, shown
    assert float(match[1]) == pytest.approx(run.record.totals.test_loss, abs=1e-4)
    assert int(match[2]) == round(run.record.totals.test_accuracy * 200)
    rows = [line for line in shown.splitlines()[1:] if re.match(r"class \d ", line)]
    matrix = np.array([[int(cell) for cell in row.split()[2:]] for row in rows])
    assert matrix.shape == (10, 10) and matrix.sum() == 200 and np.trace(matrix) == int(match[2])


@pytest.mark.parametrize("name", EVALUATED)
def test_predict_finds_what_training_recorded(jobs, framework, name):
    check_evaluation(printed(jobs, framework, f"evaluate {name}"), jobs.run(framework, name))


def test_predict_reads_runs_of_the_other_framework(jobs, framework, other):
    check_evaluation(printed(jobs, framework, f"{other} evaluate"), jobs.run(other, "whole"))
    (ours,), (theirs,) = jobs.outcomes(framework, f"{other} outputs"), jobs.outcomes(other, "outputs")
    assert relative_difference(np.array(ours.value), np.array(theirs.value)) < 1e-5
    # Image files: the same classes, and probabilities to the digit that is shown or its neighbor.
    lines, twins = printed(jobs, framework, f"{other} classify"), printed(jobs, other, "classify")
    number = r"\d+\.\d"
    assert re.sub(number, "", lines) == re.sub(number, "", twins)
    assert np.abs(np.array(re.findall(number, lines), float) - np.array(re.findall(number, twins), float)).max() < 0.11


def test_a_run_of_the_other_framework_is_exported_and_not_resumed(jobs, framework, other):
    file = f"model{EXPORTED[framework]}"
    assert printed(jobs, framework, f"{other} export").startswith(
        f"export: {file} (0.1 MB): cnn for images of 28 x 28 pixels"
    )
    check_refused(
        jobs, framework, f"{other} resume", r"a run can only be resumed by the framework that started it\. Received: "
    )


def test_a_framework_without_onednn_computes_and_says_so(jobs, framework):
    for name in ("predict without oneDNN", f"{framework} without oneDNN"):
        (outcome,) = jobs.outcomes(framework, name)
        assert outcome.code == 0, outcome
        assert outcome.stderr == (
            "note: this build of the framework has no oneDNN (--onednn on), and computes without it\n"
        )


def test_predict_classifies_image_files(jobs, framework):
    lines = printed(jobs, framework, "classify").splitlines()
    outputs = np.array(jobs.outcomes(framework, "outputs")[0].value)[:IMAGE_COUNT]
    probabilities = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert len(lines) == IMAGE_COUNT + 1 + 10  # then the confusion matrix, as the folders are named after the classes
    for line, file, row in zip(lines, image_files(), probabilities, strict=False):
        assert line.startswith(str(file))
        shown = [(int(name), float(share)) for name, share in re.findall(r" class (\d) (\d+\.\d) %", line)]
        assert [share for _, share in shown] == pytest.approx(sorted(100 * row)[:-4:-1], abs=0.06)
        assert [100 * row[name] for name, _ in shown] == pytest.approx([share for _, share in shown], abs=0.06)
    rows = [[int(cell) for cell in line.split()[2:]] for line in lines[IMAGE_COUNT + 1 :]]
    correct = [int(file.parent.name.split()[1]) for file in image_files()] == outputs.argmax(axis=1)
    assert np.sum(rows) == IMAGE_COUNT and np.trace(np.array(rows)) == correct.sum()


def check_refused(jobs, framework, name, message):
    (outcome,) = jobs.outcomes(framework, name)
    assert outcome.code == 2 and outcome.untouched
    assert re.fullmatch(rf"{framework}_impl/train\.py: error: {message}.*\n", outcome.stderr), outcome.stderr
