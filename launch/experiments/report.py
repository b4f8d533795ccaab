"""What `python -m launch experiment` prints: commands, the estimate of what remains, the outcome of a run."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.distributed.console import counted, readable_seconds
from common.measurement.energy import EnergyRecord
from common.run_folder.records import Totals
from common.sites.table import Sites
from launch.experiments.estimate import Estimate, estimate_run
from launch.experiments.plan import ExperimentPlan, PlannedRun
from launch.experiments.survey import SurveyedRun, missing_runs

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Estimator:
    """Estimates runs of an experiment on a kind of node, a name in the table of sites."""

    plan: ExperimentPlan
    sites: Sites
    site: str

    def estimate(self, planned: PlannedRun, surveyed: Sequence[SurveyedRun]) -> Estimate:
        """Return what a planned run will take; earlier runs count where they were made on this kind of node."""
        place = self.sites[self.site]
        gpu = None if planned.cell.config.device.device == "cpu" else self.sites.gpu_of(place)
        earlier = [
            one.run
            for one in surveyed
            if one.run and one.state == "finished" and self.site in (self.plan.protocol.site, one.run.record.site)
            and one.planned.cell == planned.cell and one.planned.metered == planned.metered
        ]  # fmt: skip
        return estimate_run(planned.config, np=planned.cell.np, site=place, gpu=gpu, earlier=earlier)

    def seconds_left(self, surveyed: Sequence[SurveyedRun]) -> float:
        """Return what the missing runs will take, one after the other, as far as that is known."""
        return sum(self.estimate(planned, surveyed).seconds or 0.0 for planned in missing_runs(surveyed))

    def print_remaining(self, surveyed: Sequence[SurveyedRun], *, at_once: int = 1) -> None:
        """Print which cells are left out and why, and what the missing runs will take, so many of them side by side."""
        left_out = ((one.planned.cell.name, one.reason) for one in surveyed if one.state == "left out")
        for name, reason in dict.fromkeys(left_out):
            print(f"left out: {name}, {reason}")
        missing = missing_runs(surveyed)
        if not missing:
            print(f"nothing is left to do: {counted(len(surveyed), 'run')}")
            return
        estimates = [self.estimate(planned, surveyed) for planned in missing]
        pauses = self.plan.protocol.cool_down_seconds * (len(missing) - 1)
        beside = [1 if planned.metered else at_once for planned in missing]
        description = _describe([_shared(*of_run) for of_run in zip(estimates, beside, strict=True)], pauses=pauses)
        how = f", {at_once} at once" if at_once > 1 else ""
        print(f"{counted(len(missing), 'run')} of {len(surveyed)} to do on {self.site}{how}: {description}")


def print_commands(plan: ExperimentPlan, surveyed: Sequence[SurveyedRun]) -> None:
    """Print every command of the experiment in its order, with the state of its run."""
    for preparation in plan.file.preparations:
        note = "  # done" if preparation.done else ""
        print(shlex.join(["python", "-m", "common", *preparation.command]) + note)
    for one in surveyed:
        if one.state != "left out":  # of which there may be no command
            note = "" if one.state == "to do" else f"  # {one.state}"
            print(shlex.join(plan.command(one.planned)) + note)


def outcome(surveyed: SurveyedRun) -> str:
    """Return the outcome of a run in a few words."""
    if surveyed.state != "finished" or not surveyed.run or not isinstance(surveyed.run.record.totals, Totals):
        return f"FAILED: {surveyed.reason}"
    totals, energy = surveyed.run.record.totals, surveyed.run.record.energy
    parts = []
    if isinstance(totals.training_seconds, float):
        parts.append(f"trained in {readable_seconds(totals.training_seconds)}")
    if isinstance(totals.test_accuracy, float):
        parts.append(f"test accuracy {100 * totals.test_accuracy:.2f} %")
    if isinstance(energy, EnergyRecord):
        joules = energy.used_devices.joules
        parts.append("energy not measured" if joules is None else f"{joules:,.0f} J")
    return ", ".join(parts)


def _shared(estimate: Estimate, runs: int) -> Estimate:
    """Return a run's part in the time and the price of a host that so many runs have at once."""
    seconds, usd = estimate.seconds, estimate.usd
    return replace(
        estimate, seconds=None if seconds is None else seconds / runs, usd=None if usd is None else usd / runs
    )


def _describe(estimates: Sequence[Estimate], *, pauses: float) -> str:
    known = [one for one in estimates if one.seconds is not None]
    joules = [one.joules for one in known if one.joules is not None]
    usd = sum(one.usd or 0.0 for one in known)
    parts = [
        "time not known",
        "energy not known, because the power is not",
        f"${usd:.2f}{' at a price over a year old' if known[0].old_price else ''}" if usd else "no hourly price",
    ]
    if known:
        measured = all(one.basis == "earlier runs" for one in known)
        basis = "from earlier runs" if measured else "roughly, within a factor of 3"
        parts[0] = f"about {readable_seconds(sum(one.seconds or 0.0 for one in known) + pauses)} ({basis})"
    if known and len(joules) == len(known):
        parts[1] = f"at most {sum(joules) / JOULES_PER_KWH:.2f} kWh (the GPUs at their limit)"
    if len(known) < len(estimates):
        parts.append(f"the time of {counted(len(estimates) - len(known), 'run')} is not known until the data exist")
    return "; ".join(parts)
