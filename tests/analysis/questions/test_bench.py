"""`python -m analysis bench`: ratios of pairs worked out by hand, the table, and files that cannot be read."""

import json
from dataclasses import asdict, replace

import pytest
from builders import make_environment

from analysis.__main__ import main
from analysis.questions.bench import find, kept_speeds
from analysis.questions.bench_goals import Goal, goals_of
from analysis.questions.bench_ratios import speed_ratios
from common.checks.bench_record import APART, COMMAND, BenchRecord, MeasuredStart, Turn, pair_ratios
from common.checks.result_file import write_result


def turn(contestant, number, *, images=100, seconds=1.0):
    return Turn(model="cnn", contestant=contestant, round=number, ranks=2 if contestant == "np2" else 1, steps=1,
                images=images, seconds=seconds, cpu_seconds=seconds)  # fmt: skip


def start_of(ratios, *, name="exchange"):
    turns = [one for number, ratio in enumerate(ratios)
             for one in (turn("np1", number), turn("np2", number, images=round(100 * ratio)))]  # fmt: skip
    return MeasuredStart(framework="torch", start=name, title=f"np 2 / np 1, {name}",
                         load_average_before=(0.1, 0.1, 0.1), environment={}, turns=turns)  # fmt: skip


def record_of(*starts, load=0.1):
    return BenchRecord(
        schema_version=1, started="2026-01-01T00:00:00+00:00", settings={"rounds": 5, "seconds": 1.0},
        environment=make_environment(), threads_per_rank=1, load_average_before=(load, load, load), starts=list(starts),
    )  # fmt: skip


def test_ratios_are_those_of_pairs_not_of_averages():
    """The machine slows down threefold between rounds: averages over all turns would show it, pairs do not."""
    turns = [
        turn("np1", 0, images=300, seconds=1.0),
        turn("np2", 0, images=600, seconds=1.0),
        turn("np1", 1, images=300, seconds=3.0),
        turn("np2", 1, images=600, seconds=4.0),
        turn("np1", 2, images=300, seconds=1.0),
        turn("np2", 2, images=900, seconds=2.0),
        turn("np1", 3, images=300, seconds=1.0),  # its pair was never measured
    ]
    assert pair_ratios(turns) == pytest.approx([2.0, 1.5, 1.5])


def test_the_answer_says_what_is_kept_of_the_speed_over_each_controller():
    def lines(*starts):
        return kept_speeds(speed_ratios(record_of(*starts)))

    mpi, other = start_of([0.8, 0.9, 0.95]), replace(start_of([0.7, 0.7, 0.7]), framework="keras")
    assert lines(mpi, other, start_of([0.4, 0.5, 0.6], name="exchange_gloo")) == [
        "Over MPI two ranks keep 0.70 to 0.90 of the speed of two that exchange nothing.",
        "Over Gloo two ranks keep 0.50 of the speed of two that exchange nothing.",
    ]
    assert lines(mpi) == ["Over MPI two ranks keep 0.90 of the speed of two that exchange nothing."]
    assert lines(start_of([0.8], name="mpi")) == []


def test_the_table_has_base_range_interval_and_count(tmp_path, capsys):
    """The 95 % interval of the median of six values is their range; of five there is none."""
    file = tmp_path / "bench.json"
    write_result(
        file, record_of(start_of([1.75, 1.8, 1.85, 1.8, 1.8]), start_of([1.5, 1.4, 1.6] * 2, name="exchange_gloo"))
    )
    assert main(["bench", str(file), "--plots", str(tmp_path / "plots")]) == 0
    printed = capsys.readouterr().out
    mpi, gloo = ([word.strip() for word in line.split("  ") if word]
                 for line in printed.splitlines() if line.startswith("cnn  "))  # fmt: skip
    assert mpi == ["cnn", "torch", "np 2 / np 1, exchange", "100 images/s", "180 images/s", "1.80", "1.75 to 1.85", "5"]
    assert gloo[5:] == ["1.50", "1.40 to 1.60", "1.40 to 1.60", "6"]
    assert "note: example, 2 cores, 1 thread per rank; 5 pairs" in printed
    assert "flag:" not in printed and (tmp_path / "plots" / "bench.svg").exists()


def test_the_answer_begins_with_the_loop_that_does_the_same_work():
    bare, sums = start_of([0.93], name="bare"), start_of([0.99], name="sums")
    assert find(record_of(bare, sums)).answer == (
        "Goals: 0 met, 0 missed, 1 not shown. The trainer reaches 0.99 of the speed of a bare loop that sums losses. "
        "The trainer reaches 0.93 of the speed of a bare loop that sums nothing."
    )


