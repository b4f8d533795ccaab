"""Settings of what a run does when ranks end, join or hang."""

from dataclasses import dataclass
from typing import Annotated, Literal

from common.config.rules import NOTHING, SPEED, LimitedCount, Range, Settings, require


@dataclass(frozen=True)
class FaultConfig(Settings):
    """ranks that end, join or hang"""

    defines = NOTHING

    elastic: Annotated[bool, SPEED] = False
    """go on with the ranks that are left when one ends, and with those that join; the global batch stays that of the
    first start. For allreduce, started by horovodrun with --host-discovery-script or by `launch train --elastic`"""
    commit_steps: Annotated[LimitedCount, SPEED] = 10
    """updates between copies of the run's state, which every rank keeps in memory: updates after the last copy are made
    again when a rank ends"""
    stall_seconds: Annotated[float, Range(least=1, most=10**6)] | None = None
    """a rank that has not moved for so long in training hangs (None: 20 times its slowest update, at least 60);
    start-up, evaluations and checkpoints have at least 10 minutes"""
    on_stall: Literal["wait", "end", "drop"] | None = None
    """what to do about ranks that hang, after reporting them: wait; end the run, to be resumed from its newest
    checkpoint; drop: kill them, and with --elastic the others go on (None: wait; with --elastic drop)"""

    @property
    def stall_action(self) -> Literal["wait", "end", "drop"]:
        """What is done about ranks that hang."""
        return self.on_stall or ("drop" if self.elastic else "wait")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.elastic or self.commit_steps == type(self).commit_steps,
            problem="--commit-steps is an option of --elastic",
            received=f"--commit-steps {self.commit_steps}",
            remedy="Leave it out, or give --elastic",
        )
        require(
            self.elastic or self.on_stall != "drop",
            problem="without a rank the others go on only with --elastic",
            received="--on-stall drop",
            remedy="Give --on-stall end, or --elastic, too",
        )
