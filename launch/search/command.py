"""`python -m launch search`: find good settings by trials in both frameworks, and resume after an interruption.

    python -m launch search FILE --dry-run                    the points, the commands
    python -m launch search FILE --at-once 2                  make the missing trials
    python -m launch search FILE --worker 2                   help another host's command, with journal storage
    python -m analysis hyperparameters runs/FILE              what was found; --recipe-out writes the best settings

Each trial has a run folder in `runs/<name of the file>/`, beside Optuna's storage and `search.json`;
`launch/search/search_file.py` defines the file.
"""

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from filelock import FileLock, Timeout

from common.distributed.console import counted
from common.errors import EXIT_CODE_INTERRUPTED, UserError, expanded, user_errors
from common.utils.command_line import whole_number, word
from launch.experiments.at_once import check_launcher
from launch.experiments.plan import ExperimentPlan
from launch.experiments.runs import prepare
from launch.search.search_file import SearchFile, read_search_file, run_name
from launch.starting.lanes import Lane, add_lane_options, lanes_of, run_in_lanes
from launch.starting.launchers import Launcher, launcher_at

EXIT_CODE_INCOMPLETE = 1


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser("search", help="find good settings by many trials, in both frameworks")
    parser.add_argument("file", type=word, metavar="FILE", help="a TOML file, or `search`, which comes along")
    parser.add_argument("--dry-run", action="store_true", help="print points and commands, run nothing")
    parser.add_argument(
        "--worker",
        type=whole_number,
        default=1,
        metavar="K",
        help="number of this command among those that share the search; each chooses by a seed of its own (default: 1)",
    )
    parser.add_argument("--runs-folder", type=word, default="runs", help="where its folder is (default: %(default)s)")
    parser.add_argument("--site", help="where this is: determines the launcher, and the site in the records")
    parser.add_argument("--hosts", metavar="a:2,b:2", help="hosts and their slots, or a host file")
    add_lane_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Make the missing trials; return 0, or 1 where some have failed. Other workers may still be at theirs."""
    file = read_search_file(options.file, runs_folder=expanded(options.runs_folder))
    launcher = launcher_at(options.site, hosts=options.hosts)
    launcher.check_frameworks(set(file.frameworks))
    if options.dry_run:
        print_trials(file, launcher)
        return 0
    lanes = lanes_of(options)
    if options.at_once is not None:
        check_launcher(launcher, remedy="Leave out --hosts and --site, or start a --worker on each host")
    launcher.check(np=int(file.settings.get("np", 1)))
    with user_errors("making the search's folder"):
        file.folder.mkdir(parents=True, exist_ok=True)
    lock = file.folder / f".worker-{options.worker}.lock"
    try:
        with FileLock(lock, timeout=0):
            missing = _make_missing(file, launcher, lanes, worker=options.worker)
    except Timeout:
        raise UserError(
            f"this search is already being run. Received: --worker {options.worker} in {file.folder}. Wait for it, or "
            "give another --worker"
        ) from None
    except KeyboardInterrupt:
        print(f"interrupted; resume with: python -m launch {shlex.join(options.launch_arguments)}")
        return EXIT_CODE_INTERRUPTED
    return EXIT_CODE_INCOMPLETE if missing else 0


def print_trials(file: SearchFile, launcher: Launcher) -> None:
    """Print what a search will do: each command where the points are known before, else how many trials there are."""
    from launch.search.sampling import fixed_points, trials_each

    for preparation in file.experiment.preparations:
        print(shlex.join(["python", "-m", "common", *preparation.command]))
    plan = ExperimentPlan(file.experiment, [], [], launcher)
    if file.draws_once:
        points = fixed_points(file)
        for number, params in enumerate(points):
            for framework in file.frameworks:
                planned = file.planned(framework, params, name=run_name(framework, number), point=number)
                print(shlex.join(plan.command(planned)))
    each = f"{counted(trials_each(file), 'trial')} of each framework"
    chosen = "drawn once" if file.draws_once else "each chosen when it is started, by the scores before it"
    print(f"{each} ({', '.join(file.frameworks)}); {file.keys.sampler} points, {chosen}")


def _make_missing(file: SearchFile, launcher: Launcher, lanes: Sequence[Lane], *, worker: int) -> int:
    """Make the missing trials, and the failed ones once more; return how many have failed again."""
    # Optuna takes a second to import, which other commands do not have to wait for.
    from launch.search.studies import Studies
    from launch.search.trials import Trials

    prepare(file.experiment.preparations, [file.first_trial], folder=file.folder)
    studies = Studies(file, worker=worker)
    trials = Trials(studies, launcher=launcher, report=lambda line: print(line, flush=True))
    trials.settle_running()
    studies.enqueue_missing()
    states = Counter(trial.state for trial in studies.trials())
    if not states["waiting"]:
        print(f"nothing is left to do: {counted(states['finished'] + states['pruned'], 'trial')}")
    else:
        print(f"{counted(states['waiting'], 'trial')} to do, {states['finished'] + states['pruned']} made", flush=True)
    run_in_lanes(trials.jobs(), lanes)
    failed, elsewhere = studies.failed_points(), len(studies.running())
    if failed:
        print(f"{counted(failed, 'trial')} failed; the same command makes them once more")
    if elsewhere:
        print(f"{counted(elsewhere, 'trial')} left to other workers, which are at it")
    return failed
