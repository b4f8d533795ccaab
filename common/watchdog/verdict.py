"""Which ranks hang, by the reports of their watchers. The watcher imports this file: the standard library alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.utils.process_state import GONE

LEAST_SECONDS = 60.0  # in training
TIMES_SLOWEST = 20.0
OTHER_SECONDS = 600.0  # in start-up, evaluations, checkpoints
SILENT_SECONDS = 5.0  # of a watcher, before its host is taken for unreachable
_LIMITS = {
    "ending": 60.0,  # of a process whose run is finished
    "preparing data": 3600.0,  # which may have to be fetched, on this host or another
    "serving": math.inf,  # servers wait for workers
}
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "Z": "has ended", "X": "has ended", GONE: "has ended"}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a watcher says about its rank.

    Attributes:
        idle_seconds: since the last sign of progress; of a stopped rank, since it was stopped.
        state: of the process, a letter of /proc/PID/stat, or GONE.
        silent_seconds: since its watcher sent this.
        stack: where the rank is, innermost call first; empty while it makes progress.
        failure: why rank 0 must end the run; empty: it need not.
    """

    host: str
    process: int
    activity: str
    updates: int
    idle_seconds: float
    slowest_seconds: float
    state: str
    silent_seconds: float = 0.0
    stack: str = ""
    failure: str = ""

    @property
    def is_silent(self) -> bool:
        """Whether the host of the rank cannot be reached."""
        return self.silent_seconds > SILENT_SECONDS and self.state != GONE

    @property
    def unmoved_seconds(self) -> float:
        """Since the last sign of progress, as far as is known."""
        return self.idle_seconds + self.silent_seconds


def limit_of(report: Report, *, stall_seconds: float | None) -> float:
    """Return for how long a rank may not move in what it does.

    Args:
        stall_seconds: in training; None: by its slowest update.
    """
    by_slowest = TIMES_SLOWEST * report.slowest_seconds
    if report.is_silent or report.state in _STATES:  # it does nothing that might take longer
        return stall_seconds or max(LEAST_SECONDS, by_slowest)
    # Nothing is known of the first update, which may take memory and choose kernels.
    in_training = stall_seconds or max(LEAST_SECONDS, by_slowest or OTHER_SECONDS)
    if report.activity in ("training", "loading data"):
        return in_training
    return _LIMITS.get(report.activity, max(OTHER_SECONDS, in_training))


def is_stuck(report: Report, *, stall_seconds: float | None, share: float = 1.0) -> bool:
    """Return whether a rank has not moved for too long, or for this share of it; it may wait for another one."""
    return report.unmoved_seconds > share * limit_of(report, stall_seconds=stall_seconds)


def hanging_ranks(reports: Mapping[int, Report], *, stall_seconds: float | None) -> list[int]:
    """Return the ranks that hang and do not only wait for others; all that do not move where none stands out.

    In training all ranks stop when one does. It is the one that cannot be reached, has ended or is stopped; else one
    that does something in which it waits for nobody; else the ones behind.

    Args:
        stall_seconds: as for `limit_of`.
    """
    # Ranks that have ended by themselves are silent or gone, too.
    reports = {
        rank: report
        for rank, report in reports.items()
        if report.activity != "ending" or not (report.is_silent or report.state == GONE)
    }
    stuck = {rank: report for rank, report in reports.items() if is_stuck(report, stall_seconds=stall_seconds)}
    if not stuck:
        return []
    least = min(report.updates for report in stuck.values())
    candidates = (
        [rank for rank, report in reports.items() if report.is_silent],
        [rank for rank, report in reports.items() if report.state in _STATES],
        # It may have begun with that after the ranks that wait for it had stopped to move.
        [
            rank
            for rank, report in reports.items()
            if report.activity in ("loading data", "checkpoint")
            and is_stuck(report, stall_seconds=stall_seconds, share=0.5)
        ],
        [rank for rank, report in stuck.items() if report.state == "D"],
        [rank for rank, report in stuck.items() if report.updates == least],
    )
    return sorted(next(filter(None, candidates)))


def words(ranks: Sequence[int], reports: Mapping[int, Report]) -> str:
    """Return in one line which ranks hang, where, in what, and since when."""
    if len(ranks) == len(reports) > 1:
        seconds = min(report.unmoved_seconds for report in reports.values())
        return f"none of {len(reports)} ranks has made progress for {seconds:.0f} s, and none stands out"
    return "; ".join(_words_of(rank, reports[rank]) for rank in ranks)


def _words_of(rank: int, report: Report) -> str:
    if report.is_silent:
        how = f"does not answer: nothing was received from its host for {report.silent_seconds:.0f} s"
    else:
        how = _STATES.get(report.state, "waits for a device" if report.state == "D" else "makes no progress")
    after = f" after {report.updates} updates" if report.updates else ""
    return (
        f"rank {rank} (host {report.host}, process {report.process}) {how}, in {report.activity}{after}, for "
        f"{report.unmoved_seconds:.0f} s"
    )
