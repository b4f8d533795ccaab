"""The table of strategies in `common/strategies/README.md`: what each trains with, as the settings accept it.

TWINS_WRITE_RENDERED=1 writes it anew; look at the difference before it is committed.
"""

import os
from pathlib import Path

from common.config import config_from_dict
from common.config.strategies import STRATEGIES, AllReduce
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
    named = [one.chosen_by for one in STRATEGIES if issubclass(strategy, one) and len(one.chosen_by.values) == 1]
    settings = {"strategy": {condition.setting: condition.values[0] for condition in named}}
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
    strategies = [one for one in STRATEGIES if one is AllReduce or not one.__subclasses__()]
    traits = [config_from_dict(chosen(strategy)).strategy.traits for strategy in strategies]
    assert traits == strategies
    rows = {
        "PyTorch": ["torch" in one.frameworks for one in traits],
        "Keras": ["keras" in one.frameworks for one in traits],
        "ranks over MPI: `horovodrun` with `--mpi`, `mpirun`, `srun`": [True for _ in traits],
        "ranks over Gloo: `horovodrun` with `--gloo`": [one.over_gloo for one in traits],
        "Horovod": [one.uses_horovod for one in traits],
        **{name: [accepts(one, *setting) for one in strategies] for name, setting in OPTIONS.items()},
    }
    names = [str(one.chosen_by.values[0]) for one in strategies]
    names[1] = "allreduce, `--adasum`"
    lines = [f"{HEADING} {' | '.join(names)} |", f"|---|{':---:|' * len(names)}"]
    lines += [f"| {name} | {' | '.join('yes' if one else 'no' for one in cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)


def test_the_table_of_the_page_is_what_the_settings_accept():
    text = PAGE.read_text()
    start = text.index(HEADING)
    end = text.index("\n\n", start)
    if os.environ.get("TWINS_WRITE_RENDERED") == "1":
        PAGE.write_text(text[:start] + table() + text[end:])
        return
    assert text[start:end] == table()
