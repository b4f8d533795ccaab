"""The tables of the thesis from its run folders, every value with the published one beside it.

Formulas as in the thesis: T = training + validation + test; speedup = mean T of the reference / mean T; efficiency =
speedup / devices; EDP = mean time x mean energy, divided by that of 1 GPU.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import pandas as pd

from analysis.output import tables
from analysis.output.tables import Table, in_percent
from analysis.runs.labels import framework_label
from analysis.runs.published import Result, read_published
from analysis.runs.table import RunRow, Selection, runs_in
from analysis.thesis.tables import EPOCHS
from common.measurement.energy import EnergyRecord, energy_delay
from common.run_folder.records import DataRecord, World

# Prefix of the run folders (before "-r1" and "-energy1") -> display name, in the order of the thesis.
ENVIRONMENTS = {
    "cpu": "CPU",
    "gpu1": "1 GPU",
    "gpu1-wrapped": "1 GPU, wrapped",
    "gpu2": "2 GPUs",
    "gpu2-batch64": "2 GPUs, batch 64",
}
HYBRIDS = {"hybrid-gpu1": "1 GPU", "hybrid": "2 GPUs and CPU"}
CPUS = ("cpu", "cpu2")  # both count for accuracy, only the first for time
BASE = "gpu1"
PHASES = ("training", "validation", "test")
_TIMED = re.compile(r"(.+)-r\d+")
_METERED = re.compile(r"(.+)-energy\d+")
_SINGLE = re.compile(r"size\d+x\d+-batch\d+|validation\d+percent|table31-.+")


@dataclass(frozen=True)
class ThesisRuns:
    """The runs of the thesis by the names of their folders.

    Attributes:
        timed, metered: environment -> its runs, in order.
        single: name -> run, for experiments of one run.
        epochs: the table of epochs.
    """

    epochs: pd.DataFrame
    timed: Mapping[str, list[RunRow]] = field(default_factory=lambda: defaultdict(list))
    metered: Mapping[str, list[RunRow]] = field(default_factory=lambda: defaultdict(list))
    single: dict[str, RunRow] = field(default_factory=dict)

    def named(self, pattern: str) -> dict[str, RunRow]:
        """Return the single runs whose names match."""
        return {name: run for name, run in self.single.items() if re.fullmatch(pattern, name)}

    def shares(self) -> dict[int, RunRow]:
        """Return the share of validation samples in percent -> run of figure 3.7, the largest first."""
        runs = {int(re.sub(r"\D", "", name)): run for name, run in self.named(r"validation\d+percent").items()}
        return dict(sorted(runs.items(), reverse=True))

    def values(self, environment: str, column: str) -> list[float]:
        """Return a column of each run of an environment, where it is known."""
        return _known(getattr(run, column) for run in self.timed[environment])

    def accuracies(self, environment: str) -> list[float]:
        """Return the test accuracy of each run of an environment, in percent."""
        names = CPUS if environment == "cpu" else (environment,)
        return [value for name in names for value in self.values(name, "percent")]

    def mean_total(self, environment: str) -> float | None:
        """Return the mean total time of an environment; None without runs."""
        values = self.values(environment, "total_seconds")
        return fmean(values) if values else None

    def energies(self, environment: str) -> list[EnergyRecord]:
        """Return the energy of each metered run of an environment."""
        records = [run.record.energy for run in self.metered[environment]]
        return [energy for energy in records if isinstance(energy, EnergyRecord)]


def thesis_runs(selection: Selection) -> ThesisRuns:
    """Return the runs that `import-thesis` wrote, by their names.

    They have further columns: `fit_seconds`, of training and validation, and `percent`, the accuracy.
    """
    runs = selection.runs[selection.runs["origin"] == "imported"]
    runs = runs.assign(
        fit_seconds=runs["total_seconds"] - runs["test_seconds"].fillna(0.0), percent=100 * runs["accuracy"]
    )
    found = ThesisRuns(selection.epochs)
    for run in runs_in(runs):
        if match := _METERED.fullmatch(run.name):
            found.metered[match[1]].append(run)
        elif match := _TIMED.fullmatch(run.name):
            found.timed[match[1]].append(run)
        elif _SINGLE.fullmatch(run.name):
            found.single[run.name] = run
    return found


def published(name: str) -> Result | None:
    """Return the published result of an environment or a run; None: there is none."""
    return read_published().results.get(f"thesis-{name}")


def printed(name: str, field: str) -> Any:
    """Return a field of the published result of an environment or a run; None: not printed."""
    return getattr(published(name), field, None)


def printed_percent(name: str, field: str = "accuracy") -> float | None:
    """Return a published accuracy in percent; None: not printed."""
    return in_percent(printed(name, field))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and not math.isnan(value)]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A recomputed value of the thesis beside the published one.

    Attributes:
        of: what it describes, such as an environment.
        values: of each run; their mean is compared. A ratio has one value.
        published: None: not printed.
        places: decimals of the printed value.
        why: reason for a difference.
        remark: a caveat, shown whether the values differ or not.
    """

    of: str
    quantity: str
    values: Sequence[float]
    published: float | None = None
    places: int = 2
    why: str | None = None
    remark: str | None = None

    @property
    def value(self) -> float:
        """Mean of the values."""
        return fmean(self.values)

    @property
    def agrees(self) -> bool | None:
        """Whether it equals the published value to the last printed digit; None: not printed."""
        if self.published is None:
            return None
        return abs(self.value - self.published) <= 0.5 * 10**-self.places + 1e-9 * abs(self.published)

    @property
    def row(self) -> list[tables.Cell]:
        """A row of `table_of`."""
        several, agrees = len(self.values) > 1, {True: "agrees", False: "differs", None: "not printed"}[self.agrees]
        why = self.why if self.agrees is False else self.remark
        if self.agrees is False and not why:
            why = "no reason known: its raw values give another value"
        return [self.of, self.quantity, len(self.values), self.value, min(self.values) if several else None,
                max(self.values) if several else None, self.published, agrees, why]  # fmt: skip


