"""A file for other programs: written whole or not at all, never over another, and described."""

from pathlib import Path

import pytest
from builders import make_config, make_task, random_weights, write_trained_run

from common.errors import UserError
from common.trained.export import export, run_export


@pytest.fixture
def run(tmp_path):
    task = make_task(make_config(tmp_path))
    return write_trained_run(tmp_path / "run", task, random_weights(task))


def write(trained, file):
    """Write as many bytes as the model has outputs, or fail where there should be no file."""
    file.write_bytes(b"3" * trained.spec.outputs)
    if file.stem == "full":
        raise OSError(28, "No space left on device", str(file))


def test_a_file_is_written_whole_or_not_at_all_and_replaced_only_on_request(run, capsys):
    file = run.parent / "new" / "model.pt"

    def exported(output, *flags):
        return run_export(write, [str(run), "--output", str(output), *flags], program="export.py", target="torch")

    assert exported(file) == 0
    assert file.read_bytes() == b"333" and capsys.readouterr().out.endswith("]. Output: 3 linear outputs per image\n")
    file.write_bytes(b"mine")
    assert exported(file) == 2
    assert file.read_bytes() == b"mine" and "already exists and is not overwritten" in capsys.readouterr().err
    assert exported(file, "--force") == 0
    assert file.read_bytes() == b"333"
    assert exported(file.with_stem("full")) == 2
    assert "writing the model failed: No space left on device" in capsys.readouterr().err
    assert list(file.parent.iterdir()) == [file]
    (run / "weights.safetensors").unlink()
    assert exported(file, "--force") == 2
    assert "Name a run that has finished an" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [  # more: `refusals/launch-export.toml`
        ("run/folder.pt", r"this is a folder, not a file\. Received: --output .*Name a file in it"),
        ("file/model.pt", r"a file needs a folder\. Received: --output .*Name another place"),
    ],
)
def test_a_file_that_cannot_be_written_is_found_before_the_work(run, name, words):
    (run / "folder.pt").mkdir()
    (run.parent / "file").touch()
    with pytest.raises(UserError, match=words):
        export(write, Path("there is no run"), run.parent / name, target="torch")
