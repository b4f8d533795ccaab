"""All settings of a run in one object."""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator

from common.config.conditions import EXCLUSIONS, NEEDS, Given
from common.config.device import DeviceConfig
from common.config.record import EnergyConfig, FaultConfig, RecordConfig
from common.config.rules import Defines, defined_by
from common.config.strategies import check_ranks, check_strategy
from common.config.strategy import BalanceConfig, PartsConfig, StrategyConfig
from common.config.training import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
    before_onednn,
)
from common.errors import UserError

# Settings that change the speed of a run but not its results, which `launch tune` tries, and their subjects.
SPEED_SETTINGS = {
    "threads": "device", "channels_last": "device", "pinned_memory": "device", "gradient_groups": "device",
    "onednn": "model", "compile": "model",
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: Annotated[ModelConfig, BeforeValidator(before_onednn)] = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    parts: PartsConfig = field(default_factory=PartsConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    faults: FaultConfig = field(default_factory=FaultConfig)
    energy: EnergyConfig = field(default_factory=EnergyConfig)
    record: RecordConfig = field(default_factory=RecordConfig)

    def __post_init__(self) -> None:
        given = self._given
        check_strategy(given)
        for condition, needed in NEEDS.items():
            given.check_need(condition, needed)
        for conditions, reason in EXCLUSIONS.items():
            given.check_exclusion(*conditions, reason=reason)
        batch_size, microbatches = self.training.batch_size, self.parts.microbatches
        if self.parts.stages and batch_size % microbatches:
            received = f"--batch-size {batch_size} --microbatches {microbatches}"
            raise UserError(
                f"a batch is divided into equal microbatches. Received: {received}. Give a number that divides the "
                "batch size"
            )

    @property
    def _given(self) -> Given:
        values = {name: value for subject in vars(self).values() for name, value in vars(subject).items()}
        return Given(values, _defaults())

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks, servers included, cannot share the work in this way."""
        check_ranks(self._given, ranks)
        self.balance.check_workers(ranks - (self.strategy.servers or 0))

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings as plain nested dictionaries (for JSON)."""
        return dataclasses.asdict(self)


@functools.cache
def subjects() -> dict[str, Any]:
    """Return the name of each subject and the class of its settings."""
    return {subject.name: subject.default_factory for subject in dataclasses.fields(Config)}


@functools.cache
def _defaults() -> dict[str, Any]:
    return {setting.name: setting.default for subject in subjects().values() for setting in dataclasses.fields(subject)}


def defined_settings() -> dict[str, dict[str, Defines]]:
    """Return subject -> setting -> what runs that differ in it differ in."""
    return {name: defined_by(subject) for name, subject in subjects().items()}


def changed_settings(before: Config, after: Config) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield subject, name, old value and new value of each setting that differs."""
    old = before.as_dict()
    for subject, values in after.as_dict().items():
        for name, value in values.items():
            if value != old[subject][name]:
                yield subject, name, old[subject][name], value


def completed(config: Config) -> Config:
    """Return the settings with the values of those that depend on others, as the record has them."""
    scaling = config.schedule.lr_scaling or ("none" if config.strategy.adasum else "linear")
    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, lr_scaling=scaling))