def table_of(title: str, compared: Sequence[Compared], form: str) -> Table:
    """Return a table of values with the published ones beside them."""
    headings = ["of", "what", "n", "from the runs", "min", "max", "published", "", "why"]
    formats = {"n": "d"} | dict.fromkeys(("from the runs", "min", "max", "published"), form)
    return Table(title, headings, [one.row for one in compared], formats)


def _compared(of: str, quantity: str, values: Iterable[float | None], printed: Any, **more: Any) -> list[Compared]:
    """Return a comparison; none without a value that is known."""
    known = _known(values)
    return [Compared(of=of, quantity=quantity, values=known, published=printed, **more)] if known else []


def first_figures(thesis: ThesisRuns) -> list[Compared]:
    """Return table 3.1."""
    compared = []
    for name, run in thesis.named("table31-.+").items():
        of = f"{framework_label(run.framework)}, {run.device}"
        accuracy, remark = printed_percent(name), printed(name, "remark")
        compared += _compared(of, "seconds", [run.training_seconds], printed(name, "training_seconds"))
        compared += _compared(of, "accuracy, %", [run.percent], accuracy, places=0, remark=remark)
    return compared


def parameter_table(thesis: ThesisRuns) -> Table | None:
    """Return table 4.1; None without runs on 1 GPU."""
    runs = thesis.timed[BASE]
    data = runs[0].record.data if runs else None
    if not isinstance(data, DataRecord):
        return None
    samples = (data.training_samples, data.validation_samples, data.test_samples)
    shares = [f"{part} ({100 * part / sum(samples):.0f} %)" for part in samples]
    known = {
        "samples": str(sum(samples)),
        "classes": str(len(data.class_names)),
        "pixels": runs[0].image_size,
        "training samples": shares[0],
        "validation samples": shares[1],
        "test samples": shares[2],
        "batch": str(data.global_batch_size),
        "epochs": f"{runs[0].trained_epochs:g}",
    }
    worlds = [run.record.world for run in thesis.timed["gpu2"]]
    controllers = dict.fromkeys(world.controller for world in worlds if isinstance(world, World))
    unknown = {
        "learning rate": "not in its files",
        "algorithm": "not in its files",
        "communication": ", ".join(f"{name}, library not in its files" for name in controllers) or "no runs on 2 GPUs",
    }
    of_text = printed(BASE, "parameters") or {}
    rows: list[list[tables.Cell]] = [
        [name, value, of_text.get(name), "agrees" if value == of_text.get(name) else "differs"]
        for name, value in known.items()
    ]
    rows += [[name, value, of_text.get(name), "only published"] for name, value in unknown.items()]
    return Table("Table 4.1: parameters", ["parameter", "from the runs", "published", ""], rows, {})


