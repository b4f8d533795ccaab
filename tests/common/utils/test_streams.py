"""Programs whose standard streams are closed."""

import subprocess
import sys

import pytest
from processes import ROOT, environment


@pytest.mark.parametrize(
    ("program", "closed", "code"),
    [
        ("-m analysis ring --np 2", ">&-", 0),
        ("-m launch sites", "<&-", 0),
        ("torch_impl/train.py --help", "<&- >&- 2>&-", 0),
        ("-m launch no", "2>&-", 2),
    ],
)
def test_a_closed_stream_is_silence_and_changes_no_exit_code(program, closed, code):
    command = f"{sys.executable} {program} {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, timeout=100)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path):
    """What a library prints would be written into it."""
    program = "import common, os; file = open('kept', 'w'); os.write(1, b'printed'); file.write('kept')"
    command = f'{sys.executable} -c "{program}" >&-'
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment(), check=True, timeout=60)
    assert (tmp_path / "kept").read_text() == "kept"
