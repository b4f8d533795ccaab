"""A study from runs, with the peaks of their machine."""

from analysis.projection.measured import measured_steps
from analysis.projection.peaks import Peaks, measured_peaks
from analysis.projection.study import Study, read_study, study_of
from analysis.runs.table import Selection
from common.errors import UserError
from common.run_folder.environment import PACKAGES_OF_FRAMEWORK, Environment, describe_environment


def study_of_runs(selection: Selection, *, measure: bool = False) -> tuple[Study, list[str]]:
    """Return the study of the runs of one machine, and in words which runs it does not use.

    Args:
        selection: the runs.
        measure: the peaks of this machine, even if the project's study has them.

    Raises:
        UserError: no run can be used, they are of several machines or of one model, or their peaks are not
            known.
    """
    by_machine, left_out = measured_steps(selection)
    if len(by_machine) != 1:
        received = "; ".join(by_machine) or "; ".join(left_out[:1]) or "no timed run"
        raise UserError(
            f"a projection is fitted to runs of one machine. Received: {received}. Name runs on the CPUs of one machine"
        )
    ((machine, steps),) = by_machine.items()
    records = [record for record in selection.runs["record"] if isinstance(record.environment, Environment)]
    names = dict.fromkeys(name for step in steps for name in PACKAGES_OF_FRAMEWORK[step.framework])
    packages = records[0].environment.packages
    study = study_of(
        steps,
        machine=machine,
        date=min(record.status.started_at for record in records)[:10],
        packages={name: packages[name] for name in names if name in packages},
        peaks=peaks_of_machine(machine, {step.threads * step.ranks for step in steps}, measure=measure),
    )
    return study, left_out


def peaks_of_machine(machine: str, threads: set[int], *, measure: bool) -> list[Peaks]:
    """Return the peaks of a machine on each of these numbers of threads, as the project's study has them, or measured.

    Args:
        machine: as `machine_of` names it.
        threads: that compute at the same time.
        measure: even if the study has them.

    Raises:
        UserError: the study does not have them, and this is another machine.
    """
    known = [] if measure else read_study().peaks_of(machine, threads)
    if known:
        return known
    if machine != this_machine():
        raise UserError(
            f"the peaks of a processor are measured on it. Received: runs of {machine}, on {this_machine()}. Run this "
            "command there"
        )
    return [measured_peaks(machine, threads=count) for count in sorted(threads)]


def this_machine() -> str:
    """Return the name of this machine's processor, as runs record it."""
    return describe_environment().machine
