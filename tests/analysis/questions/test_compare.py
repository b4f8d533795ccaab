"""`python -m analysis compare`: two runs, what differs and what came of it."""

import json

import pytest
from builders import make_environment, make_trace, make_world, write_finished_run

from analysis.__main__ import main
from analysis.questions.compare import find
from analysis.runs.published import published_runs
from analysis.runs.reading import load_runs
from common.run_folder.records import NotRecorded


def shown_by(capsys, *folders):
    assert main(["compare", *map(str, folders), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_same_experiment_twice(tmp_path, capsys):
    first = write_finished_run(tmp_path / "first", seconds=100.0)
    second = write_finished_run(tmp_path / "second", seconds=80.0, framework="keras", totals={"test_accuracy": 0.925})
    found = shown_by(capsys, first, second)
    assert found["answer"] == (
        "The two runs are the same experiment: first weights, sample order and the settings that define it. "
        "The second trained for 80.00 s, 0.800 times the 100.00 s of the first. Accuracy: 90.00 % and 92.50 % (+2.50 "
        "points)."
    )
    assert found["flags"] == [] and found["notes"][0].startswith("one run each shows nothing")
    differences, results = (table["rows"] for table in found["tables"])
    assert [(row["what"], row["first"], row["second"], row[""]) for row in differences] == [
        ("first weights", "first1", "first1", "same"),
        ("order of the samples", "order1", "order1", "same"),
        ("final weights", "last1", "last1", "same"),
        ("framework", "torch", "keras", "differs"),
    ]
    rows = {row["result"]: list(row.values())[1:] for row in results}
    assert rows["training, s"] == [100.0, 80.0, pytest.approx(0.8), None]
    assert rows["images/s"] == [pytest.approx(3.6), 4.5, pytest.approx(1.25), None]
    assert rows["test accuracy, %"] == [90, pytest.approx(92.5), None, pytest.approx(2.5)]
    assert rows["epochs"] == [3, 3, None, 0]


def test_all_that_differs_is_shown(tmp_path, capsys):
    first = write_finished_run(tmp_path / "first", world={"pinned_memory": NotRecorded("not applicable: an example")})
    environment = make_environment(
        processor="other", packages={"torch": "2.5"}, source_revision="abc",
        variables={"OMP_NUM_THREADS": "2", "OMPI_MCA_orte_hnp_uri": "7.0"},
    )  # fmt: skip
    device = {"channels_last": False, "pinned_memory": True}
    second = write_finished_run(
        tmp_path / "second", seed=2, site="cte-power", environment=environment,
        settings={"optimizer": {"momentum": 0.5}, "device": device},
        world=make_world("cuda:0", "cuda:1", controller="gloo", pinned_memory=True),
    )  # fmt: skip
    found = shown_by(capsys, first, second)
    rows = {(row["subject"], row["what"]): (row["first"], row["second"]) for row in found["tables"][0]["rows"]}
    expected = {
        ("settings", "optimizer.momentum"): ("0.9", "0.5"),
        ("ranks", "controller"): ("none", "gloo"),
        ("ranks", "devices"): ("cpu", "cuda:0 cuda:1"),
        ("ranks", "pinned_memory"): ("not recorded: not applicable: an example", "True"),
        ("versions", "packages.torch"): ("absent", "2.5"),
        ("variables", "variables.OMP_NUM_THREADS"): ("absent", "2"),
    }
    assert expected.items() <= rows.items()
    assert not any("orte" in what or what == "command" or what.startswith("data.") for _, what in rows)
    assert "not the same experiment, or not shown to be: the first weights differ: first1 and first2" in found["answer"]
    assert "optimizer.momentum differs: 0.9 and 0.5" in found["flags"]


def test_what_one_did_not_record_is_one_difference(tmp_path, capsys):
    lost = NotRecorded("lost")
    second = write_finished_run(tmp_path / "second", config=lost, hashes=lost, origin="imported", status=lost)
    rows = shown_by(capsys, write_finished_run(tmp_path / "first"), second)["tables"][0]["rows"]
    assert [row[""] for row in rows if row["subject"] == "weights and order"] == ["not known"] * 3
    assert [(row["first"], row["second"]) for row in rows if row["subject"] == "settings"] == [
        ("recorded", "not recorded: lost")
    ]


def test_metered_runs_show_energy_and_no_comparable_time(tmp_path, capsys):
    phases = {"training": 10, "test": 2}
    for name, watts in (("first", 10.0), ("second", 25.0)):
        trace = make_trace(phases, {"cpu0": dict.fromkeys(phases, watts)})
        write_finished_run(tmp_path / name, traces=[trace], settings={"energy": {"energy": True}})
    found = shown_by(capsys, tmp_path / "first", tmp_path / "second")
    rows = {row["result"]: list(row.values())[1:] for row in found["tables"][1]["rows"]}
    assert rows["energy, J"] == [120, 300, 2.5, None]
    assert rows["EDP, J s"] == [12 * 120, 12 * 300, 2.5, None]
    assert any("is metered, its times are not to be compared" in flag for flag in found["flags"])


def test_the_plot_has_both_runs_and_without_epochs_there_is_a_note(tmp_path):
    folders = [write_finished_run(tmp_path / name) for name in ("first", "second")]
    (plot,) = find(load_runs(folders)).plots
    assert [line.get_ydata().tolist() for line in plot.figure.axes[0].lines] == [[1.0, 0.5, 1 / 3]] * 2
    assert len(plot.data.rows) == 12
    for folder in folders:
        (folder / "epochs.jsonl").write_text("")
    found = find(load_runs(folders))
    assert found.plots == [] and any(note.startswith("no plot: there are no epochs") for note in found.notes)
    assert find(load_runs(folders[:1])).answer == "Two runs are compared, and there are 1."


def test_a_published_result_can_be_compared_with_a_run(tmp_path):
    published = [run for run in published_runs(["pydtnn"]) if run.folder.name == "pydtnn-mnist"]
    found = find(load_runs([write_finished_run(tmp_path / "first")], added=published))
    assert "pydtnn-mnist (published) has no hashes" in found.answer
    assert any(table.title.startswith("Results") and table.rows for table in found.tables)
