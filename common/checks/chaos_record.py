"""`trials.jsonl` of `python -m launch chaos`: a fault on ranks, and what became of the run. Schema: `Trial`."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from common.json_records import Record, RecordFile
from common.run_folder.world_changes import WorldChange

TRIALS_FILE = "trials.jsonl"
Way = Literal["mpi", "gloo", "elastic", "files"]
SignalKind = Literal["SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP"]
FileKind = Literal["end", "EIO", "ENOSPC", "EMFILE", "clock +1 day", "clock -1 day"]
DamageKind = Literal["truncated checkpoint", "flipped bit in a checkpoint"]
HostKind = Literal["pause of 2 s", "full shared memory", "network down", "network down for 2 s"]
Kind = SignalKind | FileKind | DamageKind | HostKind


@dataclass(frozen=True, kw_only=True)
class Trial(Record):
    """One fault and what was found after it.

    Attributes:
        framework: of the ranks; empty where there are none.
        way: how the ranks were started; "files": a program without ranks.
        victim: number of the rank, "launcher", "host", or the program.
        after_seconds: from the start to the fault.
        seed: drew the fault, with the number.
        epochs_before: that were recorded when it came; None: there was no run folder.
        ended_seconds: from the fault until all processes had ended.
        hung: they had to be ended by the campaign.
        is_readable: the run folder is absent or valid, and does not say that the run goes on; damage to it is found.
        is_kept: the newest checkpoint is of the last recorded epoch, and no record of an epoch is lost.
        starts: that it took to finish the run, the first one included; 0: it was not finished.
        is_equal: the final weights are those of an undisturbed run.
        left_behind: processes and shared memory that outlived the run.
        traceback: whether a rank printed one, was aborted, or a program ended with an exit code of its own.
        strikes: faults in this run that found what they were to strike; 0: none, as it had ended or not begun.
        operation: number of the file operation that failed.
        changes: of the ranks of an elastic run, with the seconds until it went on.
        machine: processor and cores.
        day: of the trial, as 2026-11-24.
    """

    number: int
    framework: str
    way: Way
    kind: Kind
    victim: str
    after_seconds: float
    epochs_before: int | None
    ended_seconds: float
    hung: bool
    is_readable: bool
    is_kept: bool
    starts: int
    is_equal: bool
    left_behind: list[str]
    traceback: bool
    seed: int = 1
    strikes: int = 1
    operation: int | None = None
    changes: list[WorldChange] = field(default_factory=list)
    machine: str = ""
    day: str = ""

    @property
    def is_survived(self) -> bool:
        """Whether nothing was lost, nothing hung, and nothing is wrong or left."""
        kept = self.is_readable and self.is_kept and self.is_equal and self.starts > 0
        return kept and not (self.hung or self.left_behind or self.traceback)


TRIALS = RecordFile(
    kind=Trial,
    what="a record of `launch chaos`",
    missing="cannot read the trials",
    source="Restore the file",
    remedy="Restore it",
)


def read_trials(folder: Path) -> list[Trial]:
    """Return the trials of a campaign so far; none if it has not begun.

    Raises:
        UserError: the file does not follow the schema.
    """
    file = folder / TRIALS_FILE
    return TRIALS.read_lines(file) if file.exists() else []


def add_trial(folder: Path, trial: Trial) -> None:
    """Append a trial: all of its line, or nothing."""
    TRIALS.write_lines(folder / TRIALS_FILE, [*read_trials(folder), trial])


HEADINGS = (
    *("ranks", "fault", "faults", "runs", "started again"),
    *("ended by itself", "folder good", "nothing lost", "finished", "same weights", "all good"),
    *("all ended after, s, median", "worst, s"),
)
CHANGE_HEADINGS = (
    *("framework", "change", "n", "seen after, s, median", "at worst, s"),
    *("went on after, s, median", "95 % within, s", "worst, s"),
    *("updates again, median", "updates again, worst"),
)


def struck(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose fault found what it was to strike."""
    return [trial for trial in trials if trial.strikes]


def summary(trials: Sequence[Trial]) -> list[list[str | float]]:
    """Return rows under HEADINGS: how many faults of each sort were survived in each respect."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in struck(trials):
        whom = " to a rank" if trial.victim.isdigit() else " to the launcher" if trial.victim == "launcher" else ""
        groups.setdefault((trial.way, trial.kind + whom), []).append(trial)
    rows: list[list[str | float]] = []
    for (way, fault), of_sort in sorted(groups.items()):
        counts = [
            sum(one.starts > 1 for one in of_sort),
            sum(not one.hung for one in of_sort),
            sum(one.is_readable for one in of_sort),
            sum(one.is_kept for one in of_sort),
            sum(one.starts > 0 for one in of_sort),
            sum(one.is_equal for one in of_sort),
            sum(one.is_survived for one in of_sort),
        ]
        seconds = [one.ended_seconds for one in of_sort]
        # A file operation comes at its own time, and elastic ranks go on: neither ends because of the fault.
        is_timed = fault.startswith("SIG") and way != "elastic"
        times = (round(statistics.median(seconds), 1), round(max(seconds), 1)) if is_timed else ("", "")
        strikes = sum(one.strikes for one in of_sort)
        rows.append(["none" if way == "files" else way, fault, strikes, len(of_sort), *counts, *times])
    return rows


def summary_of_changes(trials: Sequence[Trial]) -> list[list[str | float]]:
    """Return rows under CHANGE_HEADINGS: how long elastic runs took to go on, and what they had to do again."""
    groups: dict[tuple[str, str], list[WorldChange]] = {}
    for trial in trials:
        for change in trial.changes:
            groups.setdefault((trial.framework, change.event), []).append(change)
    rows: list[list[str | float]] = []
    for (framework, event), changes in sorted(groups.items()):
        seconds, again = sorted(one.seconds for one in changes), [one.lost_steps for one in changes]
        within, seen = seconds[math.ceil(0.95 * len(seconds)) - 1], [one.detect_seconds for one in changes]
        figures = (statistics.median(seen), max(seen), statistics.median(seconds), within, seconds[-1])
        times = [round(one, 1) for one in figures]
        rows.append([framework, event, len(changes), *times, statistics.median(again), max(again)])
    return rows
