"""The tables of the thesis from its run folders, every value with the published one beside it.

Formulas as in the thesis: T = training + validation + test; speedup = mean T of the reference / mean T; efficiency =
speedup / devices; EDP = mean time x mean energy, divided by that of 1 GPU.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import pandas as pd

from analysis.output import tables
from analysis.output.plots import framework_style
from analysis.output.tables import Table
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
    timed: dict[str, list[RunRow]] = field(default_factory=lambda: defaultdict(list))
    metered: dict[str, list[RunRow]] = field(default_factory=lambda: defaultdict(list))
    single: dict[str, RunRow] = field(default_factory=dict)

    def named(self, pattern: str) -> dict[str, RunRow]:
        """Return the single runs whose names match."""
        return {name: run for name, run in self.single.items() if re.fullmatch(pattern, name)}

    def accuracies(self, environment: str) -> list[float]:
        """Return the test accuracy of each run of an environment."""
        names = CPUS if environment == "cpu" else (environment,)
        return [run.accuracy for name in names for run in self.timed.get(name, []) if not math.isnan(run.accuracy)]


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


def thesis_runs(selection: Selection) -> ThesisRuns:
    """Return the runs that `import-thesis` wrote, by their names."""
    found = ThesisRuns(selection.epochs)
    for run in runs_in(selection.runs[selection.runs["origin"] == "imported"]):
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


def first_figures(thesis: ThesisRuns) -> list[Compared]:
    """Return table 3.1."""
    compared = []
    for name, run in thesis.named("table31-.+").items():
        result, of = published(name), f"{framework_style(run.framework)['label']}, {run.device}"
        seconds, accuracy = (result.training_seconds, result.accuracy) if result else (None, None)
        compared += [
            Compared(
                of=of, quantity="seconds", values=_values([run], lambda one: one.training_seconds), published=seconds
            ),
            Compared(
                of=of,
                quantity="accuracy, %",
                values=_values([run], lambda one: 100 * one.accuracy),
                published=_percent(accuracy),
                places=0,
                remark=result.remark if result else None,
            ),
        ]
    return [one for one in compared if one.values]


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def parameter_table(thesis: ThesisRuns) -> Table | None:
    """Return table 4.1; None without runs on 1 GPU."""
    runs, result = thesis.timed.get(BASE), published(BASE)
    data = runs[0].record.data if runs else None
    if not runs or not isinstance(data, DataRecord):
        return None
    samples = (data.training_samples, data.validation_samples, data.test_samples)
    shares = [f"{part} ({100 * part / sum(samples):.0f} %)" for part in samples]
    wrapped = [run.record.world for run in thesis.timed.get("gpu2", [])]
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
    controllers = dict.fromkeys(world.controller for world in wrapped if isinstance(world, World))
    unknown = {
        "learning rate": "not in its files",
        "algorithm": "not in its files",
        "communication": ", ".join(f"{name}, library not in its files" for name in controllers) or "no runs on 2 GPUs",
    }
    printed = result.parameters if result else {}
    rows: list[list[tables.Cell]] = [
        [name, value, printed.get(name), "agrees" if value == printed.get(name) else "differs"]
        for name, value in known.items()
    ]
    rows += [[name, value, printed.get(name), "published alone"] for name, value in unknown.items()]
    return Table("Table 4.1: parameters", ["parameter", "from the runs", "published", ""], rows, {})


def times(thesis: ThesisRuns) -> list[Compared]:
    """Return the times of figure 4.3, and the durations of metered runs."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        result = published(name)
        for phase in PHASES:
            values = _values(thesis.timed.get(name, []), lambda run, phase=phase: getattr(run, f"{phase}_seconds"))  # type: ignore[misc]
            printed = getattr(result, f"{phase}_seconds") if result else None
            compared.append(Compared(of=label, quantity=f"{phase}, s", values=values, published=printed))
        totals = _values(thesis.timed.get(name, []), lambda run: run.total_seconds)
        compared.append(Compared(of=label, quantity="total, s", values=totals, published=_total(result)))
        measured = [energy.seconds for energy in _energies(thesis, name)]
        compared.append(
            Compared(
                of=label, quantity="metered runs, s", values=measured, places=1,
                published=result.energy_seconds if result else None,
                why="the published sums give another duration than the traces",
            )
        )  # fmt: skip
    return [one for one in compared if one.values]


def _total(result: Result | None) -> float | None:
    parts = [getattr(result, f"{phase}_seconds") for phase in PHASES] if result else []
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(PHASES) else None


