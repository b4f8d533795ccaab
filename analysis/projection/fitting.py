"""Efficiencies, fitted to measured steps: least squares of log(projected / measured), so that all are positive."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields

import numpy as np

from analysis.projection.efficiency import (
    Efficiencies,
    Numbers,
    exchange_seconds,
    numbers_of,
    overhead_seconds,
    roofline_seconds,
)
from analysis.projection.measured import MeasuredStep
from analysis.projection.peaks import Peaks

# Where the search starts, from which what the data do not determine is drawn away only a little (see _PULL).
_START = Efficiencies(
    compute=0.5, dense=0.5, memory=0.5, half=30.0, step_seconds=1e-4, operation_seconds=1e-5, thread_seconds=1e-5,
    latency_seconds=1e-5, byte_seconds=1e-9,
)  # fmt: skip
_PULL = 0.02  # weight of log(found / start)^2: a factor of e weighs as an error of 2 % of one cell
_ROBUST = 0.2  # log error from which a cell counts less: other processes disturb some runs


class Steps:
    """Measured steps as arrays, for many evaluations.

    Args:
        steps: measured, at least one.
        peaks: threads of all ranks of the machine -> peaks of them together.
    """

    def __init__(self, steps: Sequence[MeasuredStep], peaks: Mapping[int, Peaks]) -> None:
        of_steps = [step.operations() for step in steps]
        self.counts = np.array([len(operations) for operations in of_steps], float)
        self._first = np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(int)
        operations = [one for of_step in of_steps for one in of_step]
        self._work = numbers_of(operations)
        # Ranks of one machine share its memory and cores.
        of_rank = [(peaks[step.threads * step.ranks], step.ranks) for step in steps]
        repeated = self.counts.astype(int)
        self._peak_flops = np.repeat([peak.flops_per_second / ranks for peak, ranks in of_rank], repeated)
        self._peak_bytes = np.repeat([peak.bytes_per_second / ranks for peak, ranks in of_rank], repeated)
        self.threads = np.array([step.threads for step in steps], float)
        self.ranks = np.array([step.ranks for step in steps], float)
        self.gradient_bytes = np.array([step.gradient_bytes for step in steps], float)
        self.measured = np.array([step.undisturbed for step in steps])

    def rooflines(self, found: Efficiencies) -> Numbers:
        """Return the seconds of all operations of each step."""
        seconds = roofline_seconds(self._work, peak_flops=self._peak_flops, peak_bytes=self._peak_bytes, found=found)
        return np.add.reduceat(seconds, self._first)

    def others(self, found: Efficiencies) -> Numbers:
        """Return the overhead and exchange of each step."""
        exchange = exchange_seconds(self.ranks, self.gradient_bytes, found)
        return overhead_seconds(self.counts, self.threads, found) + exchange

    def seconds(self, found: Efficiencies) -> Numbers:
        """Return the projected seconds of each step."""
        return self.rooflines(found) + self.others(found)


def fitted(steps: Sequence[MeasuredStep], peaks: Mapping[int, Peaks]) -> Efficiencies:
    """Return the efficiencies of one framework that make projected and measured seconds most alike.

    Cells are weighed by their relative errors, large ones less (soft L1). What no cell determines, such as the exchange
    where none has two ranks, stays where the search starts.
    """
    from scipy.optimize import least_squares  # here, because it takes half a second to load

    arrays, start = Steps(steps, peaks), np.log(astuple(_START))

    def errors(logs: Numbers) -> Numbers:
        return np.concatenate([np.log(arrays.seconds(_from(logs)) / arrays.measured), _PULL * (logs - start)])

    upper = np.full(len(start), np.inf)
    upper[:3] = 1e-9  # no share of a peak exceeds it
    return _from(least_squares(errors, start, bounds=(-np.inf, upper), loss="soft_l1", f_scale=_ROBUST).x)


def held_out(
    steps: Sequence[MeasuredStep], peaks: Mapping[int, Peaks], *, by: str
) -> dict[MeasuredStep, tuple[float, float]]:
    """Predict each measured step from a fit to those that differ in a setting.

    Args:
        steps: of one framework.
        peaks: as in `Steps`.
        by: field of `MeasuredStep`, such as model: all steps of one value are left out together.

    Returns:
        step -> measured and projected seconds; empty if all steps share one value.
    """
    found: dict[MeasuredStep, tuple[float, float]] = {}
    for value in dict.fromkeys(getattr(step, by) for step in steps):
        left, kept = ([step for step in steps if (getattr(step, by) == value) is out] for out in (True, False))
        if kept:
            projected = Steps(left, peaks).seconds(fitted(kept, peaks)).tolist()
            found |= {step: (step.undisturbed, seconds) for step, seconds in zip(left, projected, strict=True)}
    return found


def _from(logs: Numbers) -> Efficiencies:
    names = [one.name for one in fields(Efficiencies)]
    return Efficiencies(**dict(zip(names, np.exp(logs).tolist(), strict=True)))