def times(thesis: ThesisRuns) -> list[Compared]:
    """Return the times of figure 4.3, and the durations of metered runs."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        parts = [printed(name, f"{phase}_seconds") for phase in PHASES]
        for phase, part in zip(PHASES, parts, strict=True):
            compared += _compared(label, f"{phase}, s", thesis.values(name, f"{phase}_seconds"), part)
        total = None if None in parts else sum(parts)
        compared += _compared(label, "total, s", thesis.values(name, "total_seconds"), total)
        compared += _compared(
            label, "metered runs, s", [energy.seconds for energy in thesis.energies(name)],
            printed(name, "energy_seconds"), places=1, why="the published sums give another duration than the traces",
        )  # fmt: skip
    return compared


def speedups(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 4.4 and the efficiencies of section 4.3.1."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        total, ratios = thesis.mean_total(name), printed(name, "speedups") or {}
        for reference in ("cpu", BASE):
            base, ratio = thesis.mean_total(reference), ratios.get(reference)
            if total and base:
                what = f"speedup over {ENVIRONMENTS[reference]}"
                compared += _compared(label, what, [base / total], ratio, places=_places(ratio))
    both, total = [mean for name in CPUS if (mean := thesis.mean_total(name))], thesis.mean_total(BASE)
    if len(both) == len(CPUS) and total:
        compared += _compared(
            ENVIRONMENTS[BASE], "speedup over the mean of both CPU runs, as in its text", [fmean(both) / total],
            (printed(BASE, "speedups") or {}).get("cpus"), places=1, remark=printed(BASE, "remark"),
        )  # fmt: skip
    return [*compared, *_efficiencies(thesis)]


def _places(printed: float | None) -> int:
    """Return the number of decimals of a printed number."""
    return len(str(printed).partition(".")[2])


def _efficiencies(thesis: ThesisRuns) -> list[Compared]:
    compared = []
    for name in ("gpu2", "gpu2-batch64"):
        total, base = thesis.mean_total(name), thesis.mean_total(BASE)
        ranks = thesis.timed[name][0].np if total else None
        if not total or not base or not ranks:
            continue
        training = [fmean(thesis.values(one, "training_seconds") or [math.nan]) for one in (BASE, name)]
        alone = training[0] / training[1] if training[1] else math.nan
        for quantity, value, of_text in (
            ("efficiency", base / total / ranks, printed(name, "efficiency")),
            ("speedup of training alone over 1 GPU", alone, printed(name, "training_speedup")),
            ("efficiency of training alone", alone / ranks, printed(name, "training_efficiency")),
        ):
            rounded = of_text == round(base / total, 2) / ranks
            why = f"printed from the rounded speedup, {base / total:.2f}" if rounded else None
            compared += _compared(ENVIRONMENTS[name], quantity, [value], of_text, places=_places(of_text), why=why)
    return compared


def accuracies(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 4.6: mean, minimum and maximum accuracy on the test samples."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        if not (values := thesis.accuracies(name)):
            continue
        for quantity, value, printed_as in (
            ("mean", fmean(values), "accuracy"),
            ("min", min(values), "accuracy_min"),
            ("max", max(values), "accuracy_max"),
        ):
            remark = printed(name, "remark") if name == "gpu2" and quantity == "mean" else None
            compared += _compared(
                f"{label} ({len(values)} runs)", f"{quantity}, %", [value], printed_percent(name, printed_as), places=0,
                remark=remark,
            )  # fmt: skip
    return compared


def energies(thesis: ThesisRuns) -> list[Compared]:
    """Return the energies of table 4.2 and, by device, of figure 4.12."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        found, joules = thesis.energies(name), printed(name, "joules") or {}
        used = sum(joules[device] for device in printed(name, "used")) if joules else None
        every = sum(joules.values()) if joules else None
        compared += _compared(label, "used devices, J", [one.used_devices.joules for one in found], used, places=3)
        compared += _compared(label, "with idle devices, J", [one.all_devices.joules for one in found], every, places=3)
        for device in ("cpu", "gpu0", "gpu1"):
            values = [_joules(energy, device) for energy in found]
            compared += _compared(label, f"{device}, J", values, joules.get(device), places=3)
    return compared


