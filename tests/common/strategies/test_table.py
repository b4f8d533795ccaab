"""The table of strategies in `common/strategies/README.md`: what each trains with, as the settings accept it.

TWINS_WRITE_RENDERED=1 writes it anew; look at the difference before it is committed.
"""

import os
from pathlib import Path

from common.config import config_from_dict
from common.config.conditions import EXCLUSIONS, NEEDS
from common.config.options import all_options
from common.config.rules import flag_of
from common.config.strategies import OWNERS, STRATEGIES, AllReduce, Divided
from common.errors import UserError

PAGE = Path(__file__).parents[3] / "common" / "strategies" / "README.md"
HEADING = "| trains with |"
NEEDED = {
    "average_every": ("strategy", 8),
    "model_ranks": ("parts", 2),
    "replicas": ("strategy", 2),
    "servers": ("strategy", 1),
    "stages": ("parts", 2),
}
OPTIONS = {
    "`--elastic`": ("faults", "elastic", True),
    "`--shares`": ("balance", "shares", "auto"),
    "`--slow`": ("balance", "slow", "0:2"),
    "`--backward-passes-per-step`": ("device", "backward_passes_per_step", 2),
    "`--gradient-groups`": ("device", "gradient_groups", "each"),
    "`--compression fp16`": ("device", "compression", "fp16"),
    "`--mixed-precision float16`": ("device", "mixed_precision", "float16"),
    "`--mixed-precision bfloat16`": ("device", "mixed_precision", "bfloat16"),
    "`--compile`": ("model", "compile", True),
    "`--memory-limit`": ("device", "memory_limit", 600),
    "`--share-gpu`": ("device", "share_gpu", True),
    "`--energy`, on GPUs": ("energy", "energy", True),
    "`--profile`": ("record", "profile", True),
    "`--horovod-timeline`": ("record", "horovod_timeline", True),
    "`--resume`": ("record", "resume", "runs/a"),
}


def chosen(strategy):
    """Return the fewest settings that choose a strategy, by subject."""
    named = [base.chosen_by for base in STRATEGIES if issubclass(strategy, base) and base is not Divided]
    settings = {"strategy": {condition.setting: (*condition.values, 0.1)[0] for condition in named}}
    if strategy.needs in NEEDED:
        subject, value = NEEDED[strategy.needs]
        settings.setdefault(subject, {})[strategy.needs] = value
    return settings


def accepts(strategy, subject, name, value):
    settings = chosen(strategy)
    settings.setdefault(subject, {})[name] = value
    try:
        config_from_dict(settings)
    except UserError:
        return False
    return True


def table():
    strategies = [strategy for strategy in STRATEGIES if strategy is AllReduce or not strategy.__subclasses__()]
    traits = [config_from_dict(chosen(strategy)).strategy.traits for strategy in strategies]
    assert traits == strategies
    rows = {
        "PyTorch": ["torch" in strategy.frameworks for strategy in traits],
        "Keras": ["keras" in strategy.frameworks for strategy in traits],
        "ranks over MPI: `horovodrun` with `--mpi`, `mpirun`, `srun`": [True for _ in traits],
        "ranks over Gloo: `horovodrun` with `--gloo`": [strategy.over_gloo for strategy in traits],
        "Horovod": [strategy.uses_horovod for strategy in traits],
        **{name: [accepts(strategy, *setting) for strategy in strategies] for name, setting in OPTIONS.items()},
    }
    names = [
        f"allreduce, `{strategy.chosen_by}`" if strategy.__base__ is AllReduce else str(strategy.chosen_by.values[0])
        for strategy in strategies
    ]
    lines = [f"{HEADING} {' | '.join(names)} |", f"|---|{':---:|' * len(names)}"]
    lines += [f"| {name} | {' | '.join('yes' if cell else 'no' for cell in cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def test_the_table_of_the_page_is_what_the_settings_accept():
    text = PAGE.read_text()
    start = text.index(HEADING)
    end = text.index("\n\n", start)
    if os.environ.get("TWINS_WRITE_RENDERED") == "1":
        PAGE.write_text(text[:start] + table() + text[end:])
        return
    assert text[start:end] == table()


def test_every_strategy_of_the_command_line_has_a_class_and_conditions_name_settings():
    for setting in ("strategy", "native"):
        named = [strategy.chosen_by for strategy in STRATEGIES if strategy is not Divided]
        words = [condition.values[0] for condition in named if condition.setting == setting]
        assert sorted(words) == sorted(all_options()[f"--{setting}"].choices)
    conditions = [*NEEDS, *(condition for conditions in EXCLUSIONS for condition in conditions), *OWNERS]
    conditions += [condition for strategy in STRATEGIES for condition, _ in strategy.refuses]
    for condition in conditions:
        option = all_options()[flag_of(condition.setting)]
        assert {value for value in condition.values if isinstance(value, str)} <= set(option.choices)
    assert {flag_of(needed) for needed in NEEDS.values()} <= set(all_options())
