"""The plan of an experiment: its cells and runs, in which order, with which settings and commands."""

import fnmatch
import itertools
import os
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from common.config import Config, parse_command_line, read_recipe, settings_flags
from common.errors import UserError
from common.json_records import validated
from common.run_folder.environment import TUNING_VARIABLES
from launch.experiments.experiment_file import (
    CELL_KEYS,
    SETTINGS,
    CellKeys,
    ExperimentFile,
    Protocol,
    read_experiment_file,
)
from launch.starting.launchers import Launcher, launcher_at
from launch.starting.processes import PROGRAMS

RECIPES = Path(__file__).parent.with_name("recipes")
_ALWAYS_NAMED = ("framework", "model", "np")
_PAIRS = {"image_size"}  # settings whose values are lists


@dataclass(frozen=True)
class PlannedCell:
    """A point of the grid.

    Attributes:
        name: unique in the experiment; the first part of its run folders' names.
        keys: how it is started and what it needs.
        arguments: of the trainer, except seed, name and metering of each run.
        config: the settings that these arguments give.
        repeats, metered: see `Protocol`.
        variables: of the environment of its ranks, beside those that all have.
    """

    name: str
    keys: CellKeys
    arguments: tuple[str, ...]
    config: Config
    repeats: int
    metered: Sequence[int]
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def np(self) -> int:
        """Number of ranks."""
        return self.keys.np


@dataclass(frozen=True)
class PlannedRun:
    """One run of a cell, `repeat` counted from 1."""

    cell: PlannedCell
    repeat: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return f"{self.cell.name}-r{self.repeat}"

    @property
    def metered(self) -> bool:
        """Whether it measures energy and therefore no time."""
        return self.repeat in self.cell.metered

    def arguments(self, folder: Path) -> list[str]:
        """Return the trainer's arguments, except the site; `folder` is the experiment's."""
        metering = ["--energy"] if self.metered else []
        own = ["--seed", str(self.seed), *metering, "--runs-folder", str(folder), "--name", self.name]
        return [*self.cell.arguments, *own]

    @property
    def config(self) -> Config:
        """Its settings, except where it is recorded."""
        base = self.cell.config
        return replace(
            base,
            training=replace(base.training, seed=self.seed),
            energy=replace(base.energy, energy=self.metered),
        )


@dataclass(frozen=True)
class ExperimentPlan:
    """All runs of an experiment, in their order.

    Attributes:
        launcher: how the ranks are started; None: on this host.
    """

    file: ExperimentFile
    cells: list[PlannedCell]
    runs: list[PlannedRun]
    launcher: Launcher | None = None

    @property
    def folder(self) -> Path:
        """Where its run folders are."""
        return self.file.folder

    @property
    def protocol(self) -> Protocol:
        """How the runs follow each other."""
        return self.file.protocol

    def command(self, planned: PlannedRun) -> list[str]:
        """Return the whole command of a run, as one would type it in the current folder."""
        keys, arguments, variables = planned.cell.keys, planned.arguments(self.folder), planned.cell.variables
        program, launcher = PROGRAMS[keys.framework], self.launcher or launcher_at(None, hosts=None)
        setting = ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []
        if keys.launcher == "python":
            return [*setting, *launcher.single_process(program, arguments=arguments)]
        controller = planned.cell.config.strategy.controller(keys.controller)
        start = launcher.command(program, np=keys.np, controller=controller, arguments=arguments, variables=variables)
        return [*setting, *start]


def read_plan(name: str, *, runs_folder: Path) -> ExperimentPlan:
    """Read an experiment and plan its runs.

    Args:
        name: a TOML file, or the name of a shipped experiment.
        runs_folder: in which the experiment has its folder, named as the file.

    Raises:
        UserError: the file cannot be used, or two cells have one name.
    """
    return plan_of(read_experiment_file(name, runs_folder=runs_folder))


def plan_of(file: ExperimentFile) -> ExperimentPlan:
    """Plan the runs of an experiment.

    Raises:
        UserError: a cell is invalid, or two have one name.
    """
    cells = [cell for table in file.cells for cell in _expand(table, file=file)]
    names = [cell.name for cell in cells]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise file.error("two cells of one name", doubled[0], "Give the [[cells]] different names by `name`")
    return ExperimentPlan(file, cells, _in_order(cells, protocol=file.protocol))


def only_matching(plan: ExperimentPlan, patterns: Sequence[str]) -> ExperimentPlan:
    """Return the part of an experiment whose cells' names match one of the patterns, as file names do in a shell.

    Raises:
        UserError: a pattern matches nothing.
    """
    names = [cell.name for cell in plan.cells]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"no cell has this name. Received: --only {pattern}. Choose from: {', '.join(names)}")
    kept = [cell for cell in plan.cells if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)]
    return replace(plan, cells=kept, runs=[run for run in plan.runs if run.cell in kept])


