"""`python -m analysis scaling`: speedup and efficiency over ranks, at equal accuracy and raw; models; projections."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.output.finding import Finding, add_question, brief
from analysis.output.options import MARGIN, add_margin_option
from analysis.output.tables import Table, effect_cells, in_percent, shown_interval
from analysis.projection.measured import step_settings
from analysis.projection.ratio import EQUAL, speed_ratio
from analysis.questions.scaling.curves import TIMES, Kind, Point, Study, studies_of
from analysis.questions.scaling.fits import CurveFit, TargetSite, fits_of
from analysis.questions.scaling.models import EXCHANGE
from analysis.questions.scaling.plots import plots_of
from analysis.runs.cells import Cell, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.settings import kind_of_device
from analysis.runs.table import Selection
from analysis.runs.validity import cell_runs, flags_of, listed
from analysis.stats.inference import median_of
from common.distributed.console import counted
from common.errors import UserError
from common.sites.table import Site, Sites, read_sites


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_question(
        commands,
        "scaling",
        find,
        "speedup and efficiency over ranks",
        keywords=("base", "margin", "project", "site"),
    )
    parser.add_argument(
        "--base",
        metavar="CELL/NP",
        help="words in the label of a cell or how the names of its runs begin, and its ranks, as in cpu/1 "
        "(default: the fewest ranks)",
    )
    add_margin_option(parser)
    parser.add_argument("--project", type=int, metavar="N", help="project to N ranks (default: as far as supported)")
    parser.add_argument("--site", metavar="NAME", help="project to this site's GPUs and network")


def find(
    selection: Selection,
    *,
    base: str | None = None,
    margin: float = MARGIN,
    project: int | None = None,
    site: str | None = None,
) -> Finding:
    """Find out how much faster more ranks are.

    Args:
        selection: the runs.
        base: WORDS/NP of the cell to compare with; None: the fewest ranks.
        margin: of accuracy, as a fraction, within which it is the same.
        project: number of ranks to project to; None: as far as held-out points support.
        site: name of a site to project to; None: the one measured.

    Raises:
        UserError: no such base or site, or a projection to no ranks.
    """
    if project is not None and project < 1:
        raise UserError(f"a projection is to 1 rank or more. Received: --project {project}. Give the number of ranks")
    sites = read_sites()
    there = (site, sites[site]) if site is not None else None
    cells = cells_of(selection.runs)
    studies, alone = studies_of(cells, margin=margin, base=base)
    fits: list[CurveFit] = []
    notes = _notes(studies, alone)
    for study in studies:
        target_site, why_not = _target_site(study, there, sites)
        notes += why_not
        found, reasons = fits_of(study, project=project, target_site=target_site)
        fits += found
        notes += reasons
    used = {id(cell): cell for study in studies for cell in study.cells}
    flags = flags_of(cell_runs(list(used.values())), list(used.values()))
    flags += [flag for study in studies for flag in study.flags()]
    flags += [_raw_flag(point) for study in studies for point in study.points if point.equivalence == "different"]
    tables = [
        _speedups(studies),
        _means(studies),
        _accuracies(studies, margin=margin),
        _equal_accuracy(studies, margin=margin),
        _models(fits),
        _projections(fits),
    ]
    statements = [*_answers(studies, margin=margin), *_projected(fits)]
    return Finding(
        name="scaling",
        question="How much faster are more ranks?",
        answer=brief(statements) if statements else _NOTHING,
        tables=[table for table in tables if table.rows],
        plots=plots_of(studies, fits),
        flags=list(dict.fromkeys(flags)),
        notes=list(dict.fromkeys(notes)),
    )


_NOTHING = "There are no runs that differ in the number of ranks and in nothing else: no speedup can be computed."


# Words


def _answers(studies: Sequence[Study], *, margin: float) -> list[str]:
    """Return a statement for each study: what its most ranks bring."""
    most = [(study, ranks[-1]) for study in studies if (ranks := [p for p in study.ranks if study.at(p)])]
    return [f"{study.short_label}: {_at_ranks(study, ranks, margin=margin)}" for study, ranks in most]


def _at_ranks(study: Study, ranks: int, *, margin: float) -> str:
    points = study.at(ranks)
    raw, equal = points[0], equal_accuracy(points)
    base = counted(study.base.first.np, "rank")
    if study.other_machine or study.given:
        base += f" of {study.base.first.site}, {study.base.first.device}"
    many = f"{counted(ranks, 'rank')} {'are' if ranks > 1 else 'is'}"
    if equal is None:
        if any(point.margin is not None for point in points):
            doubt = f"Equal accuracy is not shown within {100 * margin:g} points."
        else:
            doubt = "Equal accuracy is not shown: too few runs, or without an accuracy."
        return f"{many} {_times(raw)} as {base}. {doubt}"
    words = f"at equal accuracy {many} {_times(equal)} as {base}."
    return words if equal is raw else f"{words} Raw it is {raw.speedup:.3f} times, {_accuracy(raw)}."


def _projected(fits: Sequence[CurveFit]) -> list[str]:
    """Return a sentence for each curve: the farthest projection of the model that best predicted its held-out point."""
    best: dict[tuple[int, Kind], CurveFit] = {}
    for one in fits:
        key = id(one.study), one.kind
        if one.projections and (key not in best or _error(one) < _error(best[key])):
            best[key] = one
    return [
        f"Projected, not measured: {one.study.short_label}, {one.kind}: {counted(found.ranks, 'rank')} at {one.site} "
        f"would train in {found.seconds:,.1f} s."
        for one in best.values()
        for found in one.projections[-1:]
    ]


def _error(one: CurveFit) -> float:
    return abs(one.judged.error) if one.judged else float("inf")


def equal_accuracy(points: Sequence[Point]) -> Point | None:
    """Return the fastest point whose accuracy is shown to be the base's; None without."""
    return next((point for point in points if point.equivalence == "same"), None)


