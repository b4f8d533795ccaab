"""`python -m launch bench`: compare the trainers' speed with bare loops, with and without exchange, and with DDP.

    python -m launch bench                                     everything but PyDTNN
    python -m launch bench --models cnn --frameworks torch     part of it
    python -m launch bench --rounds 1 --seconds 0.02           a quick check that it runs; the figures mean nothing
    python -m analysis bench runs/bench-<time>.json            show the result again

In each start of ranks, two contestants take turns (`common.checks.bench_turns`). The raw turns go into one JSON file.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from common.checks.bench_record import APART, BENCHES, BenchRecord, MeasuredStart, Turn, pair_ratios, shown_value
from common.checks.bench_turns import TASKS
from common.config import add_onednn_option
from common.data.loading import load_dataset
from common.distributed.console import counted
from common.errors import EXIT_CODE_INTERRUPTED, UserError
from common.json_records import SCHEMA_VERSION
from common.run_folder.environment import describe_environment
from common.run_folder.revision import source_revision
from common.utils.command_line import whole_number, word
from common.utils.cores import usable_cores
from common.utils.environments import missing_packages
from common.utils.paths import ROOT
from launch.bench.started_commands import PYDTNN, REPORT_RUNS, command_turns
from launch.installation.environment import FRAMEWORKS
from launch.starting.analysis import run_analysis
from launch.starting.processes import PROGRAM_SECONDS, last_lines, launcher_command, started
from launch.starting.progress import Progress

NO_FRAMEWORK = "none"
PYDTNN_REVISION = "a985779f"  # its options are those that `started_commands` gives
SIZE = 2  # ranks of all starts but those of bare loops
START_SECONDS = 15.0  # rough cost of starting ranks and building a model, for the time left
POLL_SECONDS = 0.5
STUCK_SECONDS = 300.0  # without a new turn, plus the time of 50 turns: the ranks are deadlocked


@dataclass(frozen=True, kw_only=True)
class BenchStart:
    """One start of ranks, in which two contestants take turns.

    Attributes:
        title: what the ratio measured / base means.
        base, measured: contestants of `common.checks.bench_turns`.
        launcher: none, or mpi or gloo by horovodrun.
        variables: added to the environment.
        torch_only: whether Keras has no equivalent.
        size: ranks of commands.
        pair_seconds: of commands of `started_commands`: rough cost of a pair. 0: workers of a framework take turns.
        no_framework: whether it is the same for all frameworks, and measured once.
    """

    title: str
    base: str
    measured: str
    launcher: str
    variables: tuple[tuple[str, str], ...] = ()
    torch_only: bool = False
    size: int = SIZE
    pair_seconds: float = 0.0
    no_framework: bool = False


SPINNING = (("OMPI_MCA_mpi_yield_when_idle", "0"),)
STARTS = {
    "bare": BenchStart(title="trainer / bare loop, np 1", base="bare", measured="np1", launcher="none"),
    "sums": BenchStart(
        title="trainer / bare loop that sums losses, np 1", base="bare_sums", measured="np1", launcher="none"
    ),
    "batches": BenchStart(
        title="trainer / bare loop that also makes its batches, np 1",
        base="bare_batches",
        measured="np1",
        launcher="none",
    ),
    "mpi": BenchStart(title="np 2 / np 1, MPI", base="np1", measured="np2", launcher="mpi"),
    "apart": BenchStart(title="np 2 / np 1, no exchange: ceiling", base="np1", measured=APART, launcher="mpi"),
    "exchange": BenchStart(title="exchange / none, np 2, MPI", base=APART, measured="np2", launcher="mpi"),
    "exchange_gloo": BenchStart(title="exchange / none, np 2, Gloo", base=APART, measured="np2", launcher="gloo"),
    "spinning": BenchStart(
        title="exchange / none, np 2, MPI that spins",
        base=APART,
        measured="np2",
        launcher="mpi",
        variables=SPINNING,
    ),
    "floor": BenchStart(
        title="bare MPI_Allreduce / none, np 2",
        base=APART,
        measured="np2_mpi",
        launcher="mpi",
    ),
    "floor_spinning": BenchStart(
        title="bare MPI_Allreduce that spins / none, np 2",
        base=APART,
        measured="np2_mpi",
        launcher="mpi",
        variables=SPINNING,
    ),
    "each": BenchStart(title="tensor by tensor / grouped, np 2, MPI", base="np2", measured="np2_each", launcher="mpi"),
    "horovodrun": BenchStart(
        title="start of two Pythons that do nothing: horovodrun / mpirun",
        base="mpirun",
        measured="horovodrun",
        launcher="mpi",
        pair_seconds=1.0,
        no_framework=True,
    ),
    "first_update": BenchStart(
        title="from the command to the first update / a command that only imports, np 2",
        base="imports",
        measured="first_update",
        launcher="mpi",
        pair_seconds=15.0,
    ),
    "report": BenchStart(
        title=f"report on {REPORT_RUNS:,} runs: up to date / made",
        base="report",
        measured="report_again",
        launcher="none",
        size=1,
        pair_seconds=20.0,
        no_framework=True,
    ),
    "memory": BenchStart(
        title="memory of the second rank, cnn: near the end of training / after imports",
        base="imports_memory",
        measured="training_memory",
        launcher="mpi",
        pair_seconds=20.0,
    ),
    "pydtnn": BenchStart(
        title="trainer / PyDTNN, its recipe, np 1",
        base=PYDTNN,
        measured="recipe",
        launcher="mpi",
        size=1,
        pair_seconds=25.0,
    ),
    "pydtnn_np2": BenchStart(
        title="trainer / PyDTNN, its recipe, np 2", base=PYDTNN, measured="recipe", launcher="mpi", pair_seconds=20.0
    ),
    "ddp": BenchStart(
        title="ours, MPI / DDP, Gloo, np 2", base="np2_ddp", measured="np2", launcher="mpi", torch_only=True
    ),
    "ddp_gloo": BenchStart(
        title="ours, Gloo / DDP, Gloo, np 2", base="np2_ddp", measured="np2", launcher="gloo", torch_only=True
    ),
}


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "bench",
        help="measure the trainers' speed against bare loops, 2 ranks against 1, the exchange, starts and memory",
        description="Measure in pairs of turns, A B A B, and show the median of the pairs' ratios. Starts of commands "
        "(horovodrun, first_update, memory, report, pydtnn) have a model and a length of their own.",
    )
    defaults = {"--frameworks": " that are installed", "--starts": "; those of PyDTNN only with --pydtnn"}
    for flag, known, default in (
        ("--models", TASKS, list(TASKS)),
        ("--frameworks", FRAMEWORKS, None),
        ("--starts", STARTS, None),
    ):
        parser.add_argument(
            flag, nargs="+", choices=list(known), default=default, metavar="NAME",
            help=f"some of {', '.join(known)} (default: all{defaults.get(flag, '')})",
        )  # fmt: skip
    parser.add_argument("--pydtnn", metavar="PYTHON", type=word, help="a Python that has PyDTNN, for its starts")
    parser.add_argument("--rounds", type=whole_number, default=7, help="pairs of turns (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default: %(default)s)")
    add_onednn_option(parser)
    parser.add_argument("--output", type=word, help="file for the raw turns (default: runs/bench-<time>.json)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    if not 0 < options.seconds < 3600:
        raise UserError(f"a turn must take time. Received: --seconds {options.seconds}. Give for example 1")
    options.models = list(dict.fromkeys(options.models))
    if options.frameworks is None:
        options.frameworks = [name for name in FRAMEWORKS if not missing_packages(name)]
    options.frameworks = list(dict.fromkeys(options.frameworks))
    _choose_starts(options)
    planned = [
        (framework, name)
        for framework in options.frameworks
        for name, start in STARTS.items()
        if name in options.starts
        and not (start.torch_only and framework != "torch")
        and not (start.no_framework and framework != options.frameworks[0])
    ]
    if not planned:
        torch_only = " and ".join(name for name, start in STARTS.items() if start.torch_only)
        raise UserError(
            f"there is nothing to measure. Received: --starts {' '.join(options.starts)} --frameworks "
            f"{' '.join(options.frameworks) or '(none is installed)'}. Of PyTorch alone: {torch_only}"
        )
    output = Path(options.output or f"runs/bench-{datetime.now():%Y%m%d-%H%M%S}.json")
    _create(output)
    record = _new_record(options)
    threads, code = record.threads_per_rank, 0
    try:
        if "memory" in options.starts:
            load_dataset("mnist")  # fetches it before anything is measured
        with Progress(sum(_planned_seconds(options, STARTS[name]) for _, name in planned)) as progress:
            for framework, name in planned:
                measure = _measure_commands if STARTS[name].pair_seconds else _measure
                record.starts.append(measure(framework, name, options=options, threads=threads, progress=progress))
    except KeyboardInterrupt:
        print("interrupted; only complete starts are shown")
        code = EXIT_CODE_INTERRUPTED
    finally:
        shown = _finish(record, output)
    return code or shown


def _choose_starts(options: argparse.Namespace) -> None:
    """Put the default into `options.starts`, and see that PyDTNN is there if it is needed.

    Raises:
        UserError: it is not.
    """
    of_pydtnn = {name for name, start in STARTS.items() if start.base == PYDTNN}
    if options.starts is None:
        options.starts = [name for name in STARTS if options.pydtnn or name not in of_pydtnn]
    if not of_pydtnn & set(options.starts):
        if options.pydtnn:
            raise UserError(
                f"no start needs PyDTNN. Received: --pydtnn {options.pydtnn} --starts {' '.join(options.starts)}. "
                f"Add {' or '.join(sorted(of_pydtnn))}, or omit --pydtnn"
            )
        return
    if options.pydtnn is None:
        raise UserError(
            f"PyDTNN is not part of the set-up. Received: --starts {' '.join(options.starts)}. Install revision "
            f"{PYDTNN_REVISION} of github.com/hpca-uji/PyDTNN into an environment of its own, and add --pydtnn and the "
            "path of its Python"
        )
    options.pydtnn = _python_with_pydtnn(options.pydtnn)


def _python_with_pydtnn(python: str) -> str:
    """Return the absolute path of a Python that has PyDTNN.

    Raises:
        UserError: it is none.
    """
    answer, found = "", Path(shutil.which(python) or python).absolute()  # an environment's link is not followed
    has_pydtnn = "import importlib.util as u; print('pydtnn' if u.find_spec('pydtnn') else '')"
    with suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run([found, "-c", has_pydtnn], capture_output=True, text=True, errors="replace",
                                cwd="/", timeout=PROGRAM_SECONDS).stdout  # fmt: skip
    if answer.strip() != "pydtnn":
        raise UserError(f"this is no Python that has PyDTNN. Received: --pydtnn {python}. Install it there")
    return str(found)


def _create(output: Path) -> None:
    """Create the file before anything is measured, so that no measurement is lost."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch(exist_ok=False)
    except FileExistsError:
        raise UserError(
            f"the file exists already and is not overwritten. Received: --output {output}. Choose another name"
        ) from None


