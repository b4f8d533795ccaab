"""Chapters that only the report has: machines, settings, parity, commands, what was not measured."""

import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from analysis.output.finding import Finding
from analysis.output.tables import Table
from analysis.questions.frameworks import pairs_of, tuned_notes
from analysis.runs.cells import Cell, cells_of
from analysis.runs.labels import framework_label
from analysis.runs.sameness import HASHES, unlike_by_nature
from analysis.runs.table import FIGURES, RunRow, Selection
from analysis.runs.validity import objections
from common.distributed.console import counted
from common.measurement.energy import EnergyRecord
from common.run_folder.environment import Environment
from common.run_folder.records import Hashes, NotRecorded, Status, World

_SHOWN_DIGITS = 10  # of a hash
# Options of a trainer that identify a run; the seed has its own column.
_NAMING = ("--seed", "--name", "--runs-folder")
_MOST_SEEDS = 12  # listed one by one


def machines(selection: Selection) -> Finding:
    """Return the machines of the runs and the versions of their packages."""
    runs = selection.rows
    known = [(run, run.record.environment) for run in runs if isinstance(run.record.environment, Environment)]
    groups: dict[tuple[Any, ...], list[RunRow]] = defaultdict(list)
    versions: dict[tuple[str, str], int] = Counter()
    for run, environment in known:
        world = run.record.world
        hosts = len(set(world.hosts)) if isinstance(world, World) else None
        groups[
            run.site, environment.host, hosts, environment.processor, environment.architecture, environment.cores,
            environment.memory_bytes / 1e9, run.device, environment.operating_system,
        ].append(run)  # fmt: skip
        versions["Python", environment.python] += 1
        versions["horovod-twins, revision", environment.source_revision] += 1
        for package, version in environment.packages.items():
            versions[package, version] += 1
    headings = ["site", "host", "hosts", "processor", "architecture", "cores", "memory, GB", "device",
                "operating system", "runs", "first", "last"]  # fmt: skip
    rows = []
    for key, of_machine in groups.items():
        days = sorted(_day(run) for run in of_machine)
        rows.append([*key, len(of_machine), days[0], days[-1]])
    return Finding(
        name="machines",
        question="On which machines?",
        answer=_machines_answer(groups, unknown=len(runs) - len(known), total=len(runs)),
        tables=[
            Table("Machines (of rank 0)", headings, rows, {"memory, GB": ".1f"}),
            Table(
                "Versions", ["package", "version", "runs"],
                [[package, version, count] for (package, version), count in sorted(versions.items())], {},
            ),
        ],
        notes=_reasons(runs, lambda run: run.record.environment, "machine and versions"),
    )  # fmt: skip


def _machines_answer(groups: dict[Any, list[RunRow]], *, unknown: int, total: int) -> str:
    if not groups:
        return "Not recorded in these runs."
    kinds = list(dict.fromkeys((key[3], key[0]) for key in groups))
    words = "; ".join(f"{processor}, site {site}" for processor, site in kinds[:2])
    count = "One kind" if len(kinds) == 1 else f"{len(kinds)} kinds"
    among = ", among them" if len(kinds) > 2 else ""
    missing = f" The machine of {unknown} of {total} runs is not recorded." if unknown else ""
    return f"{count} of machine{among}: {words}.{missing}"


def _day(run: RunRow) -> str:
    return run.record.status.started_at[:10] if isinstance(run.record.status, Status) else "unknown"


def settings(selection: Selection) -> Finding:
    """Return the settings that all runs share, and those in which they differ."""
    cells = cells_of(selection.runs)
    names = list(dict.fromkeys(name for cell in cells for name in cell.settings))
    values = {name: {cell.settings.get(name, _NOT_RECORDED) for cell in cells} for name in names}
    shared = [name for name in names if len(values[name]) == 1]
    varying = [name for name in names if len(values[name]) > 1]
    rows = [
        [
            *(_setting(cell.settings.get(name, _NOT_RECORDED)) for name in varying),
            len(cell.runs),
            _seeds(run.seed for run in cell.runs),
        ]
        for cell in cells
    ]
    origins = ", ".join(f"{count:,} {origin}" for origin, count in Counter(selection.runs["origin"]).items())
    return Finding(
        name="settings",
        question="What was run, and with which settings?",
        answer=f"{counted(len(selection.runs), 'run')} of {counted(len(cells), 'combination')} of settings. By origin: "
        f"{origins}.",
        tables=[
            Table("Where the runs differ", [*varying, "runs", "seeds"], rows, {}),
            Table(
                "What all runs share", ["setting", "value"],
                [[name, _setting(cells[0].settings.get(name))] for name in shared], {},
            ),
        ],
        notes=_reasons(selection.rows, lambda run: run.record.config, "settings"),
    )  # fmt: skip


_NOT_RECORDED = "not recorded"


