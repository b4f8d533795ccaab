"""Reading many runs: processes share the folders, and the tables are those of one process."""

from builders import write_finished_run

from analysis.runs import reading
from analysis.runs.reading import load_runs
from common.run_folder.records import EPOCHS_FILE
from common.utils import workers


def test_what_processes_read_together_is_in_the_order_of_the_folders(tmp_path, monkeypatch):
    for number in range(1, 8):
        write_finished_run(tmp_path / f"run-{number}", accuracies=[0.1 * number, 0.9])
    (tmp_path / "run-4" / EPOCHS_FILE).write_text("no JSON\n")
    alone = load_runs([tmp_path])
    monkeypatch.setattr(reading, "_MANY", 2)
    for module in (reading, workers):
        monkeypatch.setattr(module, "usable_cores", lambda: 3)
    shared = load_runs([tmp_path])
    assert shared.runs["name"].tolist() == alone.runs["name"].tolist() == [f"run-{one}" for one in (1, 2, 3, 5, 6, 7)]
    assert shared.epochs.equals(alone.epochs)
    assert shared.left_out == alone.left_out and "run-4" in shared.left_out[0]