def _new_record(options: argparse.Namespace) -> BenchRecord:
    """Return a record without starts, and print the conditions of the benchmark."""
    record = BenchRecord(
        schema_version=SCHEMA_VERSION,
        started=_timestamp(),
        settings={
            name: getattr(options, name) for name in ("models", "frameworks", "starts", "rounds", "seconds", "onednn")
        },
        environment=describe_environment(),
        threads_per_rank=max(1, usable_cores() // SIZE),
        load_average_before=os.getloadavg(),
    )
    print(
        f"{counted(usable_cores(), 'core')}, {counted(record.threads_per_rank, 'compute thread')} per rank, load "
        f"average {record.load_average_before[0]:.2f} before; {counted(options.rounds, 'pair')} of turns of "
        f"{options.seconds:g} s"
    )
    if record.busy:
        print("warning: other programs keep this machine busy, so the figures are provisional")
    return record


def _finish(record: BenchRecord, output: Path) -> int:
    """Write and show what was measured; return the exit code of `python -m analysis bench`."""
    if not record.starts:
        output.unlink(missing_ok=True)
        return 0
    BENCHES.write(output, replace(record, finished=_timestamp()))
    code = run_analysis("bench", output)
    print(f"raw turns: {output}")
    return code


def _measure(
    framework: str, name: str, *, options: argparse.Namespace, threads: int, progress: Progress
) -> MeasuredStart:
    """Start the ranks, follow the turns that they write, and return them all.

    Raises:
        UserError: the ranks failed, or they are deadlocked.
    """
    start, load_average = STARTS[name], os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        results, log = Path(folder) / "results.jsonl", Path(folder) / "log"
        command = [
            *launcher_command(start.launcher, size=SIZE),
            str(ROOT / f"{framework}_impl" / "bench_worker.py"),
            *("--models", *options.models, "--contestants", start.base, start.measured),
            *("--rounds", str(options.rounds), "--seconds", str(options.seconds), "--threads", str(threads)),
            *("--onednn", options.onednn, "--results", str(results)),
        ]
        with started(command, variables=dict(start.variables), log=log) as process:
            stuck = not _follow(process, results, framework=framework, start=start, options=options, progress=progress)
        turns = _read_turns(results)
        if stuck or process.returncode or len(turns) < 2 * options.rounds * len(options.models):
            print(last_lines(log), file=sys.stderr)
            raise UserError(
                f"the ranks {'made no progress' if stuck else f'ended with code {process.returncode}'}; their last "
                f"lines are above. Received: --starts {name} --frameworks {framework}. Fix the cause, or omit this "
                "start"
            )
        return MeasuredStart(
            framework=framework,
            start=name,
            title=start.title,
            load_average_before=load_average,
            environment=json.loads(results.read_text().splitlines()[0])["environment"],
            turns=turns,
        )


def _measure_commands(
    framework: str, name: str, *, options: argparse.Namespace, threads: int, progress: Progress
) -> MeasuredStart:
    """Run two commands in turns, and return the turns."""
    start, load_average = STARTS[name], os.getloadavg()
    turns = []
    for turn in command_turns(
        start.base, start.measured, framework=framework, rounds=options.rounds, size=start.size, threads=threads,
        onednn=options.onednn, pydtnn=options.pydtnn,
    ):  # fmt: skip
        turns.append(turn)
        if turn.contestant == start.measured:
            progress.advance(start.pair_seconds, start.title)
    base, measured = (
        shown_value([turn.value for turn in turns if turn.contestant == one], turns[0].unit)
        for one in (start.base, start.measured)
    )
    progress.advance(
        start.pair_seconds,  # of the pair that was not counted
        f"{start.title if start.no_framework else f'{framework}, {start.title}'}: {measured} / {base}",
        line=True,
    )
    return MeasuredStart(
        framework=NO_FRAMEWORK if start.no_framework else framework,
        start=name,
        title=start.title,
        load_average_before=load_average,
        environment={
            "source_revision": source_revision(),
            "controller": start.launcher,
            "threads": threads,
        },
        turns=turns,
    )


def _follow(
    process: subprocess.Popen[bytes],
    results: Path,
    *,
    framework: str,
    start: BenchStart,
    options: argparse.Namespace,
    progress: Progress,
) -> bool:
    """Print a line for each model that is measured until the ranks end; return False if they make no progress."""
    models = list(options.models)
    known, last_turn = 0, time.monotonic()
    while True:
        ended = process.poll() is not None
        turns = _read_turns(results)
        if len(turns) > known:
            known, last_turn = len(turns), time.monotonic()
        while models and len(of_model := [turn for turn in turns if turn.model == models[0]]) == 2 * options.rounds:
            ratio = statistics.median(pair_ratios(of_model))
            progress.advance(
                _planned_seconds(options, start) / len(options.models),
                f"{framework} {models.pop(0)}, {start.title}: {ratio:.2f}",
                line=True,
            )
        if ended:
            return True
        if time.monotonic() - last_turn > STUCK_SECONDS + 50 * options.seconds:
            return False
        time.sleep(POLL_SECONDS)


def _planned_seconds(options: argparse.Namespace, start: BenchStart) -> float:
    """Return roughly how long one start takes."""
    if start.pair_seconds:
        return (options.rounds + 1) * start.pair_seconds
    return START_SECONDS + len(options.models) * 2 * (options.rounds + 2) * options.seconds


def _read_turns(results: Path) -> list[Turn]:
    """Return the turns written so far, without a last line that is incomplete."""
    text = results.read_text() if results.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [Turn(**json.loads(line)) for line in lines[1:]]


def _timestamp() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
