"""What `python -m launch experiment` prints: the dry run, the status, what a run ended with."""

import shlex
import statistics
from collections.abc import Sequence

from tabulate import tabulate

from common.distributed.console import counted, readable_seconds
from common.errors import UserError
from common.measurement.energy import EnergyRecord, normalized
from common.run_folder.records import Run, Totals
from common.sites.table import Sites
from launch.experiments.estimate import Estimate, estimate_run
from launch.experiments.plan import Plan, PlannedRun
from launch.experiments.runs import Found, earlier_runs

JOULES_PER_KWH = 3.6e6


def estimate(plan: Plan, planned: PlannedRun, found: Sequence[Found], *, sites: Sites, site: str) -> Estimate:
    """Return what a planned run will take on a site; runs that were made on it are gone by."""
    place = sites[site]
    gpu = None if planned.cell.config.device.device == "cpu" else sites.gpu_of(place)
    earlier = earlier_runs(found, planned) if site == plan.protocol.site else []
    return estimate_run(planned.config, np=planned.cell.np, site=place, gpu=gpu, earlier=earlier)


def unfinished(found: Sequence[Found]) -> list[PlannedRun]:
    """Return the runs that are still to be carried out, in their order."""
    return [one.planned for one in found if one.standing not in ("finished", "left out")]


def print_left(plan: Plan, found: Sequence[Found], *, sites: Sites, site: str) -> None:
    """Print what is left out and why, and what the rest will take."""
    for name, reason in dict.fromkeys(
        (one.planned.cell.name, one.reason) for one in found if one.standing == "left out"
    ):
        print(f"left out: {name}, {reason}")
    left = unfinished(found)
    if not left:
        print(f"nothing is left to do of {counted(len(found), 'run')}")
        return
    pauses = plan.protocol.cool_down_seconds * (len(left) - 1)
    estimates = [estimate(plan, planned, found, sites=sites, site=site) for planned in left]
    print(f"{counted(len(left), 'run')} of {len(found)} to do on {site}: {_describe(estimates, pauses=pauses)}")


def print_commands(plan: Plan, found: Sequence[Found]) -> None:
    """Print every command of the experiment in its order, and how its run stands."""
    for preparation in plan.preparations:
        there = "  # done" if preparation.done else ""
        print(shlex.join(["python", "-m", "common", *preparation.command]) + there)
    for one in found:
        if one.standing == "left out":  # of which there may be no command
            continue
        note = "" if one.standing == "to do" else f"  # {one.standing}"
        print(shlex.join(plan.command(one.planned)) + note)


def _describe(estimates: Sequence[Estimate], *, pauses: float) -> str:
    known = [one for one in estimates if one.seconds is not None]
    measured = known and all(one.basis == "earlier runs" for one in known)
    seconds = sum(one.seconds or 0.0 for one in known) + pauses
    basis = "from earlier runs" if measured else "roughly, within a factor of 3"
    joules = [one.joules for one in known]
    usd = sum(one.usd or 0.0 for one in known)
    parts = [
        f"about {readable_seconds(seconds)} ({basis})" if known else "time not known",
        "energy not known, as the power is not"
        if None in joules or not joules
        else f"at most {sum(value or 0.0 for value in joules) / JOULES_PER_KWH:.2f} kWh (the GPUs at their limit)",
        f"${usd:.2f}" if usd else "no price an hour",
    ]
    if len(known) < len(estimates):
        parts.append(f"the time of {counted(len(estimates) - len(known), 'run')} is known when the data are there")
    return "; ".join(parts)


