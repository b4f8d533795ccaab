"""Errors of the projection on steps that were left out of the fit: by model, by batch size, by number of threads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from analysis.output.tables import Cell, Table
from analysis.projection.fitting import Steps, fitted, held_out
from analysis.projection.measured import MeasuredStep
from analysis.projection.study import Study, read_study
from analysis.runs.labels import framework_label

LEFT_OUT = {"model": "one model", "batch": "one batch size", "threads": "one number of threads"}
NONE_LEFT_OUT = "nothing"
BAND = 0.3  # relative error
AIM_MEDIAN, AIM_WITHIN = 0.15, 0.9  # of errors; of cells within BAND


@dataclass(frozen=True, kw_only=True)
class Projected:
    """A measured step and its projection.

    Attributes:
        left_out: what was left out of the fit with it.
        seconds: projected.
    """

    step: MeasuredStep
    left_out: str
    seconds: float

    @property
    def error(self) -> float:
        """Projected / measured - 1."""
        return self.seconds / self.step.undisturbed - 1


def projected_steps(study: Study) -> list[Projected]:
    """Return all steps as projected by fits to all steps, and by fits without each model, batch size, thread count."""
    found = []
    for framework in study.fits:
        steps, peaks = study.of(framework), study.peaks_by_threads
        seconds = Steps(steps, peaks).seconds(fitted(steps, peaks)).tolist()
        found += [
            Projected(step=step, left_out=NONE_LEFT_OUT, seconds=one) for step, one in zip(steps, seconds, strict=True)
        ]
        for by, words in LEFT_OUT.items():
            of_fits = held_out(steps, peaks, by=by)
            found += [Projected(step=step, left_out=words, seconds=one) for step, (_, one) in of_fits.items()]
    return found


@cache
def usual_error() -> float:
    """Return the median error of the project's own study on models that were left out of the fit."""
    study = read_study()
    found = [
        Projected(step=step, left_out=LEFT_OUT["model"], seconds=seconds)
        for framework in study.fits
        for step, (_, seconds) in held_out(study.of(framework), study.peaks_by_threads, by="model").items()
    ]
    return median_error(found)


def errors_table(projected: Sequence[Projected]) -> Table:
    """Return the errors by what was left out: of each framework, and of both."""
    headings = ["left out of the fit", "framework", "cells", "median error, %", f"within {100 * BAND:.0f} %, %",
                "lowest, %", "highest, %"]  # fmt: skip
    rows: list[list[Cell]] = []
    for words in (*LEFT_OUT.values(), NONE_LEFT_OUT):
        for framework, ours in _by_framework([one for one in projected if one.left_out == words]):
            errors = np.array([one.error for one in ours])
            rows.append(
                [words, framework, len(ours), 100 * median_error(ours), 100 * within(ours), 100 * float(errors.min()),
                 100 * float(errors.max())]
            )  # fmt: skip
    formats = {"cells": "d", headings[3]: ".1f", headings[4]: ".0f", headings[5]: "+.0f", headings[6]: "+.0f"}
    return Table("Errors of projected steps (projected / measured - 1)", headings, rows, formats)


def models_table(projected: Sequence[Projected]) -> Table:
    """Return the errors of each model where it was left out of the fit."""
    headings = ["model left out", "framework", "cells", "median error, %", "median of signed errors, %"]
    rows: list[list[Cell]] = []
    ours = [one for one in projected if one.left_out == LEFT_OUT["model"]]
    for model in dict.fromkeys(one.step.model for one in ours):
        for framework, of_one in _by_framework([one for one in ours if one.step.model == model]):
            signed = float(np.median([one.error for one in of_one]))
            rows.append([model, framework, len(of_one), 100 * median_error(of_one), 100 * signed])
    formats = {"cells": "d", headings[3]: ".1f", headings[4]: "+.1f"}
    return Table("Errors by model", headings, rows, formats)


def _by_framework(projected: Sequence[Projected]) -> Iterator[tuple[str, list[Projected]]]:
    for framework in dict.fromkeys(one.step.framework for one in projected):
        yield framework_label(framework), [one for one in projected if one.step.framework == framework]
    if projected:
        yield "all", list(projected)


def median_error(projected: Sequence[Projected]) -> float:
    """Return the median of absolute relative errors."""
    return float(np.median([abs(one.error) for one in projected]))


def within(projected: Sequence[Projected]) -> float:
    """Return the share of errors within BAND."""
    return float(np.mean([abs(one.error) <= BAND for one in projected]))


def spread_of_runs(steps: Sequence[MeasuredStep]) -> float | None:
    """Return the median over cells of slowest run / fastest run - 1; None if no cell has two runs."""
    several = [step.seconds for step in steps if len(step.seconds) > 1]
    return float(np.median([max(seconds) / min(seconds) - 1 for seconds in several])) if several else None
