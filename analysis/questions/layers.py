"""`python -m analysis layers`: where a step spends its time, layer by layer, in runs with `--profile-layers`."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis.output.finding import Finding, Plot, add_question, brief
from analysis.output.plots import framework_style, label_rows, legend_below, n_words
from analysis.output.tables import Cell, Table, in_figures
from analysis.projection.efficiency import AT_PEAK, numbers_of, roofline_seconds
from analysis.projection.measured import machine_of, step_settings
from analysis.projection.peaks import Peaks
from analysis.projection.recorded import peaks_of_machine
from analysis.projection.work import Operation, step_operations
from analysis.runs import cells
from analysis.runs.labels import framework_label
from analysis.runs.table import Selection
from analysis.runs.validity import flags_of, pair_flags
from analysis.stats.inference import median_of
from common.distributed.console import counted
from common.errors import UserError
from common.measurement.step_profile import LayerSeconds, Part, StepProfile
from common.model.partition import part_name, single_layers
from common.model.specs import ModelSpec, model_spec

MOST_GAP = 0.02  # between a step and the sum of its parts
_QUESTION = "Where does a training step spend its time, layer by layer?"
_OTHER_PARTS: tuple[Part, ...] = ("input", "waiting", "allreduce", "optimizer", "rest")
_NAMED = 3  # parts, in the answer
_TOLD = 0.01  # of a step: the answer names no smaller difference


@dataclass(frozen=True)
class LayerWork:
    """What a layer computes and moves in a step of one rank.

    Attributes:
        least_seconds: forward and backward by the roofline; None: the peaks of the machine are not known.
    """

    flops: float
    bytes: float
    least_seconds: float | None


@dataclass(frozen=True)
class Profiled:
    """Runs with the same settings and their profiles; every time is the median over the runs, in seconds per step."""

    cell: cells.Cell
    profiles: list[StepProfile]

    @property
    def layers(self) -> dict[str, LayerSeconds]:
        """Layer -> its times; the last one is the loss."""
        of_runs = [profile.layers or {} for profile in self.profiles]
        return {
            name: LayerSeconds(
                forward=_median([layers[name].forward for layers in of_runs]),
                backward=_median([layers[name].backward for layers in of_runs]),
            )
            for name in of_runs[0]
        }

    @property
    def others(self) -> dict[str, float]:
        """What is not in layers -> its time: the other parts of a step, and what its passes do between layers."""
        found = {str(part): _median([one.parts_seconds[part] for one in self.profiles]) for part in _OTHER_PARTS}
        between = [
            one.parts_seconds["forward"] + one.parts_seconds["backward"] - sum(map(_both, (one.layers or {}).values()))
            for one in self.profiles
        ]
        return {"between layers": _median(between)} | {part: seconds for part, seconds in found.items() if seconds}

    @property
    def step(self) -> float:
        """Time of a profiled step, measured around it."""
        return _median([one.step_seconds for one in self.profiles])

    @property
    def gap(self) -> float:
        """By how much of a step the sum of its parts differs from it."""
        return _median([abs(sum(one.parts_seconds.values()) / one.step_seconds - 1) for one in self.profiles])


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser: argparse.ArgumentParser = add_question(
        commands, "layers", find, "times of every layer, of runs with --profile-layers", keywords=("measure",)
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the peaks for the roofline: this machine made the runs",
    )


def find(selection: Selection, *, measure: bool = False) -> Finding:
    """Return the times of every layer.

    Raises:
        UserError: the peaks are to be measured, and the runs are of another machine.
    """
    found = profiled_cells(selection)
    flags = flags_of(selection.rows, [])
    if not found:
        answer = "None of these runs has times of layers: train with --profile-layers."
        return Finding(name="layers", question=_QUESTION, answer=answer, flags=flags)
    first = found[0]
    if any(list(one.layers) != list(first.layers) for one in found):
        models = ", ".join(dict.fromkeys(one.cell.first.model for one in found))
        answer = f"Layers of one model are compared, and there are {models}: name runs of one."
        return Finding(name="layers", question=_QUESTION, answer=answer, flags=flags)
    flags += [flag for one in found[1:] for flag in pair_flags(first.cell, one.cell)]
    flags += [
        f"{one.cell.name}: the sum of the parts is {100 * one.gap:.0f} % off the step"
        for one in found
        if one.gap > MOST_GAP
    ]
    work, notes = work_of_layers(found, measure=measure)
    return Finding(
        name="layers",
        question=_QUESTION,
        answer=brief([_answer(one, first) for one in found[1:]] or [_alone(first)]),
        tables=[_table(found, work)],
        plots=[_plot(found, work)],
        flags=flags,
        notes=[
            f"times per step, medians over runs ({n_words([len(one.profiles) for one in found])})",
            *_unprofiled(found),
            *notes,
        ],
    )


def profiled_cells(selection: Selection) -> list[Profiled]:
    """Return the cells that have runs with times of layers, PyTorch's first: others are compared with these."""
    found = []
    for cell in cells.cells_of(selection.runs):
        profiles = [one for run in cell.finished if isinstance(one := run.record.profile, StepProfile)]
        if with_layers := [one for one in profiles if one.layers]:
            found.append(Profiled(cell, with_layers))
    return sorted(found, key=lambda one: one.cell.framework != "torch")


