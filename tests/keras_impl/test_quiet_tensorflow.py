"""Start-up lines: the known ones of TensorFlow are dropped, everything else is printed, whatever the import does."""

import json
import re
import signal

import pytest
from frameworks import need
from processes import ROOT, run_python

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


TRACEBACK = r"Traceback .*ImportError: libcudart\.so\.12 is missing\n"


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("", 0, re.escape(KNOWN)),  # written afterwards, when nothing is dropped
        ("raise ImportError('libcudart.so.12 is missing')", 1, TRACEBACK),
        ("os.abort()", -signal.SIGABRT, ""),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, ""),
    ],
    ids=["imported", "error", "abort", "segmentation fault"],
)
def test_known_lines_are_dropped_and_others_kept_in_order(tmp_path, end, code, last):
    """Of a TensorFlow that writes known lines and others to file descriptor 2, and ends in some way."""
    written = (KNOWN + OTHER + KNOWN).encode()
    text = f"import os\nos.write(2, {written!r})\nos.write(2, b'no newline at the end')\n{end}\n"
    (tmp_path / "tensorflow.py").write_text(text, encoding="utf-8")
    program = f"import keras_impl.quiet_tensorflow, sys; sys.stderr.write({KNOWN!r})"
    done = run_python("-c", program, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == code
    assert re.fullmatch(f"{re.escape(OTHER)}no newline at the end\\n?{last}", done.stderr, flags=re.DOTALL), done.stderr


CONFIGURED = {"floatx": "float64", "epsilon": 0.1, "backend": "torch", "image_data_format": "channels_first"}
OURS = {"floatx": "float32", "epsilon": 1e-7, "backend": "tensorflow", "image_data_format": "channels_last"}
PROGRAM = f"""
import keras_impl.quiet_tensorflow, json, keras, tensorflow as tf
tf.zeros(1) + 1
assert tf.keras.Model is keras.Model
print(json.dumps({{name: getattr(keras.config, name)() for name in {list(OURS)}}}))
"""


@pytest.mark.ci
def test_the_real_tensorflow_starts_without_a_line_whatever_a_user_has_configured(tmp_path):
    need("keras")
    (tmp_path / "keras.json").write_text(json.dumps(CONFIGURED))
    done = run_python("-c", PROGRAM, KERAS_HOME=str(tmp_path), KERAS_BACKEND="jax", TF_USE_LEGACY_KERAS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == OURS
