"""`python -m analysis energy`: the energy of metered runs by device and phase, and energy-delay products."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.output import tables
from analysis.output.finding import Finding, Plot, add_question, brief
from analysis.output.tables import Table, in_figures
from analysis.questions.energy.plots import PHASES, energy_plot, power_plot
from analysis.runs.cells import Cell, cells_of, with_words
from analysis.runs.energy import (
    counted_devices,
    covered,
    energy_of,
    epochs_of,
    images_per_joule,
    joules_per_epoch,
    mean_of,
    median_trace,
    metered,
    values_of,
)
from analysis.runs.table import RunRow, Selection, curve, runs_in
from analysis.runs.validity import flags_of
from common.errors import UserError
from common.measurement.energy import COUNTED_PHASES, DeviceEnergy
from common.measurement.power_trace import PowerTrace
from common.run_folder.power_file import POWER_FILE
from common.run_folder.records import NotRecorded

MOST_TRACES = 12  # cells whose power is drawn


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_question(
        commands,
        "energy",
        find,
        "energy by device and phase, power over time, energy-delay products",
        keywords=("base",),
    )
    parser.add_argument("--base", metavar="CELL", help="cell to divide by, or a part of its name (default: the first)")


def find(selection: Selection, *, base: str | None = None) -> Finding:
    """Sum up the energy of metered runs.

    Args:
        selection: the runs.
        base: name of a cell, or a part that no other has, by which all are divided; None: the first.

    Raises:
        UserError: there is no such cell, or several.
    """
    runs = selection.runs
    metered_runs = runs[runs["metered"] & (runs["state"] == "finished")]
    cells = {cell.name: cell for cell in with_words([cell for cell in cells_of(selection.runs) if metered(cell)])}
    measured = {name: metered(cell) for name, cell in cells.items()}
    flags = flags_of(runs_in(metered_runs), [])
    question = "What energy does a run take, which device takes it and when?"
    if not measured:
        answer = "None of these runs measured energy: there is nothing to show. Train with --energy."
        if len(metered_runs):
            answer = (
                f"No device could be measured in any of {len(metered_runs)} metered runs: there is no energy to show."
            )
        notes = _unmeasured(metered_runs)
        return Finding(name="energy", question=question, answer=answer, flags=flags, notes=notes)
    of_base = _base(list(measured), base)
    plots, notes, untraced = [], _unmeasured(metered_runs), []
    for number, name in enumerate(list(measured)[:MOST_TRACES]):
        found = median_trace(measured[name], flags=flags)
        if found is None:
            untraced.append(name)
        else:
            plots.append(_power(number, name, *found, cell=cells[name], epochs=selection.epochs))
    if untraced:
        notes.append(f"no readable {POWER_FILE}, so no power over time: {'; '.join(untraced)}")
    if len(measured) > MOST_TRACES:
        notes.append(f"power over time is drawn for the first {MOST_TRACES} of {len(measured)} cells")
    return Finding(
        name="energy",
        question=question,
        answer=_answer(measured, base=of_base),
        tables=[
            _energy_table(cells, base=of_base),
            _products_table(measured, base=of_base),
            _devices_table(measured),
        ],
        plots=[*plots, energy_plot(measured, base=of_base)],
        flags=[*flags, *_unlike(measured, base=of_base)],
        notes=[
            *notes,
            "energy is that of training, validation and test; start-up and rest are shown separately. Used devices "
            "exclude idle GPUs. EDP = seconds x joules, ED2P = seconds² x joules, of each run; means over runs. "
            "Above idle: minus the energy of the devices at rest. Per epoch: training and validation; images per "
            "joule: training images / joules of training",
        ],
    )


def _base(names: Sequence[str], wanted: str | None) -> str:
    if wanted is None:
        return names[0]
    found = [name for name in names if name == wanted] or [name for name in names if wanted.lower() in name.lower()]
    if len(found) != 1:
        problem = "several cells have" if found else "no cell with metered runs has"
        there = "; ".join(found or names)
        raise UserError(f"{problem} such a name. Received: --base {wanted}. There are: {there}")
    return found[0]


def _unmeasured(runs: pd.DataFrame) -> list[str]:
    """Return what was not measured and why, once for all runs that share it."""
    runs_of = Counter(line for one in runs_in(runs) for line in _reasons(one))
    return [f"{line} ({count} run{'s' * (count > 1)})" for line, count in runs_of.items()]


def _reasons(run: RunRow) -> list[str]:
    energy = run.record.energy
    if isinstance(energy, NotRecorded):
        return [f"energy not recorded: {energy.not_recorded}"]
    if energy is None:
        return []
    lines = [f"{device.name} not measured: {device.reason}" for device in energy.devices if device.joules is None]
    known, counted = [device.name for device in energy.devices if device.joules is not None], counted_devices(energy)
    apart = [name for name in known if name not in {device.name for device in counted}]
    if apart:
        lines.append(f"{', '.join(apart)} measured, but its source counts them in no total")
    if tuple(energy.counted_phases) != COUNTED_PHASES:
        phases = " and ".join(energy.counted_phases)
        lines.append(f"its source does not separate training, validation and test: they are all in {phases}")
    return lines


def _energy_table(cells: Mapping[str, Cell], *, base: str) -> Table:
    headings = ["cell", "n", "seconds", "J, used devices", "min", "max", "/ base", "J, all devices", "/ base of all",
                "J above idle", "J per epoch", "images per J", "measured"]  # fmt: skip
    measured = {name: metered(cell) for name, cell in cells.items()}
    used, every = _normalized(measured, "joules", base=base), _normalized(measured, "joules", base=base, used=False)
    table_rows: list[list[tables.Cell]] = []
    for name, runs in measured.items():
        joules, epochs = values_of(runs, "joules"), [epochs_of(one, cells[name]) for one in runs]
        per_epoch = map(joules_per_epoch, runs, epochs)
        images = map(images_per_joule, runs, epochs)
        table_rows.append(
            [name, len(runs), _mean([energy_of(one).seconds for one in runs]), float(np.mean(joules)), min(joules),
             max(joules), used[name], mean_of(runs, "joules", used=False), every[name],
             _mean(values_of(runs, "joules_above_idle")), _mean([*per_epoch]), _mean([*images]), covered(runs)]
        )  # fmt: skip
    formats = dict.fromkeys([*headings[3:6], "J, all devices", "J above idle", "J per epoch"], ".5g")
    formats |= {"n": "d", "seconds": ".1f", "/ base": ".4f", "/ base of all": ".4f", "images per J": ".4g"}
    return Table(f"Energy (means over metered runs; base: {base})", headings, table_rows, formats)


def _products_table(measured: Mapping[str, list[RunRow]], *, base: str) -> Table:
    headings, formats = ["cell", "n"], {"n": "d"}
    columns: list[dict[str, float | None]] = []
    for used, devices in ((True, "used"), (False, "all")):
        for quantity, title in (("edp_joule_seconds", "EDP, J s"), ("ed2p_joule_square_seconds", "ED2P, J s²")):
            product, relative = f"{title}, {devices}", f"{title.split(',')[0]} / base, {devices}"
            headings += [product, relative]
            formats |= {product: ".5g", relative: ".4f"}
            means: dict[str, float | None] = {
                name: mean_of(runs, quantity, used=used) for name, runs in measured.items()
            }
            columns += [means, _normalized(measured, quantity, base=base, used=used)]
    table_rows: list[list[tables.Cell]] = [
        [name, len(runs), *(column[name] for column in columns)] for name, runs in measured.items()
    ]
    return Table(f"Energy-delay products, used devices and all (base: {base})", headings, table_rows, formats)


def _normalized(
    measured: Mapping[str, list[RunRow]], quantity: str, *, base: str, used: bool = True
) -> dict[str, float | None]:
    """Return means divided by the base's; None for all where the base's is 0."""
    means = {name: mean_of(runs, quantity, used=used) for name, runs in measured.items()}
    return {name: mean / means[base] if means[base] else None for name, mean in means.items()}


def _devices_table(measured: Mapping[str, list[RunRow]]) -> Table:
    every = [energy_of(one) for runs in measured.values() for one in runs]
    known = list(dict.fromkeys(phase for record in every for phase in record.seconds_by_phase))
    phases = sorted(known, key=lambda phase: list(PHASES).index(phase) if phase in PHASES else len(PHASES))
    headings = ["cell", "device", "how", "used", "n", *(f"{phase}, J" for phase in phases), "at rest before, W",
                "at rest after, W"]  # fmt: skip
    table_rows: list[list[tables.Cell]] = []
    for name, runs in measured.items():
        by_device: dict[str, list[DeviceEnergy]] = defaultdict(list)
        for one in runs:
            for device in energy_of(one).devices:
                by_device[device.name].append(device)
        for device_name, devices in by_device.items():
            of_phase = [[device.joules_by_phase.get(phase) for device in devices] for phase in phases]
            rest = [[device.idle_watts_before for device in devices], [device.idle_watts_after for device in devices]]
            table_rows.append(
                [name, device_name, " and ".join(dict.fromkeys(device.method for device in devices)),
                 "yes" if devices[0].used else "no", sum(device.joules is not None for device in devices),
                 *(_mean(values) for values in (*of_phase, *rest))]
            )  # fmt: skip
    formats: dict[str, str] = dict.fromkeys(headings[5:], ".5g")
    return Table("Energy by device and phase (means)", headings, table_rows, formats | {"n": "d"})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return float(np.mean(known)) if known else None


def _unlike(measured: Mapping[str, list[RunRow]], *, base: str) -> list[str]:
    of_base = covered(measured[base])
    return [
        f"{name} counts {counted}, the base {base} {of_base}: their joules are not of the same devices"
        for name, runs in measured.items()
        if (counted := covered(runs)) != of_base
    ]


def _answer(measured: Mapping[str, list[RunRow]], *, base: str) -> str:
    # Published results are in the tables next to measured ones but are not ranked with them.
    ranked = {name: runs for name, runs in measured.items() if name == base or runs[0].origin != "published"}
    products = {name: mean_of(runs, "edp_joule_seconds") for name, runs in ranked.items()}
    joules = mean_of(ranked[base], "joules")
    words = [f"{base} takes {joules:,.5g} J per run on average, counted over {covered(measured[base])}."]
    if len(ranked) == 1 or not products[base]:
        return words[0]
    means = {name: mean_of(runs, "joules") for name, runs in ranked.items()}
    least = [min(values, key=values.__getitem__) for values in (means, products)]
    shares = [in_figures(values[name] / values[base], 4) for name, values in zip(least, (means, products), strict=True)]
    if least[0] == least[1]:
        words.append(f"The lowest energy and EDP are those of {least[0]}, {shares[0]} and {shares[1]} times the base.")
    else:
        words += [
            f"The lowest {title} is that of {name}, {share} times the base."
            for title, name, share in zip(("energy", "EDP"), least, shares, strict=True)
        ]
    return brief(words)


def _power(
    number: int, name: str, run: RunRow, traces: Sequence[PowerTrace], *, cell: Cell, epochs: pd.DataFrame
) -> Plot:
    # A source may have the epochs of timed runs only.
    timed = [seconds for one in (run, *cell.finished) if len(seconds := _epoch_seconds(epochs, one))]
    n = len(metered(cell))
    middle = "the run of median energy" if n > 1 else "its only metered run"
    title = f"Power over time: {name}\n{run.name}, {middle}, n = {n}"
    return power_plot(f"energy-power-{number + 1}", title, traces, epoch_seconds=timed[0] if timed else np.array([]))


def _epoch_seconds(epochs: pd.DataFrame, run: RunRow) -> NDArray[np.float64]:
    return curve(epochs, run, "training_seconds") + np.nan_to_num(curve(epochs, run, "validation_seconds"))
