"""`python -m analysis hyperparameters`: accuracy curves and total times by batch, resolution and validation share."""

import argparse
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from analysis.output.finding import Finding, Plot, add_options, numbered, selected, show
from analysis.output.plots import framework_style
from analysis.output.tables import Table
from analysis.questions.hyperparameters.plots import plot_accuracies, plot_shares, plot_times
from analysis.questions.hyperparameters.trials import (
    Trial,
    batch_studies,
    family_of,
    share_label,
    share_studies,
    training_an_epoch,
    trial_of,
    validation_an_epoch,
)
from analysis.runs.cells import cells_of
from analysis.runs.reading import Selection
from analysis.runs.validity import flags_of
from analysis.stats.inference import median_of

NEAR = 0.05  # of accuracy, as a fraction: what is nearly as accurate as the best


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "hyperparameters",
        help="accuracy curves and total times by batch and resolution",
        description="Compare runs that differ in batch, resolution or share of validation samples.",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    show(find(selected(options)), options)


def find(selection: Selection) -> Finding:
    """Find out what batch, resolution and share of validation samples do to time and accuracy."""
    families: dict[Hashable, list[Trial]] = defaultdict(list)
    for cell in cells_of(selection.runs):
        if cell.finished:
            families[family_of(cell)].append(trial_of(cell))
    studies = [study for family in families.values() for study in batch_studies(family)]
    shares = [study for family in families.values() for study in share_studies(family)]
    used = {id(trial.cell): trial.cell for study in (*studies, *shares) for trial in study}
    tables = [_table(studies), _share_table(shares)]
    plots: list[Plot] = []
    for group in _together(studies):
        plots += [plot for draw in (plot_accuracies, plot_times) if (plot := draw(group)) is not None]
    plots += [plot for study in shares if (plot := plot_shares(study)) is not None]
    notes = []
    if any(trial.best is None and trial.last is not None for study in studies for trial in study):
        notes.append("runs without validation have no accuracy curve; their accuracy is that on the test samples")
    if studies:
        notes.append("time: train + validation + test; accuracies: on the validation samples; all medians over runs")
    if any(trial.share is None for study in shares for trial in study):
        notes.append("the share of validation samples of some runs is not recorded: they stand under their names")
    runs = [one for cell in used.values() for one in cell.runs]
    flags = [*selection.left_out, *flags_of(runs, list(used.values()))]
    flags += [flag for study in studies for flag in _share_flags(study)]
    return Finding(
        name="hyperparameters",
        question="What do batch, resolution and the share of validation samples do to time and accuracy?",
        answer=" ".join([*map(_answer, studies), *map(_share_answer, shares)]) or _NOTHING,
        tables=[table for table in tables if table.rows],
        plots=numbered(plots),
        flags=flags,
        notes=notes,
    )


_NOTHING = (
    "There are no runs that differ in batch, resolution or the share of validation samples and in nothing else: "
    "nothing can be told of them."
)


def _share_flags(study: Sequence[Trial]) -> list[str]:
    shares = {share_label(trial): trial for trial in study}
    named = " and ".join(f"{trial.label} {share}" for share, trial in shares.items())
    return [f"{_title(study[0])}: the share of validation samples differs too: {named}"] if len(shares) > 1 else []


def _together(studies: Sequence[list[Trial]]) -> list[list[list[Trial]]]:
    """Return the studies of both frameworks that go into one picture."""
    groups: dict[Hashable, list[list[Trial]]] = defaultdict(list)
    for study in studies:
        first = study[0].cell.runs[0]
        sizes = tuple(sorted({trial.size for trial in study}))
        groups[first.model, first.ranks, first.origin, first.site, tuple(trial.share for trial in study), sizes].append(
            study
        )
    return list(groups.values())


# Words


def _title(trial: Trial) -> str:
    first = trial.cell.runs[0]
    return f"{framework_style(first.framework)['label']}, {first.model}" + (
        f", np {first.ranks}" if first.ranks else ""
    )


