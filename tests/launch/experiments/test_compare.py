"""`launch compare`: one command from a model to a verdict."""

import pytest
from made_trials import made_run

from common.run_folder.records import read_run
from launch import __main__ as launch
from launch.experiments import series

SHORT = ["--model", "mlp", "--dataset", "synthetic:600x8x8x1x3", "--np", "2", "--epochs", "1", "--repeats", "2"]
FOLDER = "compare-mlp-synthetic-600x8x8x1x3-np2-epochs1-maxsteps2-threads1"


@pytest.mark.ci
def test_pairs_of_runs_a_report_and_an_answer(tmp_path, monkeypatch, capfd):
    """And what is there is not made again; the runs are made here, without trainers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(series, "make_run", made_run)
    command = ["compare", *SHORT, "--", "--max-steps", "2", "--threads", "1"]
    first, second = ((launch.main(command), *capfd.readouterr().out.splitlines()) for _ in range(2))
    runs = tmp_path / "runs" / FOLDER
    names = ["keras-mlp-np2-r1", "keras-mlp-np2-r2", "torch-mlp-np2-r1", "torch-mlp-np2-r2"]
    assert sorted(path.parent.name for path in runs.glob("*/run.json")) == names
    assert [read_run(runs / name).record.config.training.seed for name in names] == [1, 2, 1, 2]
    assert first[0] == second[0] == 0 and first[1].startswith("4 runs of 4 to do on local: about ")
    assert second[1] == "nothing is left to do: 4 runs"
    for lines in (first, second):
        assert any(line.startswith(f"report: runs/{FOLDER}/report.html") for line in lines[1:]), lines
        assert lines[-1].startswith("Too few runs to show a difference in time."), lines