@pytest.mark.parametrize("at_least", [True, False])
@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ([1.0, 1.1, 1.2] * 2, "met"),
        ([1.0] * 6, "met"),  # the limit itself
        ([0.9] * 6 + [1.0] * 7, "not shown"),  # the better edge of the interval is the limit
        ([0.9, 1.0, 1.1] * 2, "not shown"),
        ([0.7, 0.8, 0.9] * 2, "missed"),
        ([1.1] * 5, "not shown"),  # five values have no interval
    ],
)
def test_a_goal_is_met_where_its_whole_interval_keeps_to_the_limit(values, outcome, at_least):
    worse_is_more = [2.0 - value for value in values]  # about the limit
    goal = Goal(what="", model="cnn", framework="torch", values=values if at_least else worse_is_more, limit=1.0,
                at_least=at_least)  # fmt: skip
    assert goal.outcome == outcome


def test_goals_are_worked_out_by_turn_and_pair():
    def start(name, model, *, ratio, milliseconds):
        """Six turns, slower and slower, each with three exchanges around its median."""
        turns = []
        for number in range(6):
            of_turn = [milliseconds * (1 + number / 10) * factor / 1e3 for factor in (0.5, 1.0, 9.0)]
            turns += [turn(APART, number), replace(turn("np2", number, seconds=1 / ratio), exchanges=of_turn)]
        return replace(start_of([1.0]), start=name, turns=[replace(one, model=model) for one in turns])

    def command(name, base, measured):
        """Of the last pair, the second has not ended."""
        turns = [one for number in range(6) for one in (
            turn("base", number, images=1, seconds=base + number), turn(name, number, images=1,
                                                                        seconds=measured + number))]  # fmt: skip
        turns.append(turn("base", 6, images=1, seconds=base))
        return replace(start_of([1.0]), start=name, turns=[replace(one, model=COMMAND) for one in turns])

    def memory():
        turns = [replace(turn(name, number), memory_bytes=megabytes * 10**6, model=COMMAND) for number in range(6)
                 for name, megabytes in (("imports_memory", 190), ("training_memory", 300 + number))]  # fmt: skip
        return replace(start_of([1.0]), start="memory", turns=turns)

    record = record_of(
        start("exchange", "cnn", ratio=0.95, milliseconds=0.2),
        start("exchange", "resnet34", ratio=0.95, milliseconds=24.0), start("floor", "resnet34", ratio=1.0,
                                                                            milliseconds=20.0),
        start("exchange", "dense500", ratio=1.0, milliseconds=1.0),  # no goal is set for it
        command("horovodrun", 0.1, 0.05), command("first_update", 3.0, 4.5), command("report", 9.0, 2.0),
        memory(), start_of([2.5] * 6, name="pydtnn"),
    )  # fmt: skip
    found = {
        (goal.what, goal.model): ([round(value, 6) for value in goal.values], goal.limit, goal.at_least, goal.outcome)
        for goal in goals_of(speed_ratios(record))
    }
    slower = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert found == {
        ("two ranks / two that exchange nothing", "cnn"): ([0.95] * 6, 0.97, True, "missed"),
        ("two ranks / two that exchange nothing", "resnet34"): ([0.95] * 6, 0.93, True, "met"),
        ("exchange of 87 kB, ms", "cnn"): ([round(0.2 * by, 6) for by in slower], 0.1, False, "missed"),
        # Of the floor the median turn: 20 x 1.25 ms.
        ("exchange of 85 MB / bare MPI", "resnet34"): (
            [round(24 * by / 25, 6) for by in slower], 1.3, False, "not shown"),
        ("horovodrun with two Pythons that do nothing, s", COMMAND): (
            [0.05 + number for number in range(6)], 0.6, False, "not shown"),
        ("first update after a command that only imports, s", COMMAND): ([1.5] * 6, 1.0, False, "missed"),
        ("report on 10,000 runs, s", COMMAND): ([9.0 + number for number in range(6)] + [9.0], 15.0, False, "met"),
        ("memory of a second rank beyond imports, MB", COMMAND): (
            [110.0 + number for number in range(6)], 133, False, "met"),
        ("images/s / PyDTNN's, its recipe, 1 rank", "cnn"): ([2.5] * 6, 3.0, True, "missed"),
        ("the same, up to date, s", COMMAND): ([2.0 + number for number in range(6)], 3.0, False, "not shown"),
    }  # fmt: skip


def test_goals_are_for_two_cores():
    record = record_of(start_of([0.99], name="sums"))
    assert "Goals" in find(record).answer and find(record).tables[0].title == "Goals"
    four = find(replace(record, environment=replace(record.environment, cores=4)))
    assert "Goals" not in four.answer and "Goals" not in [table.title for table in four.tables]