def print_status(plan: Plan, found: Sequence[Found], *, base: str | None) -> None:
    """Print a line for each cell, what metered runs took, and why runs failed.

    Args:
        plan, found: the experiment and how it stands.
        base: the cell by whose energy and energy-delay product those of all are divided; None: the first metered one.

    Raises:
        UserError: there is no such cell.
    """
    names = [cell.name for cell in plan.cells]
    if base is not None and base not in names:
        raise UserError(f"no cell has such a name. Received: --base {base}. There are: {', '.join(names)}")
    rows = []
    for cell in plan.cells:
        of_cell = [one for one in found if one.planned.cell == cell]
        done = [one for one in of_cell if one.standing == "finished"]
        profiled = cell.config.record.profile
        timed = [one.run for one in done if one.run and not one.planned.metered and not profiled]
        others = ", ".join(
            f"{count} {standing}"
            for standing in ("running", "failed", "to do", "left out")
            if (count := sum(one.standing == standing for one in of_cell))
        )
        runs = [one.run for one in done if one.run]
        rows.append(
            [cell.name, f"{len(done)}/{len(of_cell)}", others,
             _median([_total(run, "training_seconds") for run in timed], ".1f"),
             _median([_total(run, "images_per_second") for run in timed], ",.0f"),
             _median([_total(run, "test_accuracy") for run in runs], ".4f"),
             _median([_of_a_rank(run, "peak_memory_bytes", 1e-6) for run in timed], ",.0f"),
             _median([_of_a_rank(run, "busy_cores", 1.0) for run in timed], ".2f")]
        )  # fmt: skip
    headings = ["medians", "finished", "", "training, s", "images/s", "test accuracy", "MB a rank", "cores a rank"]
    print(tabulate(rows, headers=headings, disable_numparse=True, colalign=["left"] * 3 + ["right"] * 5))
    _print_energy(found, base=base)
    for one in found:
        if one.standing == "failed":
            print(f"failed: {one.planned.name}: {one.reason}")


def _median(values: Sequence[float | None], form: str) -> str:
    median = _median_of(values)
    return "" if median is None else format(median, form)


def _total(run: Run, name: str) -> float | None:
    value = getattr(run.record.totals, name, None)
    return value if isinstance(value, int | float) else None


def _of_a_rank(run: Run, name: str, factor: float) -> float | None:
    """Return the mean over ranks."""
    values = getattr(run.record.isolation, name, None)
    return factor * statistics.mean(values) if values else None


def _print_energy(found: Sequence[Found], *, base: str | None) -> None:
    """Print medians over the metered runs of each cell: the products of each run come first, then their median."""
    records: dict[str, list[EnergyRecord]] = {}
    for one in found:
        if one.run and one.standing == "finished" and isinstance(one.run.record.energy, EnergyRecord):
            records.setdefault(one.planned.cell.name, []).append(one.run.record.energy)
    medians = {
        name: [
            _median_of([getattr(getattr(record, which), quantity) for record in of_cell])
            for which in ("used_devices", "all_devices")
            for quantity in ("joules", "edp_joule_seconds", "ed2p_joule_square_seconds")
        ]
        for name, of_cell in records.items()
    }
    measured = {name: values for name, values in medians.items() if values[0] is not None}
    for name in records.keys() - measured.keys():
        print(f"metered, and nothing could be measured: {name}")
    if not measured:
        return
    chosen = base or next(iter(measured))
    if chosen not in measured:
        print(f"no energy of {chosen} was measured: nothing is divided by it")
    rows = []
    for name, values in measured.items():
        whole = all(record.used_devices.complete for record in records[name])
        ratios = [
            normalized({cell: of_cell[column] or 0.0 for cell, of_cell in measured.items()}, base=chosen)[name]
            for column in (0, 1)
            if chosen in measured
        ]
        shown = [f"{value:.4g}" for value in values if value is not None] + [f"{ratio:.4f}" for ratio in ratios]
        rows.append([name, len(records[name]), "" if whole else "in part", *shown])
    quantities = ["energy, J", "EDP, J s", "ED2P, J s2"]
    headings = ["metered", "runs", "", *quantities, *(f"{one}, idle GPUs too" for one in quantities)]
    headings += ["energy / base", "EDP / base"] if chosen in measured else []
    print(
        tabulate(rows, headers=headings, disable_numparse=True, colalign=["left"] * 3 + ["right"] * len(headings[3:]))
    )


def _median_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def outcome(found: Found) -> str:
    """Return in a few words what a run ended with."""
    if found.standing != "finished" or not found.run or not isinstance(found.run.record.totals, Totals):
        return f"FAILED: {found.reason}"
    totals = found.run.record.totals
    parts = []
    if isinstance(totals.training_seconds, float):
        parts.append(f"trained in {readable_seconds(totals.training_seconds)}")
    if isinstance(totals.test_accuracy, float):
        parts.append(f"test accuracy {100 * totals.test_accuracy:.2f} %")
    energy = found.run.record.energy
    if isinstance(energy, EnergyRecord):
        joules = energy.used_devices.joules
        parts.append("energy not measured" if joules is None else f"{joules:,.0f} J")
    return ", ".join(parts)
