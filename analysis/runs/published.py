"""Published results beside measured runs. `published.toml` holds them and defines their sources.

A result becomes a run of origin `published`, kept in memory only. It is a single run or a mean over runs, so it has no
interval, and it cannot be checked. A statement about several runs is a claim, quoted in words.
"""

import json
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from analysis.runs.settings import PUBLISHED_FOLDER
from analysis.runs.table import FIGURES, LoadedRun
from common.errors import UserError, first_problem
from common.measurement.energy import DeviceEnergy, EnergyRecord, EnergyTotals, energy_delay, energy_delay_squared
from common.measurement.power_trace import kind_of
from common.model.specs import model_spec
from common.run_folder.records import SCHEMA_VERSION, DataRecord, ModelRecord, NotRecorded, RunRecord, Totals, World

PUBLISHED_FILE = Path(__file__).with_name("published.toml")
PHASE = "training"  # published energies are not separated by phase
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A text that this project reproduces: its title and authors, what it is, and its year where it gives one."""

    __pydantic_config__ = _STRICT
    title: str
    what: str
    year: int | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
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
        efficiency, training_efficiency: speedup to 1 GPU / devices.
        joules: device -> energy; `used` names those that did the work.
        energy_seconds: on which the energy-delay products rest.
        edp, edp_with_idle: energy-delay product of used devices, of all devices, divided by that of 1 GPU.
        parameters: of table 4.1 of the thesis, as printed.
        remark: a caveat for readers of the figures.
    """

    __pydantic_config__ = _STRICT
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
class Claim:
    """A published statement about several runs.

    Attributes:
        times: time on one of `sites` / time on `base`; None: not about times.
        shown: an output, a table or a figure shows it; otherwise it is only claimed.
    """

    __pydantic_config__ = _STRICT
    source: str
    where: str
    words: str
    times: float | None = None
    sites: list[str] = field(default_factory=list)
    base: str | None = None
    shown: bool = False


@dataclass(frozen=True, kw_only=True)
class Published:
    """The contents of the file: sources by key, results by name, claims."""

    __pydantic_config__ = _STRICT
    sources: dict[str, Source]
    results: dict[str, Result]
    claims: list[Claim]

    @property
    def citable(self) -> list[str]:
        """Keys of the sources with a result or a claim, in the order of the file."""
        stated: list[Result | Claim] = [*self.results.values(), *self.claims]
        cited = {one.source for one in stated}
        return [name for name in self.sources if name in cited]


_PUBLISHED = TypeAdapter(Published)


