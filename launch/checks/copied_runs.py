"""Many copies of one run folder, to measure what reading them takes."""

import json
from pathlib import Path

from common.run_folder.records import EPOCHS_FILE, RUN_FILE

FRAMEWORKS = ("torch", "keras")


def copy_runs(folder: Path, *, model: Path, runs: int, settings: int) -> None:
    """Write copies of a run into a new folder: each setting in both frameworks, with as many seeds as there are runs.

    Args:
        model: the run's folder.
        runs: how many copies.
        settings: learning rates; each is a cell of its own in either framework.
    """
    record = json.loads((model / RUN_FILE).read_text())
    epochs = (model / EPOCHS_FILE).read_text()
    cells = len(FRAMEWORKS) * settings
    for number in range(runs):
        cell, seed = number % cells, number // cells + 1
        setting = cell // len(FRAMEWORKS)
        record["framework"] = FRAMEWORKS[cell % len(FRAMEWORKS)]
        record["config"]["training"]["seed"] = seed
        record["config"]["optimizer"]["learning_rate"] = 0.001 * (1 + setting)
        record["hashes"]["initial_weights"] = record["hashes"]["sample_order"] = f"{seed:032x}"
        record["totals"]["training_seconds"] = 100 + number * 7919 % 101 / 50 + cell % len(FRAMEWORKS)
        run = folder / f"run-{number}"
        run.mkdir(parents=True)
        (run / RUN_FILE).write_text(json.dumps(record))
        (run / EPOCHS_FILE).write_text(epochs)
