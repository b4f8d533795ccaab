"""`python -m analysis bench`: ratios of pairs worked out by hand, the table, and files that cannot be read."""

import json
import tomllib
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from analysis_builders import rows_of
from builders import make_environment

from analysis.__main__ import main
from analysis.questions.bench import find
from analysis.questions.bench_goals import Goal
from common.checks.bench_record import APART, COMMAND, BenchRecord, MeasuredStart, Turn

TABLE = tomllib.loads(Path(__file__).with_name("bench.toml").read_text())


def turn(contestant, number, *, images=100, seconds=1.0):
    return Turn(model="cnn", contestant=contestant, round=number, ranks=2 if contestant == "np2" else 1, steps=1,
                images=images, seconds=seconds, cpu_seconds=seconds, rank_seconds=[seconds])  # fmt: skip


def start_of(ratios, *, name="exchange"):
    turns = [one for number, ratio in enumerate(ratios)
             for one in (turn("np1", number), turn("np2", number, images=round(100 * ratio)))]  # fmt: skip
    return MeasuredStart(framework="torch", start=name, title=f"np 2 / np 1, {name}",
                         load_average_before=(0.1, 0.1, 0.1), environment={}, turns=turns)  # fmt: skip


def record_of(*starts, load=0.1, cores=2):
    return BenchRecord(
        schema_version=1, started="2026-01-01T00:00:00+00:00", settings={"rounds": 5, "seconds": 1.0},
        environment=make_environment(cores=cores), threads_per_rank=1, load_average_before=(load, load, load),
        starts=list(starts),
    )  # fmt: skip


def test_ratios_are_those_of_pairs_not_of_averages():
    """The machine slows down threefold between rounds: averages over all turns would show it, pairs do not."""
    values = [
        ("np1", 0, 300, 1.0),
        ("np2", 0, 600, 1.0),
        ("np1", 1, 300, 3.0),
        ("np2", 1, 600, 4.0),
        ("np1", 2, 300, 1.0),
        ("np2", 2, 900, 2.0),
        ("np1", 3, 300, 1.0),  # its pair was never measured
    ]
    turns = [turn(name, number, images=images, seconds=seconds) for name, number, images, seconds in values]
    (plot,) = find(record_of(replace(start_of([1.0]), turns=turns))).plots
    assert [row["ratio"] for row in rows_of(plot.data)] == pytest.approx([2.0, 1.5, 1.5])


def test_onednn_is_noted_and_where_it_was_in_force_in_part_flagged():
    record = record_of(start_of([1.0]))
    assert ", oneDNN as installed (in force: not recorded); " in find(record).notes[0]
    starts = [replace(start_of([1.0]), environment={"onednn": states}) for states in (["on", "on"], ["off", "off"])]
    asked = replace(record, settings=record.settings | {"onednn": "on"}, starts=starts[:1])
    assert ", oneDNN on; " in find(asked).notes[0] and not find(asked).flags
    assert find(replace(asked, starts=starts)).flags[0].startswith("oneDNN computed on some ranks only, or in one")


@pytest.mark.parametrize("row", TABLE["answer"], ids=lambda row: row["is"])
def test_the_answer_says_what_is_kept_of_the_speed(row):
    """Goals are for two cores."""
    starts = [replace(start_of(ratios, name=name), framework=framework) for name, framework, ratios in row["starts"]]
    two, four = (find(record_of(*starts, cores=cores)) for cores in (2, 4))
    assert four.answer == row["is"] and "Goals" not in [table.title for table in four.tables]
    goals = [row["outcome"] for table in two.tables if table.title == "Goals" for row in rows_of(table)]
    counted = f"Goals: 0 met, 0 missed, {len(goals)} not shown. " if goals else ""
    assert two.answer == counted + row["is"] and set(goals) <= {"not shown"}


