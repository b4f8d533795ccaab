"""An experiment file, read and laid out: which runs there are to be, in which order, with which settings.

    [about]       for people: title, question, source, published, deviations
    [experiment]  repeats, order, cool-down, which repeats are metered, budget (`Protocol`)
    [settings]    settings of the trainers that all cells share, under the names of the flags
    [[cells]]     settings of a part of the grid; a list is an axis: the part is the product of its axes
    [[prepare]]   commands of `python -m common` to be run once, and what each makes
    based_on      name of another experiment: what is said here is laid over it

Beside settings of the trainers a cell takes those of `CELL_KEYS`. `{folder}` in a text is the experiment's own folder.
"""

import fnmatch
import itertools
import json
import math
import os
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from common.config import Config, parse_command_line, read_recipe
from common.errors import UserError, first_problem
from launch.starting.launchers import Launcher, launcher_at
from launch.starting.processes import PROGRAMS, settings_flags

EXPERIMENTS = Path(__file__).with_name("shipped")
RECIPES = Path(__file__).parent.with_name("recipes")

# What a cell says beside the settings of the trainers: how its ranks are started, and what it needs to be run at all.
CELL_KEYS = {
    "name": "first part of the names of its runs",
    "framework": "torch or keras",
    "np": "ranks",
    "launcher": "horovodrun, or python for one process without launcher",
    "controller": "mpi or gloo",
    "recipe": "a file of launch/recipes, by its name",
    "global_batch_size": "in place of batch_size: shared out among the ranks",
    "repeats": "in place of the experiment's",
    "metered": "in place of the experiment's",
    "gpus": "GPUs that this host must have, else the cell is left out",
    "cores": "cores that this host must have, else the cell is left out",
}
_ALWAYS_NAMED = ("framework", "model", "np")
_SETTINGS = {one.name: subject.name for subject in fields(Config) for one in fields(subject.default_factory)}  # type: ignore[arg-type]
_RESERVED = {"runs_folder", "name", "resume", "resume_or_start", "energy", "site"}  # set by the experiment itself
_PAIRS = {"image_size"}  # settings that are lists themselves


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How the runs of an experiment follow each other.

    Attributes:
        repeats: runs of a cell.
        metered: repeats, from 1, that measure energy; they never count for time.
        order: interleaved: all cells once, then all again; grouped: all repeats of a cell, then the next cell; random.
        order_seed: of the random order.
        seeds: repeat: run r of every cell takes seed + r - 1, so that runs pair across cells; same: all take the seed.
        cool_down_seconds: between two runs.
        budget_minutes: no run is begun that is expected to end later than this after the start; None: no limit.
        limit_minutes: a run that takes longer is ended and counts as failed; None: no limit.
        site: where it runs, for estimates: a name of common/sites/sites.toml.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    repeats: int = 1
    metered: list[int] = field(default_factory=list)
    order: Literal["interleaved", "grouped", "random"] = "interleaved"
    order_seed: int = 1
    seeds: Literal["repeat", "same"] = "repeat"
    cool_down_seconds: float = 0.0
    budget_minutes: float | None = None
    limit_minutes: float | None = None
    site: str = "local"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A command of `python -m common`; it is not run where what it makes, or what makes it needless, is there."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    command: list[str]
    makes: str
    unless: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to prepare."""
        return any(Path(path).exists() for path in (self.makes, self.unless) if path)


@dataclass(frozen=True)
class Cell:
    """A point of the grid.

    Attributes:
        name: unique in the experiment; the first part of its run folders' names.
        framework: torch or keras.
        np: ranks.
        launcher, controller: see `CELL_KEYS`; None: Horovod's choice.
        arguments: of the trainer, but for seed, name and metering of each run.
        config: the settings that these arguments give.
        repeats, metered: see `Protocol`.
        gpus, cores: that the host must have.
    """

    name: str
    framework: str
    np: int
    launcher: str
    controller: str | None
    arguments: tuple[str, ...]
    config: Config
    repeats: int
    metered: tuple[int, ...]
    gpus: int
    cores: int


@dataclass(frozen=True)
class PlannedRun:
    """One run of a cell, `repeat` counted from 1."""

    cell: Cell
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
        """Return the trainer's arguments, where `folder` is the experiment's, without those of where it runs."""
        metering = ["--energy"] if self.metered else []
        own = ["--seed", str(self.seed), *metering, "--runs-folder", str(folder), "--name", self.name]
        return [*self.cell.arguments, *own]

    @property
    def config(self) -> Config:
        """Its settings, but for where it is recorded."""
        base = self.cell.config
        return replace(
            base,
            training=replace(base.training, seed=self.seed),
            energy=replace(base.energy, energy=self.metered),
        )


@dataclass(frozen=True)
class Plan:
    """An experiment laid out; `runs` in their order; `start`: how their ranks are started, None: on this host."""

    name: str
    file: Path
    folder: Path
    about: dict[str, Any]
    protocol: Protocol
    preparations: list[Preparation]
    cells: list[Cell]
    runs: list[PlannedRun]
    start: Launcher | None = None

    def command(self, planned: PlannedRun) -> list[str]:
        """Return the whole command of a run, as one would type it in the current folder."""
        cell, arguments = planned.cell, planned.arguments(self.folder)
        program, start = PROGRAMS[cell.framework], self.start or launcher_at(None, hosts=None)
        if cell.launcher == "python":
            return start.single_process(program, arguments=arguments)
        return start.command(program, np=cell.np, controller=cell.controller, arguments=arguments)


def shipped_experiments() -> list[str]:
    """Return the names of the experiments that come with the project."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))


