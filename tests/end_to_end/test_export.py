"""`python -m launch export`: programs that cannot import this project compute what it computes."""

import subprocess
import sys

import numpy as np
import pytest
from builders import make_config, make_task, write_trained_run
from extras import environment_with_extras
from frameworks import call
from jobs import relative_difference
from processes import TESTS, environment

from common.checks import parity_cases
from common.data.batches import normalize
from common.trained.trained_model import read_trained_model

TOLERANCE = 1e-5  # of the largest output: float32, sums in another order
# Three channels show the order of a flattened image, odd sides where zeros are padded.
IMAGES = parity_cases.IMAGES | {"mlp": (9, 7, 3, 10), "resnet34": (33, 45, 3, 9)}
TARGETS = ("torch", "keras", "onnx")


def work(*words, target, runs):
    """Run a worker; ONNX needs the extras."""
    variables = environment_with_extras() if target == "onnx" else environment()
    command = [sys.executable, *(str(TESTS / word) for word in words), target, str(runs)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of every model, all weights random, with what both frameworks compute for its test images."""
    folder = tmp_path_factory.mktemp("models") / "runs"
    for number, (model, (height, width, channels, classes)) in enumerate(IMAGES.items()):
        data = {"dataset": f"synthetic:120x{height}x{width}x{channels}x{classes}"}
        task = make_task(make_config(folder, data=data, model={"model": model}))
        weights = {name: array.astype(np.float32) for name, array in parity_cases.random_weights(task.spec).items()}
        run = write_trained_run(folder / model, task, weights, framework=TARGETS[number % 2])
        images = np.asarray(task.dataset.test.images)
        np.save(run / "images.npy", normalize(images, read_trained_model(run).table(images.dtype)))
    for target in TARGETS[:2]:
        call(target, "export_worker:export_all", target, str(folder), folder=folder)
    return folder


@pytest.mark.ci
@pytest.mark.parametrize("target", TARGETS)
def test_an_exported_model_computes_what_both_frameworks_compute(runs, target):
    if target == "onnx":
        work("export_worker.py", target=target, runs=runs)
    work("plain_reader.py", target=target, runs=runs)
    for model in IMAGES:
        plain = np.load(runs / model / f"plain-{target}.npy")
        assert plain.shape == (20, IMAGES[model][3])
        for framework in TARGETS[:2]:
            ours = np.load(runs / model / f"outputs-{framework}.npy")
            assert relative_difference(plain, ours) < TOLERANCE, (model, framework)


@pytest.mark.ci
def test_the_command_starts_the_program_of_the_framework(runs, tmp_path):
    output = tmp_path / "new" / "model.pt"
    command = [sys.executable, "-m", "launch", "export", str(runs / "mlp"), "--to", "torch", "--output", str(output)]
    done = subprocess.run(command, cwd=TESTS.parents[1], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"export: {output} (")
    assert "mlp for images of 9 x 7 pixels, 3 channels. Input: (pixels from 0 to 1 - [" in done.stdout
    assert [path.name for path in output.parent.iterdir()] == [output.name]
