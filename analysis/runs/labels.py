"""Display names of frameworks and strategies."""

from dataclasses import fields

from common.config import Config, StrategyConfig
from common.run_folder.records import NotRecorded

FRAMEWORK_LABELS = {"torch": "PyTorch", "keras": "Keras"}


def framework_label(framework: str) -> str:
    """Return the display name; frameworks of published results keep their own."""
    return FRAMEWORK_LABELS.get(framework, framework)


def strategy_label(config: Config | NotRecorded) -> str:
    """Return the strategy with those of its options that are not the default, as in "averaging, average every 8"."""
    if isinstance(config, NotRecorded):
        return StrategyConfig().strategy
    words = [config.strategy.strategy]
    for option in fields(StrategyConfig):
        value = getattr(config.strategy, option.name)
        if option.name == "strategy" or value in (option.default, None):
            continue
        name = option.name.replace("_", " ")
        words.append(name if value is True else f"no {name}" if value is False else f"{name} {value}")
    # An option named as its strategy chooses a kind of it: "native ddp", not "native, native ddp".
    return ", ".join(word for word in words if not any(other.startswith(f"{word} ") for other in words))
