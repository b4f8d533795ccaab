"""A search file, read and validated.

    [about]       for readers: title, question, source
    [search]      sampler, pruner, trials, metric, seed, storage (`SearchKeys`)
    [settings]    settings that all trials share, as in an experiment file; framework may be a list
    [space]       setting = [choices], or setting = { low = ..., high = ..., log = true, step = ... }
    [[prepare]]   as in an experiment file

Two whole numbers as low and high make a range of whole numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from common.json_records import Record, validated
from common.names import settings_here
from common.run_folder.search_record import METRICS, Metric, Value
from launch.experiments.experiment_file import (
    SETTINGS,
    ExperimentFile,
    PreparationCommand,
    Protocol,
    check_keys,
    read_toml,
    toml_file,
)
from launch.experiments.plan import PlannedRun, is_axis, planned_cell

SEARCHES = Path(__file__).with_name("shipped")
FIXED_SAMPLERS = ("random", "grid", "quasi-random")  # their points do not depend on scores
# What a search has no use for in [settings], beside the settings that no file may set.
_NOT_OF_A_SEARCH = ("name", "repeats", "metered", "gpus", "cores")
_OWN = ("framework", "np", "launcher", "controller", "recipe", "seed")  # the same in all trials
_Positive = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, kw_only=True)
class SearchKeys(Record):
    """How points are chosen and judged.

    Attributes:
        sampler: random, grid and quasi-random (scrambled Sobol) points are drawn once and are the same for all
            frameworks; tpe and cma-es choose each point by the scores before it.
        pruner: which trials end early; only with tpe and cma-es.
        trials: of each framework; None: all points of a grid.
        metric: the score, higher for accuracies and lower for losses.
        seed: of the sampler.
        storage: sqlite for one host, journal for several that share the folder.
        limit_minutes: a trial that takes longer is stopped and counts as failed; None: no limit.
    """

    sampler: Literal["random", "grid", "quasi-random", "tpe", "cma-es"]
    pruner: Literal["none", "median", "successive-halving", "hyperband"] = "none"
    trials: _Positive | None = None
    metric: Metric = "last_validation_accuracy"
    seed: Annotated[int, Field(ge=0)] = 1
    storage: Literal["sqlite", "journal"] = "sqlite"
    limit_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, kw_only=True)
class Range(Record):
    """The numbers from `low` to `high`, both included; `log`: drawn on a logarithmic scale."""

    low: int | float
    high: int | float
    log: bool = False
    step: int | float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole."""
        return all(isinstance(one, int) for one in (self.low, self.high, self.step or 1))


Axis = list[Value] | Range


@dataclass(frozen=True, kw_only=True)
class _Tables(Record):
    """The tables of a file, as they are written."""

    search: SearchKeys
    space: Annotated[dict[str, Axis], Field(min_length=1)]
    about: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    prepare: list[PreparationCommand] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedTrial(PlannedRun):
    """The run of a trial, named as its cell."""

    @property
    def name(self) -> str:
        """Name of the run folder."""
        return self.cell.name


@dataclass(frozen=True, kw_only=True)
class SearchFile:
    """The content of a search file.

    Attributes:
        experiment: what runs need of it.
        settings: that all trials share, except the framework.
    """

    experiment: ExperimentFile
    keys: SearchKeys
    frameworks: Sequence[str]
    settings: Mapping[str, Any]
    space: Mapping[str, Axis]

    @property
    def folder(self) -> Path:
        """Where its run folders are."""
        return self.experiment.folder

    @property
    def draws_once(self) -> bool:
        """Whether the points are the same for all frameworks, whatever the scores."""
        return self.keys.sampler in FIXED_SAMPLERS

    @cached_property
    def first_trial(self) -> "PlannedTrial":
        """A trial with the first choice on each axis."""
        return self.planned(self.frameworks[0], next(_probes(self.space)), name="first", point=0)

    @property
    def definition(self) -> dict[str, Any]:
        """What must not change from one start to the next: all but what may be extended."""
        keys = {name: value for name, value in asdict(self.keys).items() if name not in ("trials", "limit_minutes")}
        space = {name: axis if isinstance(axis, list) else asdict(axis) for name, axis in self.space.items()}
        return {"search": keys, "settings": dict(self.settings), "space": space}

    def planned(self, framework: str, params: Mapping[str, Value], *, name: str, point: int) -> PlannedTrial:
        """Return the run at a point of the space.

        Args:
            framework: torch or keras.
            params: setting -> value.
            name: of the run folder.
            point: number of the point, by which the seed of the training is counted.

        Raises:
            UserError: the settings do not fit together.
        """
        values = {**self.settings, "framework": framework, **params}
        cell = replace(planned_cell(values, named=(), file=self.experiment), name=name)
        return PlannedTrial(cell, 1, cell.config.training.seed + point)


def run_name(framework: str, number: int) -> str:
    """Return the name of a trial's run folder."""
    return f"{framework}-t{number}"


def read_search_file(name: str, *, runs_folder: Path) -> SearchFile:
    """Read a search file.

    Args:
        name: a TOML file, or the name of a shipped one.
        runs_folder: in which the search has its folder, named as the file.

    Raises:
        UserError: no such file, not TOML, unknown keys or values, or values that do not fit together.
    """
    path = toml_file(name, shipped=SEARCHES)
    folder = runs_folder / path.stem
    content = read_toml(path, folder=folder, shipped=SEARCHES, what="search file")
    tables = validated(_Tables, content, place=path.name, what="a valid search file", remedy="Fix the file")
    experiment = ExperimentFile(
        path=path,
        folder=folder,
        about=tables.about,
        protocol=Protocol(limit_minutes=tables.search.limit_minutes),
        preparations=tables.prepare,
        cells=[],
    )
    settings = settings_here(tables.settings, source=f"[settings] of {path.name}")
    space = settings_here(tables.space, source=f"[space] of {path.name}")
    _check_settings(settings, file=experiment)
    frameworks = settings.pop("framework", ["torch", "keras"])
    frameworks = frameworks if isinstance(frameworks, list) else [frameworks]
    if not frameworks or len(set(map(str, frameworks))) < len(frameworks):
        raise experiment.error("no frameworks, or one twice", frameworks, 'Give framework = ["torch", "keras"]')
    file = SearchFile(experiment=experiment, keys=tables.search, frameworks=frameworks, settings=settings, space=space)
    for setting, axis in file.space.items():
        _check_axis(setting, axis, file=file)
    _check_search(file)
    _check_points(file)
    return file