def _times(point: Point) -> str:
    assert point.total, "points without a time are dropped"
    if point.total.interval is None:
        doubt = " (too few runs for an interval)"
    else:
        doubt = " (not shown to be faster)" if point.total.interval.contains(1.0) else ""
    return f"{point.total.estimate:.3f} times as fast{doubt}"


def _accuracy(point: Point) -> str:
    ours, base = (median_of(cell.results("accuracy").values()) for cell in (point.cell, point.base))
    if ours is None or base is None:
        return "accuracy not known"
    return f"accuracy {100 * ours:.1f} % against {100 * base:.1f} %"


def _batch(point: Point) -> str:
    run = point.cell.first
    return f"a batch of {run.global_batch} ({run.global_batch // run.np} per rank)" if run.global_batch else "its batch"


def _raw_flag(point: Point) -> str:
    return (
        f"{point.cell.framework}, {point.cell.label}: {_accuracy(point)} of the base: its speedup is not one at equal "
        "accuracy"
    )


def _notes(studies: Sequence[Study], alone: Sequence[Cell]) -> list[str]:
    notes = []
    if alone:
        named = listed([f"{cell.framework}, {cell.label}" for cell in alone], apart="; ")
        notes.append(f"no runs on another number of ranks to compare with: {named}")
    shared = [
        study.label
        for study in studies
        for point in study.points
        if point.devices == 1 and point.ranks != point.base.first.np
    ]
    if shared:
        notes.append(
            f"{'; '.join(dict.fromkeys(shared))}: ran on as many cores with any number of ranks, shared out "
            "differently; efficiency is by cores"
        )
    if studies:
        notes.append(
            "T = train + validation + test; speedup S = T_base / T, median over pairs of runs; efficiency E = S / "
            "(devices / devices of the base), devices: GPUs, or cores of CPUs; strong: the same batch per update; "
            "weak: the same batch per rank; all runs of a curve train the same epochs"
        )
    return notes