def read_plan(name: str, *, runs_folder: Path) -> Plan:
    """Read and lay out an experiment.

    Args:
        name: a TOML file, or the name of a shipped experiment.
        runs_folder: in which the experiment has its folder, named as the file.

    Raises:
        UserError: no such file, not TOML, unknown keys, impossible settings, two cells of one name.
    """
    file = _file(name)
    content = _read_file(file)
    if "based_on" in content:
        base = content.pop("based_on")
        if not isinstance(base, str):
            raise _wrong(file, "something else than a name as based_on", base, "Name an experiment or a file")
        content = _laid_over(_read_file(_file(base)), content, file=file)
    folder = runs_folder / file.stem
    content = _filled_in(content, folder=str(folder))
    unknown = set(content) - {"about", "experiment", "settings", "cells", "prepare"}
    if unknown:
        raise _wrong(file, "an unknown table", min(unknown), "Use about, experiment, settings, cells and prepare")
    protocol = _validated(Protocol, content.get("experiment", {}), file=file, where="[experiment]")
    preparations = _validated(list[Preparation], content.get("prepare", []), file=file, where="[[prepare]]")
    _check_protocol(protocol, file=file)
    shared, tables = content.get("settings", {}), content.get("cells", [])
    if not isinstance(tables, list) or not tables:
        raise _wrong(file, "no cells", "no table [[cells]]", "Add one, with a framework and a model at least")
    _check_keys(shared, where="[settings]", file=file)
    cells: list[Cell] = []
    for number, table in enumerate(tables, 1):
        _check_keys(table, where=f"[[cells]] number {number}", file=file)
        cells += _expand({**shared, **table}, protocol=protocol, file=file)
    names = [cell.name for cell in cells]
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        raise _wrong(file, "two cells of one name", doubled[0], "Give the [[cells]] different names by `name`")
    runs = _in_order(cells, protocol=protocol)
    return Plan(file.stem, file, folder, content.get("about", {}), protocol, preparations, cells, runs)


def only_matching(plan: Plan, patterns: Sequence[str]) -> Plan:
    """Return the part of an experiment whose cells' names match one of the patterns, as file names do in a shell.

    Raises:
        UserError: a pattern matches nothing.
    """
    names = [cell.name for cell in plan.cells]
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise UserError(f"no cell has such a name. Received: --only {pattern}. There are: {', '.join(names)}")
    kept = [cell for cell in plan.cells if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)]
    return replace(plan, cells=kept, runs=[run for run in plan.runs if run.cell in kept])


def _file(name: str) -> Path:
    return EXPERIMENTS / f"{name}.toml" if name in shipped_experiments() else Path(name)


