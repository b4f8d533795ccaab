"""All settings of a run in one object, and the combinations that are refused."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from common.config.balance import BalanceConfig
from common.config.device import DeviceConfig
from common.config.faults import FaultConfig
from common.config.record import EnergyConfig, RecordConfig
from common.config.rules import Defines, defined_by, exclude, require
from common.config.strategy import PartsConfig, StrategyConfig, check_options
from common.config.training import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
    before_onednn,
)
from common.errors import UserError, first_problem
from common.names import settings_here

# Strategy -> option that it refuses -> why.
_REFUSED_BY = {
    "adasum": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "Adasum in float16 is not verified",
        "--gradient-groups": "all updates are combined in one group",
        "--mixed-precision": "Adasum in float16 is not verified",
        "--shares": "Adasum weights updates by their angles, not by images",
    },
    "averaging": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "weights are averaged uncompressed",
        "--gradient-groups": "all weights are averaged in one group",
        "--mixed-precision": "each rank would have its own loss scale",
    },
    "layers": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "activations and gradients are sent uncompressed",
        "--gradient-groups": "a stage has one group of gradients",
        "--mixed-precision": "activations are sent in the type of the weights",
        "--compile": "stages exchange activations inside a pass",
        "--shares": "the ranks of a pipeline share each batch",
        "--slow": "stragglers need ranks that hold whole models",
    },
    "native": {
        "--profile": "--profile times Horovod's averaging of gradients",
        "--compression": "the framework sends gradients uncompressed",
        "--gradient-groups": "the framework groups gradients itself",
        "--mixed-precision": "loss scaling is not tested with native strategies",
        "--compile": "the framework exchanges gradients inside a pass",
        "--horovod-timeline": "native strategies do not start Horovod",
        "--share-gpu": "the framework exchanges gradients between GPUs",
        "--shares": "the framework divides batches equally",
        "--slow": "stragglers are not implemented for native strategies",
    },
    "server": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "gradients are sent uncompressed",
        "--gradient-groups": "all gradients are sent together",
        "--mixed-precision": "each rank would have its own loss scale",
        "--horovod-timeline": "Horovod is not started",
    },
    "split": {
        "--profile": "--profile times the averaging of gradients",
        "--compression": "activations and gradients are sent uncompressed",
        "--gradient-groups": "a rank has one group of gradients",
        "--mixed-precision": "sums of activations in other types are not verified",
        "--compile": "ranks exchange activations inside a pass",
        "--shares": "ranks that divide one model use the same batches",
        "--slow": "stragglers need ranks that hold whole models",
    },
}


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
        self._check_steps()
        require(
            not (self.optimizer.loss == "cross_entropy" and self.model.output_activation != "linear"),
            problem="cross_entropy contains its own softmax and needs linear outputs",
            received=f"--loss cross_entropy --output-activation {self.model.output_activation}",
            remedy="Use --output-activation linear, or --loss mse",
        )
        mixed, profile = self.device.mixed_precision, self.record.profile
        exclude(
            mixed != "none" and self.model.dtype == "float64",
            problem="mixed precision has float32 weights, not float64",
            received=f"--mixed-precision {mixed} --dtype float64",
        )
        exclude(
            profile and self.device.gradient_groups != "one",
            problem="--profile times a single exchange, after the last gradient",
            received=f"--profile --gradient-groups {self.device.gradient_groups}",
        )
        exclude(
            profile and mixed != "none",
            problem="--profile does not support mixed precision",
            received=f"--profile --mixed-precision {mixed}",
        )
        exclude(
            profile and self.model.batch_norm != "trained",
            problem="--profile needs steps that are all alike",
            received=f"--profile --batch-norm {self.model.batch_norm}",
        )
        exclude(
            profile and self.energy.energy,
            problem="--profile changes the steps whose energy would be measured",
            received="--profile --energy",
        )
        exclude(
            profile and self.model.compile,
            problem="--compile merges the parts of a step that --profile times",
            received="--profile --compile",
        )
        self._check_strategy()
        self._check_elastic()

    def check_ranks(self, ranks: int) -> None:
        """Raise UserError if so many ranks, servers included, cannot share the work in this way."""
        self.strategy.check_ranks(ranks)
        self.parts.check_ranks(ranks)
        self.balance.check_workers(ranks - (self.strategy.servers or 0))

    def _check_strategy(self) -> None:
        device, record, strategy = self.device, self.record, self.strategy.strategy
        check_options(self.parts, strategy=strategy)
        names = {strategy: f"--strategy {strategy}"} | ({"adasum": "--adasum"} if self.strategy.adasum else {})
        for flag, given in (
            ("--profile", record.profile),
            (f"--compression {device.compression}", device.compression != "none"),
            (f"--gradient-groups {device.gradient_groups}", device.gradient_groups != "one"),
            (
                f"--mixed-precision {device.mixed_precision}",
                device.mixed_precision != ("none" if self.parts.count > 1 else "bfloat16")
                and device.mixed_precision != "none",
            ),
            ("--compile", self.model.compile),
            ("--horovod-timeline", record.horovod_timeline),
            ("--share-gpu", device.share_gpu),
            (f"--shares {self.balance.shares}", self.balance.shares is not None),
            (f"--slow {self.balance.slow}", self.balance.slow is not None),
        ):
            for name, chosen in names.items() if given else ():
                reason = _REFUSED_BY.get(name, {}).get(flag.split()[0])
                exclude(reason is not None, problem=str(reason), received=f"{chosen} {flag}")
        require(
            self.strategy.staleness == 0 or self.schedule.lr_scaling is not None,
            problem="each update uses one worker's batch, and a rate scaled for all workers may be too large",
            received=f"--staleness {self.strategy.staleness} without --lr-scaling",
            remedy="Give --lr-scaling, such as none",
        )
        exclude(
            self.strategy.staleness != 0 and self.balance.shares is not None,
            problem="with this staleness, workers already share the work by their speed",
            received=f"--staleness {self.strategy.staleness} --shares {self.balance.shares}",
        )
        require(
            not (self.energy.energy and self.strategy.replicas and device.device != "cpu"),
            problem="energy is measured for one GPU per rank",
            received=f"--energy --native mirrored --replicas {self.strategy.replicas}",
            remedy="Give --device cpu, or --native multiworker",
        )
        exclude(
            self.strategy.replay is not None and record.checkpoint_minutes is not None,
            problem="in a replay, workers synchronize at the same updates as in the run",
            received=f"--replay {self.strategy.replay} --checkpoint-minutes {record.checkpoint_minutes}",
        )

    def _check_elastic(self) -> None:
        strategy, balance = self.strategy, self.balance
        for flag, given, reason in (
            (
                f"--strategy {strategy.strategy}",
                strategy.strategy != "allreduce",
                "with other strategies, ranks hold state that no other rank has",
            ),
            ("--adasum", strategy.adasum, "Adasum needs MPI, which ends all ranks if one ends"),
            (f"--shares {balance.shares}", balance.shares is not None, "parts of the batch change with the ranks"),
            (
                "--gradient-groups auto",
                self.device.gradient_groups == "auto",
                "groups are measured with constant ranks",
            ),
            (f"--slow {balance.slow}", balance.slow is not None, "the straggler may end, or become another rank"),
            ("--energy", self.energy.energy, "energy is measured for ranks that run from start to end"),
            ("--profile", self.record.profile, "a profile needs ranks that run from start to end"),
            ("--horovod-timeline", self.record.horovod_timeline, "a timeline needs ranks that run from start to end"),
            ("--compile", self.model.compile, "the model would be recompiled after each change of ranks"),
            (
                f"--memory-limit {self.device.memory_limit}",
                self.device.memory_limit is not None,
                "the limit ends all ranks if one exceeds it",
            ),
        ):
            exclude(self.faults.elastic and given, problem=reason, received=f"--elastic {flag}")

    def _check_steps(self) -> None:
        """Check what steps of another form do not fit together with."""
        microbatches, batch_size = self.parts.microbatches, self.training.batch_size
        require(
            self.parts.stages is None or batch_size % microbatches == 0,
            problem="a batch is divided into equal microbatches",
            received=f"--batch-size {batch_size} --microbatches {microbatches}",
            remedy="Give a number that divides the batch size",
        )
        passes, slow, profile = self.device.backward_passes_per_step, self.balance.slow, self.record.profile
        passes_flag = f"--backward-passes-per-step {passes}"
        require(
            passes == 1 or self.strategy.strategy == "allreduce",
            problem="--backward-passes-per-step is an option of --strategy allreduce",
            received=f"--strategy {self.strategy.strategy} {passes_flag}",
            remedy="Leave it out, or give another --batch-size",
        )
        for flag, given in ((passes_flag, passes > 1), (f"--slow {slow}", slow is not None)):
            exclude(given and profile, problem="--profile needs plain steps", received=f"--profile {flag}")
        exclude(
            slow is not None and self.device.gradient_groups != "one",
            problem="a straggler sleeps before it exchanges anything",
            received=f"--slow {slow} --gradient-groups {self.device.gradient_groups}",
        )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the settings as plain nested dictionaries (for JSON)."""
        return dataclasses.asdict(self)


