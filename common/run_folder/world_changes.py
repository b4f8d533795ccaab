"""What happened to the ranks of an elastic run."""

from dataclasses import dataclass, field
from typing import Literal

from common.json_records import Record
from common.run_folder.values import OneDNNInForce, RankCount, Seconds, Timestamp, WholeNumber

Cause = Literal["a rank ended", "the hosts changed"]


@dataclass(frozen=True, kw_only=True)
class WorldChange(Record):
    """One change of the ranks. Times are those of the first rank that went on."""

    at: Timestamp
    cause: Cause
    step: WholeNumber  # update of the run after which the ranks went on
    ranks_before: RankCount
    ranks_after: RankCount
    ended: list[str]  # ranks that are not there any more, as "host, process 1234"
    joined: list[str]
    lost_steps: WholeNumber  # updates that were made and had to be made again
    detect_seconds: Seconds  # from the last progress that was seen to the error; 0 where the hosts changed
    agree_seconds: Seconds  # from there until all ranks have met and hold the same state
    resume_seconds: Seconds  # from there to the end of the first update, or of the first call of several
    onednn: list[OneDNNInForce | None] | None = None  # of the ranks after it, as in `World`; None: unknown

    @property
    def event(self) -> str:
        """What happened to the ranks, in words."""
        if self.cause == "a rank ended":
            return self.cause
        if self.ranks_after == self.ranks_before:
            return "a rank that joined ended"  # before all had met: the others go on as they were
        return "a rank joined" if self.ranks_after > self.ranks_before else "a host was removed"

    @property
    def seconds(self) -> float:
        """From the last progress before the change to the first after it."""
        return self.detect_seconds + self.agree_seconds + self.resume_seconds


@dataclass(frozen=True, kw_only=True)
class ElasticRecord(Record):
    """The ranks of an elastic run over time.

    Attributes:
        commits: copies of the state made in memory by the first rank, since it was started.
        commit_seconds: the time that took, part of the epochs' checkpoint_seconds.
    """

    changes: list[WorldChange] = field(default_factory=list)
    commits: WholeNumber = 0
    commit_seconds: Seconds = 0.0

    @property
    def lost_seconds(self) -> float:
        """Seconds from the last progress before a change to the first after it, of all changes."""
        return sum(one.seconds for one in self.changes)