def _check_settings(settings: Mapping[str, Any], *, file: ExperimentFile) -> None:
    check_keys(dict(settings), where="[settings]", path=file.path)
    for name, value in settings.items():
        if name in _NOT_OF_A_SEARCH:
            raise file.error(f"`{name}` in [settings], which a search has no use for", value, "Leave it out")
        if name != "framework" and is_axis(name, value):
            raise file.error(f"an axis in [settings], `{name}`", value, "Move it to [space]")


def _check_axis(name: str, axis: Axis, *, file: SearchFile) -> None:
    """Check an axis by itself."""
    error = file.experiment.error
    if name in (*_OWN, "name") or name not in {*SETTINGS, "global_batch_size"}:
        why = "which is the same in all trials" if name in _OWN else "which is not a setting to search"
        remedy = "Set it in [settings]" if name in _OWN else "Use the trainers' flags, with _ for -"
        raise error(f"`{name}` in [space], {why}", name, remedy)
    check_keys({name: axis}, where="[space]", path=file.experiment.path)
    if name in file.settings:
        raise error(f"`{name}` in [settings] and in [space]", name, "Leave one of them out")
    if isinstance(axis, list):
        if not axis or len(set(map(repr, axis))) < len(axis):
            raise error(f"no choices, or one twice, for `{name}`", axis, "Give each choice once")
        return
    received = {one.name: getattr(axis, one.name) for one in fields(axis)}
    if not axis.low <= axis.high:
        raise error(f"a range of `{name}` that ends before it begins", received, "Give low <= high")
    if axis.log and (axis.low <= 0 or axis.step is not None):
        raise error(
            f"a logarithmic range of `{name}` that is not of plain positive numbers", received,
            "Give low > 0 and no step, or leave log out",
        )  # fmt: skip
    if axis.step is not None and axis.step <= 0:
        raise error(f"a step of `{name}` that is not above 0", received, "Give a step above 0, or leave it out")


def _check_search(file: SearchFile) -> None:
    """Check the sampler and the pruner against each other and against the space."""
    error, keys = file.experiment.error, file.keys
    if file.draws_once and keys.pruner != "none":
        raise error(
            f"a pruner with {keys.sampler} points, which are compared from end to end", f'pruner = "{keys.pruner}"',
            'Use the sampler tpe or cma-es, or pruner = "none"',
        )  # fmt: skip
    ranges = {name: axis for name, axis in file.space.items() if isinstance(axis, Range)}
    if keys.sampler == "cma-es" and len(ranges) < 2:
        raise error("too few ranges for cma-es, which moves in at least two", sorted(ranges), "Use tpe")
    if keys.sampler != "grid":
        if keys.trials is None:
            raise error("no number of trials", "no trials in [search]", "Give trials = 20, for example")
        return
    for name, axis in ranges.items():
        if (not axis.is_whole and axis.step is None) or axis.log:
            raise error(
                f"a continuous range of `{name}`, which has no grid",
                asdict(axis),
                "Give choices, or a step without log",
            )
    size = grid_size(file)
    if keys.trials is not None and keys.trials > size:
        raise error(f"more trials than its grid has points, {size}", keys.trials, "Leave trials out for all")


def grid_size(file: SearchFile) -> int:
    """Return the number of points of a grid."""
    size = 1
    for axis in file.space.values():
        size *= len(steps_of(axis))
    return size


def steps_of(axis: Axis) -> list[Value]:
    """Return the choices of an axis, or the steps of a range that has some."""
    if isinstance(axis, list):
        return axis
    step = axis.step or 1
    count = int((axis.high - axis.low) / step + 1e-9) + 1  # 0.3 / 0.1 is below 3
    return [axis.low + number * step for number in range(count)]


def _check_points(file: SearchFile) -> None:
    """Check each choice, and both ends of each range, with the first of all others; and that there will be a score.

    Other combinations may still not fit together: their trials fail.
    """
    first, *others = _probes(file.space)
    probes = [
        *((framework, first) for framework in file.frameworks),
        *((file.frameworks[0], other) for other in others),
    ]
    for framework, params in probes:
        config = file.planned(framework, params, name="probe", point=0).cell.config
        training, data = config.training, config.data
        has_samples = data.validation_share > 0 or data.dataset.startswith("prepared:")
        if not has_samples or training.validate_every > training.epochs:
            raise file.experiment.error(
                f"no validation, and so no {METRICS[file.keys.metric].label}",
                f"validation_share {data.validation_share}, epochs {training.epochs}, "
                f"validate_every {training.validate_every}",
                "Give validation_share = 0.1, for example, and epochs enough for a validation",
            )


def _probes(space: Mapping[str, Axis]) -> Iterator[dict[str, Value]]:
    ends = {name: axis if isinstance(axis, list) else [axis.low, axis.high] for name, axis in space.items()}
    first = {name: values[0] for name, values in ends.items()}
    yield first
    for name, values in ends.items():
        for value in values[1:]:
            yield {**first, name: value}
