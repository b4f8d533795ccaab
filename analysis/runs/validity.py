"""Validity checks of runs and comparisons: what `check` reports, and what every command flags."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from analysis.runs.cells import Cell, differing
from analysis.runs.labels import framework_label, onednn_in_force
from analysis.runs.sameness import HASHES, onednn_differs
from analysis.runs.table import RunRow, images_trained
from common.distributed.console import counted
from common.measurement.energy import EnergyRecord
from common.measurement.interference import Interference
from common.run_folder.records import DataRecord, Hashes, NotRecorded, RunRecord, Totals, World
from common.run_folder.world_changes import ElasticRecord
from common.task.schedule import scale_factor

_SAME_WORK = 0.01  # share by which the images of two runs may differ: a last batch is dropped
MOST_NAMED = 3
_CHANCE = 1.5  # times 1 / classes: up to there an accuracy is no better than guessing


def run_flags(run: RunRow) -> list[str]:
    """Return what is wrong with one run."""
    if run.origin == "published":
        return ["published, a mean or a claim without interval: nobody can check it"]
    state = [] if run.state == "finished" else [f"is {run.state}, not finished: its figures are left out"]
    return [*state, *_epochs(run), *_numbers(run), *_machine(run)]


def _epochs(run: RunRow) -> list[str]:
    flags, config, totals = [], run.config, run.record.totals
    recorded = run.recorded_epochs
    if isinstance(totals, Totals) and recorded and totals.epochs != recorded:
        flags.append(f"epochs are missing: {totals.epochs} were trained, {recorded} are recorded")
    if config is None:
        return flags
    training, schedule = config.training, config.schedule
    ends_early = (training.early_stop, training.target_accuracy, training.max_steps) != (None, None, None)
    if run.state == "finished" and recorded < training.epochs and not ends_early:
        flags.append(f"epochs are missing: {training.epochs} were asked for, {recorded} are recorded")
    scaled = scale_factor(schedule.lr_scaling, size=(run.np or 1) * config.device.backward_passes_per_step) != 1
    if scaled and recorded and schedule.warmup_epochs >= recorded:
        flags.append(
            f"the warm-up is as long as the run: {schedule.warmup_epochs:g} of {recorded} epochs; the full learning "
            "rate was never used"
        )
    return flags


def _numbers(run: RunRow) -> list[str]:
    flags: list[str] = []
    if run.state != "finished" or not isinstance(run.record.totals, Totals):
        return flags
    if run.origin == "measured" and run.recorded_epochs and math.isnan(run.last_training_loss):
        flags.append("its loss is NaN at the end: the training diverged")
    if run.training_seconds == 0:
        flags.append("its training took no time: the record is wrong, and its times are left out")
    return flags


def _machine(run: RunRow) -> list[str]:
    flags, world, isolation = [], run.record.world, run.record.isolation
    if isinstance(world, World) and world.oversubscribed:
        threads = "unknown" if isinstance(world.threads_per_rank, NotRecorded) else world.threads_per_rank
        flags.append(
            f"cores are oversubscribed: {world.size} ranks x {threads} threads on {world.cores} cores; its times are "
            "left out"
        )
    flags += _onednn(run)
    if run.config and run.config.device.share_gpu:
        flags.append("its ranks shared GPUs (--share-gpu): its times are left out")
    if run.config and run.config.balance.slows_beside_the_subject:
        flags.append(f"a straggler was planted (--slow {run.config.balance.slow}): its times are left out")
    if isinstance(run.record.elastic, ElasticRecord) and run.record.elastic.changes:
        changes = counted(len(run.record.elastic.changes), "change")
        flags.append(f"its ranks came or went ({changes}): its times hold what that cost")
    if isinstance(world, World) and world.at_once > 1 and isinstance(run.record.energy, EnergyRecord):
        flags.append(f"its energy was measured beside other runs ({world.at_once} at once): it holds theirs, too")
    if isinstance(isolation, Interference):
        flags += [f"another process ran on the machine: {other}" for other in isolation.other_processes_before]
        if isolation.throttled_cores:
            flags.append(f"cores were throttled {isolation.throttled_cores} times")
    return flags


def _onednn(run: RunRow) -> list[str]:
    in_force = onednn_in_force(run.record)
    if in_force == "on and off":
        return ["oneDNN computed on some ranks only: the others are slower, and all wait for them"]
    if run.config and run.config.model.onednn == "on" and in_force == "off":
        return ["its framework was built without oneDNN (--onednn on)"]
    return []


def cell_flags(cell: Cell) -> list[str]:
    """Return what is wrong with the runs of a cell as a group."""
    flags = []
    times = Counter(run.seed for run in cell.timed if run.seed is not None)
    repeated = sorted(seed for seed, count in times.items() if count > 1)
    if repeated:
        flags.append(
            f"seeds are repeated ({listed(repeated)}): these runs show the noise of the machine only, their "
            "accuracies are one result"
        )
    if 0 < len(cell.timed) < len(cell.finished):
        flags.append(
            "runs without a time that counts (profiled, metered or lost) are among timed ones; they count for accuracy "
            "and energy, not for time"
        )
    flags += [
        f"{name} is not the same in these runs: {listed(sorted(values))}"
        for name, values in cell.stack.items()
        if len(values) > 1
    ]
    if len(cell.timed) == 1 and not cell.is_published:
        flags.append("one timed run alone shows nothing; repeat it")
    return flags


def _images(cell: Cell) -> float:
    """Return the images that a run of a cell was trained on, in the median; NaN where it is not known."""
    return float(np.median([images_trained(run) for run in cell.timed])) if cell.timed else math.nan


def objections(first: Cell, second: Cell) -> list[str]:
    """Return, in words, in what two cells are not the same experiment, weights and samples aside."""
    if first.is_published or second.is_published:
        return ["published figures, whose runs nobody can check"]
    stacks = first.stack, second.stack
    words = differing(first, second) + [
        f"{name}: {listed(sorted(stacks[0][name]))} and {listed(sorted(stacks[1][name]))}"
        for name in stacks[0]
        if name in stacks[1] and stacks[0][name] != stacks[1][name]
    ]
    images = _images(first), _images(second)
    if abs(images[0] - images[1]) > _SAME_WORK * images[1]:
        words.append(f"trained {images[0]:,.0f} and {images[1]:,.0f} images: times not of the same work")
    return words


def pair_flags(first: Cell, second: Cell) -> list[str]:
    """Return why two cells are not the same experiment, and why their times do not compare if they are."""
    label = f"{first.name} against {second.name}"
    return [*unlike_flags(first, second), *(f"{label}: {words}" for words in onednn_flags(first.first, second.first))]


def onednn_flags(first: RunRow, second: RunRow) -> list[str]:
    """Return why the times of two runs do not compare: oneDNN.

    Of tuned runs each has what is best for it; of both frameworks, asked alike, `flags_of` says it.
    """
    configs = [run.config for run in (first, second) if run.config]
    if len(configs) < 2 or all(config.model.tuned for config in configs):
        return []
    alike = configs[0].model.onednn == configs[1].model.onednn
    return [] if alike and first.framework != second.framework else onednn_differs(first.record, second.record)


def unlike_flags(first: Cell, second: Cell) -> list[str]:
    """Return why two cells are not the same experiment: settings, amount of work, first weights, order of samples."""
    label = f"{first.name} against {second.name}"
    flags = [f"{label}: {words}" for words in objections(first, second)]
    if first.is_published or second.is_published:
        return flags
    by_seed = [{run.seed: run for run in cell.finished if run.seed is not None} for cell in (first, second)]
    for name, title in HASHES.items():
        unlike = [
            seed for seed in by_seed[0].keys() & by_seed[1].keys() if _unlike(by_seed[0][seed], by_seed[1][seed], name)
        ]
        if unlike:
            flags.append(f"{label}: the {title} differ for seed {listed(sorted(unlike))}: not the same experiment")
    if not by_seed[0].keys() & by_seed[1].keys():
        flags.append(f"{label}: no seed in common: same first weights and sample order are not shown")
    return flags


def _unlike(first: RunRow, second: RunRow, name: str) -> bool:
    hashes = [run.record.hashes for run in (first, second)]
    if not all(isinstance(one, Hashes) for one in hashes):
        return False
    values = [getattr(one, name) for one in hashes]
    return all(isinstance(value, str) for value in values) and values[0] != values[1]


def flags_of(runs: Iterable[RunRow], cells: Sequence[Cell]) -> list[str]:
    """Return the flags of these rows of the table of runs and of cells; one that many share once, with their names.

    Also that oneDNN computed in one framework only: every command that shows both says so.
    """
    runs = list(runs)
    of_flag: dict[str, list[Hashable]] = defaultdict(list)
    for run in runs:
        for flag in run_flags(run):
            of_flag[flag].append(run.name)
    for cell in cells:
        for flag in cell_flags(cell):
            of_flag[flag].append(cell.name)
    for flag, name in _onednn_of_frameworks(runs):
        of_flag[flag].append(name)
    return [f"{listed(names, apart='; ')}: {flag}" for flag, names in of_flag.items()]


def _onednn_of_frameworks(runs: Sequence[RunRow]) -> Iterator[tuple[str, str]]:
    """Yield why times of both frameworks do not compare whose runs were asked alike, and of which runs."""
    records: dict[tuple[Any, ...], dict[str, RunRecord]] = defaultdict(dict)
    for run in runs:
        if run.config and not run.config.model.tuned:
            place = run.model, run.data_set, run.np, run.site, run.device, run.config.model.onednn
            records[place].setdefault(run.framework, run.record)
    for (model, data_set, ranks, *_), of_place in records.items():
        for first, second in itertools.combinations(sorted(of_place, reverse=True), 2):
            for flag in onednn_differs(of_place[first], of_place[second]):
                yield (
                    f"{framework_label(first)} and {framework_label(second)}, {flag}",
                    f"{model}, {data_set}, np {ranks}",
                )


def chance_of(cell: Cell) -> float | None:
    """Return the accuracy of guessing among the classes of a cell's data; None: not known."""
    data = cell.first.record.data
    return 1 / len(data.class_names) if isinstance(data, DataRecord) and data.class_names else None


