"""`python -m analysis compare`: what differs between two runs, then their times and accuracies."""

import argparse
import math
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.output.finding import Finding, Plot, add_show_options, selected, show, with_left_out
from analysis.output.options import add_parser
from analysis.output.plots import framework_style, legend_below
from analysis.output.tables import Cell, Table
from analysis.runs.arguments import add_runs_options
from analysis.runs.sameness import HASHES, why_not_the_same
from analysis.runs.table import RunRow, Selection, curve
from analysis.runs.validity import flags_of, onednn_flags
from common.distributed.console import counted
from common.errors import UserError
from common.measurement.energy import EnergyRecord
from common.run_folder.records import Hashes, NotRecorded, RecordedRun, read_run

# Field of a record -> its subject, in the order of the table. Results and timestamps are not compared here.
SUBJECTS = {
    "framework": "framework",
    "origin": "origin",
    "site": "site",
    "config": "settings",
    "model": "model",
    "data": "data",
    "world": "ranks",
    "environment": "machine",
}
# Of the machine, by the start of the field's name.
_OF_MACHINE = {"packages": "versions", "python": "versions", "source_revision": "source", "variables": "variables"}
# Settings and source say what the command does; Open MPI's daemon gives every run a new number.
_LEFT_OUT = ("command", "variables.OMPI_MCA_orte_", "variables.OMPI_MCA_ess_")
_ALL_HASHES = {**HASHES, "final_weights": "final weights"}
_ABSENT = "absent"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "compare", run, "what differs between two runs, their times and accuracies")
    add_runs_options(parser)
    add_show_options(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: there are not two runs, or one cannot be read.
    """
    selection = selected(options)
    if len(options.runs) > 1 and len(selection.runs) == 1 and not selection.left_out:
        (run,) = selection.rows
        raise UserError(
            f"two different runs are compared. Received: {run.folder}, {len(options.runs)} times. Name another one"
        )
    if len(selection.runs) != 2:
        wrong = f"; {selection.left_out[0]}" if selection.left_out else ""
        raise UserError(
            f"two different runs are compared. Received: {counted(len(selection.runs), 'different run')} that can be "
            f"read{wrong}. Name two"
        )
    show(with_left_out(find(selection), selection), options)


def find(selection: Selection) -> Finding:
    """Compare two runs; for any other number the answer is that two are needed."""
    question = "What is different about these two runs?"
    if len(selection.runs) != 2:
        answer = f"Two runs are compared, and there are {len(selection.runs)}."
        return Finding(name="compare", question=question, answer=answer)
    first, second = selection.rows
    reasons = why_not_the_same(_whole(first), _whole(second))
    plot = _plot(first, second, selection.epochs)
    notes = ["one run each shows nothing: repeat both with several seeds and see `python -m analysis frameworks`"]
    if plot is None:
        notes.append("no plot: there are no epochs with a loss or an accuracy in either run")
    return Finding(
        name="compare",
        question=question,
        answer=_answer(first, second, reasons),
        tables=[differences_table(first, second), results_table(first, second, selection.epochs)],
        plots=[plot] if plot else [],
        flags=list(dict.fromkeys([*reasons, *onednn_flags(first, second), *flags_of(selection.rows, [])])),
        notes=notes,
    )


def _whole(run: RunRow) -> RecordedRun:
    """Return a run with the records of its epochs; a published result has none, and no folder."""
    return RecordedRun(run.folder, run.record, [], run.state) if run.published_in else read_run(run.folder)


def _titled(what: str, first: RunRow, second: RunRow) -> str:
    return f"{what} (first: {first.folder}, second: {second.folder})"


def differences_table(first: RunRow, second: RunRow) -> Table:
    """Return a row for each thing that differs; hashes always have theirs."""
    rows: list[list[Cell]] = []
    sides = [_hashes(run) for run in (first, second)]
    for name, title in _ALL_HASHES.items():
        values = [side[name] for side in sides]
        known = not any(value.startswith("not recorded") for value in values)
        verdict = ("same" if values[0] == values[1] else "differs") if known else "not known"
        rows.append(["weights and order", title, *values, verdict])
    for field, subject in SUBJECTS.items():
        for what, one, other in differing_leaves(getattr(first.record, field), getattr(second.record, field)):
            if field == "environment" and what.startswith(_LEFT_OUT):
                continue
            of_field = _OF_MACHINE.get(what.split(".")[0], subject) if field == "environment" else subject
            rows.append([of_field, what or subject, one, other, "differs"])
    return Table(_titled("What differs", first, second), ["subject", "what", "first", "second", ""], rows, {})


def _hashes(run: RunRow) -> dict[str, str]:
    hashes = run.record.hashes
    values = {name: getattr(hashes, name) if isinstance(hashes, Hashes) else hashes for name in _ALL_HASHES}
    return {name: _words(value if value is not None else NotRecorded("none")) for name, value in values.items()}


def differing_leaves(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield where in two values something differs (names joined by dots), and both as words.

    What one of them lacks or did not record is one difference, however much the other has there.
    """
    one, other = (
        vars(value) if hasattr(value, "__dataclass_fields__") and not isinstance(value, NotRecorded) else value
        for value in (first, second)
    )
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys((*one, *other)):
            inner = one.get(name, NotRecorded(_ABSENT)), other.get(name, NotRecorded(_ABSENT))
            yield from differing_leaves(*inner, f"{path}.{name}" if path else str(name))
    elif one != other:
        yield path, _words(one), _words(other)


def _words(value: Any) -> str:
    if isinstance(value, NotRecorded):
        return _ABSENT if value.not_recorded == _ABSENT else f"not recorded: {value.not_recorded}"
    if isinstance(value, dict):
        return "recorded"
    return " ".join(str(item) for item in value) if isinstance(value, list | tuple) else str(value)


def results_table(first: RunRow, second: RunRow, epochs: pd.DataFrame) -> Table:
    """Return times and rates with their ratio, losses and accuracies with their difference."""
    rows: list[list[Cell]] = []
    for title, values in _results(first, second, epochs).items():
        one, other = values
        if math.isnan(one) and math.isnan(other):
            continue
        known = not math.isnan(one) and not math.isnan(other)
        of_kind = title in _RATIOS
        rows.append(
            [title, *(None if math.isnan(value) else value for value in values),
             other / one if known and of_kind and one else None, other - one if known and not of_kind else None]
        )  # fmt: skip
    headings = ["result", "first", "second", "second / first", "second - first"]
    formats = {"first": ".6g", "second": ".6g", "second / first": ".3f", "second - first": "+.4g"}
    return Table(_titled("Results", first, second), headings, rows, formats)


_TIMES = {
    "in the queue, s": "queue_seconds",
    "launch, s (until rank 0's process)": "launch_seconds",
    "start-up, s": "startup_seconds",
    "training, s": "training_seconds",
    "waiting for data, s (part of training)": "data_wait_seconds",
    "validation, s": "validation_seconds",
    "test, s": "test_seconds",
    "training and validation to target, s": "seconds_to_target",
    "first epoch, s of training": "first_epoch_seconds",
    "images/s": "images_per_second",
    "images/s after the first epoch": "steady_images_per_second",
}
_TOTAL, _EPOCH, _ENERGY, _EDP = "training + validation + test, s", "s/epoch of training", "energy, J", "EDP, J s"
_RATIOS = {*_TIMES, _TOTAL, _EPOCH, _ENERGY, _EDP}


def _results(first: RunRow, second: RunRow, epochs: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Return title -> what was measured in both runs; NaN where it was not. Phases that took no time are not shown."""
    of_run: dict[str, Callable[[RunRow], float]] = {
        **{title: attrgetter(name) for title, name in _TIMES.items()},
        _TOTAL: attrgetter("total_seconds"),
        _EPOCH: attrgetter("epoch_seconds"),
        "epochs": attrgetter("trained_epochs"),
        "steps": attrgetter("steps"),
        "training loss, last epoch": lambda run: _last(epochs, run, "training_loss"),
        "validation loss, last epoch": lambda run: _last(epochs, run, "validation_loss"),
        "test loss": attrgetter("test_loss"),
        "training accuracy, last epoch, %": lambda run: 100 * _last(epochs, run, "training_accuracy"),
        "validation accuracy, last epoch, %": lambda run: 100 * _last(epochs, run, "validation_accuracy"),
        "test accuracy, %": lambda run: 100 * run.test_accuracy,
        _ENERGY: lambda run: _energy(run, "joules"),
        _EDP: lambda run: _energy(run, "edp_joule_seconds"),
    }
    results = {title: (of(first), of(second)) for title, of in of_run.items()}
    return {title: values for title, values in results.items() if title not in _TIMES or any(values)}


def _last(epochs: pd.DataFrame, run: RunRow, name: str) -> float:
    values = curve(epochs, run, name)
    return float(values[-1]) if len(values) else math.nan


def _energy(run: RunRow, name: str) -> float:
    energy = run.record.energy
    value = getattr(energy.used_devices, name) if isinstance(energy, EnergyRecord) else None
    return math.nan if value is None else value


def _answer(first: RunRow, second: RunRow, reasons: list[str]) -> str:
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        words = f"The two runs are not the same experiment, or not shown to be: {reasons[0]}{more}."
    else:
        words = "The two runs are the same experiment: first weights, sample order and the settings that define it."
    times, accuracies = [run.training_seconds for run in (first, second)], [run.accuracy for run in (first, second)]
    if all(seconds > 0 for seconds in times):
        times_as_long = times[1] / times[0]
        words += (
            f" The second trained for {times[1]:.2f} s, {times_as_long:.3f} times the {times[0]:.2f} s of the first."
        )
    else:
        words += " Their times cannot be compared: one is not known, or 0."
    if not any(math.isnan(value) for value in accuracies):
        points = 100 * (accuracies[1] - accuracies[0])
        words += f" Accuracy: {100 * accuracies[0]:.2f} % and {100 * accuracies[1]:.2f} % ({points:+.2f} points)."
    return words


def _plot(first: RunRow, second: RunRow, epochs_table: pd.DataFrame) -> Plot | None:
    """Draw training loss and accuracy by epoch; None without any."""
    runs = {"first": first, "second": second}
    validated = any(np.isfinite(curve(epochs_table, run, "validation_accuracy")).any() for run in runs.values())
    accuracy = "validation_accuracy" if validated else "training_accuracy"
    rows: list[list[Cell]] = []
    figure = Figure(figsize=(8.0, 3.6))
    for ax, name, scale, unit in zip(
        figure.subplots(1, 2), ("training_loss", accuracy), (1.0, 100.0),
        ("training loss", f"{accuracy.replace('_', ' ')}, %"), strict=True,
    ):  # fmt: skip
        for which, run in runs.items():
            values = curve(epochs_table, run, name) * scale
            epochs = np.arange(1, len(values) + 1)
            drawn = np.isfinite(values)
            style = framework_style(run.framework)
            # Two runs of one framework share its color: the second is hollow, dotted and drawn on top.
            twin = which == "second" and first.framework == second.framework
            look: dict[str, Any] = {"linestyle": ":", "markerfacecolor": "white", "markersize": 7} if twin else {}
            look = style | {"markersize": 4, "label": f"{which}: {style['label']}, {run.name}"} | look
            ax.plot(epochs[drawn], values[drawn], **look)
            rows += [
                [which, unit, *point] for point in zip(epochs[drawn].tolist(), values[drawn].tolist(), strict=True)
            ]
        ax.set_xlabel("epoch")
        ax.set_ylabel(unit)
        ax.xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, ncols=1)
    figure.suptitle("Two runs by epoch, n = 1 each")
    data = Table("Two runs by epoch", ["run", "figure", "epoch", "value"], rows, {"value": ".6g"})
    return Plot("compare-epochs", figure, data) if rows else None
