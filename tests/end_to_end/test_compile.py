"""`--compile` where there is no compiler. That compiled runs are those of others is in `test_same_training.py`."""

import pytest
from frameworks import need
from processes import launcher_command, run_command, train_command

MLP = ["--dataset", "synthetic:1200x28x28x1x10", "--model", "mlp", "--epochs", "1", "--steps-per-epoch", "5"]


@pytest.mark.ranks
@pytest.mark.ci
def test_a_missing_compiler_is_one_line_on_all_ranks(tmp_path, monkeypatch):
    need("torch")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    train = train_command("torch", [*MLP, "--compile", "--name", "none"])
    finished = run_command([*launcher_command("mpirun2"), *train], folder=tmp_path)
    (line,) = [line for line in finished.stderr.splitlines() if "error" in line]
    assert finished.code == 2 and "Traceback" not in finished.stderr
    assert "torch_impl/train.py: error: PyTorch cannot compile the model. Received: --compile, " in line
    assert "no-such-compiler" in line and line.endswith("or leave it out")
