"""oneDNN, which has no kernels for float64: in float32 every model computes what NumPy does in float64, on and off.

oneDNN's own log of kernels shows that it is on and off.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from frameworks import need
from numpy_model import of_model
from processes import ROOT, environment

from common.checks.differences import worst_difference
from common.checks.parity_cases import has_batch_norm, make_spec, random_weights
from common.model.weights import load_weights

TOLERANCE = 1e-5  # 80 roundings of float32; up to 1.3e-6 were seen, with instructions from SSE4.1 to AVX-512
BEHIND_BATCH_NORM = 1e-4  # of gradients in training: small differences of large numbers; up to 1.3e-5 were seen
CONVOLUTIONAL = {"cnn", "simplecnn", "resnet34"}
KERNEL = re.compile(r"^onednn_verbose,(?:v1,)?primitive,exec,cpu,(\w+)", re.MULTILINE)


def kernels_of(log):
    """Return model -> kinds of oneDNN's kernels that computed it.

    Without changes of layout, and without products of matrices, which Eigen in TensorFlow takes from oneDNN anyway.
    """
    _, *parts = re.split(r"^model (\w+)\n", log, flags=re.MULTILINE)
    return {
        model: set(KERNEL.findall(lines)) - {"reorder", "gemm_api"}
        for model, lines in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.ci
@pytest.mark.parametrize("framework", ["torch", "keras"])
@pytest.mark.parametrize("onednn", ["on", "off"])
def test_every_model_computes_in_float32_what_numpy_does_and_kernels_are_those_asked_for(framework, onednn, tmp_path):
    need(framework)
    worker = Path(__file__).parents[1] / "support" / "onednn_worker.py"
    command = [sys.executable, str(worker), framework, str(tmp_path), "--onednn", onednn]
    variables = environment() | {"ONEDNN_VERBOSE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = kernels_of(done.stdout)
    assert {file.name.rpartition("-")[0] for file in tmp_path.iterdir()} == kernels.keys() > CONVOLUTIONAL
    for model, kinds in kernels.items():
        # PyTorch multiplies matrices by MKL: of dense layers oneDNN computes nothing.
        some = onednn == "on" and (framework == "keras" or model in CONVOLUTIONAL)
        assert bool(kinds) == some and ("convolution" in kinds) == (some and model in CONVOLUTIONAL), (model, kinds)
    for file in tmp_path.iterdir():
        model, _, mode = file.stem.rpartition("-")
        spec = make_spec(model)
        weights = {name: value.astype("float32").astype("float64") for name, value in random_weights(spec).items()}
        expected, arrays = of_model(spec, weights, training=mode == "training"), load_weights(file)
        of_gradients = BEHIND_BATCH_NORM if mode == "training" and has_batch_norm(model) else TOLERANCE
        for is_gradient, tolerance in ((True, of_gradients), (False, TOLERANCE)):
            ours, theirs = (
                {name: value.astype("float64") for name, value in one.items()
                 if name.startswith("gradient/") == is_gradient}
                for one in (arrays, expected)
            )  # fmt: skip
            difference, where = worst_difference(ours, theirs)
            assert difference < tolerance, (model, mode, where)
