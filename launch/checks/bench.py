"""`python -m launch bench`: how fast the trainers are, against bare loops, other numbers of ranks and PyTorch DDP.

    python -m launch bench                                     everything, about 14 minutes on 2 cores
    python -m launch bench --models cnn --frameworks torch     some of it
    python -m launch bench --quick --starts bare               whether it runs; the figures mean nothing

Every figure is the median of ratios of pairs: both sides take turns within one start of ranks
(`common.checks.bench_turns`).
"""

import argparse
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from common.checks.bench_turns import TASKS, Turn
from common.distributed.console import readable_seconds
from common.errors import EXIT_CODE_INTERRUPTED, UserError, from_os_error
from common.run_folder.environment import describe_environment
from common.utils.cores import usable_cores
from common.utils.paths import ROOT
from launch.checks.bench_table import STARTS, Row, Start, controller_lines, format_ratio, format_table, make_row
from launch.starting.processes import last_lines, launcher_command, started

FRAMEWORKS = ("torch", "keras")
SCHEMA_VERSION = 1
SIZE = 2  # ranks of all starts but the bare one
START_SECONDS = 15.0  # rough cost of a start of ranks and of building a model; only to tell the time left
POLL_SECONDS = 0.5
STUCK_SECONDS = 300.0  # without a new turn, and 50 turns' time more: the ranks wait for each other
QUICK_ROUNDS, QUICK_SECONDS = 2, 0.02


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "bench",
        help="measure the trainers against bare loops, 2 ranks against 1",
        description="Measure speed in pairs of turns, A B A B; print the median of the pairs' ratios with its range.",
    )
    names = [start.name for start in STARTS]
    # Names are checked by `run`, where an error is one line.
    parser.add_argument("--models", nargs="+", default=list(TASKS), help=f"some of {', '.join(TASKS)} (default: all)")
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    parser.add_argument("--frameworks", nargs="+", default=installed, help="torch, keras (default: what is installed)")
    parser.add_argument("--starts", nargs="+", default=names, help=f"some of {', '.join(names)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of turns (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default: %(default)s)")
    parser.add_argument("--output", help="file of the raw data (default: runs/bench-<time>.json)")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that it runs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    _check(options)
    options.models = list(dict.fromkeys(options.models))
    if options.quick:
        options.rounds, options.seconds = QUICK_ROUNDS, QUICK_SECONDS
    stamp = datetime.now().astimezone()
    output = Path(options.output or f"runs/bench-{stamp:%Y%m%d-%H%M%S}.json")
    plan = [
        (framework, start)
        for framework in options.frameworks
        for start in STARTS
        if start.name in options.starts and not (start.torch_only and framework != "torch")
    ]
    if not plan:
        raise UserError(
            f"nothing is left to measure. Received: --starts {' '.join(options.starts)} --frameworks "
            f"{' '.join(options.frameworks) or '(none is installed)'}. DDP is PyTorch's alone"
        )
    _make_file(output)
    cores, threads = usable_cores(), max(1, usable_cores() // SIZE)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "started": stamp.isoformat(timespec="seconds"),
        "settings": {name: getattr(options, name) for name in ("models", "frameworks", "starts", "rounds", "seconds")},
        "environment": asdict(describe_environment()),
        "threads_per_rank": threads,
        "load_average_before": os.getloadavg(),
        "starts": [],
    }
    print(
        f"{cores} cores, {threads} compute threads a rank, load average {os.getloadavg()[0]:.2f} before; "
        f"{options.rounds} pairs of turns of {options.seconds:g} s"
    )
    if os.getloadavg()[0] > 0.3 * cores:
        print("warning: the machine is busy with something else, take the figures as provisional")
    rows: list[Row] = []
    progress = _Progress(len(plan), models=len(options.models), turns=2 * (options.rounds + 2), seconds=options.seconds)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the ranks too, as Ctrl-C does
    code = 0
    try:
        for framework, start in plan:
            rows += _measure(framework, start, options=options, threads=threads, record=record, progress=progress)
    except KeyboardInterrupt:
        print("interrupted; what follows was measured before")
        code = EXIT_CODE_INTERRUPTED
    finally:
        record["finished"] = datetime.now().astimezone().isoformat(timespec="seconds")
        if rows:
            _report(rows, record=record, output=output)
        else:
            output.unlink(missing_ok=True)
    return code


def _report(rows: Sequence[Row], *, record: dict[str, Any], output: Path) -> None:
    print("\n" + format_table(rows) + "\n")
    try:
        output.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise from_os_error(error, doing="writing the figures") from None
    print("\n".join([*controller_lines(rows), f"raw data in {output}"]))


