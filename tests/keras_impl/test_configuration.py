"""What would change which Keras our programs use, and in what it computes: ours wins."""

import json
import subprocess
import sys

import pytest
from frameworks import need
from processes import environment

CONFIGURED = {"floatx": "float64", "epsilon": 0.1, "backend": "torch", "image_data_format": "channels_first"}
PROGRAM = """
import keras_impl
import json, keras, tensorflow as tf
found = {name: getattr(keras.config, name)() for name in ("floatx", "epsilon", "backend", "image_data_format")}
print(json.dumps(found | {"is_ours": tf.keras.Model is keras.Model}))
"""


@pytest.mark.ci
def test_a_user_s_configuration_of_keras_changes_nothing(tmp_path):
    need("keras")
    (tmp_path / "keras.json").write_text(json.dumps(CONFIGURED))
    variables = {"KERAS_HOME": str(tmp_path), "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment() | variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "floatx": "float32",
        "epsilon": 1e-7,
        "backend": "tensorflow",
        "image_data_format": "channels_last",
        "is_ours": True,
    }
