"""Many copies of one run folder, to measure what reading them takes."""

import json
from pathlib import Path

from common.run_folder.records import EPOCHS_FILE, RUN_FILE
from launch.installation.environment import FRAMEWORKS


def copy_runs(folder: Path, *, model: Path, runs: int, settings: int) -> None:
    """Write copies of a run into a new folder: each setting in both frameworks, with one seed after the other.

    Args:
        model: the run's folder.
        runs: how many copies.
        settings: learning rates; each is a cell of its own in either framework.
    """
    record = json.loads((model / RUN_FILE).read_text())
    epochs = (model / EPOCHS_FILE).read_text()
    cells = len(FRAMEWORKS) * settings
    for number in range(runs):
        seeds_before, cell = divmod(number, cells)
        setting, framework = divmod(cell, len(FRAMEWORKS))
        seed = seeds_before + 1
        record["framework"] = FRAMEWORKS[framework]
        record["config"]["training"]["seed"] = seed
        record["config"]["optimizer"]["learning_rate"] = 0.001 * (1 + setting)
        record["hashes"]["initial_weights"] = record["hashes"]["sample_order"] = f"{seed:032x}"
        record["totals"]["training_seconds"] = 100 + number * 7919 % 101 / 50 + framework  # times that scatter
        run = folder / f"run-{number}"
        run.mkdir(parents=True)
        (run / RUN_FILE).write_text(json.dumps(record))
        (run / EPOCHS_FILE).write_text(epochs)
