"""`python -m analysis projection`: how far the projected time of a step can be trusted.

python -m analysis projection                                    the project's own study
python -m analysis projection RUNS --plots plots                 steps measured elsewhere
python -m analysis projection RUNS --peaks --output study.json   with the peaks of this machine; kept as a study
"""

import argparse
from collections.abc import Sequence
from typing import Any

from analysis.output.finding import Finding, add_show_options, show
from analysis.output.options import add_parser
from analysis.output.tables import Cell, Table, in_percent
from analysis.projection.recorded import study_of_runs
from analysis.projection.study import Study, read_study, write_study
from analysis.questions.projection.errors import (
    AIM_MEDIAN,
    AIM_WITHIN,
    BAND,
    LEFT_OUT,
    Projected,
    errors_table,
    median_error,
    models_table,
    projected_steps,
    spread_of_runs,
    within,
)
from analysis.questions.projection.plots import plot_errors
from analysis.questions.projection.published import compared, inside_words, published_table
from analysis.runs.labels import framework_label
from analysis.runs.reading import load_runs
from common.errors import UserError
from common.sites.table import read_sites
from common.utils.command_line import path, word

_QUESTION = "How far can the projected time of a step be trusted?"


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "projection", run, "how far the projected time of a step can be trusted")
    parser.add_argument(
        "runs",
        type=word,
        nargs="*",
        metavar="RUNS",
        help="runs on the CPUs of one machine (default: the project's own study)",
    )
    add_show_options(parser)
    parser.add_argument("--peaks", action="store_true", help="with RUNS: measure the peaks of this machine's processor")
    parser.add_argument("--output", type=path, metavar="FILE", help="with RUNS: write steps and fits into this file")


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: no run can be used, or an option needs runs.
    """
    if not options.runs and (options.peaks or options.output):
        given = "--peaks" if options.peaks else f"--output {options.output}"
        raise UserError(f"a study is made from runs. Received: {given} without RUNS. Name folders of runs")
    left_out: Sequence[str] = ()
    if options.runs:
        selection = load_runs(options.runs)
        study, unused = study_of_runs(selection, measure=options.peaks)
        left_out = [*selection.left_out, *unused]
    else:
        study = read_study()
    if options.output:
        write_study(study, options.output)
    show(find(study, left_out=left_out), options)


def find(study: Study, *, left_out: Sequence[str] = ()) -> Finding:
    """Find out how far projections from a study's fits can be trusted.

    Args:
        study: the measured steps and fits.
        left_out: a line for each run that it does not use.
    """
    sites, projected = read_sites(), projected_steps(study)
    by_model = [one for one in projected if one.left_out == LEFT_OUT["model"]]
    published, unused = compared(sites, study)
    tables = [
        errors_table(projected),
        models_table(projected),
        efficiencies_table(study),
        peaks_table(study),
        published_table(published),
    ]
    return Finding(
        name="projection",
        question=_QUESTION,
        answer="\n".join([answer(projected, study), *([inside_words(published)] if published else [])]),
        tables=[table for table in tables if table.rows],
        plots=[plot_errors(by_model, machine=study.machine)],
        flags=left_out,
        notes=[*_notes(study), *unused],
    )


def answer(projected: Sequence[Projected], study: Study) -> str:
    """Return how large the errors are on models that were left out of the fit, and whether that was the aim."""
    by_model = [one for one in projected if one.left_out == LEFT_OUT["model"]]
    median, share = median_error(by_model), within(by_model)
    reached = median <= AIM_MEDIAN and share >= AIM_WITHIN
    return (
        f"The time of a step of a model that was left out of the fit is projected with a median error of "
        f"{100 * median:.0f} %. Of {len(by_model)} cells {100 * share:.0f} % are within {100 * BAND:.0f} %. The "
        f"aim, {100 * AIM_MEDIAN:.0f} % and {100 * AIM_WITHIN:.0f} %, is {'reached' if reached else 'missed'}."
    )


def measured_words(study: Study) -> str:
    """Return what was measured, and how far runs of one cell differ."""
    spread = spread_of_runs(study.steps)
    packages = ", ".join(f"{name} {version}" for name, version in study.packages.items())
    words = f"{study.runs} runs of {study.date} on {study.machine}; {packages}."
    if spread is None:
        return words
    return (
        f"{words} The slowest run of a cell took {100 * spread:.0f} % longer than its fastest (median); as other "
        "processes only slow a run down, the fastest epoch counts."
    )


def _notes(study: Study) -> list[str]:
    return [
        measured_words(study),
        "a time is the sum over operations of max(FLOPs / compute, bytes / memory), and overhead and exchange; of "
        "efficiencies and peaks only the products follow from times",
        "of machines that were never measured, all GPUs among them, the interval spans the lowest and the highest "
        "share of the peaks that any cell reached, at most all of it; that they reach these is an assumption",
        "a share above 100 % says that the products and copies by which peaks are measured stay below the real peak",
        "published times contain the loading of images as their sources did it, which is not projected and may "
        "dominate steps of a few milliseconds",
    ]


def efficiencies_table(study: Study) -> Table:
    """Return what was fitted."""
    headings = ["framework", "cells", "convolutions, % of peak", "dense, % of peak",
                "memory, % of peak", "half at", "step, µs", "operation, µs",
                "thread, µs", "latency, µs", "exchange, GB/s", "lowest of peaks, %", "highest of peaks, %"]  # fmt: skip
    rows: list[list[Cell]] = []
    for framework, fit in study.fits.items():
        found = fit.efficiencies
        overheads = found.step_seconds, found.operation_seconds, found.thread_seconds, found.latency_seconds
        rows.append(
            [framework_label(framework), fit.cells, in_percent(found.compute), in_percent(found.dense),
             in_percent(found.memory), found.half,
             *(1e6 * seconds for seconds in overheads), 1e-9 / found.byte_seconds, in_percent(fit.lowest),
             in_percent(fit.highest)]
        )  # fmt: skip
    return Table("Fitted efficiencies and overheads", headings, rows,
                 {"cells": "d"} | dict.fromkeys(headings[2:], ".3g"))  # fmt: skip


def peaks_table(study: Study) -> Table:
    """Return the measured peaks."""
    headings = ["machine", "threads", "GFLOPS", "GB/s"]
    rows: list[list[Cell]] = [
        [one.device, one.threads, 1e-9 * one.flops_per_second, 1e-9 * one.bytes_per_second] for one in study.peaks
    ]  # fmt: skip
    return Table(
        "Peaks, measured by products and copies", headings, rows, {"threads": "d"} | dict.fromkeys(headings[2:], ".0f")
    )