def test_commands_are_shown_in_seconds_or_megabytes_and_a_slower_one_is_above_1(tmp_path, capsys):
    seconds = [("mpirun", 0, 0.1), ("horovodrun", 0, 0.5), ("mpirun", 1, 0.3), ("horovodrun", 1, 0.6)]
    turns = [
        replace(turn(name, number, images=1, seconds=taken), model=COMMAND, ranks=2) for name, number, taken in seconds
    ]
    start = replace(start_of([1.0]), start="horovodrun", title="horovodrun / mpirun", framework="none", turns=turns)
    memory = [replace(one, memory_bytes=round(one.seconds * 1e9)) for one in turns]
    of_memory = replace(start, framework="torch", start="memory", title="memory", turns=memory)
    write_result(tmp_path / "bench.json", record_of(start, of_memory, start_of([1.5])))
    assert main(["bench", str(tmp_path / "bench.json"), "--plots", str(tmp_path / "plots")]) == 0
    assert "horovodrun" not in (tmp_path / "plots" / "bench.csv").read_text()  # only speeds are drawn
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("command ")]
    assert [[word.strip() for word in row.split("  ") if word][3:7] for row in rows] == [
        ["0.20 s", "0.55 s", "3.50", "2.00 to 5.00"], ["200 MB", "550 MB", "3.50", "2.00 to 5.00"]
    ]  # fmt: skip


def test_exchanges_are_compared_with_a_bare_one(tmp_path, capsys):
    def start(name, *seconds):
        turns = [turn("np1", 0), replace(turn("np2", 0), exchanges=list(seconds), sent_bytes=len(seconds) * 87_000)]
        return replace(start_of([1.0]), start=name, turns=turns)

    starts = [start("exchange", *[0.004] * 99, 0.009), start("floor", *[0.002] * 99)]
    of_keras = [replace(one, framework="keras") for one in (start("exchange", 0.003), start("floor", 0.001))]
    write_result(tmp_path / "bench.json", record_of(*starts, *of_keras))
    assert main(["bench", str(tmp_path / "bench.json")]) == 0
    table = capsys.readouterr().out.split("Exchanges of gradients between the steps\n")[1].splitlines()
    lines = [[word.strip() for word in line.split("  ") if word] for line in table[2:6]]
    bare, ours = (line for line in lines if line[1] == "torch")
    assert [line[-2] for line in lines if line[1] == "keras"] == ["1.00", "3.00"]  # over the floor of their own
    assert bare == ["cnn", "torch", "bare MPI_Allreduce", "87", "2.000", "1.00", "99"]  # too few for 99 %
    assert ours == ["cnn", "torch", "Horovod, MPI", "87", "4.000", "4.050", "2.00", "100"]


def test_a_step_is_divided_into_its_parts(tmp_path, capsys):
    """Two steps of 10 ms without exchange; with it they take 15 ms, of which 1 ms waiting and 3 ms exchanging."""
    alone = replace(turn(APART, 0, seconds=0.022), ranks=2, steps=2, rank_seconds=[0.018, 0.022])
    joined = replace(
        turn("np2", 0, seconds=0.03),
        steps=2,
        rank_seconds=[0.03, 0.03],
        exchanges=[0.002, 0.004],
        wait_seconds=0.001,
    )
    start = replace(start_of([1.0]), turns=[alone, joined])
    loop = replace(start, start="bare", turns=[turn("bare", 0), turn("np1", 0)])
    write_result(tmp_path / "bench.json", record_of(start, loop))
    assert main(["bench", str(tmp_path / "bench.json")]) == 0
    table = capsys.readouterr().out.split("Parts of a step on two ranks\n")[1].splitlines()
    (row,) = (line for line in table if line.startswith("cnn "))
    shown = ["cnn", "torch", "Horovod, MPI", "10.00", "1.00", "3.00", "1.00", "15.00", "1"]
    assert [word.strip() for word in row.split("  ") if word] == shown


def test_a_busy_machine_is_flagged(tmp_path, capsys):
    file = tmp_path / "bench.json"
    write_result(file, record_of(start_of([1.8]), load=50.0))
    assert main(["bench", str(file)]) == 0
    assert "flag: other programs may have used the machine: its load average was 50.00" in capsys.readouterr().out


def test_starts_of_another_version_are_named():
    start = start_of([1.0, 1.0])
    other, same = (
        replace(start, start=name, environment={"source_revision": revision})
        for name, revision in (("report", "another"), ("floor", make_environment().source_revision))
    )
    assert find(record_of(start, same, other, other)).notes[0].endswith("; of another version of the program: report")
    assert "version" not in find(record_of(start, same)).notes[0]


def test_files_of_earlier_versions_are_read(tmp_path, capsys):
    """They hold ratios and turns, and an interrupted benchmark has no end."""
    content = asdict(record_of(start_of([1.8])))
    content["starts"][0]["ratios"] = {"cnn": {"median": 1.8, "least": 1.8, "most": 1.8, "n": 1}}
    del content["finished"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    assert main(["bench", str(tmp_path / "old.json")]) == 0
    assert "1.80" in capsys.readouterr().out