def defined_settings() -> dict[str, dict[str, Defines]]:
    """Return subject -> setting -> what runs that differ in it differ in."""
    return {subject.name: defined_by(subject.default_factory) for subject in dataclasses.fields(Config)}  # type: ignore[arg-type]


def changed_settings(before: Config, after: Config) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield subject, name, old value and new value of each setting that differs."""
    old = before.as_dict()
    for subject, values in after.as_dict().items():
        for name, value in values.items():
            if value != old[subject][name]:
                yield subject, name, old[subject][name], value


@functools.cache  # building it takes longer than all that it validates
def _adapter() -> TypeAdapter[Config]:
    return TypeAdapter(Config)


def config_from_dict(settings: dict[str, Any], *, base: Config | None = None, source: str = "settings") -> Config:
    """Return `base` with some settings replaced.

    Args:
        settings: subject -> field -> value, as in a recipe or in `run.json`.
        base: the other settings; None: the defaults.
        source: name of the origin for error messages.

    Raises:
        UserError: unknown subject or field, wrong type, or a value out of range.
    """
    merged = (base or Config()).as_dict()
    for subject, values in settings.items():
        if subject not in merged or not isinstance(values, dict):
            raise UserError(f"unknown subject in {source}. Received: [{subject}]. Use {', '.join(merged)}")
        values = settings_here(values, source=source)
        unknown = set(values) - set(merged[subject])
        if unknown:
            raise UserError(
                f"unknown setting in {source}. Received: {min(unknown)} in [{subject}]. "
                f"Use {', '.join(merged[subject])}"
            )
        merged[subject] |= values
    try:
        # Through JSON, in which a list is a valid tuple; strict, so that "3" is not a valid int.
        return _adapter().validate_json(json.dumps(merged, default=str), strict=True)
    except ValidationError as error:
        raise UserError(f"{first_problem(error)} (in {source})") from None


def completed(config: Config) -> Config:
    """Return the settings with the values of those that depend on others, as the record has them."""
    scaling = config.schedule.lr_scaling or ("none" if config.strategy.adasum else "linear")
    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, lr_scaling=scaling))