def _check(options: argparse.Namespace) -> None:
    for flag, received, known in (
        ("models", options.models, list(TASKS)),
        ("frameworks", options.frameworks, list(FRAMEWORKS)),
        ("starts", options.starts, [start.name for start in STARTS]),
    ):
        unknown = [name for name in received if name not in known]
        if unknown:
            raise UserError(f"--{flag} names what is not there. Received: {unknown[0]!r}. Choose of {', '.join(known)}")
    if options.rounds < 1:
        raise UserError(f"there is no figure without a round. Received: --rounds {options.rounds}. Give 1 or more")
    if not 0 < options.seconds < 3600:
        raise UserError(f"a turn takes some time. Received: --seconds {options.seconds}. Give for example 1")


def _make_file(output: Path) -> None:
    """Make the file of the figures before anything is measured, so that nothing is measured for nothing."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.touch(exist_ok=False)
    except FileExistsError:
        raise UserError(
            f"the file exists already and is not overwritten. Received: --output {output}. Name another"
        ) from None
    except OSError as error:
        raise from_os_error(error, doing="making the file of the figures") from None


class _Progress:
    """Tells how long the rest will take: by the plan, corrected by how long what is done took."""

    def __init__(self, starts: int, *, models: int, turns: int, seconds: float) -> None:
        self.total = starts * models
        self.done = 0
        self._planned_seconds = START_SECONDS / models + turns * seconds  # of one start and model
        self._began = time.monotonic()

    def step(self, text: str) -> None:
        """Print what is done, and the time left."""
        self.done += 1
        each = (time.monotonic() - self._began) / self.done
        # At first the plan counts for as much as a start and model that was measured.
        each = (self._planned_seconds + self.done * each) / (self.done + 1)
        left = readable_seconds(round((self.total - self.done) * each))
        print(f"[{self.done:2}/{self.total}] {text}; about {left} left", flush=True)


def _measure(
    framework: str,
    start: Start,
    *,
    options: argparse.Namespace,
    threads: int,
    record: dict[str, Any],
    progress: _Progress,
) -> list[Row]:
    """Start the ranks, follow what they write, and return a row for each model."""
    rows: list[Row] = []
    load_average = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        results, log = Path(folder) / "results.jsonl", Path(folder) / "log"
        command = [
            *launcher_command(start.launcher, size=SIZE),
            str(ROOT / f"{framework}_impl" / "bench_worker.py"),
            *("--models", *options.models, "--contestants", start.base, start.measured),
            *("--rounds", str(options.rounds), "--seconds", str(options.seconds), "--threads", str(threads)),
            *("--results", str(results)),
        ]
        turns: list[Turn] = []
        stuck = False
        with started(command, variables=dict(start.variables), log=log) as process:
            last_turn = time.monotonic()
            while not stuck:
                ended = process.poll() is not None
                known, turns = len(turns), _read_turns(results)
                if len(turns) > known:
                    last_turn = time.monotonic()
                stuck = time.monotonic() - last_turn > STUCK_SECONDS + 50 * options.seconds
                for model in options.models[len(rows) :]:
                    of_model = [turn for turn in turns if turn.model == model]
                    if len(of_model) < 2 * options.rounds:
                        break
                    rows.append(make_row(of_model, framework=framework, start=start))
                    progress.step(f"{framework} {model}, {start.title}: {format_ratio(rows[-1].ratio)}")
                if ended:
                    break
                time.sleep(POLL_SECONDS)
        if process.returncode or len(rows) < len(options.models):
            print(last_lines(log), file=sys.stderr)
            raise UserError(
                f"ranks {'stood still' if stuck else f'ended with code {process.returncode}'}; their last lines are "
                f"above. Received: --starts {start.name} --frameworks {framework}. Mend it, or leave it out"
            )
        record["starts"].append(
            {
                "framework": framework,
                "start": start.name,
                "title": start.title,
                "load_average_before": load_average,
                "environment": json.loads(results.read_text().splitlines()[0])["environment"],
                "turns": [asdict(turn) for turn in turns],
                "ratios": {row.model: asdict(row.ratio) for row in rows},
            }
        )
    return rows


def _read_turns(results: Path) -> list[Turn]:
    """Return the turns written so far; a line that is being written is left for the next time."""
    text = results.read_text() if results.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [Turn(**json.loads(line)) for line in lines[1:]]
