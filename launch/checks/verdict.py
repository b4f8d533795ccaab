"""Whether a run and its rerun are the same: bits where the stack is the same, else accuracy; and time. Pure functions.

The interval of accuracies is Newcombe's hybrid score interval for the difference of two proportions (method 10 of
"Interval estimation for the difference between independent proportions", Statistics in Medicine 17, 1998, 873-890).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median

from common.config import Config
from common.measurement.interference import Isolation
from common.run_folder.environment import Environment, stack_of
from common.run_folder.records import DataRecord, Hashes, NotRecorded, Run, Totals, World

CONFIDENCE = 0.95
SHORTEST_SECONDS = 1.0  # of an epoch whose time is judged


@dataclass(frozen=True)
class Verdict:
    """What was found, in plain words, and what it amounts to."""

    reproduces: bool
    lines: list[str]


@dataclass(frozen=True)
class _Record:
    """What is judged of a measured, finished run, all of it recorded."""

    run: Run
    config: Config
    environment: Environment
    world: World
    data: DataRecord
    hashes: Hashes
    totals: Totals


def judge(before: Run, after: Run, *, time_ratio: float) -> Verdict:
    """Return whether a rerun reproduces a run.

    Args:
        before: the run.
        after: its rerun.
        time_ratio: the epochs of one may take at most this many times as long as those of the other.
    """
    first, second = _record(before), _record(after)
    other = another_experiment(before, initial_weights=second.hashes.initial_weights,
                               sample_order=second.hashes.sample_order)  # fmt: skip
    if second.data.test_samples != first.data.test_samples:
        other.append(f"test samples: {first.data.test_samples} then, {second.data.test_samples} now")
    if other:
        return Verdict(False, [*other, "does not reproduce: it is another experiment"])
    lines = ["first weights and order of the samples: the same", _code(first, second)]
    differences = stack_differences(before, after)
    lines.append("stack: " + (f"differs in {'; '.join(differences)}" if differences else "the same"))
    bits = first.hashes.final_weights == second.hashes.final_weights
    weights_hold = accuracy_holds = bits
    if bits:
        lines.append("final weights: the same, bit for bit")
    else:
        excuse = _why_other_bits(first, second, differences)
        weights_hold = excuse is not None
        lines.append(f"final weights: others; {excuse or 'this stack and code are expected to give the same bits'}")
        accuracy_holds, line = _judge_accuracy(first, second)
        lines.append(line)
    time_holds, line = _judge_time(first, second, most=time_ratio)
    lines += [line, *_disturbances(before, after)]
    judged = (("final weights", weights_hold), ("accuracy", accuracy_holds), ("time", time_holds))
    wrong = [what for what, holds in judged if not holds]
    if wrong:
        last = f"does not reproduce: {' and '.join(wrong)}"
    else:
        last = "reproduces bit for bit" if bits else "reproduces in its accuracy, not in its bits"
    return Verdict(not wrong, [*lines, last])


def another_experiment(
    before: Run, *, initial_weights: str | NotRecorded, sample_order: str | NotRecorded
) -> list[str]:
    """Return what makes a rerun another experiment than the run, from the hashes that it begins with; nothing if none.

    It can be asked before any rank is started.
    """
    hashes = before.record.hashes
    assert isinstance(hashes, Hashes)
    now = {"first weights": initial_weights, "order of the samples": sample_order}
    then = {"first weights": hashes.initial_weights, "order of the samples": hashes.sample_order}
    return [f"{what}: {then[what]} then, {now[what]} now" for what in now if then[what] != now[what]]


def stack_differences(before: Run, after: Run) -> list[str]:
    """Return what of that which decides on bits is not as it was: packages, processor, ranks, controller, threads."""
    first, second = _record(before), _record(after)
    mpi = "mpi" in (first.world.controller, second.world.controller)
    stacks = [stack_of(one.environment, framework=before.record.framework, mpi=mpi) for one in (first, second)]
    pairs: dict[str, list[object]] = {name: [stack[name] for stack in stacks] for name in stacks[0]}
    pairs |= {name: [getattr(one.environment, name) for one in (first, second)]
              for name in ("architecture", "processor")}  # fmt: skip
    worlds = [first.world, second.world]
    pairs["ranks"] = [world.size for world in worlds]
    pairs["ranks of a host"] = [world.local_size for world in worlds]
    pairs["controller"] = [world.controller for world in worlds]
    pairs["threads a rank"] = [world.threads_per_rank for world in worlds]
    pairs["device"] = ["CPU" if on_cpu(world) else "GPU" for world in worlds]
    return [
        f"{name} ({_or_none(then)} then, {_or_none(now)} now)" for name, (then, now) in pairs.items() if then != now
    ]


def on_cpu(world: World) -> bool:
    """Return whether CPUs computed."""
    return all(device == "cpu" for device in world.devices)


def accuracy_interval(first: float, second: float, *, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of second - first, two accuracies on `samples` images each.

    With Wilson's interval (l, u) of each proportion p, the two are taken as independent:
    d - sqrt((p2 - l2)^2 + (u1 - p1)^2)  to  d + sqrt((u2 - p2)^2 + (p1 - l1)^2),  d = p2 - p1. Source: see above.
    """
    (low1, high1), (low2, high2) = (_wilson(share, samples) for share in (first, second))
    difference = second - first
    return (
        difference - math.hypot(second - low2, high1 - first),
        difference + math.hypot(high2 - second, first - low1),
    )