def _values(runs: Sequence[RunRow], of: Callable[[RunRow], float]) -> list[float]:
    values = [of(run) for run in runs]
    return [value for value in values if not math.isnan(value)]


def mean_total(thesis: ThesisRuns, name: str) -> float | None:
    """Return the mean total time of an environment; None without runs."""
    values = _values(thesis.timed.get(name, []), lambda run: run.total_seconds)
    return fmean(values) if values else None


def speedups(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 4.4 and the efficiencies of section 4.3.1."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        result, total = published(name), mean_total(thesis, name)
        for reference in ("cpu", BASE):
            of_reference = mean_total(thesis, reference)
            if total and of_reference:
                printed = result.speedups.get(reference) if result else None
                compared.append(
                    Compared(
                        of=label, quantity=f"speedup to {ENVIRONMENTS[reference]}", values=[of_reference / total],
                        published=printed, places=_places(printed),
                    )
                )  # fmt: skip
    return [*compared, *_both_cpus(thesis), *_efficiencies(thesis)]


def _places(printed: float | None) -> int:
    """Return the number of decimals of a printed number."""
    return len(str(printed).partition(".")[2])


def _both_cpus(thesis: ThesisRuns) -> list[Compared]:
    both = [value for name in CPUS if (value := mean_total(thesis, name))]
    total, result = mean_total(thesis, BASE), published(BASE)
    if len(both) < len(CPUS) or not total:
        return []
    return [
        Compared(
            of=ENVIRONMENTS[BASE], quantity="speedup to the mean of both CPU runs, as in its text",
            values=[fmean(both) / total], published=result.speedups.get("cpus") if result else None, places=1,
            remark=result.remark if result else None,
        )
    ]  # fmt: skip


def _efficiencies(thesis: ThesisRuns) -> list[Compared]:
    compared = []
    for name in ("gpu2", "gpu2-batch64"):
        total, base, result = mean_total(thesis, name), mean_total(thesis, BASE), published(name)
        if not total or not base or not thesis.timed[name][0].np:
            continue
        label, runs = ENVIRONMENTS[name], thesis.timed[name]
        training = [
            fmean(_values(thesis.timed[one], lambda run: run.training_seconds) or [math.nan]) for one in (BASE, name)
        ]
        alone = training[0] / training[1] if training[1] else math.nan
        rounded = round(base / total, 2) / runs[0].np
        figures = (
            ("efficiency", base / total / runs[0].np, "efficiency"),
            ("speedup of training alone to 1 GPU", alone, "training_speedup"),
            ("efficiency of training alone", alone / runs[0].np, "training_efficiency"),
        )
        for quantity, value, attribute in figures:
            if not math.isnan(value):
                printed = getattr(result, attribute) if result else None
                why = f"printed from the rounded speedup, {base / total:.2f}" if printed == rounded else None
                compared.append(
                    Compared(
                        of=label, quantity=quantity, values=[value], published=printed, places=_places(printed), why=why
                    )
                )
    return compared


def accuracies(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 4.6: mean, minimum and maximum accuracy on the test samples."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        values, result = thesis.accuracies(name), published(name)
        if not values:
            continue
        for quantity, value, attribute in (
            ("mean", fmean(values), "accuracy"),
            ("min", min(values), "accuracy_min"),
            ("max", max(values), "accuracy_max"),
        ):
            compared.append(
                Compared(
                    of=f"{label} ({len(values)} runs)", quantity=f"{quantity}, %", values=[100 * value], places=0,
                    published=_percent(getattr(result, attribute)) if result else None,
                    remark=result.remark if result and name == "gpu2" and quantity == "mean" else None,
                )
            )  # fmt: skip
    return compared


def _energies(thesis: ThesisRuns, name: str) -> list[EnergyRecord]:
    return [run.record.energy for run in thesis.metered.get(name, []) if isinstance(run.record.energy, EnergyRecord)]


def energies(thesis: ThesisRuns) -> list[Compared]:
    """Return the energies of table 4.2 and, by device, of figure 4.12."""
    compared = []
    for name, label in ENVIRONMENTS.items():
        found, result = _energies(thesis, name), published(name)
        if not found:
            continue
        joules = result.joules if result else {}
        used = sum(joules[device] for device in result.used) if result and joules else None
        every = sum(joules.values()) if joules else None
        figures: list[tuple[str, list[float | None], float | None]] = [
            ("used devices, J", [energy.used_devices.joules for energy in found], used),
            ("with idle devices, J", [energy.all_devices.joules for energy in found], every),
        ]
        for device in ("cpu", "gpu0", "gpu1"):
            figures.append((f"{device}, J", [_joules(energy, device) for energy in found], joules.get(device)))
        for quantity, values, printed in figures:
            known = [value for value in values if value is not None]
            if known:
                compared.append(Compared(of=label, quantity=quantity, values=known, published=printed, places=3))
    return compared


def _joules(energy: EnergyRecord, device: str) -> float | None:
    """Return the energy of a device, in joules; "cpu" is the sum of all processors."""
    values = [one.joules for one in energy.devices if one.name == device or (device == "cpu" and one.kind == "cpu")]
    return sum(value for value in values if value is not None) if values else None


def products(thesis: ThesisRuns) -> list[Compared]:
    """Return the energy-delay products of table 4.2, divided by that of 1 GPU."""
    compared = []
    for quantity, part, attribute in (
        ("EDP", "used_devices", "edp"),
        ("EDP with idle devices", "all_devices", "edp_with_idle"),
    ):
        absolute = {name: _product(_energies(thesis, name), part) for name in ENVIRONMENTS}
        base = absolute[BASE]
        for name, label in ENVIRONMENTS.items():
            value, result = absolute[name], published(name)
            if value is not None and base:
                one = Compared(
                    of=label, quantity=f"{quantity} / that of 1 GPU", values=[value / base],
                    published=getattr(result, attribute) if result else None, places=2 if name == "cpu" else 4,
                )  # fmt: skip
                compared.append(replace(one, why=_other_durations(thesis, name, one)))
    return compared


def _other_durations(thesis: ThesisRuns, name: str, product: Compared) -> str | None:
    """Return a note if the thesis's published durations explain its published product."""
    ours = [fmean(energy.seconds for energy in _energies(thesis, one)) for one in (name, BASE)]
    printed = [result.energy_seconds if (result := published(one)) else None for one in (name, BASE)]
    theirs = [seconds for seconds in printed if seconds is not None]
    if len(theirs) < len(ours):
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
        result, runs = published(name), thesis.timed.get(name, [])
        for quantity, of, printed, places in (
            ("training + validation, s", _without_test, result.training_seconds if result else None, 0),
            ("training an epoch, s", lambda run: run.epoch_seconds, None, 0),
            ("validation an epoch, s", lambda run: run.validation_seconds / run.trained_epochs, None, 0),
            ("test accuracy, %", lambda run: 100 * run.accuracy, _percent(result.accuracy) if result else None, 1),
        ):  # fmt: skip
            if values := _values(runs, of):
                compared.append(Compared(of=label, quantity=quantity, values=values, published=printed, places=places))
    return compared


def _without_test(run: RunRow) -> float:
    return float(run.total_seconds - (0.0 if math.isnan(run.test_seconds) else run.test_seconds))


def studies(thesis: ThesisRuns) -> list[Compared]:
    """Return figures 3.5 and 3.6: times and last accuracies by resolution and batch."""
    compared = []
    for name, run in thesis.named(r"size\d+x\d+-batch\d+").items():
        result, of = published(name), f"{run.image_size}, batch {run.global_batch}"
        seconds, accuracy = (result.training_seconds, _percent(result.accuracy)) if result else (None, None)
        figures = (("training + validation, s", _without_test(run), seconds),
                   ("last validation accuracy, %", 100 * run.accuracy, accuracy))  # fmt: skip
        compared += [
            Compared(of=of, quantity=quantity, values=[value], published=printed, places=1)
            for quantity, value, printed in figures
            if not math.isnan(value)
        ]
    return compared


def shares(thesis: ThesisRuns) -> list[Compared]:
    """Return figure 3.7: times by the share of validation samples."""
    compared = []
    for name, run in sorted(thesis.named(r"validation\d+percent").items(), key=lambda item: -share(item[0])):
        result = published(name)
        of = f"{share(name)} % for validation"
        training, validation = (
            getattr(result, f"{phase}_seconds") / EPOCHS if result else None for phase in ("training", "validation")
        )
        figures = (
            ("training an epoch, s", run.epoch_seconds, training, 2),
            ("validation an epoch, s", run.validation_seconds / run.trained_epochs, validation, 2),
            ("in all, s", run.total_seconds, result.total_seconds if result else None, 0),
        )
        compared += [
            Compared(of=of, quantity=quantity, values=[value], published=printed, places=places)
            for quantity, value, printed, places in figures
            if not math.isnan(value)
        ]
    return compared


def share(name: str) -> int:
    """Return the share of validation samples, in percent, from the name of a run of figure 3.7."""
    return int(name.removeprefix("validation").removesuffix("percent"))
