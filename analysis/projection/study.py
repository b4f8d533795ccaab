"""A study of steps on one machine: what was measured, the fit, and how far it can be trusted; kept as a small file.

The project ships one (`STUDY_FILE`); `python -m analysis projection RUNS --output FILE` writes one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from analysis.projection.efficiency import AT_PEAK, Efficiencies
from analysis.projection.fitting import Steps, fitted, held_out
from analysis.projection.measured import MeasuredStep
from analysis.projection.peaks import Peaks
from common.errors import UserError, user_errors
from common.json_records import Record, RecordFile

STUDY_FILE = Path(__file__).resolve().parents[1] / "data" / "projection" / "projection.json"
_COVERED = (0.05, 0.95)  # quantiles: between which 90 % of cells are
_COMPUTING = 0.5  # share of a step from which its operations say something about their efficiency


@dataclass(frozen=True, kw_only=True)
class Fit(Record):
    """The fit of one framework.

    Attributes:
        efficiencies: fitted to all cells.
        lowest, highest: shares of the peaks that the operations of a cell reached, over all cells.
        errors: measured / projected time of cells whose model was left out of the fit; 90 % of them are in this range.
        cells: number.
    """

    efficiencies: Efficiencies
    lowest: float
    highest: float
    errors: tuple[float, float]
    cells: int


@dataclass(frozen=True, kw_only=True)
class Study(Record):
    """Steps measured on one machine, and the fits to them.

    Attributes:
        machine: processor and cores.
        date: of the first run.
        packages: name -> version.
        peaks: of the machine, by threads.
        fits: framework -> fit.
        steps: measured.
    """

    machine: str
    date: str
    packages: dict[str, str]
    peaks: list[Peaks]
    fits: dict[str, Fit]
    steps: list[MeasuredStep]

    @property
    def runs(self) -> int:
        """Number of runs."""
        return sum(len(step.seconds) for step in self.steps)

    @property
    def peaks_by_threads(self) -> dict[int, Peaks]:
        """Peaks of the machine."""
        return {peaks.threads: peaks for peaks in self.peaks}

    def peaks_of(self, machine: str, threads: set[int]) -> list[Peaks]:
        """Return the peaks of a machine on these numbers of threads; empty if the study does not have all of them."""
        has_all = machine == self.machine and threads <= self.peaks_by_threads.keys()
        return [peaks for peaks in self.peaks if peaks.threads in threads] if has_all else []

    def of(self, framework: str) -> list[MeasuredStep]:
        """Return the steps of a framework."""
        return [step for step in self.steps if step.framework == framework]


def study_of(
    steps: Sequence[MeasuredStep], *, machine: str, date: str, packages: dict[str, str], peaks: Sequence[Peaks]
) -> Study:
    """Fit each framework and return the study; arguments: see `Study`.

    Raises:
        UserError: a framework was measured on a single model, so that none can be left out.
    """
    of_framework: dict[str, list[MeasuredStep]] = {}
    for step in steps:
        of_framework.setdefault(step.framework, []).append(step)
    for framework, of_one in of_framework.items():
        if len({step.model for step in of_one}) == 1:
            raise UserError(
                f"a fit is tested on models that are left out of it. Received: {framework} with {of_one[0].model} "
                "alone. Name runs of two models or more"
            )
    by_threads = {one.threads: one for one in peaks}
    return Study(
        machine=machine,
        date=date,
        packages=packages,
        peaks=list(peaks),
        fits={name: _fit(of_one, by_threads) for name, of_one in of_framework.items()},
        steps=list(steps),
    )


def _fit(steps: Sequence[MeasuredStep], peaks: dict[int, Peaks]) -> Fit:
    found, arrays = fitted(steps, peaks), Steps(steps, peaks)
    computing = arrays.measured - arrays.others(found)
    counted = computing > _COMPUTING * arrays.measured
    if not counted.any():  # overhead alone: then the whole step counts
        computing, counted = arrays.measured, ~counted
    reached = arrays.rooflines(AT_PEAK)[counted] / computing[counted]
    ratios = [measured / projected for measured, projected in held_out(steps, peaks, by="model").values()]
    low, high = np.quantile(ratios, _COVERED)
    return Fit(
        efficiencies=found,
        lowest=float(reached.min()),
        highest=float(reached.max()),
        errors=(float(low), float(high)),
        cells=len(steps),
    )


STUDIES = RecordFile(
    kind=Study, what="a study of steps", missing="cannot read the study", source="Write it anew", remedy="Write it anew"
)


def write_study(study: Study, file: Path) -> None:
    """Write a study.

    Raises:
        UserError: the file cannot be written.
    """
    with user_errors("writing the study"):
        file.parent.mkdir(parents=True, exist_ok=True)
        STUDIES.write(file, study)


@cache
def read_study(file: Path = STUDY_FILE) -> Study:
    """Read a study.

    Raises:
        UserError: there is no such file, or it is none.
    """
    return STUDIES.read(file)