def is_guess(accuracy: float, *, chance: float) -> bool:
    """Return whether an accuracy is no better than guessing."""
    return accuracy <= _CHANCE * chance


def many_comparisons(count: int) -> list[str]:
    """Return the note on so many comparisons, each tested alone; a single one needs none."""
    if count < 2:
        return []
    return [
        f"{count} comparisons, each at 95 %: of those in which nothing differs, up to one in 20 finds a difference by "
        "chance"
    ]


def cell_runs(cells: Sequence[Cell]) -> list[RunRow]:
    """Return the runs of these cells."""
    return [run for cell in cells for run in cell.runs]


def said_once(flags: Iterable[str]) -> list[str]:
    """Return the flags, "whose: what", with each `what` once and the first few of those that it is about."""
    about: dict[str, dict[str, None]] = defaultdict(dict)
    for flag in flags:
        whose, colon, what = flag.partition(": ")
        about[what if colon else flag][whose if colon else ""] = None
    return [f"{listed(list(names), apart='; ')}: {what}".removeprefix(": ") for what, names in about.items()]


def listed(items: Sequence[Hashable], *, apart: str = ", ") -> str:
    """Return the first MOST_NAMED items, and how many more there are."""
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return apart.join(str(item) for item in items[:MOST_NAMED]) + more
