"""Display names of frameworks, strategies and tuning."""

from dataclasses import fields

from common.config import BalanceConfig, Config, DeviceConfig, PartsConfig, StrategyConfig
from common.run_folder.records import NotRecorded, RunRecord, World
from common.run_folder.world_changes import ElasticRecord

# Subject and field of the settings that say how ranks share the work of a batch.
_OPTIONS = [
    *(("strategy", option) for option in fields(StrategyConfig) if option.name != "strategy"),
    *(("parts", option) for option in fields(PartsConfig)),
    *(("balance", option) for option in fields(BalanceConfig) if option.name != "slow_is_subject"),
    *(("device", option) for option in fields(DeviceConfig) if option.name == "backward_passes_per_step"),
]
# Settings that `strategy_label` puts into words.
STRATEGY_SETTINGS = ("strategy", *(option.name.replace("_", " ") for _, option in _OPTIONS))
NOT_RECORDED = "not recorded"
AS_INSTALLED = "as installed"  # with `--onednn framework`
FRAMEWORK_LABELS = {"torch": "PyTorch", "keras": "Keras"}


def framework_label(framework: str) -> str:
    """Return the display name; frameworks of published results keep their own."""
    return FRAMEWORK_LABELS.get(framework, framework)


def strategy_label(config: Config | NotRecorded) -> str:
    """Return the strategy with those of its options that are not the default, as in "averaging, every 8"."""
    if isinstance(config, NotRecorded):
        return StrategyConfig().strategy
    words: list[str] = [config.strategy.strategy]
    for subject, option in _OPTIONS:
        value = getattr(getattr(config, subject), option.name)
        shown_anyway = option.name == "staleness" and config.strategy.strategy == "server"
        if value in (option.default, None) and not shown_anyway:
            continue
        name = option.name.removeprefix("average_" if value is not False else "").replace("_", " ")
        words.append(name if value is True else f"no {name}" if value is False else f"{name} {value}")
    # An option named as its strategy chooses a kind of it: "native ddp", not "native, native ddp".
    return ", ".join(word for word in words if not any(other.startswith(f"{word} ") for other in words))


def tuning_words(record: RunRecord) -> str | None:
    """Return the tuning variables that are not a run's own, as "HOROVOD_CYCLE_TIME 5"; None without any."""
    return ", ".join(f"{name} {value}" for name, value in record.tuning.items()) or None


def onednn_in_force(record: RunRecord) -> str | None:
    """Return whether oneDNN computed: on, off, "on and off" of different ranks, or on GPUs not applicable.

    None: it is not recorded.
    """
    world = record.world
    if not isinstance(world, World) or not world.devices:
        return None
    if all(device != "cpu" for device in world.devices):
        return "not applicable"
    if world.onednn is None:
        return None
    changes = record.elastic.changes if isinstance(record.elastic, ElasticRecord) else []
    of_ranks = [*world.onednn, *(state for change in changes for state in change.onednn or [])]
    return " and ".join(sorted({state for state in of_ranks if state}, reverse=True))


def onednn_words(asked: str, in_force: str | None) -> str:
    """Return what was asked of oneDNN and what was in force, as "on" or "as installed (in force: off)"."""
    shown = AS_INSTALLED if asked == "framework" else asked
    return shown if asked == in_force else f"{shown} (in force: {in_force or NOT_RECORDED})"