@cache
def read_published(path: Path = PUBLISHED_FILE) -> Published:
    """Read and check the published results.

    Raises:
        UserError: the file cannot be read, does not follow the schema, or names an undefined source.
    """
    try:
        # Through JSON: in strict mode, pydantic builds dataclasses from tables only there.
        found = _PUBLISHED.validate_json(json.dumps(tomllib.loads(path.read_text(encoding="utf-8"))), strict=True)
    except OSError as error:
        raise UserError(f"cannot read published results: {error.strerror}. Received: {path}. Restore it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"published results are not TOML. Received: {path} ({error}). Fix the file") from None
    except ValidationError as error:
        raise UserError(f"{path} holds no published results: {first_problem(error)}. Fix the file") from None
    stated: list[Result | Claim] = [*found.results.values(), *found.claims]
    for one in stated:
        if one.source not in found.sources:
            raise UserError(f"{path} holds no published results: an unknown source. Received: {one.source}. Fix it")
    return found


def checked_sources(names: Sequence[str] | None) -> list[str]:
    """Return the sources given to --published: all of them for an empty list, none for None.

    Raises:
        UserError: there is no such source.
    """
    known = read_published().citable
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UserError(
            f"unknown source of published results. Received: --published {unknown[0]}. Use {', '.join(known)}, or none "
            "for all, and name RUNS before --published"
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
    return [*notes, *map(described_claim, published_claims(sources))]


def described_claim(claim: Claim) -> str:
    """Return a claim with its source."""
    return f"published {claim.source}, {claim.where}: {claim.words}; {'shown' if claim.shown else 'claimed, not shown'}"


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
    totals = Totals(
        epochs=result.epochs,
        steps=reason,
        startup_seconds=reason,
        training_seconds=_known(result.training_seconds, reason),
        validation_seconds=_known(result.validation_seconds, reason),
        test_seconds=_known(result.test_seconds, reason),
        images_per_second=_known(result.images_per_second, reason),
        test_loss=_known(result.test_loss, reason),
        test_accuracy=_known(result.accuracy, reason),
        first_epoch_seconds=reason,
        steady_images_per_second=reason,
    )
    runs = [_run(name, result, reason, totals=totals)]
    if result.joules:
        metered = NotRecorded("the published times are those of other runs")
        runs.append(_run(f"{name}-energy", result, reason, totals=metered, energy=_energy(result)))
    return runs


def _known(value: float | None, reason: NotRecorded) -> float | NotRecorded:
    return reason if value is None else value


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
        model=_model(result),
        hashes=reason,
        status=NotRecorded("a published result"),
        isolation=reason,
        **fields,
    )
    # No folder on disk: a path that names source, place and result, and so is unique.
    place = Path(PUBLISHED_FOLDER, f"{result.source}, {result.where}".replace("/", "-"), name)
    return LoadedRun(place, record, "finished", _figures(result))


def _figures(result: Result) -> NDArray[np.float64]:
    """Return (fields, epochs) float64, the validation accuracies alone."""
    figures = np.full((len(result.validation_accuracies), len(FIGURES)), math.nan)
    figures[:, FIGURES.index("validation_accuracy")] = result.validation_accuracies
    return figures


def _world(result: Result, reason: NotRecorded) -> World | NotRecorded:
    if not result.devices:
        return reason
    return World(
        size=len(result.devices),
        local_size=len(result.devices),
        hosts=[result.site],
        controller=result.controller,
        threads_per_rank=reason if result.threads is None else result.threads,
        cores=result.cores,
        oversubscribed=False,
        devices=result.devices,
    )


def _data(result: Result, reason: NotRecorded) -> DataRecord | NotRecorded:
    if result.dataset is None or result.samples is None:
        return reason
    training_samples, validation_samples, test_samples = result.samples
    return DataRecord(
        name=result.dataset,
        training_samples=training_samples,
        validation_samples=validation_samples,
        test_samples=test_samples,
        dropped_samples_per_epoch=0,
        global_batch_size=result.global_batch,
        steps_per_epoch=math.ceil(training_samples / result.global_batch),
        image_shape=result.image_shape,
        class_names=[str(number) for number in range(result.classes)],
        mean=[],
        standard_deviation=[],
    )


def _model(result: Result) -> ModelRecord:
    height, width, channels = result.image_shape
    spec = model_spec(result.model, input_shape=(channels, height, width), outputs=result.classes)
    return ModelRecord(
        name=result.model,
        outputs=result.classes,
        parameters=spec.parameters,
        multiply_adds_per_image=spec.multiply_adds,
    )


def _energy(result: Result) -> EnergyRecord:
    seconds = result.energy_seconds
    assert seconds is not None, "published joules have the seconds on which their energy-delay products rest"
    return EnergyRecord(
        interval_seconds=0.5,
        counted_phases=[PHASE],
        seconds=seconds,
        seconds_by_phase={PHASE: seconds},
        devices=[
            DeviceEnergy(
                name=device,
                kind=kind_of(device),
                method="integral",
                reason="a published sum",
                used=device in result.used,
                idle_watts_before=None,
                idle_watts_after=None,
                joules=joules,
                joules_above_idle=None,
                joules_by_phase={PHASE: joules},
            )
            for device, joules in result.joules.items()
        ],
        used_devices=_sums(seconds, sum(result.joules[device] for device in result.used)),
        all_devices=_sums(seconds, sum(result.joules.values())),
    )


def _sums(seconds: float, joules: float) -> EnergyTotals:
    return EnergyTotals(
        complete=False,
        joules=joules,
        joules_by_phase={PHASE: joules},
        joules_above_idle=None,
        edp_joule_seconds=energy_delay(seconds, joules),
        ed2p_joule_square_seconds=energy_delay_squared(seconds, joules),
    )