def _joules(energy: EnergyRecord, device: str) -> float | None:
    """Return the energy of a device, in joules; "cpu" is the sum of all processors."""
    values = [one.joules for one in energy.devices if one.name == device or (device == "cpu" and one.kind == "cpu")]
    return sum(_known(values)) if values else None


def products(thesis: ThesisRuns) -> list[Compared]:
    """Return the energy-delay products of table 4.2, divided by that of 1 GPU."""
    compared = []
    for quantity, part, printed_as in (
        ("EDP", "used_devices", "edp"),
        ("EDP with idle devices", "all_devices", "edp_with_idle"),
    ):
        absolute = {name: _product(thesis.energies(name), part) for name in ENVIRONMENTS}
        base = absolute[BASE]
        for name, value in absolute.items():
            if value is not None and base:
                of, places = f"{quantity} / that of 1 GPU", 2 if name == "cpu" else 4
                (one,) = _compared(ENVIRONMENTS[name], of, [value / base], printed(name, printed_as), places=places)
                compared.append(replace(one, why=_other_durations(thesis, name, one)))
    return compared


def _other_durations(thesis: ThesisRuns, name: str, product: Compared) -> str | None:
    """Return a note if the thesis's published durations explain its published product."""
    ours = [fmean(energy.seconds for energy in thesis.energies(one)) for one in (name, BASE)]
    theirs = [printed(one, "energy_seconds") for one in (name, BASE)]
    if None in theirs:
        return None
    as_published = product.value * theirs[0] / ours[0] / (theirs[1] / ours[1])
    if not replace(product, values=[as_published]).agrees:
        return None
    return (
        f"the published one uses {theirs[0]:,.1f} s and, for 1 GPU, {theirs[1]:,.1f} s; the traces last "
        f"{ours[0]:,.1f} and {ours[1]:,.1f} s"
    )


def _product(energies: Sequence[EnergyRecord], part: str) -> float | None:
    joules = [getattr(energy, part).joules for energy in energies]
    if not joules or None in joules:
        return None
    return energy_delay(fmean(energy.seconds for energy in energies), fmean(joules))


def hybrids(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 3.3: the hybrid of 2 GPUs and the CPU against 1 GPU."""
    compared = []
    for name, label in HYBRIDS.items():
        for quantity, column, of_text, places in (
            ("training + validation, s", "fit_seconds", printed(name, "training_seconds"), 0),
            ("training per epoch, s", "epoch_seconds", None, 0),
            ("validation per epoch, s", "validation_epoch_seconds", None, 0),
            ("test accuracy, %", "percent", printed_percent(name), 1),
        ):
            compared += _compared(label, quantity, thesis.values(name, column), of_text, places=places)
    return compared


def studies(thesis: ThesisRuns) -> list[Compared]:
    """Return figures 3.5 and 3.6: times and last accuracies by resolution and batch."""
    compared = []
    for name, run in thesis.named(r"size\d+x\d+-batch\d+").items():
        of, seconds = f"{run.image_size}, batch {run.global_batch}", printed(name, "training_seconds")
        compared += _compared(of, "training + validation, s", [run.fit_seconds], seconds, places=1)
        compared += _compared(of, "last validation accuracy, %", [run.percent], printed_percent(name), places=1)
    return compared


def shares(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 3.7: times by the share of validation samples."""
    compared = []
    for share, run in thesis.shares().items():
        of, name = f"{share} % for validation", run.name
        for quantity, value, of_text in (
            ("training per epoch, s", run.epoch_seconds, printed(name, "training_seconds")),
            ("validation per epoch, s", run.validation_epoch_seconds, printed(name, "validation_seconds")),
        ):
            compared += _compared(of, quantity, [value], None if of_text is None else of_text / EPOCHS)
        compared += _compared(of, "total, s", [run.total_seconds], printed(name, "total_seconds"), places=0)
    return compared
