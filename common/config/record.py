"""Settings of what a run measures and writes."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from common.config.rules import NOTHING, SPEED, NotNegative, Positive, Range, Settings, require
from common.errors import expanded


@dataclass(frozen=True)
class EnergyConfig(Settings):
    """the measurement of energy, in separate runs"""

    defines = NOTHING

    energy: bool = False
    """measure the energy of GPUs, processors and memory; the times of such a run are not compared"""
    power_interval: Annotated[float, Range(least=0.01, most=60)] = 0.5
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
    name: str | None = None
    """name of the run folder (None: framework, model, data set, ranks, date and time)"""
    resume: str | None = None
    """run folder of the run to resume; its settings are kept, except that --epochs, --max-steps, --keep,
    --checkpoint-minutes, --tensorboard, --progress, --verbose and --data-folder can be changed"""
    resume_or_start: bool = False
    """resume the run of this --name if it exists and is not finished, otherwise start it: for jobs that a batch system
    restarts"""
    keep: Annotated[int, Range(least=0)] = 1
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
    """record Horovod's timeline of the training as timeline.json; needs 2 ranks or more"""
    progress: Literal["auto", "bars", "lines"] = "auto"
    """progress bars, or one line per epoch (auto: bars in a terminal without a launcher)"""
    verbose: bool = False
    """print all settings, and the layers of the model, before training"""
    site: str = "local"
    """recorded name of the site: a node that `python -m launch sites` lists, or your own name"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.profile_layers:
            object.__setattr__(self, "profile", True)  # layers are parts of its steps
        require(
            self.name is None or re.fullmatch(r"(?!\.)[\w.+-]{1,200}", self.name) is not None,
            problem="--name is not a valid folder name",
            received=f"--name {self.name!r}",
            remedy="Use at most 200 letters, digits, '.', '_', '+' and '-' only",
        )
        require(
            re.fullmatch(r"[\w.+-]{1,100}", self.site) is not None,
            problem="--site is not a valid name",
            received=f"--site {self.site!r}",
            remedy="Use at most 100 letters, digits, '.', '_', '+' and '-' only",
        )
        require(
            self.name is not None or not self.resume_or_start,
            problem="--resume-or-start finds the run by its name",
            received="--resume-or-start without --name",
            remedy="Give --name",
        )

    def folder(self, name: str) -> Path:
        """Return the run folder of a new run of this name."""
        return expanded(self.runs_folder) / name
