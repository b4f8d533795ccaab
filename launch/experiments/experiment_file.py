"""An experiment file, read and validated.

    [about]       for readers: title, question, source, published, deviations
    [experiment]  repeats, order, cool-down, which repeats are metered, budget (`Protocol`)
    [settings]    settings of the trainers that all cells share, under the names of the flags
    [[cells]]     settings of a part of the grid; a list is an axis: the part is the product of its axes
    [[prepare]]   commands of `python -m common` to run once, and what each creates
    based_on      name of another experiment, whose tables this file overrides key by key

Beside the settings of the trainers, a cell takes those of `CellKeys`, and tuning variables of Horovod, MPI and threads
under their own names, as HOROVOD_CYCLE_TIME = [1, 5]. `{folder}` is the experiment's own folder.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from common.config import Config
from common.errors import UserError
from common.json_records import Record, validated
from common.names import settings_here
from common.run_folder.environment import TUNING_VARIABLES
from common.utils.whole_files import parse_toml, read_text

EXPERIMENTS = Path(__file__).with_name("shipped")
SETTINGS = {one.name for subject in fields(Config) for one in fields(subject.default_factory)}  # type: ignore[arg-type]
# Settings of the trainers that a file cannot set -> why.
RESERVED = dict.fromkeys(
    ("runs_folder", "name", "resume", "resume_or_start", "energy", "site"), "which the experiment sets itself"
) | {"elastic": "whose ranks `launch train --elastic` starts"}
_Positive = Annotated[int, Field(ge=1)]
_NotNegative = Annotated[int, Field(ge=0)]
_Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Protocol(Record):
    """How the runs of an experiment follow each other.

    Attributes:
        repeats: runs per cell.
        metered: repeats, from 1, that measure energy; their times are not used.
        order: interleaved: all cells once, then all again; grouped: all repeats of a cell, then the next cell; random.
        order_seed: of the random order.
        seeds: repeat: run r of every cell takes seed + r - 1, so that runs pair across cells; same: all take the seed.
        cool_down_seconds: between two runs.
        budget_minutes: no run is started that is expected to end later than this after the start; None: no limit.
        limit_minutes: a run that takes longer is stopped and counts as failed; None: no limit.
        site: where it runs, for estimates: a name of common/sites/sites.toml.
    """

    repeats: _Positive = 1
    metered: list[_Positive] = field(default_factory=list)
    order: Literal["interleaved", "grouped", "random"] = "interleaved"
    order_seed: int = 1
    seeds: Literal["repeat", "same"] = "repeat"
    cool_down_seconds: _Duration = 0.0
    budget_minutes: _Duration | None = None
    limit_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    site: str = "local"


@dataclass(frozen=True, kw_only=True)
class PreparationCommand(Record):
    """A command of `python -m common`; it is skipped where `makes` or `unless` exists."""

    command: list[str]
    makes: str
    unless: str | None = None

    @property
    def done(self) -> bool:
        """Whether there is nothing left to prepare."""
        return any(Path(path).exists() for path in (self.makes, self.unless) if path)


@dataclass(frozen=True, kw_only=True)
class CellKeys(Record):
    """What a cell sets beside the settings of the trainers: how its ranks are started, and what it needs.

    Attributes:
        name: first part of the names of its runs.
        np: ranks.
        launcher: horovodrun, or python for one process without launcher.
        controller: None: Horovod's choice.
        recipe: a file of launch/recipes, by its name.
        global_batch_size: instead of batch_size: divided among the ranks.
        repeats, metered: instead of the experiment's.
        gpus, cores: that the host must have; otherwise the cell is left out.
    """

    name: str = ""
    framework: Literal["torch", "keras"]
    np: _Positive = 1
    launcher: Literal["horovodrun", "python"] = "horovodrun"
    controller: Literal["mpi", "gloo"] | None = None
    recipe: str | None = None
    global_batch_size: _Positive | None = None
    repeats: _Positive | None = None
    metered: list[_Positive] | None = None
    gpus: _NotNegative = 0
    cores: _NotNegative = 0


CELL_KEYS = tuple(one.name for one in fields(CellKeys))


@dataclass(frozen=True, kw_only=True)
class _Tables(Record):
    """The tables of a file, as they are written."""

    cells: Annotated[list[dict[str, Any]], Field(min_length=1)]
    about: dict[str, Any] = field(default_factory=dict)
    experiment: Protocol = field(default_factory=Protocol)
    settings: dict[str, Any] = field(default_factory=dict)
    prepare: list[PreparationCommand] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ExperimentFile:
    """The content of an experiment file; `cells`: the tables [[cells]], each with the shared settings filled in."""

    path: Path
    folder: Path
    about: dict[str, Any]
    protocol: Protocol
    preparations: list[PreparationCommand]
    cells: list[dict[str, Any]]

    def error(self, problem: str, received: object, remedy: str) -> UserError:
        """Return the error about a problem in this file."""
        return _error(self.path, problem, received, remedy)

    def check_metered(self, repeats: int, metered: Sequence[int]) -> None:
        """Raise UserError if a repeat is metered that does not exist."""
        if max(metered, default=0) > repeats:
            raise self.error(f"metered repeats beyond its {repeats}", metered, f"Give numbers from 1 to {repeats}")


def shipped_experiments(folder: Path = EXPERIMENTS) -> list[str]:
    """Return the names of the files that come with the project in a folder, by default of the experiments."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_experiment_file(name: str, *, runs_folder: Path) -> ExperimentFile:
    """Read an experiment file.

    Args:
        name: a TOML file, or the name of a shipped experiment.
        runs_folder: in which the experiment has its folder, named as the file.

    Raises:
        UserError: no such file, not TOML, unknown keys or values.
    """
    path = toml_file(name)
    folder = runs_folder / path.stem
    content = read_toml(path, folder=folder)
    if "based_on" in content:
        base = content.pop("based_on")
        if not isinstance(base, str):
            raise _error(path, "a based_on that is not a name", base, "Give the name of an experiment, or a file")
        content = _override(read_toml(toml_file(base), folder=folder), content)
    tables = validated(_Tables, content, place=path.name, what="a valid experiment", remedy="Fix the file")
    settings = settings_here(tables.settings, source=f"[settings] of {path.name}")
    cells = [
        settings_here(cell, source=f"[[cells]] number {number} of {path.name}")
        for number, cell in enumerate(tables.cells, 1)
    ]
    check_keys(settings, where="[settings]", path=path)
    for number, cell in enumerate(cells, 1):
        check_keys(cell, where=f"[[cells]] number {number}", path=path)
    file = ExperimentFile(
        path=path,
        folder=folder,
        about=tables.about,
        protocol=tables.experiment,
        preparations=tables.prepare,
        cells=[{**settings, **cell} for cell in cells],
    )
    file.check_metered(file.protocol.repeats, file.protocol.metered)
    return file


