"""`python -m analysis faults`: what happened to the ranks of elastic runs, what it cost, and what it changed."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.output.finding import Finding, Plot, add_question, brief, numbered
from analysis.output.plots import IDEAL, framework_style, legend_below
from analysis.output.tables import Cell, Table, in_figures
from analysis.runs.labels import framework_label
from analysis.runs.sameness import SETTINGS
from analysis.runs.table import RunRow, Selection, curve
from analysis.runs.validity import flags_of
from common.checks.differences import worst_difference
from common.config import Config
from common.distributed.console import counted
from common.errors import UserError
from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE, Hashes
from common.run_folder.world_changes import ElasticRecord, WorldChange

_QUESTION = "What happened to the ranks, what did it cost, and did it change the run?"
_LEAST_DIFFERENCE = 1e-17  # drawn in place of none, which has no logarithm
PROMISED = 1e-10  # of float64, without dropout and BatchNorm
_CHANGE_COLUMNS = ("detect_seconds", "agree_seconds", "resume_seconds", "seconds")


@dataclass(frozen=True)
class Compared:
    """A run whose ranks changed beside one of the same experiment whose ranks stayed.

    Attributes:
        losses: relative difference of the training loss of each epoch.
        weights: largest difference of a final weight, relative to the largest weight of its tensor; None: not known.
    """

    run: RunRow
    undisturbed: RunRow
    losses: np.ndarray
    weights: float | None


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    add_question(commands, "faults", find, "changes of the ranks of runs with --elastic: time, updates, equality")


def find(selection: Selection) -> Finding:
    """Return the changes of the ranks and what they cost; beside undisturbed runs, where there are some."""
    runs = selection.rows
    changed = [run for run in runs if changes_of(run)]
    if not changed:
        answer = "The ranks of none of these runs changed: train with --elastic, and end some of them."
        return Finding(name="faults", question=_QUESTION, answer=answer)
    undisturbed = _undisturbed(runs)
    compared = [found for run in changed if (found := _compared(run, undisturbed.get(_experiment(run), ()), selection))]
    return Finding(
        name="faults",
        question=_QUESTION,
        answer=brief([*_equality(compared), *_answers(changed)]),
        tables=[
            _summary(changed),
            *([_differences(compared)] if compared else []),
            _changes(changed),
            *_commits(runs),
        ],
        plots=numbered([_plot(one, selection) for one in compared]),
        flags=flags_of(selection.rows, []),
        notes=[
            "detect: from the last progress that was seen to the error; agree: until all ranks have met and hold the "
            "same state; resume: until the first update after it, which includes building the model",
            *([] if compared else ["no run of the same experiment whose ranks stayed is among these runs"]),
        ],
    )


def changes_of(run: RunRow) -> list[WorldChange]:
    """Return the changes of the ranks of a run."""
    return run.record.elastic.changes if isinstance(run.record.elastic, ElasticRecord) else []


def _groups(runs: Sequence[RunRow]) -> dict[tuple[str, str], list[WorldChange]]:
    """Return framework and event -> changes."""
    groups: dict[tuple[str, str], list[WorldChange]] = {}
    for run in runs:
        for change in changes_of(run):
            groups.setdefault((run.framework, change.event), []).append(change)
    return dict(sorted(groups.items()))


def _answers(runs: Sequence[RunRow]) -> list[str]:
    said = []
    for (framework, event), changes in sorted(_groups(runs).items(), key=lambda item: item[0][::-1]):
        seconds = [change.seconds for change in changes]
        said.append(
            f"{framework_label(framework)} continued {in_figures(float(np.median(seconds)), 2)} s after {event} "
            f"(median; worst {in_figures(max(seconds), 2)} s, n = {len(seconds)})."
        )
    return said


def _equality(compared: Sequence[Compared]) -> list[str]:
    if not compared:
        return []
    largest = max(float(np.max(one.losses, initial=0.0)) for one in compared)
    return [f"Losses differ from those of runs whose ranks stayed by {largest:.1e} at most."]


def _summary(runs: Sequence[RunRow]) -> Table:
    headings = ["framework", "event", "n", "median, s", "95 % within, s", "worst, s", "updates again", "worst, updates"]
    rows: list[list[Cell]] = []
    for (framework, event), changes in _groups(runs).items():
        seconds, lost = ([getattr(one, name) for one in changes] for name in ("seconds", "lost_steps"))
        times = [float(np.median(seconds)), float(np.quantile(seconds, 0.95)), max(seconds)]
        rows.append([framework_label(framework), event, len(changes), *times, float(np.median(lost)), max(lost)])
    return Table("From the last update before a change to the first after it", headings, rows, _formats(headings))


def _changes(runs: Sequence[RunRow]) -> Table:
    headings = [
        "run",
        "event",
        "ranks",
        "after update",
        "updates again",
        "detect, s",
        "agree, s",
        "resume, s",
        "all, s",
    ]
    rows: list[list[Cell]] = [
        [
            run.name,
            change.event,
            f"{change.ranks_before} to {change.ranks_after}",
            change.step,
            change.lost_steps,
            *(getattr(change, name) for name in _CHANGE_COLUMNS),
        ]
        for run in runs
        for change in changes_of(run)
    ]
    return Table("Changes of the ranks", headings, rows, _formats(headings))


def _differences(compared: Sequence[Compared]) -> Table:
    headings = [
        "run",
        "undisturbed run",
        "changes",
        "lost, s",
        "of its training, %",
        "losses, relative",
        "weights, relative",
    ]
    rows: list[list[Cell]] = []
    for one in compared:
        lost = one.run.record.elastic.lost_seconds
        share = 100 * lost / one.run.training_seconds if one.run.training_seconds else None
        losses = float(np.max(one.losses, initial=0.0))
        changes = len(changes_of(one.run))
        rows.append([one.run.name, one.undisturbed.name, changes, lost, share, losses, one.weights])
    return Table("Against runs whose ranks stayed: largest differences", headings, rows, _formats(headings))


def _commits(runs: Sequence[RunRow]) -> list[Table]:
    headings = ["run", "commits", "each, ms", "of its training, %"]
    rows: list[list[Cell]] = []
    for run in runs:
        record = run.record.elastic
        if isinstance(record, ElasticRecord) and record.commits:
            each = 1000 * record.commit_seconds / record.commits
            share = 100 * record.commit_seconds / run.training_seconds if run.training_seconds else None
            rows.append([run.name, record.commits, each, share])
    title = "Copies of the state in memory, by the rank that was the first in the end"
    return [Table(title, headings, rows, _formats(headings) | {"each, ms": ".2f"})] if rows else []


def _formats(headings: Sequence[str]) -> dict[str, str]:
    seconds = {name: ".2f" for name in headings if name.endswith(", s")}
    return seconds | {name: ".1e" for name in headings if name.endswith("relative")} | {"of its training, %": ".1f"}


def _undisturbed(runs: Sequence[RunRow]) -> dict[Hashable, list[RunRow]]:
    """Return the finished runs whose ranks stayed, by their experiment."""
    found: dict[Hashable, list[RunRow]] = defaultdict(list)
    for run in runs:
        if run.state == "finished" and not changes_of(run):
            found[_experiment(run)].append(run)
    return found


def _compared(run: RunRow, undisturbed: Sequence[RunRow], selection: Selection) -> Compared | None:
    """Return the run beside the first one of as many epochs, of those of its experiment whose ranks stayed."""
    if run.state != "finished":
        return None
    losses = curve(selection.epochs, run, "training_loss")
    for other in undisturbed:
        reference = curve(selection.epochs, other, "training_loss")
        if len(losses) == len(reference):
            return Compared(run, other, _relative(losses, reference), _weights_apart(run, other))
    return None


def _experiment(run: RunRow) -> Hashable:
    """Return what two runs have in common that train in the same way, whatever their ranks; not known: nothing."""
    record, config = run.record, run.config
    if not isinstance(record.hashes, Hashes) or not isinstance(config, Config):
        return object()
    same = [getattr(getattr(config, subject), name) for subject, names in SETTINGS.items() for name in names]
    hashes = record.hashes.initial_weights, record.hashes.sample_order
    return run.framework, *hashes, run.global_batch, run.steps, *same


def _relative(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return np.abs(values - reference) / np.maximum(np.abs(reference), np.finfo(float).tiny)


def _weights_apart(run: RunRow, other: RunRow) -> float | None:
    try:
        apart, _ = worst_difference(*(load_weights(one.folder / WEIGHTS_FILE) for one in (run, other)))
    except UserError:  # removed to save space
        return None
    return apart


def _plot(one: Compared, selection: Selection) -> Plot:
    steps = np.cumsum(np.full(len(one.losses), one.run.steps / len(one.losses)))
    figure = Figure(figsize=(7.0, 4.6))
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    style = framework_style(one.run.framework)
    losses, undisturbed = (curve(selection.epochs, run, "training_loss") for run in (one.run, one.undisturbed))
    upper.plot(steps, undisturbed, color="#555555", linewidth=3.0, alpha=0.45, label="ranks stayed")
    upper.plot(steps, losses, color=style["color"], marker=style["marker"], markersize=3.5, label="ranks changed")
    upper.set_ylabel("training loss of an epoch")
    lower.plot(
        steps, np.maximum(one.losses, _LEAST_DIFFERENCE), color=style["color"], marker=style["marker"], markersize=3.5
    )
    lower.set_yscale("log")
    lower.yaxis.set_major_formatter("{x:.0e}")
    if one.run.config.model.dtype == "float64":
        lower.axhline(PROMISED, **IDEAL)
        lower.annotate("promised", (0.0, PROMISED), xycoords=("axes fraction", "data"), xytext=(3, -10),
                       textcoords="offset points", fontsize=8)  # fmt: skip
    lower.set_ylabel("relative difference")
    lower.set_xlabel("updates")
    for number, change in enumerate(changes_of(one.run)):
        for ax in (upper, lower):
            ax.axvline(change.step, color="#000000", linewidth=0.9, linestyle=(0, (3, 2)), label="_")
        upper.annotate(
            f"{change.ranks_before} to {change.ranks_after} ranks",
            (change.step, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -10 - 11 * (number % 2)),
            textcoords="offset points", fontsize=8,
        )  # fmt: skip
    legend_below(figure, upper.get_legend_handles_labels()[0], ncols=2)
    count = counted(len(changes_of(one.run)), "change")
    figure.suptitle(f"{framework_label(one.run.framework)}, {one.run.model}: {count} of the ranks (n = 1 run each)")
    headings = ["update", "training loss", "undisturbed", "relative difference"]
    rows = [list(row) for row in zip(steps.tolist(), losses, undisturbed, one.losses, strict=True)]
    return Plot("faults", figure, Table("Losses", headings, rows, dict.fromkeys(headings[1:], ".9g")))