def work_of_layers(found: Sequence[Profiled], *, measure: bool) -> tuple[dict[str, LayerWork], list[str]]:
    """Return layer -> its work, without the loss, and notes on the roofline; empty where there is none that holds for
    all runs.

    Raises:
        UserError: as `find`.
    """
    runs = [one.cell.first for one in found]
    of_runs = [step_settings(run) for run in runs]
    settings = of_runs[0]
    if settings is None:
        return {}, ["no work of layers: the model is not one of this project"]
    if unlike := [
        name for name in settings if name != "framework" and len({(one or {}).get(name) for one in of_runs}) > 1
    ]:
        return {}, [f"no work of layers: it is not the same, as these runs differ in {', '.join(unlike)}"]
    spec = model_spec(settings["model"], input_shape=settings["image"], outputs=settings["outputs"])
    operations = step_operations(spec, batch=settings["batch"], optimizer=settings["optimizer"])
    by_layer = {part_name(part): _operations_of(part, operations) for part in single_layers(spec)}
    without_peaks = {name: _work(of_layer, None) for name, of_layer in by_layer.items()}
    if not all(run.record.world.on_cpu for run in runs):
        return without_peaks, ["no roofline: peaks are measured of processors, and some of these runs used GPUs"]
    if len(places := {(machine_of(run), run.record.world.threads_per_rank) for run in runs}) > 1:
        return without_peaks, ["no roofline: these runs differ in machine or threads"]
    ((machine, threads),) = places
    try:
        (peaks,) = peaks_of_machine(machine, {threads}, measure=measure)
    except UserError as error:
        if measure:
            raise
        return without_peaks, [f"no roofline: {error}"]
    note = (
        f"roofline of {peaks.device} with {counted(peaks.threads, 'thread')}: "
        f"{peaks.flops_per_second / 1e9:,.0f} GFLOP/s, {peaks.bytes_per_second / 1e9:,.1f} GB/s; "
        "work is counted as analysis/projection/work.py says"
    )
    return {name: _work(of_layer, peaks) for name, of_layer in by_layer.items()}, [note]


def _work(operations: Sequence[Operation], peaks: Peaks | None) -> LayerWork:
    least = None
    if peaks is not None and operations:
        flops, moved = np.array(peaks.flops_per_second), np.array(peaks.bytes_per_second)
        seconds = roofline_seconds(numbers_of(operations), peak_flops=flops, peak_bytes=moved, found=AT_PEAK)
        least = float(seconds.sum())
    return LayerWork(sum(one.flops for one in operations), sum(one.bytes for one in operations), least)


def _operations_of(part: ModelSpec, operations: Sequence[Operation]) -> list[Operation]:
    names = {row.layer.name for row in part.rows}
    return [one for one in operations if one.layer.partition(",")[0] in names]


def _both(layer: LayerSeconds) -> float:
    return layer.forward + layer.backward


def _median(values: Sequence[float]) -> float:
    return median_of(values) or 0.0


def _alone(one: Profiled) -> str:
    name, slowest = max(one.layers.items(), key=lambda item: _both(item[1]))
    return (
        f"{one.cell.name}: of a step of {in_figures(1e3 * one.step, 3)} ms, {name} takes "
        f"{100 * _both(slowest) / one.step:.0f} % (n = {len(one.profiles)})."
    )


def _answer(one: Profiled, base: Profiled) -> str:
    """Return how long a step of both takes, and the parts of it that differ most, in either direction."""
    parts = [{name: _both(layer) for name, layer in of.layers.items()} | of.others for of in (one, base)]
    apart = {name: parts[0].get(name, 0.0) - parts[1].get(name, 0.0) for name in parts[0] | parts[1]}
    names = _column_names([one, base])
    told = [name for name in apart if abs(apart[name]) >= _TOLD * base.step]
    largest = sorted(told, key=lambda name: -abs(apart[name]))[:_NAMED]
    where = ", ".join(f"{name} {in_figures(1e3 * apart[name], 2, sign=True)} ms" for name in largest)
    return (
        f"{one.cell.first.model}: a profiled step takes {in_figures(1e3 * one.step, 3)} ms in {names[0]} and "
        f"{in_figures(1e3 * base.step, 3)} ms in {names[1]}. "
    ) + (
        f"The largest differences (+: {names[0]} is slower): {where}."
        if where
        else f"No layer and no other part differs by {100 * _TOLD:g} % of a step."
    )


