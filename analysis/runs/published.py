"""Published results beside measured runs. `published.toml` holds them and defines their sources.

A result becomes a run of origin `published`, kept in memory only. It is a single run or a mean over runs, so it has no
interval, and it cannot be checked. A statement about several runs is a claim, quoted in words.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from analysis.runs.settings import PUBLISHED_FOLDER
from analysis.runs.stated import stated_data, stated_energy, stated_model, stated_totals, stated_world
from analysis.runs.table import FIGURES, LoadedRun
from common.errors import UserError
from common.json_records import SCHEMA_VERSION, Record, validated
from common.run_folder.records import DataRecord, NotRecorded, RunRecord, World
from common.utils.whole_files import read_toml

PUBLISHED_FILE = Path(__file__).with_name("published.toml")


@dataclass(frozen=True, kw_only=True)
class Source(Record):
    """A text that this project reproduces: its title and authors, what it is, and its year where it gives one."""

    title: str
    what: str
    year: int | None = None


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """A published run, or the published mean over several. None or an empty list: not stated.

    Attributes:
        source, where: key of the source, and the place in it.
        framework: keras, torch or another.
        samples: of training, validation and test.
        image_shape: height, width, channels.
        site: a name of the table of sites, or one that it does not have.
        devices: of each rank.
        global_batch: images per update, over all ranks.
        n: number of runs.
        shown: an output, a table or a figure shows it; otherwise it is only claimed.
        total_seconds: training + validation + test where they are printed as a sum.
        accuracy: as a fraction, on the samples named by `accuracy_on`.
        validation_accuracies: of each epoch, as fractions.
        speedups: name of another result of the source -> its time / this one's.
        training_speedup: the same of training alone, to 1 GPU.
        efficiency, training_efficiency: speedup over 1 GPU / devices.
        joules: device -> energy; `used` names those that did the work.
        energy_seconds: on which the energy-delay products rest.
        edp, edp_with_idle: energy-delay product of used devices, of all devices, divided by that of 1 GPU.
        parameters: of table 4.1 of the thesis, as printed.
        remark: a caveat for readers of the figures.
    """

    source: str
    where: str
    framework: str
    model: str
    site: str
    epochs: int
    image_shape: tuple[int, int, int]
    dataset: str | None = None
    samples: tuple[int, int, int] | None = None
    classes: int = 10
    devices: list[str] = field(default_factory=list)
    controller: str = "none"
    threads: int | None = None
    cores: int = 0
    global_batch: int = 0
    n: int | None = None
    shown: bool = True
    training_seconds: float | None = None
    validation_seconds: float | None = None
    test_seconds: float | None = None
    total_seconds: float | None = None
    images_per_second: float | None = None
    test_loss: float | None = None
    accuracy: float | None = None
    accuracy_min: float | None = None
    accuracy_max: float | None = None
    accuracy_on: Literal["test", "validation"] = "test"
    validation_accuracies: list[float] = field(default_factory=list)
    speedups: dict[str, float] = field(default_factory=dict)
    training_speedup: float | None = None
    efficiency: float | None = None
    training_efficiency: float | None = None
    joules: dict[str, float] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    energy_seconds: float | None = None
    edp: float | None = None
    edp_with_idle: float | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    remark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Claim(Record):
    """A published statement about several runs.

    Attributes:
        times: time on one of `sites` / time on `base`; None: not about times.
        shown: an output, a table or a figure shows it; otherwise it is only claimed.
    """

    source: str
    where: str
    words: str
    times: float | None = None
    sites: list[str] = field(default_factory=list)
    base: str | None = None
    shown: bool = False


@dataclass(frozen=True, kw_only=True)
class Published(Record):
    """The contents of the file: sources by key, results by name, claims."""

    sources: dict[str, Source]
    results: dict[str, Result]
    claims: list[Claim]

    @property
    def cited(self) -> set[str]:
        """Keys of the sources of results and claims."""
        return {result.source for result in self.results.values()} | {claim.source for claim in self.claims}


@cache
def read_published(path: Path = PUBLISHED_FILE) -> Published:
    """Read and check the published results.

    Raises:
        UserError: the file cannot be read, does not follow the schema, or names an undefined source.
    """
    table = read_toml(path, what="table of published results", remedy="Restore it")
    found = validated(Published, table, place=path, what="a table of published results", remedy="Fix the file")
    for unknown in found.cited - found.sources.keys():
        raise UserError(f"{path} is not a table of published results: an unknown source. Received: {unknown}. Fix it")
    return found


def checked_sources(names: Sequence[str] | None) -> list[str]:
    """Return the sources given to --published: all of them for an empty list, none for None.

    Raises:
        UserError: there is no such source.
    """
    published = read_published()
    known = [name for name in published.sources if name in published.cited]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UserError(
            f"unknown source of published results. Received: --published {unknown[0]}. Use {', '.join(known)}, or "
            "--published alone for all, and name RUNS before it"
        )
    return [] if names is None else list(dict.fromkeys(names)) or known


def published_results(sources: Sequence[str]) -> dict[str, Result]:
    """Return name -> result of these sources."""
    return {name: result for name, result in read_published().results.items() if result.source in sources}


def published_claims(sources: Sequence[str]) -> list[Claim]:
    """Return the claims of these sources."""
    return [claim for claim in read_published().claims if claim.source in sources]


def published_runs(sources: Sequence[str]) -> list[LoadedRun]:
    """Return the results of these sources as runs; energies are separate runs, as in measurements."""
    return [run for name, result in published_results(sources).items() for run in _runs(name, result)]


def published_notes(sources: Sequence[str]) -> list[str]:
    """Return a note per result (place, number of runs, remarks) and per claim."""
    notes = [f"published {name}: {_described(result)}" for name, result in published_results(sources).items()]
    return notes + [
        f"published {claim.source}, {claim.where}: {claim.words}; {'shown' if claim.shown else 'claimed, not shown'}"
        for claim in published_claims(sources)
    ]


def _described(result: Result) -> str:
    of = "one run" if result.n == 1 else f"mean of {result.n} runs" if result.n else "number of runs not stated"
    parts = [result.where, of if result.shown else "claimed, not shown"]
    if result.accuracy_min is not None and result.accuracy_max is not None:
        parts.append(f"accuracies {100 * result.accuracy_min:g} to {100 * result.accuracy_max:g} %")
    if result.accuracy_on == "validation":
        parts.append("accuracy on the validation samples, after the last epoch")
    return "; ".join([*parts, *([result.remark] if result.remark else [])])


def _runs(name: str, result: Result) -> list[LoadedRun]:
    reason = NotRecorded(f"not stated in the source ({result.source})")
    totals = stated_totals(
        reason,
        epochs=result.epochs,
        training_seconds=result.training_seconds,
        validation_seconds=result.validation_seconds,
        test_seconds=result.test_seconds,
        images_per_second=result.images_per_second,
        test_loss=result.test_loss,
        test_accuracy=result.accuracy,
    )
    runs = [_run(name, result, reason, totals=totals)]
    if result.joules:
        assert result.energy_seconds is not None, "on these the published energy-delay products rest"
        energy = stated_energy(
            result.energy_seconds,
            result.joules,
            used=result.used,
            counted=result.joules,
            reasons=dict.fromkeys(result.joules, "a published sum"),
        )
        metered = NotRecorded("the published times are those of other runs")
        runs.append(_run(f"{name}-energy", result, reason, totals=metered, energy=energy))
    return runs


def _run(name: str, result: Result, reason: NotRecorded, **fields: Any) -> LoadedRun:
    record = RunRecord(
        schema_version=SCHEMA_VERSION,
        origin="published",
        framework=result.framework,
        config=reason,
        environment=reason,
        site=result.site,
        world=_world(result, reason),
        data=_data(result, reason),
        model=stated_model(result.model, result.image_shape, result.classes),
        hashes=reason,
        status=NotRecorded("a published result"),
        isolation=reason,
        **fields,
    )
    figures = np.full((len(result.validation_accuracies), len(FIGURES)), math.nan)
    figures[:, FIGURES.index("validation_accuracy")] = result.validation_accuracies
    # No folder on disk: a path that names source, place and result, and so is unique.
    place = Path(PUBLISHED_FOLDER, f"{result.source}, {result.where}".replace("/", "-"), name)
    return LoadedRun(place, record, "finished", figures)


def _world(result: Result, reason: NotRecorded) -> World | NotRecorded:
    if not result.devices:
        return reason
    threads = reason if result.threads is None else result.threads
    return stated_world(
        result.devices, host=result.site, controller=result.controller, cores=result.cores, threads=threads
    )


def _data(result: Result, reason: NotRecorded) -> DataRecord | NotRecorded:
    if result.dataset is None or result.samples is None:
        return reason
    return stated_data(
        result.dataset,
        samples=result.samples,
        image_shape=result.image_shape,
        global_batch=result.global_batch,
        class_names=[str(number) for number in range(result.classes)],
    )