def _error(path: Path, problem: str, received: object, remedy: str) -> UserError:
    return UserError(f"{path.name} has {problem}. Received: {received}. {remedy}")


def toml_file(name: str, *, shipped: Path = EXPERIMENTS) -> Path:
    """Return the file that a name means: one that comes with the project in the folder `shipped`, or a path."""
    return shipped / f"{name}.toml" if name in shipped_experiments(shipped) else Path(name)


def read_toml(path: Path, *, folder: Path, shipped: Path = EXPERIMENTS, what: str = "experiment") -> dict[str, Any]:
    """Return the content of a file, with `{folder}` replaced; `what` it is, and those `shipped`, for the messages.

    Raises:
        UserError: there is no such file, or it is not TOML.
    """
    try:
        text = read_text(path)
        return parse_toml(text.replace("{folder}", json.dumps(str(folder), ensure_ascii=False)[1:-1]))
    except OSError as error:
        raise UserError(
            f"cannot read the {what}: {error.strerror}. Received: {path}. Give a TOML file, or one of "
            f"{', '.join(shipped_experiments(shipped))}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the {what} is not TOML. Received: {path} ({error}). Fix the file") from None


def _override(base: dict[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file over that of its base: tables key by key, lists of tables as a whole."""
    merged = dict(base)
    for name, value in content.items():
        tables = isinstance(value, dict) and isinstance(base.get(name), dict)
        merged[name] = {**base[name], **value} if tables else value
    return merged


def check_keys(table: dict[str, Any], *, where: str, path: Path) -> None:
    """Raise UserError if a table sets what is no setting of the trainers or of a cell, or not the file's to set."""
    for key in table:
        if key in CELL_KEYS or key in TUNING_VARIABLES or (key in SETTINGS and key not in RESERVED):
            continue
        if key.isupper():
            allowed = f"Use {', '.join(TUNING_VARIABLES)}"
            raise _error(path, f"`{key}` in {where}, which is no variable that cells may set", key, allowed)
        why = RESERVED.get(key, "which is not a setting")
        remedy = f"Use the trainers' flags, with _ for -, and {', '.join(CELL_KEYS)}"
        raise _error(path, f"`{key}` in {where}, {why}", key, remedy)
