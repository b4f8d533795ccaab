"""Start-up lines: the known ones of TensorFlow are dropped, everything else is printed, whatever the import does."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import environment

ROOT = Path(__file__).resolve().parents[2]
KNOWN = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795316446.745487    4914 port.cc:153] oneDNN custom operations are on. You may see slightly different \
numerical results due to floating-point round-off errors from different computation orders. To turn them off, set the \
environment variable `TF_ENABLE_ONEDNN_OPTS=0`.
I0000 00:00:1795316447.199572    4914 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available \
CPU instructions in performance-critical operations.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow with the appropriate compiler \
flags.
"""
OTHER = """\
E0000 00:00:1795316447.199572    4914 port.cc:153] the driver is older than the runtime
I will never see: port.cc:153] oneDNN custom operations are on.
"""


def imported(folder, end, *, after=""):
    """Import a TensorFlow that writes known lines and others to file descriptor 2, then does `end`."""
    written = (KNOWN + OTHER + KNOWN).encode()
    text = f"import os\nos.write(2, {written!r})\nos.write(2, b'no newline at the end')\n{end}\n"
    (folder / "tensorflow.py").write_text(text, encoding="utf-8")
    code = f"import keras_impl.quiet_tensorflow\nimport sys\n{after}"
    path = f"{folder}:{ROOT}"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment() | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_known_lines_are_dropped_and_others_kept_in_order(tmp_path):
    done = imported(tmp_path, "", after=f"sys.stderr.write({KNOWN!r})")
    assert done.returncode == 0
    assert done.stderr == f"{OTHER}no newline at the end\n{KNOWN}", "afterwards nothing is dropped"


def test_an_import_that_raises_shows_everything_before_the_traceback(tmp_path):
    done = imported(tmp_path, "raise ImportError('libcudart.so.12 is missing')")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{OTHER}no newline at the end\nTraceback ")
    assert done.stderr.endswith("ImportError: libcudart.so.12 is missing\n")


@pytest.mark.parametrize(
    ("end", "number"),
    [("os.abort()", signal.SIGABRT), ("import ctypes; ctypes.string_at(0)", signal.SIGSEGV)],
    ids=["abort", "segmentation fault"],
)
def test_an_import_that_ends_the_process_shows_everything(tmp_path, end, number):
    done = imported(tmp_path, end)
    assert done.returncode == -number
    assert done.stderr == f"{OTHER}no newline at the end\n"


@pytest.mark.ci  # keras_checks.py has it without oneDNN, one line fewer
def test_the_real_tensorflow_starts_without_a_line():
    pytest.importorskip("keras")
    code = "import keras_impl.quiet_tensorflow, keras, tensorflow as tf; tf.zeros(1) + 1"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
