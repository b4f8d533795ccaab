"""Settings of what a run does when ranks end, join or hang, and of what it measures and writes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from common.config.rules import NOTHING, SPEED, CountFromZero, LimitedCount, NotNegative, Positive, Settings
from common.errors import expanded

_LETTERS = "letters, digits, '.', '_', '+' and '-'"
# A pattern that counts to 200 takes 26 MB: each repetition is compiled with all letters of Unicode.
FolderName = Annotated[
    str,
    Field(
        pattern=r"^[\w+-][\w.+-]*$",
        max_length=200,
        description=f"at most 200 {_LETTERS}, of which '.' is not the first",
    ),
]
SiteName = Annotated[str, Field(pattern=r"^[\w.+-]+$", max_length=100, description=f"at most 100 {_LETTERS}")]


@dataclass(frozen=True)
class FaultConfig(Settings):
    """ranks that end, join or hang"""

    defines = NOTHING

    elastic: Annotated[bool, SPEED] = False
    """if a rank ends, continue with the others, and with ranks that join; the global batch size stays that of the
    first start. Started by horovodrun with --host-discovery-script or by `launch train --elastic`"""
    commit_steps: Annotated[LimitedCount, SPEED] = 10
    """updates between copies of the run's state, which every rank keeps in memory; if a rank ends, the updates after
    the last copy are repeated"""
    stall_seconds: Annotated[FiniteFloat, Field(ge=1, le=10**6)] | None = None
    """a rank hangs if it makes no progress for this long in training (None: 20 times its slowest update, at least 60);
    the limit for start-up, evaluations and checkpoints is at least 10 minutes"""
    on_stall: Literal["wait", "end", "drop"] | None = None
    """what to do about ranks that hang, after reporting them: wait; end: end the run, which can be resumed from
    its newest checkpoint; drop: kill them, and with --elastic the others continue (None: wait; with --elastic drop)"""

    @property
    def stall_action(self) -> Literal["wait", "end", "drop"]:
        """What is done about ranks that hang."""
        return self.on_stall or ("drop" if self.elastic else "wait")


@dataclass(frozen=True)
class EnergyConfig(Settings):
    """the measurement of energy, in separate runs"""

    defines = NOTHING

    energy: bool = False
    """measure the energy of GPUs, processors and memory; the times of such a run are not compared"""
    power_interval: Annotated[FiniteFloat, Field(ge=0.01, le=60)] = 0.5
    """seconds between samples of power"""
    idle_seconds: NotNegative = 10.0
    """seconds of measuring idle power, before the model is built and again after the test"""
    powercap_folder: str = "/sys/class/powercap"
    """folder of the energy counters of processors and memory (RAPL); containers may mount it elsewhere"""


@dataclass(frozen=True)
class RecordConfig(Settings):
    """the run folder"""

    defines = NOTHING

    runs_folder: str = "runs"
    """folder of the run folders, relative to the current one"""
    name: FolderName | None = None
    """name of the run folder (None: framework, model, data set, ranks, date and time)"""
    resume: str | None = None
    """run folder of the run to resume; its settings are kept, except that --epochs, --max-steps, --keep,
    --checkpoint-minutes, --tensorboard, --progress, --verbose, --data-folder, --stall-seconds and --on-stall can be
    changed"""
    resume_or_start: bool = False
    """resume the run of this --name if it exists and is not finished, otherwise start it: for jobs that a batch system
    restarts"""
    keep: CountFromZero = 1
    """number of checkpoints of finished epochs to keep, newest first; 0 keeps all"""
    checkpoint_minutes: Positive | None = None
    """minutes between checkpoints inside an epoch (None: only after each epoch)"""
    tensorboard: bool = False
    """also write TensorBoard event files"""
    profile: bool = False
    """time each part of a step, which slows down the step; the times of such a run are not compared"""
    profile_layers: bool = False
    """like --profile, and also time each layer, forward and backward; layers then neither overlap nor are fused"""
    horovod_timeline: Annotated[bool, SPEED] = False
    """record Horovod's timeline of the training as timeline.json, of a resumed run as timeline-2.json; needs 2 ranks or
    more"""
    progress: Literal["auto", "bars", "lines"] = "auto"
    """progress bars, or one line per epoch (auto: bars in a terminal without a launcher)"""
    verbose: bool = False
    """print all settings, and the layers of the model, before training"""
    site: SiteName = "local"
    """recorded name of the site: a node that `python -m launch sites` lists, or your own name"""

    def __post_init__(self) -> None:
        if self.profile_layers:
            object.__setattr__(self, "profile", True)  # layers are parts of its steps

    def folder(self, *, unnamed: str = "") -> Path:
        """Return the folder of the run that is resumed, or of the run's name, or, without one, of `unnamed`."""
        return expanded(self.resume) if self.resume else expanded(self.runs_folder) / (self.name or unnamed)