def _answer(study: Sequence[Trial]) -> str:
    timed = [trial for trial in study if trial.seconds]
    judged = [trial for trial in timed if trial.last is not None]
    parts = []
    if timed:
        fastest = min(timed, key=lambda trial: np.median(list(trial.seconds.values())))
        parts.append(f"fastest is {fastest.label}: {_time_and_accuracy(fastest)}")
    if judged:
        best = max(judged, key=lambda trial: trial.last or 0.0)
        parts.append(f"most accurate at the end {best.label}: {_time_and_accuracy(best)}")
        near = [trial for trial in judged if (trial.last or 0.0) >= (best.last or 0.0) - NEAR]
        quick = min(near, key=lambda trial: np.median(list(trial.seconds.values())))
        if quick is not best:
            parts.append(f"fastest within {100 * NEAR:g} points of that {quick.label}: {_time_and_accuracy(quick)}")
    parts += [f"{trial.label} {trial.remark}, best {_percent(trial.best)}" for trial in study if trial.remark]
    return f"{_title(study[0])}: {'; '.join(parts) or 'no times and no accuracies'}."


def _time_and_accuracy(trial: Trial) -> str:
    seconds = list(trial.seconds.values())
    accuracy = f" at {_percent(trial.last)}" if trial.last is not None else ", accuracy not known"
    return f"{np.median(seconds):,.2f} s{accuracy} (n = {len(seconds)})"


def _percent(fraction: float | None) -> str:
    return "not known" if fraction is None else f"{100 * fraction:.1f} %"


def _share_answer(study: Sequence[Trial]) -> str:
    parts = []
    for trial in study:
        training, validation = (trial.median(of) for of in (training_an_epoch, validation_an_epoch))
        total = median_of(trial.seconds.values())
        if training is not None and validation is not None and total is not None:
            parts.append(
                f"{share_label(trial)}: {training:.2f} s of training and {validation:.2f} s of validation an epoch, "
                f"{total:,.1f} s in all (n = {len(trial.seconds)})"
            )
    return f"{_title(study[0])}, by share of validation samples: {'; '.join(parts)}." if parts else ""


# Tables


def _table(studies: Sequence[Sequence[Trial]]) -> Table:
    headings = ["framework", "model", "np", "resolution", "batch", "n", "total, s", "min", "max",
                "last accuracy, %", "best accuracy, %", "remark"]  # fmt: skip
    rows: list[list[Any]] = []
    for study in studies:
        for trial in study:
            first, seconds = trial.cell.runs[0], list(trial.seconds.values())
            percents = [None if value is None else 100 * value for value in (trial.last, trial.best)]
            rows.append(
                [framework_style(first.framework)["label"], first.model, first.ranks or None, trial.size, trial.batch,
                 trial.n, median_of(trial.seconds.values()), min(seconds, default=None),
                 max(seconds, default=None), *percents, trial.remark]
            )  # fmt: skip
    formats = dict.fromkeys(("total, s", "min", "max"), ",.2f") | dict.fromkeys(("np", "batch", "n"), "d")
    formats |= {headings[9]: ".2f", headings[10]: ".2f"}
    return Table("Time and validation accuracy by resolution and batch (medians)", headings, rows, formats)


def _share_table(studies: Sequence[Sequence[Trial]]) -> Table:
    headings = ["framework", "model", "resolution", "batch", "validation samples", "n", "training, s/epoch",
                "validation, s/epoch", "total, s"]  # fmt: skip
    rows: list[list[Any]] = []
    for study in studies:
        for trial in study:
            first = trial.cell.runs[0]
            rows.append(
                [framework_style(first.framework)["label"], first.model, trial.size, trial.batch or None,
                 share_label(trial), len(trial.seconds), trial.median(training_an_epoch),
                 trial.median(validation_an_epoch), median_of(trial.seconds.values())]
            )  # fmt: skip
    formats = {"batch": "d", "n": "d", headings[6]: ".3f", headings[7]: ".3f", "total, s": ",.2f"}
    return Table("Time by the share of validation samples (medians)", headings, rows, formats)