def _laid_over(base: dict[str, Any], content: dict[str, Any], *, file: Path) -> dict[str, Any]:
    """Return an experiment laid over another: tables one key after the other, cells and preparations as a whole."""
    merged = {}
    for name in ("about", "settings", "experiment"):
        tables = base.get(name, {}), content.get(name, {})
        for table in tables:
            if not isinstance(table, dict):
                raise _wrong(file, f"something else than a table as [{name}]", table, "Mend the file")
        merged[name] = {**tables[0], **tables[1]}
    return {**base, **content, **merged}


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise UserError(
            f"cannot read the experiment: {error.strerror}. Received: {file}. Name a TOML file, or one of "
            f"{', '.join(shipped_experiments())}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the experiment is not TOML. Received: {file} ({error}). Mend the file") from None


def _filled_in(value: Any, *, folder: str) -> Any:
    """Return the content of a file with `{folder}` replaced in its texts."""
    if isinstance(value, str):
        return value.replace("{folder}", folder)
    if isinstance(value, list):
        return [_filled_in(item, folder=folder) for item in value]
    if isinstance(value, dict):
        return {key: _filled_in(item, folder=folder) for key, item in value.items()}
    return value


def _wrong(file: Path, problem: str, received: object, remedy: str) -> UserError:
    return UserError(f"{file.name} has {problem}. Received: {received}. {remedy}")


def _validated(kind: Any, content: Any, *, file: Path, where: str) -> Any:
    try:
        # By way of JSON, where a table passes for a dataclass; strict, so that "3" does not pass for 3.
        return TypeAdapter(kind).validate_json(json.dumps(content, default=str), strict=True)
    except ValidationError as error:
        raise UserError(f"{file.name} is no experiment: {where} {first_problem(error)}. Mend the file") from None


def _check_protocol(protocol: Protocol, *, file: Path) -> None:
    for name in ("cool_down_seconds", "budget_minutes", "limit_minutes"):
        value = getattr(protocol, name)
        if (value is not None and not 0 <= value < math.inf) or (value == 0 and name == "limit_minutes"):
            raise _wrong(file, f"an impossible {name}", value, "Give 0 or more, and more than 0 for a limit")
    _check_repeats(protocol.repeats, protocol.metered, file=file)


def _check_repeats(repeats: int, metered: Sequence[int], *, file: Path) -> None:
    if repeats < 1:
        raise _wrong(file, "an impossible number of repeats", repeats, "Give 1 or more")
    if any(not 1 <= repeat <= repeats for repeat in metered):
        raise _wrong(file, f"metered repeats beyond its {repeats}", list(metered), f"Give numbers from 1 to {repeats}")


def _check_keys(table: Any, *, where: str, file: Path) -> None:
    if not isinstance(table, dict):
        raise _wrong(file, f"something else than a table as {where}", table, "Mend the file")
    for key in table:
        if key in _RESERVED - {"name"} or (key not in CELL_KEYS and key not in _SETTINGS):
            why = "which the experiment sets itself" if key in _RESERVED else "which is no setting"
            raise _wrong(
                file, f"`{key}` in {where}, {why}", key,
                f"Use the trainers' flags, with _ for -, and {', '.join(CELL_KEYS)}",
            )  # fmt: skip


def _expand(table: Mapping[str, Any], *, protocol: Protocol, file: Path) -> Iterator[Cell]:
    """Yield the product of a table's axes."""
    axes = {key: values for key, values in table.items() if _is_axis(key, values)}
    for key, values in axes.items():
        if not values:
            raise _wrong(file, f"an axis without values, `{key}`", "[]", "Give one value at least")
    for point in itertools.product(*axes.values()):
        values = {**table, **dict(zip(axes, point, strict=True))}
        yield _cell(values, named=[*_ALWAYS_NAMED, *(axis for axis in axes if axis not in _ALWAYS_NAMED)],
                    protocol=protocol, file=file)  # fmt: skip


def _is_axis(key: str, value: Any) -> bool:
    if key == "metered" or not isinstance(value, list):
        return False
    return key not in _PAIRS or any(isinstance(item, list) for item in value)


