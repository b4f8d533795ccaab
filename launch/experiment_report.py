"""What `python -m launch experiment` prints: the dry run, the status, what a run ended with."""

import shlex
import statistics
from collections.abc import Sequence

from tabulate import tabulate

from common.console import counted, readable_seconds
from common.energy import EnergyRecord, normalized
from common.records import Run, Totals
from common.sites import Sites
from launch.estimate import Estimate, estimate_run
from launch.experiment_plan import Plan, PlannedRun
from launch.experiment_runs import Found, earlier_runs

JOULES_PER_KWH = 3.6e6


def estimate(plan: Plan, planned: PlannedRun, found: Sequence[Found], *, sites: Sites, site: str) -> Estimate:
    """Return what a planned run will take on a site; runs that were made on it are gone by."""
    place = sites[site]
    gpu = None if planned.cell.config.device.device == "cpu" else sites.gpu_of(place)
    earlier = earlier_runs(found, planned) if site == plan.protocol.site else []
    return estimate_run(planned.cell.config, np=planned.cell.np, site=place, gpu=gpu, earlier=earlier)


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
        note = "" if one.standing == "to do" else f"  # {one.standing}"
        print(shlex.join(one.planned.command(plan.folder)) + note)


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
        base: the cell by whose energy-delay product those of all are divided; None: the first that has one.

    Raises:
        UserError: the base has none.
    """
    rows = []
    for cell in plan.cells:
        of_cell = [one for one in found if one.planned.cell == cell]
        done = [one for one in of_cell if one.standing == "finished"]
        timed = [one.run for one in done if one.run and not one.planned.metered]
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
    _print_energy(plan, found, base=base)
    for one in found:
        if one.standing == "failed":
            print(f"failed: {one.planned.name}: {one.reason}")


def _median(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(statistics.median(known), form) if known else ""


def _total(run: Run, name: str) -> float | None:
    value = getattr(run.record.totals, name, None)
    return value if isinstance(value, int | float) else None


def _of_a_rank(run: Run, name: str, factor: float) -> float | None:
    """Return the mean over ranks."""
    values = getattr(run.record.isolation, name, None)
    return factor * statistics.mean(values) if values else None


def _print_energy(plan: Plan, found: Sequence[Found], *, base: str | None) -> None:
    """Print medians over the metered runs of each cell: energy and energy-delay products of each run come first."""
    records: dict[str, list[EnergyRecord]] = {}
    for one in found:
        if one.run and one.standing == "finished" and isinstance(one.run.record.energy, EnergyRecord):
            records.setdefault(one.planned.cell.name, []).append(one.run.record.energy)
    if not records:
        return
    used = {name: _median_edp(of_cell, "used_devices") for name, of_cell in records.items()}
    measured = {name: edp for name, edp in used.items() if edp is not None}
    if base is not None or measured:
        measured = normalized(measured, base=base or next(iter(measured)))
    rows = []
    for name, of_cell in records.items():
        row = [name, str(len(of_cell)), "" if all(one.used_devices.complete for one in of_cell) else "in part"]
        for which in ("used_devices", "all_devices"):
            joules = [value for one in of_cell if (value := getattr(one, which).joules) is not None]
            edp = _median_edp(of_cell, which)
            row += [
                f"{statistics.median(joules):,.1f}" if joules else "not measured",
                "" if edp is None else f"{edp:.4g}",
            ]
        rows.append([*row, f"{measured[name]:.4f}" if name in measured else ""])
    headings = ["metered cell", "runs", "", "energy, J", "EDP, J s", "with idle GPUs, J", "EDP, J s", "EDP / base"]
    print(tabulate(rows, headers=headings, disable_numparse=True, colalign=["left"] * 3 + ["right"] * 5))


def _median_edp(records: Sequence[EnergyRecord], which: str) -> float | None:
    values = [value for one in records if (value := getattr(one, which).edp_joule_seconds) is not None]
    return statistics.median(values) if values else None


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
    return ", ".join([*parts, "energy measured"] if found.planned.metered else parts)
