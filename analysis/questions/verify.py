"""`python -m analysis verify`: whether a rerun reproduces its run, for a folder that `python -m launch verify` made.

A rerun must start from the same weights with the same sample order. On the same code and stack it must end in the same
bits; elsewhere the test accuracies must agree within their 95 % interval. Times must agree where they are comparable.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from analysis.output.finding import Finding, add_show_options, show
from analysis.output.options import add_parser
from analysis.output.tables import Cell, Table, in_figures
from analysis.runs.labels import onednn_in_force
from analysis.runs.sameness import onednn_differs
from analysis.stats.proportions import accuracy_difference
from common.checks.verify_record import VERIFICATIONS, VERIFY_FILE, WholeRun, whole_run
from common.measurement.interference import Interference
from common.run_folder.environment import stack_of
from common.run_folder.records import RecordedRun, read_run
from common.utils.command_line import path

EXIT_CODE_DOES_NOT_REPRODUCE = 1
SHORTEST_SECONDS = 1.0  # of an epoch whose time is judged
SAME = "same"


@dataclass
class Verdict:
    """Run and rerun, compared.

    Attributes:
        rows: what is compared, its value in the run and in the rerun, the result.
        failed: what does not reproduce.
    """

    rows: list[tuple[str, Cell, Cell, str]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    answer: str = ""

    def add(self, what: str, then: Cell, now: Cell, result: str, *, holds: bool = True) -> None:
        """Add a row."""
        self.rows.append((what, then, now, result))
        if not holds:
            self.failed.append(what)


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = add_parser(
        commands,
        "verify",
        run,
        "whether a rerun of `launch verify` reproduces its run",
        more="Exit code 0: it does; 1: it does not.",
    )
    parser.add_argument("folder", metavar="RERUN", type=path, help="a run folder with verify.json, such as NAME-verify")
    add_show_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    record = VERIFICATIONS.read(options.folder / VERIFY_FILE)
    before, after = read_run(options.folder / record.run), read_run(options.folder)
    verdict = judge(before, after, time_ratio=record.time_ratio)
    show(_finding(verdict, before, after), options)
    return EXIT_CODE_DOES_NOT_REPRODUCE if verdict.failed else 0


def _finding(verdict: Verdict, before: RecordedRun, after: RecordedRun) -> Finding:
    notes = [
        f"other programs used the machine during the {which}: {'; '.join(others)}"
        for which, one in (("run", before), ("rerun", after))
        if (others := _other_programs(one))
    ]
    if any(what == "test accuracy" for what, *_ in verdict.rows):
        notes.append(
            "95 % interval: Newcombe's hybrid score; it covers the chance of which images were drawn, as if each run "
            "had its own, not that of the seed"
        )
    return Finding(
        name="verify",
        question="Does the run reproduce?",
        answer=verdict.answer,
        tables=[
            Table(
                f"{before.folder.name} and its rerun {after.folder.name}",
                ["compared", "run", "rerun", "result"],
                verdict.rows,
                {},
            )
        ],
        notes=notes,
    )


def judge(before: RecordedRun, after: RecordedRun, *, time_ratio: float) -> Verdict:
    """Return whether a rerun reproduces a run.

    Args:
        before: the run.
        after: its rerun.
        time_ratio: the epochs of one may take at most this many times as long as those of the other.

    Raises:
        UserError: a part of a record is missing.
    """
    first, second = whole_run(before), whole_run(after)
    verdict = Verdict()
    for what, then, now in (
        ("first weights", first.hashes.initial_weights, second.hashes.initial_weights),
        ("sample order", first.hashes.sample_order, second.hashes.sample_order),
        ("test samples", first.data.test_samples, second.data.test_samples),
    ):
        same = then == now
        verdict.add(what, _shown(then), _shown(now), SAME if same else "differ", holds=same)
    if verdict.failed:
        verdict.answer = f"Does not reproduce: this is another experiment ({', '.join(verdict.failed)})."
        return verdict
    codes = (first.environment.source_revision, second.environment.source_revision)
    verdict.add("code", _short(codes[0]), _short(codes[1]), SAME if _same_code(*codes) else "not known to be the same")
    changes = stack_changes(first, second)
    if not changes:
        verdict.add("stack", None, None, SAME)
    for what, old, new in changes:
        verdict.add(what, _shown(old), _shown(new), "differs")
    bits = first.hashes.final_weights == second.hashes.final_weights
    weights = (_shown(first.hashes.final_weights), _shown(second.hashes.final_weights))
    if bits:
        verdict.add("final weights", *weights, "same, bit for bit")
    else:
        reason = _why_bits_may_differ(first, second, stack_changed=bool(changes))
        result = f"differ (expected: {reason})" if reason else "differ, on the same code and stack"
        verdict.add("final weights", *weights, result, holds=reason is not None)
        _judge_accuracy(verdict, first, second)
    _judge_time(verdict, first, second, most=time_ratio)
    if verdict.failed:
        verdict.answer = f"Does not reproduce: {' and '.join(verdict.failed)}."
    else:
        verdict.answer = "Reproduces bit for bit." if bits else "Reproduces in its accuracy, not bit for bit."
    return verdict


def stack_changes(first: WholeRun, second: WholeRun) -> list[tuple[str, object, object]]:
    """Return what determines the bits of a run and changed: packages, processor, ranks, controller, threads, device."""
    mpi = "mpi" in (first.world.controller, second.world.controller)
    sides: list[dict[str, object]] = [
        {
            **stack_of(one.environment, framework=one.run.record.framework, mpi=mpi),
            "architecture": one.environment.architecture,
            "processor": one.environment.processor,
            "ranks": one.world.size,
            "ranks per host": one.world.local_size,
            "controller": one.world.controller,
            "threads per rank": one.world.threads_per_rank,
            "device": "CPU" if one.world.on_cpu else "GPU",
        }
        for one in (first, second)
    ]
    changes = [(name, sides[0][name], sides[1][name]) for name in sides[0] if sides[0][name] != sides[1][name]]
    then, now = (onednn_in_force(one.run.record) for one in (first, second))
    return changes if None in (then, now) or then == now else [*changes, ("oneDNN in force", then, now)]


def _shown(value: object) -> Cell:
    if value is None:
        return "none"
    return value if isinstance(value, int | float) else str(value)


def _short(revision: str) -> str:
    commit, plus, changes = revision.partition("+")
    return f"{commit[:10]}{plus}{changes}"


def _same_code(then: str, now: str) -> bool:
    return then == now and then != "unknown" and "+" not in then


def _why_bits_may_differ(first: WholeRun, second: WholeRun, *, stack_changed: bool) -> str | None:
    """Return why the weights may end in different bits; None: they may not."""
    if stack_changed:
        return "the stack changed"
    if not first.world.on_cpu:
        return "GPUs may add in a different order each time"
    if first.world.controller == "gloo" and first.config.device.gradient_groups != "one":
        return "Gloo adds tensors that are not sent together in a different order each time"
    if not _same_code(first.environment.source_revision, second.environment.source_revision):
        return "the code is not known to be the same"
    return None


def _judge_accuracy(verdict: Verdict, first: WholeRun, second: WholeRun) -> None:
    then, now, samples = first.totals.test_accuracy, second.totals.test_accuracy, first.data.test_samples
    if not isinstance(then, float) or not isinstance(now, float) or not samples:
        verdict.add("test accuracy", None, None, "not recorded for both, so it cannot be judged", holds=False)
        return
    interval = accuracy_difference(then, now, samples=samples)
    holds = interval.contains(0.0)
    verdict.add(
        "test accuracy", f"{100 * then:.2f} %", f"{100 * now:.2f} %",
        f"{100 * (now - then):+.2f} points, 95 % interval {100 * interval.low:+.2f} to {100 * interval.high:+.2f} "
        f"{'contains' if holds else 'excludes'} 0",
        holds=holds,
    )  # fmt: skip


def _judge_time(verdict: Verdict, first: WholeRun, second: WholeRun, *, most: float) -> None:
    then, now = (_epoch_seconds(one.run) for one in (first, second))
    if not then or not now:
        verdict.add("time", None, None, "not judged: no epoch was timed in both")
        return
    ratio, reasons = now / then, _why_time_is_not_judged(first, second, shortest=min(then, now))
    holds = bool(reasons) or 1 / most <= ratio <= most
    limits = f"{1 / most:.2f} to {most:.2f}"
    judged = f"not judged: {'; '.join(reasons)}" if reasons else f"{'within' if holds else 'outside'} {limits}"
    verdict.add(
        "time",
        f"{in_figures(then, 4)} s per epoch",
        f"{in_figures(now, 4)} s per epoch",
        f"ratio {ratio:.2f}, {judged}",
        holds=holds,
    )


def _epoch_seconds(run: RecordedRun) -> float | None:
    """Return the median training time of the epochs; None if none was timed."""
    seconds = [epoch.training_seconds for epoch in run.epochs if isinstance(epoch.training_seconds, float)]
    return median(seconds) if seconds else None


def _why_time_is_not_judged(first: WholeRun, second: WholeRun, *, shortest: float) -> list[str]:
    reasons = {
        "another processor": first.environment.processor != second.environment.processor,
        "oneDNN computed one of them only, or may have": bool(onednn_differs(first.run.record, second.run.record)),
        "another site": first.run.record.site != second.run.record.site,
        "a profiled run": first.config.record.profile,
        "a metered run": first.config.energy.energy,
        "a planted straggler": first.config.balance.slow is not None,
        "ranks that shared a GPU": first.config.device.share_gpu,
        "other runs were made at once": first.world.at_once != second.world.at_once,
        "more threads than cores": first.world.oversubscribed or second.world.oversubscribed,
        f"epochs shorter than {SHORTEST_SECONDS:g} s vary too much": shortest < SHORTEST_SECONDS,
        "other programs used the machine": any(_other_programs(one.run) for one in (first, second)),
    }
    return [reason for reason, applies in reasons.items() if applies]


def _other_programs(run: RecordedRun) -> Sequence[str]:
    isolation = run.record.isolation
    return isolation.other_processes_before if isinstance(isolation, Interference) else []