def _expand(table: Mapping[str, Any], *, file: ExperimentFile) -> Iterator[PlannedCell]:
    """Yield the product of a table's axes."""
    axes = {key: values for key, values in table.items() if is_axis(key, values)}
    for key, values in axes.items():
        if not values:
            raise file.error(f"an axis without values, `{key}`", "[]", "Give at least one value")
    named = [*_ALWAYS_NAMED, *(axis for axis in axes if axis not in _ALWAYS_NAMED)]
    for point in itertools.product(*axes.values()):
        yield planned_cell({**table, **dict(zip(axes, point, strict=True))}, named=named, file=file)


def is_axis(key: str, value: Any) -> bool:
    """Return whether a value is a list of values, each for a cell of its own."""
    if key == "metered" or not isinstance(value, list):
        return False
    return key not in _PAIRS or any(isinstance(item, list) for item in value)


def planned_cell(values: Mapping[str, Any], *, named: Sequence[str], file: ExperimentFile) -> PlannedCell:
    """Return the cell of these settings.

    Args:
        values: settings and `CellKeys`, without axes.
        named: those that its name has.
        file: that they are from.

    Raises:
        UserError: a value is invalid, or they do not fit together.
    """
    own = {key: value for key, value in values.items() if key in CELL_KEYS}
    keys = validated(CellKeys, own, place=file.path.name, what="a valid experiment", remedy="Fix the file")
    if keys.launcher == "python" and (keys.np != 1 or keys.controller):
        raise file.error(
            "a cell that needs a launcher and has none", f"np {keys.np}, controller {keys.controller}",
            "Omit `launcher`, or give np = 1 and no controller",
        )  # fmt: skip
    repeats = keys.repeats or file.protocol.repeats
    metered = keys.metered
    if metered is None:
        metered = [repeat for repeat in file.protocol.metered if repeat <= repeats]
    file.check_metered(repeats, metered)
    arguments = _arguments(values, keys, file=file)
    try:
        config = parse_command_line(arguments, program=PROGRAMS[keys.framework])
    except UserError as error:
        raise UserError(f"{file.path.name} has an invalid cell: {error}") from None
    shown = {"framework": keys.framework, "model": config.model.model, "np": f"np{keys.np}"}
    parts = [keys.name] if keys.name else []
    parts += [shown[key] if key in shown else f"{_short(key)}{_word(values[key])}" for key in named]
    name = re.sub(r"[^\w.+-]+", "-", "-".join(parts))
    return PlannedCell(name, keys, tuple(arguments), config, repeats, tuple(metered), _variables(values, file=file))


def _variables(values: Mapping[str, Any], *, file: ExperimentFile) -> dict[str, str]:
    """Return the environment variables of a cell."""
    variables = {key: value for key, value in values.items() if key in TUNING_VARIABLES}
    for key, value in variables.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise file.error(f"a variable that is neither text nor a number, `{key}`", value, "Write 1, 0.5 or a text")
    return {key: str(value) for key, value in variables.items()}


def _short(key: str) -> str:
    """Return the name of an axis as a part of a folder's name."""
    return re.sub("^(horovod|ompi_mca)_", "", key.lower()).replace("_", "")


def _word(value: Any) -> str:
    """Return a value as a part of a folder's name."""
    if isinstance(value, list):
        return "x".join(str(item) for item in value)
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _arguments(values: Mapping[str, Any], keys: CellKeys, *, file: ExperimentFile) -> list[str]:
    """Return the trainer's flags for the settings of a cell."""
    arguments = []
    if keys.recipe is not None:
        recipe = RECIPES / f"{keys.recipe}.toml"
        read_recipe(recipe)
        arguments += ["--recipe", os.path.relpath(recipe)]
    settings = {key: value for key, value in values.items() if key in SETTINGS and key != "name"}
    if keys.global_batch_size is not None:
        if "batch_size" in settings:
            raise file.error("two batch sizes", "batch_size and global_batch_size", "Omit one of them")
        if keys.global_batch_size % keys.np:
            received = f"{keys.global_batch_size} on {keys.np} ranks"
            raise file.error("a global batch that its ranks cannot share", received, "Give a multiple of np")
        settings["batch_size"] = keys.global_batch_size // keys.np
    if settings.get("onednn") == "auto":  # as it was called before; names of cells keep it
        settings["onednn"] = "framework"
    return [*arguments, *settings_flags(settings)]


def _in_order(cells: Sequence[PlannedCell], *, protocol: Protocol) -> list[PlannedRun]:
    runs = [
        PlannedRun(cell, repeat, cell.config.training.seed + (repeat - 1 if protocol.seeds == "repeat" else 0))
        for cell in cells
        for repeat in range(1, cell.repeats + 1)
    ]
    if protocol.order == "interleaved":
        runs.sort(key=lambda run: run.repeat)  # a stable sort: cells keep their order within a round
    elif protocol.order == "random":
        random.Random(protocol.order_seed).shuffle(runs)
    return runs
