"""`python -m analysis bench`: how fast the trainers are, from the turns that `python -m launch bench` measured."""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.output.finding import Finding, Plot, add_show_options, brief, show
from analysis.output.options import add_parser
from analysis.output.plots import IDEAL, Row, figure_of_rows, framework_style, n_words
from analysis.output.tables import Cell, Table, shown_interval
from analysis.questions.bench_goals import CORES, goals_of, goals_table, outcomes
from analysis.questions.bench_ratios import FLOOR, SpeedRatio, floors_of, speed_ratios
from analysis.runs.labels import onednn_words
from analysis.stats.inference import median_interval
from common.checks.bench_record import APART, BENCHES, COMMAND, BenchRecord, shown_value
from common.distributed.console import counted
from common.utils.command_line import path

# The starts of both controllers, between which `horovodrun` leaves the choice, and the controller of each.
CONTROLLERS = {"exchange": "MPI", "exchange_gloo": "Gloo"}
# The starts whose exchanges are shown one by one, and what exchanges in them.
EXCHANGES = {
    FLOOR: "bare MPI_Allreduce",
    "floor_spinning": "bare MPI_Allreduce that spins",
    "exchange": "Horovod, MPI",
    "exchange_gloo": "Horovod, Gloo",
    "spinning": "Horovod, MPI that spins",
}
_LEAST_OF_99 = 100  # exchanges; of fewer it would be the slowest


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(commands, "bench", run, "the speed that `launch bench` measured")
    parser.add_argument("file", metavar="FILE", type=path, help="runs/bench-<time>.json")
    add_show_options(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    show(find(BENCHES.read(options.file)), options)


def find(record: BenchRecord) -> Finding:
    """Return the ratios of all starts."""
    ratios = speed_ratios(record)
    speeds = [one for one in ratios if one.model != COMMAND]
    environment = record.environment
    rounds, seconds = record.settings["rounds"], record.settings["seconds"]
    goals = goals_of(ratios) if environment.cores == CORES else []
    answers = [*([outcomes(goals)] if goals else []), *kept_speeds(ratios), *_trainer_against_loop(ratios)]
    return Finding(
        name="bench",
        question="How fast are the trainers?",
        answer=brief(answers) if answers else f"{len(ratios)} ratios were measured.",
        tables=[*([goals_table(goals)] if goals else []), _table(ratios), *_exchanges(ratios), *_steps(ratios)],
        plots=[_plot(speeds)] if speeds else [],
        flags=_flags(record),
        notes=[
            f"{environment.machine}, {counted(record.threads_per_rank, 'thread')} per rank, oneDNN "
            f"{onednn_words(record.onednn, record.onednn_in_force)}; "
            f"{counted(rounds, 'pair')} of turns of {seconds:g} s; a ratio is that of the speeds of the two turns of a "
            f"pair; of commands, that of their seconds or memory{_other_versions(record)}",
            "95 % interval of the median: between two order statistics; it takes at least 6 pairs (--rounds 6)",
            "goals are for a host of two cores; not shown: the interval is on both sides of the limit, or there is "
            "none; of an exchange over that of bare MPI it is the interval of ours over their median",
            f"median of an exchange: of the medians of turns; 99 %: of at least {_LEAST_OF_99} exchanges",
            "an exchange lasts from the last rank that has its gradients to the last that has their averages; that of "
            "bare MPI is MPI_Allreduce alone, in pieces of 4 MiB, without the copies and the division of Horovod's",
            "parts of a step: means over turns; waiting: until the last rank has its gradients, on average over the "
            "ranks; other: hooks, copies, and what training loses beside an exchange",
        ],
    )  # fmt: skip


def _flags(record: BenchRecord) -> list[str]:
    flags = []
    if record.busy:
        flags.append(
            f"other programs may have used the machine: its load average was {record.load_average_before[0]:.2f} "
            f"before, on {record.environment.cores} cores"
        )
    if record.onednn_in_force == "on and off":
        flags.append(
            "oneDNN computed on some ranks only, or in one framework only: its speeds do not compare with the others"
        )
    if record.onednn == "on" and record.onednn_in_force == "off":
        flags.append("the frameworks have no oneDNN here, and computed without it")
    return flags


def _other_versions(record: BenchRecord) -> str:
    """Return, as the end of a note, the starts that ran another version of the program than the record names."""
    own = record.environment.source_revision
    others = [one.start for one in record.starts if one.environment.get("source_revision", own) != own]
    return f"; of another version of the program: {', '.join(dict.fromkeys(others))}" if others else ""


def kept_speeds(ratios: Sequence[SpeedRatio]) -> list[str]:
    """Return how much of the speed of ranks that exchange nothing is kept, over each controller."""
    kept = []
    for name, controller in CONTROLLERS.items():
        if medians := [one.median for one in ratios if one.start.start == name]:
            kept.append(
                f"Over {controller} two ranks keep {_range(medians)} of the speed of two that exchange nothing."
            )
    return kept


# Starts that compare the trainer with a loop, and what the loop does. The first does the same work.
LOOPS = {
    "batches": "a bare loop that sums losses and makes its batches",
    "sums": "a bare loop that sums losses",
    "bare": "a bare loop that sums nothing",
}


def _trainer_against_loop(ratios: Sequence[SpeedRatio]) -> list[str]:
    reached = []
    for name, loop in LOOPS.items():
        if medians := [one.median for one in ratios if one.start.start == name]:
            reached.append(f"The trainer reaches {_range(medians)} of the speed of {loop}.")
    return reached


def _range(medians: Sequence[float]) -> str:
    low, high = f"{min(medians):.2f}", f"{max(medians):.2f}"
    return low if low == high else f"{low} to {high}"


def _table(ratios: Sequence[SpeedRatio]) -> Table:
    headings = ["model", "framework", "ratio", "base", "measured", "median ratio", "range", "95 % interval", "n"]
    rows: list[list[Cell]] = [
        [one.model, one.start.framework, one.start.title, shown_value(one.base, one.unit),
         shown_value(one.measured, one.unit), one.median, f"{min(one.ratios):.2f} to {max(one.ratios):.2f}",
         shown_interval(median_interval(one.ratios), ".2f"), len(one.ratios)]
        for one in ratios
    ]  # fmt: skip
    return Table("Speed in pairs of turns", headings, rows, {"median ratio": ".2f", "n": "d"})


def _exchanges(ratios: Sequence[SpeedRatio]) -> list[Table]:
    """Return the table of single exchanges; none where none were timed."""
    rows: list[list[Cell]] = []
    floors = floors_of(ratios)
    for one in sorted(ratios, key=lambda one: (one.model, [*EXCHANGES, one.start.start].index(one.start.start))):
        turns = one.timed_turns
        if one.start.start not in EXCHANGES or not turns:
            continue
        seconds = np.concatenate([turn.exchanges for turn in turns])
        median, slow = statistics.median(one.exchange_medians), float(np.percentile(seconds, 99))
        floor = floors.get((one.model, one.start.framework))
        rows.append(
            [one.model, one.start.framework, EXCHANGES[one.start.start],
             sum(turn.sent_bytes for turn in turns) / len(seconds) / 1e3, 1e3 * median,
             1e3 * slow if len(seconds) >= _LEAST_OF_99 else None,
             median / floor if floor else None, len(seconds)]
        )  # fmt: skip
    headings = ["model", "framework", "exchange", "kB", "median, ms", "99 % within, ms", "median / bare", "n"]
    formats = {"kB": ",.0f", "median, ms": ".3f", "99 % within, ms": ".3f", "median / bare": ".2f", "n": ",d"}
    return [Table("Exchanges of gradients between the steps", headings, rows, formats)] if rows else []


def _steps(ratios: Sequence[SpeedRatio]) -> list[Table]:
    """Return the table of what a step takes beside one that exchanges nothing; none where no exchange was timed."""
    rows: list[list[Cell]] = []
    for one in ratios:
        timed = one.timed_turns
        alone = [turn for turn in one.start.turns if (turn.model, turn.contestant) == (one.model, APART)]
        if timed and alone:
            # Means over ranks: that one is slower is part of the waiting.
            whole, without = (1e3 * statistics.mean(statistics.mean(turn.rank_seconds) / turn.steps for turn in side)
                              for side in (timed, alone))  # fmt: skip
            waiting = 1e3 * statistics.mean(turn.wait_seconds for turn in timed)
            exchange = 1e3 * np.concatenate([turn.exchanges for turn in timed]).mean()
            rows.append([one.model, one.start.framework, EXCHANGES.get(one.start.start, one.start.title), without,
                         waiting, exchange, whole - without - waiting - exchange, whole, len(timed)])  # fmt: skip
    headings = ["model", "framework", "exchange", "without it, ms", "waiting, ms", "exchange, ms", "other, ms",
                "step, ms", "n"]  # fmt: skip
    formats = dict.fromkeys(headings[3:-1], ".2f") | {"n": "d"}
    return [Table("Parts of a step on two ranks", headings, rows, formats)] if rows else []


def _plot(ratios: Sequence[SpeedRatio]) -> Plot:
    """Draw the ratios of speeds; those of commands, which are of seconds, are in the table."""
    groups: dict[str, list[Row]] = {}
    for one in ratios:
        framework = one.start.framework
        row = Row(values=one.ratios, style=framework_style(framework))
        groups.setdefault(f"{one.model}: {one.start.title}", []).append(row)
    title = f"Speed in pairs of turns ({n_words([len(one.ratios) for one in ratios])} pairs each)"
    figure = figure_of_rows(groups, title, unit="measured / base")
    figure.axes[0].axvline(1.0, **IDEAL)
    data = Table(
        "Ratios of the pairs",
        ["model", "framework", "start", "ratio"],
        [[one.model, one.start.framework, one.start.start, value] for one in ratios for value in one.ratios],
        {"ratio": ".3f"},
    )
    return Plot("bench", figure, data)
