"""A file for other programs: written whole or not at all, never over another, and described."""

from pathlib import Path

import pytest
from builders import make_config, make_setup, random_weights, write_trained_run

from common.errors import UserError
from common.trained.export import description, export, run_export
from common.trained.trained_model import read_trained_model


@pytest.fixture
def run(tmp_path):
    setup = make_setup(make_config(tmp_path))
    return write_trained_run(tmp_path / "run", setup, random_weights(setup))


def write(trained, file):
    """Write as many bytes as the model has outputs."""
    file.write_bytes(b"3" * trained.spec.outputs)


def test_a_file_is_written_and_replaced_only_on_request(run, capsys):
    file = run.parent / "new" / "model.pt"
    words = [str(run), "--output", str(file)]
    assert run_export(write, words, program="export.py", target="torch") == 0
    assert file.read_bytes() == b"333" and capsys.readouterr().out.startswith(
        f"export: {file} (0.0 MB): mlp for images"
    )
    file.write_bytes(b"mine")
    assert run_export(write, words, program="export.py", target="torch") == 2
    assert file.read_bytes() == b"mine" and "exists already and is not overwritten" in capsys.readouterr().err
    assert run_export(write, [*words, "--force"], program="export.py", target="torch") == 0
    assert file.read_bytes() == b"333"


def test_what_fails_leaves_nothing(run):
    def fail(trained, file):
        file.write_bytes(b"part")
        raise OSError(28, "No space left on device", str(file))

    with pytest.raises(UserError, match="writing the model failed: No space left on device"):
        export(fail, run, run.parent / "new" / "model.pt", target="torch")
    assert list((run.parent / "new").iterdir()) == []


def test_a_run_without_weights_is_no_matter_of_resuming(run):
    (run / "weights.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights and no checkpoint.*Received: .*Name a run that has finished an"):
        read_trained_model(run)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.h5", r"should end in \.pt\. Received: --output .*model\.h5\. Name it model\.pt"),
        ("run/folder.pt", r"this is a folder, not a file\. Received: --output .*Name a file in it"),
        ("file/model.pt", r"a file needs a folder\. Received: --output .*Name another place"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_the_work(run, name, words):
    (run / "folder.pt").mkdir()
    (run.parent / "file").touch()
    with pytest.raises(UserError, match=words):
        export(write, Path("there is no run"), run.parent / name, target="torch")


def test_the_description_says_how_pixels_become_inputs(run):
    trained = read_trained_model(run)
    mean, deviation = trained.data.mean[0], trained.data.standard_deviation[0]
    assert description(trained) == (
        "mlp for images of 8 x 8 pixels, 1 channel. "
        f"Input: (pixels from 0 to 1 - [{mean:.6g}]) / [{deviation:.6g}]. Output: 3 linear outputs per image"
    )