def _cell(values: Mapping[str, Any], *, named: Sequence[str], protocol: Protocol, file: Path) -> Cell:
    framework, np = values.get("framework"), values.get("np", 1)
    if framework not in PROGRAMS:
        raise _wrong(file, "a cell without a known framework", framework, f"Give one of {', '.join(PROGRAMS)}")
    launcher = _one_of("launcher", values, ("horovodrun", "python"), default="horovodrun", file=file)
    controller = _one_of("controller", values, ("mpi", "gloo"), default=None, file=file)
    for key, least in (("np", 1), ("gpus", 0), ("cores", 0), ("repeats", 1)):
        value = values.get(key, least)
        if type(value) is not int or value < least:
            raise _wrong(file, f"an impossible {key}", value, f"Give a whole number of {least} or more")
    if launcher == "python" and (np != 1 or controller):
        raise _wrong(
            file, "a cell without launcher that needs one", f"np {np}, controller {controller}",
            "Leave `launcher` out, or give np = 1 and no controller",
        )  # fmt: skip
    repeats = values.get("repeats", protocol.repeats)
    metered = values.get("metered", [repeat for repeat in protocol.metered if repeat <= repeats])
    if not isinstance(metered, list) or any(type(repeat) is not int for repeat in metered):
        raise _wrong(file, "impossible metered repeats", metered, "Give a list of numbers")
    _check_repeats(repeats, metered, file=file)
    arguments = _arguments(values, np=np, file=file)
    try:
        config = parse_command_line(arguments, program=PROGRAMS[framework])
    except UserError as error:
        raise UserError(f"{file.name} has an impossible cell: {error}") from None
    shown = {"framework": framework, "model": config.model.model, "np": f"np{np}"}
    parts = [str(values["name"])] if "name" in values else []
    parts += [shown[key] if key in shown else f"{key.replace('_', '')}{_word(values[key])}" for key in named]
    name = re.sub(r"[^\w.+-]+", "-", "-".join(parts))
    return Cell(
        name, framework, np, launcher, controller, tuple(arguments), config, repeats, tuple(metered),
        gpus=values.get("gpus", 0), cores=values.get("cores", 0),
    )  # fmt: skip


def _one_of(key: str, values: Mapping[str, Any], known: tuple[str, ...], *, default: str | None, file: Path) -> Any:
    value = values.get(key, default)
    if value != default and value not in known:
        raise _wrong(file, f"an unknown {key}", value, f"Give one of {', '.join(known)}")
    return value


def _word(value: Any) -> str:
    """Return a value as a part of a folder's name."""
    if isinstance(value, list):
        return "x".join(str(item) for item in value)
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _arguments(values: Mapping[str, Any], *, np: int, file: Path) -> list[str]:
    """Return the trainer's flags for the settings of a cell."""
    arguments = []
    if "recipe" in values:
        recipe = RECIPES / f"{values['recipe']}.toml"
        read_recipe(recipe)
        arguments += ["--recipe", os.path.relpath(recipe)]
    settings = {key: value for key, value in values.items() if key in _SETTINGS and key != "name"}
    if "global_batch_size" in values:
        whole = values["global_batch_size"]
        if "batch_size" in settings:
            raise _wrong(file, "a batch size twice", "batch_size and global_batch_size", "Leave one of them out")
        if type(whole) is not int or whole % np:
            raise _wrong(file, "a batch that its ranks cannot share", f"{whole} on {np}", "Give a multiple of np")
        settings["batch_size"] = whole // np
    return [*arguments, *settings_flags(settings)]


def _in_order(cells: Sequence[Cell], *, protocol: Protocol) -> list[PlannedRun]:
    def runs_of(cell: Cell) -> list[PlannedRun]:
        base = cell.config.training.seed
        return [
            PlannedRun(cell, repeat, base + repeat - 1 if protocol.seeds == "repeat" else base)
            for repeat in range(1, cell.repeats + 1)
        ]

    runs = [run for cell in cells for run in runs_of(cell)]
    if protocol.order == "interleaved":
        runs.sort(key=lambda run: run.repeat)  # a stable sort: cells keep their order within a round
    elif protocol.order == "random":
        random.Random(protocol.order_seed).shuffle(runs)
    return runs
