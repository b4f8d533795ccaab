"""`python -m launch chaos`: do something to ranks at random moments, and see that nothing is lost.

    python -m launch chaos --faults 20 --file-faults 200 --seed 1 --hours 0.5

Each fault is a signal to a rank or to the launcher of a small run in float64, over MPI, over Gloo or elastic; a file
operation that fails or ends a rank; or, as root, a host whose shared memory is full or whose network is down. After it
all processes must end, or go on to the end, the run folder must be good, and the same command must finish the run with
the weights of an undisturbed one. File faults strike programs without ranks in the same way, and damage checkpoints. A
campaign that was cut short goes on in its folder.
"""

import argparse
import dataclasses
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

from tabulate import tabulate

from common.checks.chaos_record import (
    CHANGE_HEADINGS,
    HEADINGS,
    TRIALS_FILE,
    Trial,
    add_trial,
    read_trials,
    struck,
    summary,
    summary_of_changes,
)
from common.errors import UserError, user_errors
from common.names import framework_here
from common.run_folder.environment import describe_environment
from common.run_folder.records import now
from common.utils.command_line import whole_number, word
from common.utils.environments import missing_packages
from launch.checks.chaos_files import WRITERS, FileTrials, draw_file_fault
from launch.checks.chaos_trial import RANK_WAYS, Trials, draw_fault
from launch.checks.file_faults import build_library
from launch.starting.processes import PROGRAMS, require_program
from launch.starting.progress import Progress

EXIT_CODE_LOST = 1
EXAMPLE_CHANGES = 3  # of the ranks
TRIAL_SECONDS, FILE_TRIAL_SECONDS = 25.0, 3.0  # rough time of a trial


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "chaos",
        help="end, stop and interrupt ranks at random moments; see that nothing is lost",
        description="Do something to small runs and to their files at random moments, and see that nothing is lost.",
    )
    count = partial(whole_number, least=0)
    parser.add_argument("--faults", type=count, default=20, help="trials with ranks (default: %(default)s)")
    parser.add_argument("--file-faults", type=count, default=100, help="trials without ranks (default: %(default)s)")
    parser.add_argument("--seed", type=count, default=1, help="of what is drawn; another one adds trials (default: 1)")
    parser.add_argument("--hours", type=float, default=2.0, help="start none after that time (default: %(default)s)")
    names = sorted(PROGRAMS)
    parser.add_argument("--frameworks", nargs="+", type=framework_here, choices=names, default=names, metavar="NAME")
    started = "how ranks are started, of mpi, gloo and elastic (default: all)"
    parser.add_argument("--ways", nargs="+", choices=RANK_WAYS, default=RANK_WAYS, metavar="WAY", help=started)
    parser.add_argument("--folder", type=word, default="runs/chaos", help="of the results (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code: 0, or 1 if a fault was not survived.

    Raises:
        UserError: something is not installed, or the folder cannot be used.
    """
    if not 0 < options.hours <= 1000:
        raise UserError(f"--hours is out of range. Received: --hours {options.hours}. Give hours above 0, such as 0.5")
    missing = [name for name in options.frameworks if missing_packages(name)]
    if missing:
        raise UserError(f"a framework is not installed. Received: --frameworks {missing[0]}. Run `make setup`")
    require_program("horovodrun")
    folder = Path(options.folder).absolute()
    with user_errors("making the folder of the campaign"):
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / TRIALS_FILE).exists() and any(folder.iterdir()):
            raise UserError(f"the folder holds other things. Received: {folder}. Give another --folder")
        (folder / TRIALS_FILE).touch()
    _make_trials(options, folder)
    trials = read_trials(folder)
    print(tabulate(summary(trials), headers=HEADINGS))
    if changes := summary_of_changes(trials):
        print(f"\n{tabulate(changes, headers=CHANGE_HEADINGS)}\n")
    lost = [trial for trial in trials if not trial.is_survived]
    faults, missed = sum(trial.strikes for trial in trials), len(trials) - len(struck(trials))
    print(
        f"{faults} faults, {len(lost)} not survived"
        + (f": see {folder}" if lost else "")
        + (f"; {missed} more came before or after their victim" if missed else "")
    )
    for trial in lost:
        print(f"  trial {trial.seed}-{trial.number}: {trial}")
    return EXIT_CODE_LOST if lost else 0


def _make_trials(options: argparse.Namespace, folder: Path) -> None:
    seed = options.seed
    done = {(trial.way == "files", trial.seed, trial.number) for trial in read_trials(folder)}
    of_files = [number for number in range(options.file_faults) if (True, seed, number) not in done]
    of_ranks = [number for number in range(options.faults) if (False, seed, number) not in done]
    ends = time.monotonic() + 3600 * options.hours
    machine, library = describe_environment().machine, folder / "file_faults.so"
    build_library(library)
    with Progress(FILE_TRIAL_SECONDS * len(of_files) + TRIAL_SECONDS * len(of_ranks)) as progress:
        if of_files:
            writers = [name for name, writer in WRITERS.items() if writer.framework in ("", *options.frameworks)]
            with FileTrials(folder, library, writers=writers) as files:
                for number in of_files:
                    if time.monotonic() < ends:
                        fault = draw_file_fault(seed, number, writers=writers)
                        trial = files.make(fault, seed=seed, number=number)
                        _keep(trial, folder, f"files-{seed}-{number}", machine=machine)
                        progress.advance(FILE_TRIAL_SECONDS, _title(trial), line=not trial.is_survived)
        trials = Trials(folder, library)
        for number in of_ranks:
            if time.monotonic() < ends:
                rank_fault = draw_fault(seed, number, frameworks=options.frameworks, ways=options.ways)
                trial = trials.make(rank_fault, seed=seed, number=number)
                _keep(trial, folder, f"trial-{seed}-{number}", machine=machine)
                progress.advance(TRIAL_SECONDS, _title(trial), line=True)


def _keep(trial: Trial, folder: Path, name: str, *, machine: str) -> None:
    """Record a trial; what it has left stays if it was not survived, or as the example of its framework."""
    examples = {one.framework for one in read_trials(folder) if _is_example(one)}
    add_trial(folder, dataclasses.replace(trial, machine=machine, day=now()[:10]))
    if trial.is_survived and not (_is_example(trial) and trial.framework not in examples):
        for remains in (name, f"hosts-{name}"):
            shutil.rmtree(folder / remains, ignore_errors=True)
        for suffix in ("log", "count"):
            (folder / f"{name}.{suffix}").unlink(missing_ok=True)


def _is_example(trial: Trial) -> bool:
    """Return whether `python -m analysis faults` has something to show of its run."""
    return trial.is_survived and len(trial.changes) >= EXAMPLE_CHANGES


def _title(trial: Trial) -> str:
    whom = f"rank {trial.victim}" if trial.victim.isdigit() else trial.victim
    when = f"at file operation {trial.operation}" if trial.operation else f"after {trial.after_seconds:.1f} s"
    how = ", ".join(word for word in (trial.framework, trial.way) if word)
    verdict = "NOT survived" if not trial.is_survived else "survived" if trial.strikes else "nobody was there"
    return f"{trial.number}: {how}: {trial.kind} to {whom} {when}: {verdict}"