def _wilson(share: float, samples: int) -> tuple[float, float]:
    """Return Wilson's score interval: (p + z²/2n ± z sqrt(p (1 - p) / n + z²/4n²)) / (1 + z²/n)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle = share + z**2 / (2 * samples)
    half = z * math.sqrt(share * (1 - share) / samples + z**2 / (4 * samples**2))
    return (middle - half) / (1 + z**2 / samples), (middle + half) / (1 + z**2 / samples)


def _record(run: Run) -> _Record:
    record = run.record
    assert isinstance(record.config, Config) and isinstance(record.environment, Environment)
    assert isinstance(record.world, World) and isinstance(record.data, DataRecord)
    assert isinstance(record.hashes, Hashes) and isinstance(record.totals, Totals)
    return _Record(run, record.config, record.environment, record.world, record.data, record.hashes, record.totals)


def _or_none(value: object) -> object:
    return "none" if value is None else value


def _code(first: _Record, second: _Record) -> str:
    then, now = first.environment.source_revision, second.environment.source_revision
    if "unknown" in (then, now):
        return f"code: not known whether it is the same ({_short(then)} then, {_short(now)} now)"
    if then != now:
        return f"code: differs, {_short(then)} then, {_short(now)} now"
    if "+" in then:
        return f"code: commit {_short(then)} both times, with changes that may differ"
    return f"code: the same, commit {_short(then)}"


def _short(revision: str) -> str:
    commit, plus, changes = revision.partition("+")
    return f"{commit[:10]}{plus}{changes}"


def _why_other_bits(first: _Record, second: _Record, differences: Sequence[str]) -> str | None:
    """Return why the weights may end in other bits; None: they may not."""
    if differences:
        return "on another stack that is to be expected"
    if not on_cpu(first.world):
        return "GPUs may add in another order each time, so no bits are promised"
    if first.world.controller == "gloo" and first.config.device.gradient_groups == "each":
        return "Gloo adds tensors that are sent one by one in another order each time, so no bits are promised"
    revisions = {one.environment.source_revision for one in (first, second)}
    if len(revisions) > 1 or "unknown" in revisions or any("+" in revision for revision in revisions):
        return "the code is not shown to be the same, so no bits are promised"
    return None


def _judge_accuracy(first: _Record, second: _Record) -> tuple[bool, str]:
    accuracies, samples = (first.totals.test_accuracy, second.totals.test_accuracy), first.data.test_samples
    if not all(isinstance(accuracy, float) for accuracy in accuracies) or not samples:
        return False, "accuracy: not recorded for both, so that there is nothing to judge by"
    then, now = (float(accuracy) for accuracy in accuracies)  # type: ignore[arg-type]
    low, high = accuracy_interval(then, now, samples=samples)
    holds = low <= 0 <= high
    return holds, (
        f"accuracy: {100 * then:.2f} % then, {100 * now:.2f} % now on {samples:,} test images; difference "
        f"{100 * (now - then):+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f} (Newcombe's hybrid "
        f"score): 0 is {'inside' if holds else 'outside'}. It holds the chance of which images were "
        "drawn, as if each run had drawn its own, not that of the seed"
    )


def _judge_time(first: _Record, second: _Record, *, most: float) -> tuple[bool, str]:
    """Return whether the time is as it was, or is not judged, and the line that tells it."""
    medians = [_median_seconds(one.run) for one in (first, second)]
    if not all(medians):
        return True, "time: no epoch was timed in both, not judged"
    then, now = (value or 0.0 for value in medians)
    ratio = now / then
    told = f"time: {then:.4g} s an epoch then, {now:.4g} s now (median), ratio {ratio:.2f}"
    reasons = _why_time_is_not_judged(first, second)
    if reasons:
        return True, f"{told}; not judged: {'; '.join(reasons)}"
    holds = 1 / most <= ratio <= most
    return holds, f"{told}; {'within' if holds else 'outside'} {1 / most:.2f} to {most:.2f} (--time-ratio {most:g})"


def _median_seconds(run: Run) -> float | None:
    seconds = [epoch.training_seconds for epoch in run.epochs if isinstance(epoch.training_seconds, float)]
    return median(seconds) if seconds else None


def _why_time_is_not_judged(first: _Record, second: _Record) -> list[str]:
    reasons = []
    if first.environment.processor != second.environment.processor:
        reasons.append("another processor")
    if first.run.record.site != second.run.record.site:
        reasons.append("another site")
    if first.config.record.profile:
        reasons.append("a profiled run")
    if first.config.energy.energy:
        reasons.append("a metered run")
    if first.world.oversubscribed or second.world.oversubscribed:
        reasons.append("more threads than cores")
    if min(_median_seconds(one.run) or 0.0 for one in (first, second)) < SHORTEST_SECONDS:
        reasons.append(f"epochs shorter than {SHORTEST_SECONDS:g} s, which any moment of the machine doubles")
    if any(_other_programs(one.run) for one in (first, second)):
        reasons.append("other programs on the machine")
    return reasons


def _disturbances(before: Run, after: Run) -> list[str]:
    """Return a line for each of the two that did not have its machine for itself."""
    lines = []
    for when, run in (("then", before), ("now", after)):
        if others := _other_programs(run):
            lines.append(f"note: other programs worked on the machine {when}: {'; '.join(others)}")
    return lines


def _other_programs(run: Run) -> list[str]:
    isolation = run.record.isolation
    return isolation.other_processes_before if isinstance(isolation, Isolation) else []