# Tables


def _cell_words(cell: Cell) -> list[str | None]:
    return [framework_label(cell.framework), cell.label]


def _speedups(studies: Sequence[Study]) -> Table:
    headings = ["framework", "model, data set, np", "scaling", "n", "total, s", "speedup", "95 % interval",
                "efficiency", "training, s", "speedup in training", "95 % interval of it",
                "efficiency in training"]  # fmt: skip
    rows = []
    for study in studies:
        base = [list(study.base.seconds(of).values()) for of in TIMES]
        rows.append(
            [*_cell_words(study.base), "base", len(base[0]), median_of(base[0]), 1.0, None, 1.0, median_of(base[1]),
             1.0, None, 1.0]
        )  # fmt: skip
        for point in sorted(study.points, key=lambda one: one.ranks):
            totals, trainings = (list(point.cell.seconds(of).values()) for of in TIMES)
            rows.append(
                [*_cell_words(point.cell), "speedup over that machine" if study.other_machine else point.kind,
                 len(totals), median_of(totals), *effect_cells(point.total, ".3f"), point.per_device(point.total),
                 median_of(trainings), *effect_cells(point.training, ".3f"), point.per_device(point.training)]
            )  # fmt: skip
    formats = dict.fromkeys(("total, s", "training, s"), ",.2f") | {"n": "d"}
    formats |= dict.fromkeys(("speedup", "efficiency", headings[-3], headings[-1]), ".3f")
    return Table("Speedup over the base (times: medians)", headings, rows, formats)


def _means(studies: Sequence[Study]) -> Table:
    headings = ["framework", "model, data set, np", "total, s", "speedup", "efficiency", "training, s",
                "speedup in training", "efficiency in training"]  # fmt: skip
    rows: list[list[Any]] = []
    for study in studies:
        base = [_mean(study.base.seconds(of)) for of in TIMES]
        rows.append([*_cell_words(study.base), base[0], 1.0, 1.0, base[1], 1.0, 1.0])
        for point in sorted(study.points, key=lambda one: one.ranks):
            row: list[Any] = _cell_words(point.cell)
            for mean, of in zip(base, TIMES, strict=True):
                seconds = _mean(point.cell.seconds(of))
                row += [seconds, mean / seconds, mean / seconds / point.devices if point.devices else None]
            rows.append(row)
    formats = dict.fromkeys(headings[3:], ".4f") | dict.fromkeys(("total, s", "training, s"), ",.2f")
    return Table("The same of means, as the thesis counts", headings, rows, formats)


def _mean(values: dict[Any, float]) -> float:
    return float(np.mean(list(values.values())))


def _accuracies(studies: Sequence[Study], *, margin: float) -> Table:
    headings = ["framework", "model, data set, np", "n", "accuracy, %", "min", "max", "minus the base's, points",
                "95 % interval", f"within {100 * margin:g} points", "same within, points"]  # fmt: skip
    rows: list[list[Any]] = []
    for study in studies:
        rows.append([*_cell_words(study.base), *_spread(study.base), None, None, "base", None])
        for point in sorted(study.points, key=lambda one: one.ranks):
            rows.append(
                [*_cell_words(point.cell), *_spread(point.cell), *effect_cells(point.accuracy, "+.2f", scale=100),
                 point.equivalence, in_percent(point.margin)]
            )  # fmt: skip
    formats = dict.fromkeys(("accuracy, %", "min", "max", "same within, points"), ".2f") | {"n": "d"}
    return Table("Accuracy against the base (medians)", headings, rows, formats | {headings[6]: "+.2f"})


def _spread(cell: Cell) -> list[float | int | None]:
    values = [100 * value for value in cell.results("accuracy").values()]
    return [len(values), median_of(values), min(values, default=None), max(values, default=None)]


