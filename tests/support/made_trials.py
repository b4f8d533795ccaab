"""Trials of a search without trainers: run folders whose scores follow from the settings by a formula."""

from dataclasses import replace

from builders import finished_record, make_epoch, make_status

from common.run_folder.records import write_epochs, write_record
from launch.experiments.survey import survey_run

SEARCH = """
[search]
sampler = "{sampler}"
trials = 4
storage = "journal"

[settings]
framework = ["torch", "keras"]
launcher = "python"
model = "mlp"
dataset = "synthetic:600x8x8x1x3"
validation_share = 0.2
epochs = 3
device = "cpu"

[space]
learning_rate = {{ low = 0.001, high = 0.1, log = true }}
momentum = [0.0, 0.5, 0.9]
"""


def write_search_file(folder, *, sampler="random", **changes):
    """Write a search file of 4 trials for each framework; return it.

    Lines of these names have these values, written as TOML, instead.
    """
    lines = SEARCH.format(sampler=sampler).splitlines()
    for name, value in changes.items():
        (number,) = (number for number, line in enumerate(lines) if line.startswith(f"{name} = "))
        lines[number] = f"{name} = {value}"
    file = folder / "made.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


def accuracy_of(planned, epoch):
    """Return the validation accuracy of a made run after an epoch: the best learning rate is the largest."""
    config = planned.config
    return epoch * (config.optimizer.learning_rate + config.optimizer.momentum / 100) / 10


def made_run(plan, planned, *, lane, advance):
    """Stand in for `make_run`: an epoch at each step; interrupted where it is closed or pruned, as by SIGTERM."""
    folder = plan.folder / planned.name
    folder.mkdir()
    config = replace(planned.config, record=replace(planned.config.record, runs_folder=str(plan.folder)))
    keys, state, totals, epochs = planned.cell.keys, "interrupted", None, []
    world = {"at_once": lane.of} | ({"controller": keys.controller} if keys.controller and keys.np > 1 else {})
    record = finished_record(np=keys.np, config=config, framework=keys.framework, world=world)
    try:
        write_record(folder, replace(record, status=make_status(), totals=None))
        for epoch in range(1, config.training.epochs + 1):
            epochs.append(make_epoch(epoch, validation_accuracy=accuracy_of(planned, epoch)))
            write_epochs(folder, epochs)
            yield
            advance(1 / config.training.epochs, planned.name)
        state, totals = "finished", record.totals
    finally:
        write_record(folder, replace(record, status=make_status(state=state), totals=totals))
    return survey_run(plan, planned)