def test_the_table_has_base_range_interval_and_count(tmp_path, capsys):
    """The 95 % interval of the median of six values is their range; of five there is none.

    The file is of an earlier version: it holds ratios, too, and an interrupted benchmark has no end.
    """
    file = tmp_path / "bench.json"
    gloo = start_of([1.5, 1.4, 1.6] * 2, name="exchange_gloo")
    content = asdict(record_of(start_of([1.75, 1.8, 1.85, 1.8, 1.8]), gloo))
    content["starts"][0]["ratios"] = {"cnn": {"median": 1.8, "least": 1.8, "most": 1.8, "n": 1}}
    del content["finished"]
    file.write_text(json.dumps(content))
    assert main(["bench", str(file), "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    mpi, gloo = ([word.strip() for word in line.split("  ") if word]
                 for line in printed.splitlines() if line.startswith("cnn  "))  # fmt: skip
    assert mpi == ["cnn", "torch", "np 2 / np 1, exchange", "100 images/s", "180 images/s", "1.80", "1.75 to 1.85", "5"]
    assert gloo[5:] == ["1.50", "1.40 to 1.60", "1.40 to 1.60", "6"]
    assert "note: example, 2 cores, 1 thread per rank, oneDNN as installed" in printed
    assert "flag:" not in printed and (tmp_path / "plots" / "bench.svg").exists()


@pytest.mark.parametrize("at_least", [True, False])
@pytest.mark.parametrize("row", TABLE["outcome"], ids=lambda row: str(row["values"]))
def test_a_goal_is_met_where_its_whole_interval_keeps_to_the_limit(row, at_least):
    values = row["values"] if at_least else [2.0 - value for value in row["values"]]  # about the limit
    assert (
        Goal(what="", model="cnn", framework="torch", values=values, limit=1.0, at_least=at_least).outcome == row["is"]
    )


def commands(name, *pairs):
    """Return a start of commands that take these seconds, or megabytes, as the base and as what is measured."""
    unit = 10**6 if name == "memory" else 0
    turns = [
        replace(turn(contestant, number, images=1, seconds=value), model=COMMAND, memory_bytes=round(value * unit))
        for number, pair in enumerate(pairs)
        for contestant, value in zip(("base", name), pair, strict=False)
    ]
    return replace(start_of([1.0]), start=name, title=name, turns=turns)


def exchanging(name, model, *, ratio, milliseconds):
    """Return a start of six turns, slower and slower, each with three exchanges around its median."""
    turns = []
    for number in range(6):
        of_turn = [milliseconds * (1 + number / 10) * factor / 1e3 for factor in (0.5, 1.0, 9.0)]
        turns += [turn(APART, number), replace(turn("np2", number, seconds=1 / ratio), exchanges=of_turn)]
    return replace(start_of([1.0]), start=name, turns=[replace(one, model=model) for one in turns])


def test_goals_are_worked_out_by_turn_and_pair():
    def slower(base, measured):
        """Six pairs, slower and slower, and a seventh that has not ended."""
        return [*((base + number, measured + number) for number in range(6)), (base,)]

    found = find(
        record_of(
            exchanging("exchange", "cnn", ratio=0.95, milliseconds=0.2),
            exchanging("exchange", "resnet34", ratio=0.95, milliseconds=24.0),
            exchanging("floor", "resnet34", ratio=1.0, milliseconds=20.0),
            exchanging("exchange", "dense500", ratio=1.0, milliseconds=1.0),  # no goal is set for it
            commands("horovodrun", *slower(0.1, 0.05)),
            commands("first_update", *slower(3.0, 4.5)),
            commands("report", *slower(9.0, 2.0)),
            commands("memory", *((190, 300 + number) for number in range(6))),
            start_of([2.5] * 6, name="pydtnn"),
        )
    )
    rows = [[*row.values()] for row in rows_of(found, "Goals")]
    shown = [[goal, model, limit, round(median, 6), n, outcome]
             for goal, model, _, limit, median, _, n, outcome in rows]  # fmt: skip
    expected = [[COMMAND if word == "COMMAND" else word for word in row] for row in TABLE["goals"]["rows"]]
    assert sorted(shown) == sorted(expected)


def test_commands_are_shown_in_seconds_or_megabytes_and_a_slower_one_is_above_1():
    of_time, of_memory = commands("horovodrun", (0.1, 0.5), (0.3, 0.6)), commands("memory", (100, 500), (300, 600))
    found = find(record_of(of_time, of_memory, start_of([1.5])))
    assert {row["model"] for row in rows_of(found.plots[0].data)} == {"cnn"}, "only speeds are drawn"
    rows = [row for row in rows_of(found, "Speed in pairs") if row["model"] == COMMAND]
    assert [(row["base"], row["measured"], row["median ratio"], row["range"]) for row in rows] == [
        ("0.20 s", "0.55 s", pytest.approx(3.5), "2.00 to 5.00"),
        ("200 MB", "550 MB", pytest.approx(3.5), "2.00 to 5.00"),
    ]


def test_exchanges_are_compared_with_a_bare_one():
    def start(name, *seconds, framework="torch"):
        turns = [turn("np1", 0), replace(turn("np2", 0), exchanges=list(seconds), sent_bytes=len(seconds) * 87_000)]
        return replace(start_of([1.0]), start=name, framework=framework, turns=turns)

    ours, bare = start("exchange", *[0.004] * 99, 0.009), start("floor", *[0.002] * 99)
    of_keras = [start("exchange", 0.003, framework="keras"), start("floor", 0.001, framework="keras")]
    rows = [list(row.values()) for row in rows_of(find(record_of(ours, bare, *of_keras)), "Exchanges of gradients")]
    assert [row[6] for row in rows if row[1] == "keras"] == pytest.approx([1.0, 3.0])  # over the floor of their own
    assert [row[2:] for row in rows if row[1] == "torch"] == [
        ["bare MPI_Allreduce", 87.0, 2.0, None, 1.0, 99],  # too few for 99 %
        ["Horovod, MPI", 87.0, 4.0, pytest.approx(4.05), 2.0, 100],
    ]


def test_a_step_is_divided_into_its_parts():
    """Two steps of 10 ms without exchange; with it they take 15 ms, of which 1 ms waiting and 3 ms exchanging."""
    alone = replace(turn(APART, 0, seconds=0.022), ranks=2, steps=2, rank_seconds=[0.018, 0.022])
    joined = replace(
        turn("np2", 0, seconds=0.03), steps=2, rank_seconds=[0.03, 0.03], exchanges=[0.002, 0.004], wait_seconds=0.001
    )
    start = replace(start_of([1.0]), turns=[alone, joined])
    loop = replace(start, start="bare", turns=[turn("bare", 0), turn("np1", 0)])
    (row,) = rows_of(find(record_of(start, loop)), "Parts of a step")
    assert [*row.values()][:3] == ["cnn", "torch", "Horovod, MPI"]
    assert [*row.values()][3:] == pytest.approx([10.0, 1.0, 3.0, 1.0, 15.0, 1])


def test_a_busy_machine_and_starts_of_another_version_are_named():
    (flag,) = find(record_of(start_of([1.8]), load=50.0)).flags
    assert flag.startswith("other programs may have used the machine: its load average was 50.00")
    start = start_of([1.0, 1.0])
    other, same = (
        replace(start, start=name, environment={"source_revision": revision})
        for name, revision in (("report", "another"), ("floor", make_environment().source_revision))
    )
    assert find(record_of(start, same, other, other)).notes[0].endswith("; of another version of the program: report")
    assert "version" not in find(record_of(start, same)).notes[0]