def _equal_accuracy(studies: Sequence[Study], *, margin: float) -> Table:
    headings = ["framework, model, data set", "np", "speedup at equal accuracy", "95 % interval", "by", "raw speedup",
                "its accuracy, %", "the base's, %"]  # fmt: skip
    rows: list[list[Any]] = []
    for study in studies:
        for ranks in study.ranks:
            points = study.at(ranks)
            if not points:
                continue
            equal = equal_accuracy(points)
            shown = [*effect_cells(equal.total, ".3f"), _batch(equal)] if equal else ["not shown", None, None]
            percents = [
                in_percent(median_of(cell.results("accuracy").values())) for cell in (points[0].cell, study.base)
            ]
            rows.append([study.label, ranks, *shown, points[0].speedup, *percents])
    formats = {"np": "d", headings[2]: ".3f", headings[5]: ".3f", headings[6]: ".2f", headings[7]: ".2f"}
    return Table(f"Speedup at equal accuracy, within {100 * margin:g} points", headings, rows, formats)


def _models(fits: Sequence[CurveFit]) -> Table:
    headings = ["framework, model, data set", "scaling", "model", "fitted to the training time", "held out, np",
                "fitted up to np", "error there, %"]  # fmt: skip
    rows = [
        [one.study.label, one.kind, one.fit.model.name, one.fit.words(),
         *((one.judged.ranks, one.judged.fitted_to, 100 * one.judged.error) if one.judged else (None, None, None))]
        for one in fits
    ]  # fmt: skip
    return Table("Models of training time", headings, rows, {headings[4]: "d", headings[5]: "d", headings[6]: "+.1f"})


def _projections(fits: Sequence[CurveFit]) -> Table:
    headings = ["framework, model, data set", "scaling", "model", "site", "np", "projected training, s",
                "95 % interval", "projected speedup in training", "95 % interval of it"]  # fmt: skip
    rows = [
        [one.study.label, one.kind, one.fit.model.name, one.site, found.ranks, found.seconds,
         shown_interval(found.seconds_interval, ",.1f"), found.speedup, shown_interval(found.speedup_interval, ".2f")]
        for one in fits for found in one.projections
    ]  # fmt: skip
    return Table("Projection: not measured", headings, rows, {"np": "d", headings[5]: ",.1f", headings[7]: ".2f"})


# Another site


def _target_site(study: Study, there: tuple[str, Site] | None, sites: Sites) -> tuple[TargetSite | None, list[str]]:
    """Return the figures of another site in relation to where a study was measured, or why there are none."""
    if there is None:
        return None, []
    name, site = there
    run, label = study.base.first, study.label
    here = sites.sites.get(run.site)
    ours, theirs = (sites.gpu_of(one) if one else None for one in (here, site))
    on_gpu = kind_of_device(run.device) == "gpu"
    if ours is None or theirs is None or not on_gpu:
        missing = run.site if ours is None or not on_gpu else name
        return None, [f"{label}: no projection to {name}: the GPU is not known of what ran at {missing}"]
    settings = step_settings(run)
    if settings is None:
        return None, [f"{label}: no projection to {name}: the layers or settings of what ran are not known"]
    try:
        compute = speed_ratio(**settings, first=theirs, second=ours)
    except UserError as error:  # such as a GPU whose memory bandwidth is not published
        return None, [f"{label}: no projection to {name}: {error}"]
    words = [
        f"{label}: projection to {name}: a step of one rank {compute.ratio:.2f} times as fast ({compute.low:.2f} to "
        f"{compute.high:.2f}, {EQUAL}; FP32 alone: {theirs.fp32_tflops / ours.fp32_tflops:.2f}), latency as fitted, "
        f"bandwidth as fitted within a node, beyond its {site.gpus} GPUs that of its network "
        f"({site.network or 'not known'}); only the model of {EXCHANGE.name} can be adapted"
    ]
    return TargetSite(name, compute, site.network_bytes_per_second, site.gpus), words