def _unprofiled(found: Sequence[Profiled]) -> list[str]:
    """Return notes on what a profile changes, with the times of steps of the same settings without one."""
    note = "each layer is waited for: none overlap and none are fused, so a step takes another time than without it"
    known = []
    for one, name in zip(found, _column_names(found), strict=True):
        if seconds := one.cell.seconds(lambda run: run.training_seconds / run.steps):
            median = 1e3 * _median(list(seconds.values()))
            known.append(f"{in_figures(median, 3)} ms in {name} (n = {len(seconds)})")
    if not known:
        return [f"{note}; to see it, name runs of the same settings without --profile-layers, too"]
    return [note, f"without a profile a step takes {' and '.join(known)}"]


def _table(found: Sequence[Profiled], work: dict[str, LayerWork]) -> Table:
    names = _column_names(found)
    headings = ["layer", "MFLOP", "MB", "roofline, ms"]
    for name in names:
        headings += [f"{name}: forward, ms", f"{name}: backward, ms"]
    rows: list[list[Cell]] = []
    for layer in found[0].layers:
        of_layer = work.get(layer)
        row: list[Cell] = [layer, None, None, None]
        if of_layer is not None:
            least = of_layer.least_seconds
            row = [layer, of_layer.flops / 1e6, of_layer.bytes / 1e6, None if least is None else 1e3 * least]
        for one in found:
            row += [1e3 * one.layers[layer].forward, 1e3 * one.layers[layer].backward]
        rows.append(row)
    for part in dict.fromkeys(part for one in found for part in one.others):
        row = [part, None, None, None]
        for one in found:
            row += [1e3 * one.others[part] if part in one.others else None, None]
        rows.append(row)
    row = ["step", None, None, None]
    for one in found:
        row += [1e3 * one.step, None]
    rows.append(row)
    formats = {"MFLOP": ",.2f", "MB": ",.2f"} | dict.fromkeys(headings[3:], ",.3f")
    return Table("Times of layers; below them, under forward, what is not in layers", headings, rows, formats)


def _column_names(found: Sequence[Profiled]) -> list[str]:
    """Return names of the cells: the framework, and with it what not all have, where a framework has several."""
    names = [framework_label(one.cell.framework) for one in found]
    if len(set(names)) == len(names):
        return names
    words = [one.cell.name.split(", ") for one in found]
    shared = set.intersection(*map(set, words)) | {"no tuning"}
    return [", ".join([of_one[0], *(word for word in of_one[1:] if word not in shared)]) for of_one in words]


def _plot(found: Sequence[Profiled], work: dict[str, LayerWork]) -> Plot:
    layers = [*found[0].layers, *dict.fromkeys(part for one in found for part in one.others)]
    figure = Figure(figsize=(8.0, 1.6 + (0.16 + 0.14 * len(found)) * len(layers)))
    ax = figure.subplots()
    height = 0.8 / len(found)
    rows: list[list[Cell]] = []
    for number, (one, name) in enumerate(zip(found, _column_names(found), strict=True)):
        color = framework_style(one.cell.framework)["color"]
        strength = 1.0 if name in map(framework_label, ("torch", "keras")) else 1.0 - 0.5 * number / len(found)
        places = [place + (number - (len(found) - 1) / 2) * height for place in range(len(layers))]
        times = [
            one.layers.get(layer, LayerSeconds(forward=one.others.get(layer, 0.0), backward=0.0)) for layer in layers
        ]
        forward, backward = ([1e3 * getattr(layer, way) for layer in times] for way in ("forward", "backward"))
        ax.barh(places, forward, 0.9 * height, color=color, alpha=strength, label=f"{name}: forward")
        ax.barh(
            places, backward, 0.9 * height, left=forward, color=color, alpha=0.45 * strength, label=f"{name}: backward"
        )
        rows += [[name, layer, *values] for layer, *values in zip(layers, forward, backward, strict=True)]
    least = {layer: work[layer].least_seconds for layer in layers if layer in work}
    known = {layer: 1e3 * seconds for layer, seconds in least.items() if seconds is not None}
    if known:
        ax.plot(
            list(known.values()), [layers.index(layer) for layer in known], linestyle="", marker="|", markersize=11,
            markeredgewidth=1.6, color="#000000", label="roofline, both passes",
        )  # fmt: skip
    label_rows(ax, layers)
    ax.set_axisbelow(True)
    ax.set_xlabel("ms per step")
    ax.set_xlim(left=0)
    legend_below(figure, ncols=3)
    first = found[0].cell.first
    figure.suptitle(
        f"{first.model}, {first.data_set}: times of layers ({n_words([len(one.profiles) for one in found])})"
    )
    rows += [["roofline", layer, value, math.nan] for layer, value in known.items()]
    data = Table(
        "Times of layers",
        ["runs", "layer", "forward, ms", "backward, ms"],
        rows,
        {"forward, ms": ".6g", "backward, ms": ".6g"},
    )
    return Plot("layers", figure, data)