def _setting(value: Any) -> str | int | float:
    """Return a setting as a table cell; numbers stay numbers, so that tables sort by them."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, int | float) else "none" if value is None else str(value)


def _seeds(of_runs: Iterable[int | None]) -> str:
    seeds = sorted({seed for seed in of_runs if seed is not None})
    if not seeds:
        return _NOT_RECORDED
    if len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    shown = ", ".join(str(seed) for seed in seeds[:_MOST_SEEDS])
    return shown + (f" and {len(seeds) - _MOST_SEEDS} more" if len(seeds) > _MOST_SEEDS else "")


def parity(selection: Selection) -> Finding:
    """Return whether both frameworks ran the same experiment: first weights and sample order, seed by seed."""
    pairs, _ = pairs_of(cells_of(selection.runs))
    headings = ["model, data set, np", "seeds in common", *(f"same {title}" for title in HASHES.values()),
                "what else differs", "verdict"]  # fmt: skip
    rows: list[list[Any]] = []
    by_seed: list[list[Any]] = []
    notes = tuned_notes(pairs)
    for pair in pairs:
        seeds = list(_hashes_by_seed(*pair))
        same = {name: sum(_same(hashes[name]) is True for _, hashes in seeds) for name in HASHES}
        other = objections(*pair)
        rows.append(
            [pair[0].label, len(seeds), *(f"{count} of {len(seeds)}" for count in same.values()),
             "; ".join(other) or "none", _verdict([hashes for _, hashes in seeds], other)]
        )  # fmt: skip
        for seed, hashes in seeds:
            shown = [_shown(side) for name in HASHES for side in hashes[name]]
            by_seed.append([pair[0].label, seed, *shown, _verdict([hashes], other)])
        notes += [f"{pair[0].label}: {reason}" for reason in unlike_by_nature(*(cell.first.record for cell in pair))]
    sides = [framework_label(name) for name in ("torch", "keras")]
    return Finding(
        name="parity",
        question="Did both frameworks run the same experiment?",
        answer=_parity_answer([row[-1] for row in rows]),
        tables=[
            Table("Same first weights, same sample order", headings, rows, {}),
            Table(
                "Seed by seed: hashes",
                ["model, data set, np", "seed", *(f"{title}, {side}" for title in HASHES.values() for side in sides),
                 "verdict"], by_seed, {},
            ),
        ],
        notes=notes,
    )  # fmt: skip


Hashed = dict[str, tuple[set[str], set[str]]]


def _hashes_by_seed(base: Cell, other: Cell) -> Iterator[tuple[int, Hashed]]:
    """Yield each seed of both cells with its hashes: name of a hash -> those of the runs on either side."""
    sides = []
    for cell in (base, other):
        of_seed: dict[int, list[RunRow]] = defaultdict(list)
        for run in cell.finished:
            if run.seed is not None:
                of_seed[run.seed].append(run)
        sides.append(of_seed)
    for seed in sorted(sides[0].keys() & sides[1].keys()):
        yield seed, {name: (_hashes(sides[0][seed], name), _hashes(sides[1][seed], name)) for name in HASHES}


def _hashes(runs: Iterable[RunRow], name: str) -> set[str]:
    values = (getattr(run.record.hashes, name) for run in runs if isinstance(run.record.hashes, Hashes))
    return {value for value in values if isinstance(value, str)}


def _same(sides: tuple[set[str], set[str]]) -> bool | None:
    """Return whether both sides have the same single hash; None if a side has none."""
    return None if not all(sides) else len(sides[0] | sides[1]) == 1


def _shown(hashes: set[str]) -> str:
    return ", ".join(one[:_SHOWN_DIGITS] for one in sorted(hashes)) or _NOT_RECORDED


def _verdict(seeds: Sequence[Hashed], other: Sequence[str]) -> str:
    answers = [_same(sides) for hashes in seeds for sides in hashes.values()]
    if other or False in answers:
        return "not the same"
    return "same" if answers and None not in answers else "not shown"


def _parity_answer(verdicts: Sequence[Any]) -> str:
    if not verdicts:
        return "No experiment was run in both frameworks."
    counts = Counter(verdicts)
    words = (
        f"In {counts['same']} of {counted(len(verdicts), 'comparison')} both frameworks started from the same weights "
        "and saw the same samples in the same order, under the same settings."
    )
    words += f" In {counts['not the same']} they did not." if counts["not the same"] else ""
    return words + (f" In {counts['not shown']} the records do not show it." if counts["not shown"] else "")


def commands(selection: Selection) -> Finding:
    """Return the commands of the runs, grouped by all but seed and name."""
    groups: dict[str, list[RunRow]] = defaultdict(list)
    for run in selection.rows:
        if isinstance(run.record.environment, Environment):
            groups[command_of(run)].append(run)
    rows: list[list[Any]] = [
        [framework_label(of_it[0].framework), command, _seeds(run.seed for run in of_it), len(of_it)]
        for command, of_it in groups.items()
    ]
    known = sum(len(of_it) for of_it in groups.values())
    return Finding(
        name="commands",
        question="How were these runs made?",
        answer=f"By {counted(len(groups), 'command')}, with the seeds beside each ({known:,} of "
        f"{counted(len(selection.runs), 'run')}); run them in the project's folder."
        if groups
        else "The records of these runs contain no commands.",
        tables=[Table("Commands", ["framework", "command", "seeds", "runs"], rows, {})],
        notes=_reasons(selection.rows, lambda run: run.record.environment, "command"),
    )


def command_of(run: RunRow) -> str:
    """Return the command that started a run and its ranks, with SEED for the seed and without the name.

    For several hosts it is the command of `horovodrun`. Horovod's tuning variables come first, by `env`.
    """
    variables = [f"{name}={value}" for name, value in run.record.tuning.items()]
    return shlex.join([*(["env", *variables] if variables else []), *_words_of(run)])


def _words_of(run: RunRow) -> list[str]:
    environment, world = run.record.environment, run.record.world
    assert isinstance(environment, Environment), "only such runs have a command"
    program, arguments = environment.command[:1], _without_names(environment.command[1:])
    if not isinstance(world, World):
        return [*program, *arguments]
    servers = (run.config.strategy.servers or 0) if run.config else 0
    ranks = str(world.size + servers)  # the world's size is that of the workers
    if len(hosts := Counter(world.hosts)) > 1:
        gloo = ["--gloo"] if world.controller == "gloo" else []
        slots = dict.fromkeys(hosts, world.local_size)
        slots[world.hosts[-1]] += servers  # the last ranks
        places = ",".join(f"{host}:{count}" for host, count in slots.items())
        start = ["horovodrun", "-np", ranks, "-H", places, *gloo, "python", f"{run.framework}_impl/train.py"]
        return [*start, *arguments]
    gloo = ["--controller", "gloo"] if world.controller == "gloo" else []
    start = ["python", "-m", "launch", "train", "--framework", run.framework, "--np", ranks, *gloo, "--"]
    return [*start, *arguments]


def _without_names(arguments: Sequence[str]) -> list[str]:
    kept, remaining = [], iter(arguments)
    for argument in remaining:
        name, equals, _ = argument.partition("=")
        if name not in _NAMING:
            kept.append(argument)
            continue
        if not equals:
            next(remaining, None)
        if name == "--seed":
            kept += ["--seed", "SEED"]
    return kept


def not_measured(selection: Selection) -> Finding:
    """Return what the records do not contain, and why."""
    known = selection.epochs.groupby("run")[FIGURES].count().reindex(selection.runs.index, fill_value=0).to_numpy()
    runs = zip(selection.rows, known, strict=True)
    of_runs = (dict.fromkeys(_missing(run, dict(zip(FIGURES, counts, strict=True)))) for run, counts in runs)
    counts: dict[tuple[str, str], int] = Counter(missing for of_run in of_runs for missing in of_run)
    total = len(selection.runs)
    rows: list[list[Any]] = [
        [what, why, count, total] for (what, why), count in sorted(counts.items(), key=lambda one: -one[1])
    ]
    return Finding(
        name="not-measured",
        question="What was not measured?",
        answer=f"{counted(len({what for what, _ in counts}), 'value')} of some or all of {counted(total, 'run')}."
        if rows
        else "Every value that a record can contain was measured in every run.",
        tables=[Table("Not measured", ["value", "why", "runs", "of"], rows, {})],
    )


def _missing(run: RunRow, known: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield what a run's record does not contain, and why; `known`: figure of an epoch -> epochs that have it."""
    record = run.record
    for part, value in vars(record).items():
        yield from _not_recorded(part, value)
    if record.energy is None:
        yield "energy", "not requested (--energy)"
    elif isinstance(record.energy, EnergyRecord):
        for device in record.energy.devices:
            if device.method == "absent":
                yield f"energy: {device.kind}", device.reason or "no reason recorded"
    if record.isolation is None:
        yield "isolation", "the run did not check its machine"
    elif getattr(record.isolation, "throttled_cores", 0) is None:
        yield "isolation: throttled cores", "not counted by the machine"
    if run.state != "finished":
        return
    for name in FIGURES:
        if not known[name]:
            yield f"each epoch's {_words(name)}", "missing or not a number in epochs.jsonl"
    if math.isnan(run.seconds_to_target):
        yield "totals: seconds to target", "no --target-accuracy, or not reached"


def _not_recorded(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield what a part of a record marks as not recorded, one level deep, which is the depth of records."""
    if isinstance(value, NotRecorded):
        yield _words(name), value.not_recorded
    elif is_dataclass(value):
        for inside, inner in vars(value).items():  # `fields` would take most of the time of this chapter
            if isinstance(inner, NotRecorded):
                yield f"{_words(name)}: {_words(inside)}", inner.not_recorded


def _words(name: str) -> str:
    return name.replace("_", " ")


def _reasons(runs: Iterable[RunRow], part_of: Callable[[RunRow], Any], what: str) -> list[str]:
    """Return a note per reason for a missing part of a record."""
    parts = (part_of(run) for run in runs)
    reasons = Counter(part.not_recorded for part in parts if isinstance(part, NotRecorded))
    return [f"{what} not recorded in {counted(count, 'run')}: {reason}" for reason, count in reasons.items()]
