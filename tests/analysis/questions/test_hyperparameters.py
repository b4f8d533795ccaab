"""`python -m analysis hyperparameters`: which runs form a study, the answer, and the plots."""

import json
import math

import pytest
from analysis_builders import made_run, made_runs, rows_of, said, select, write_made

from analysis.__main__ import main
from analysis.questions.hyperparameters.command import find
from common.run_folder.records import NotRecorded

SMALL, LARGE = (148, 112), (295, 222)


def trial(batch, size, seconds, curve, **settings):
    """Return one run, as in the thesis."""
    name = f"{size[0]}x{size[1]}-batch{batch}"
    return [made_run(name, seconds=seconds, global_batch=batch, size=size, curve=curve, classes=9, **settings)]


def asked(*groups):
    """Return what is found in groups of runs."""
    return find(select(*groups))


def test_fastest_most_accurate_and_collapsed_are_named():
    found = asked(
        trial(96, LARGE, 13000.0, [0.2, 0.7, 0.81]),
        trial(72, LARGE, 13900.0, [0.3, 0.77, 0.116]),
        trial(128, SMALL, 3500.0, [0.2, 0.5, 0.78], validation=70.0, test=4.0),
        trial(256, SMALL, 3460.0, [0.1, 0.5, 0.38]),
    )
    assert found.answer == (
        "PyTorch, mlp: the fastest is 148x112 with batch 256 (38.0 %). The most accurate at the end is 295x222 "
        "with batch 96 (81.0 %). Within 5 points of it, 148x112 with batch 128 is the fastest. 2 of 4 collapsed, "
        "fell or never learned: see the remarks."
    )
    names = ("resolution", "batch", "total, s", "last accuracy, %", "best accuracy, %", "remark")
    rows = [[row[name] for name in names] for row in rows_of(found, "Time and validation accuracy")]
    assert rows == [
        ["148x112", 128, 3574.0, pytest.approx(78), pytest.approx(78), None],
        ["148x112", 256, 3460.0, pytest.approx(38), pytest.approx(50), "ended 12.0 points below its best"],
        ["295x222", 72, 13900.0, pytest.approx(11.6), pytest.approx(77), "collapsed: ended at guessing (11.1 %)"],
        ["295x222", 96, 13000.0, pytest.approx(81), pytest.approx(81), None],
    ]
    # Panels are resolutions, lines are batches.
    accuracy, time = found.plots
    small, large = accuracy.figure.axes
    assert [ax.get_title() for ax in (small, large)] == ["PyTorch, 148x112", "PyTorch, 295x222"]
    assert [len(ax.get_lines()) for ax in (small, large)] == [2, 2]
    assert large.get_lines()[0].get_ydata() == pytest.approx([30.0, 77.0, 11.6])
    assert [text.get_text() for text in accuracy.figure.legends[0].get_texts()] == [
        "batch 72", "batch 96", "batch 128", "batch 256",
    ]  # fmt: skip
    # The same batch looks the same in every panel, so the third batch is the first line of the small images.
    assert small.get_lines()[0].get_color() != large.get_lines()[0].get_color()
    assert [ax.get_title() for ax in time.figure.axes] == ["148x112", "295x222"]
    assert len(accuracy.data.rows) == 12 and len(time.data.rows) == 4


def test_several_runs_are_one_trial_with_their_median():
    runs = [
        made_run(f"r{seed}", seconds=seconds, global_batch=64, seed=seed, curve=[0.1, last])
        for seed, seconds, last in ((1, 10.0, 0.8), (2, 12.0, 0.9), (3, 50.0, 0.85))
    ]
    found = asked(runs, [made_run("other", seconds=9.0, global_batch=128, curve=[0.1, 0.7])])
    row = rows_of(found, "Time and validation accuracy")[0]
    assert (row["n"], row["total, s"], row["min"], row["max"]) == (3, 12.0, 10.0, 50.0)
    assert row["last accuracy, %"] == pytest.approx(85.0)
    assert len(found.plots[0].figure.axes[0].get_lines()) == 3 + 1 + 1  # runs, their median, the other's


def test_what_never_learned_did_not_collapse():
    found = asked(trial(8, SMALL, 2.0, [0.11, 0.12]), trial(16, SMALL, 1.0, [0.11, 0.111]))
    assert "2 of 2 collapsed, fell or never learned" in found.answer
    remarks = [row["remark"] for row in rows_of(found, "Time and validation accuracy")]
    assert remarks == ["never better than guessing (11.1 %)"] * 2


@pytest.mark.parametrize(
    "other", [{"framework": "keras"}, {"ranks": 2, "samples": (128, 0)}, {"curve": [0.1] * 3}, {"site": "aws"}]
)
def test_runs_that_differ_in_more_are_no_study(other):
    one = {"seconds": 1.0, "curve": [0.1, 0.2]}
    found = asked([made_run("a", **one, global_batch=32), made_run("b", **{**one, **other}, global_batch=64)])
    assert "there is nothing to compare" in found.answer and not found.tables and not found.plots


def test_both_frameworks_share_a_picture():
    runs = [
        made_runs(f"{framework}{batch}", seconds=[1.0, 2.0], framework=framework, global_batch=batch)
        for framework in ("torch", "keras")
        for batch in (32, 64)
    ]
    found = asked(*runs)
    (time,) = found.plots  # without validation there are no curves, and a note reports it
    assert [text.get_text() for text in time.figure.legends[0].get_texts()] == ["PyTorch", "Keras"]
    assert any("no accuracy curve" in note for note in found.notes)
    assert "(90.0 %)" in found.answer


def test_no_number_and_no_time_are_plain_words():
    found = asked(
        [made_run("a", seconds=0.0, global_batch=32, accuracy=None)],
        [made_run("b", seconds=1.0, global_batch=64, accuracy=math.nan, curve=[math.nan, math.nan])],
    )
    assert "the fastest is 28x28 with batch 64 (accuracy not known)." in found.answer
    assert [row["total, s"] for row in rows_of(found, "Time and validation accuracy")] == [None, 1.0]


# The share of validation samples


def test_the_share_of_validation_samples_by_hand():
    runs = [
        made_run(f"share{samples}", seconds=2 * training, validation=2 * validation, samples=(6400 - samples, samples),
                 curve=[0.5, 0.6])
        for samples, training, validation in ((640, 12.0, 23.5), (64, 15.0, 2.75))
    ]  # fmt: skip
    found = asked(runs)
    rows = rows_of(found, "Time by the share")
    assert [row["validation samples"] for row in rows] == ["10.0 %", "1.0 %"]
    assert [(row["training, s/epoch"], row["validation, s/epoch"], row["total, s"]) for row in rows] == [
        (12.0, 23.5, 71.0), (15.0, 2.75, 35.5),
    ]  # fmt: skip
    assert "by share of validation samples: 1.0 % takes 0.50 times as long as 10.0 %." in found.answer
    assert [plot.name for plot in found.plots] == ["hyperparameters-validation"]


def test_shares_that_are_not_recorded_or_differ_with_the_resolution_are_named():
    unknown = dict.fromkeys(("data", "config", "hashes"), NotRecorded("an example"))
    found = asked([made_run(name, seconds=20.0, validation=3.0, **unknown) for name in ("ten", "one")])
    assert [row["validation samples"] for row in rows_of(found, "Time by the share")] == ["ten", "one"]
    assert "not recorded: they are listed by name" in said(found)
    found = asked(
        trial(8, SMALL, 2.0, [0.5, 0.6], samples=(5760, 640)), trial(8, LARGE, 4.0, [0.5, 0.6], samples=(6336, 64))
    )
    differs = "share of validation samples differs too: 148x112 with batch 8 10.0 % and 295x222 with batch 8 1.0 %"
    assert differs in said(found)


# The command


def test_the_command_shows_and_refuses_with_strict(tmp_path, capsys):
    runs = [made_run(f"batch{batch}", seconds=3.0, global_batch=batch, curve=[0.4, 0.8]) for batch in (32, 64)]
    write_made(tmp_path / "runs", runs)
    arguments = ["hyperparameters", str(tmp_path / "runs"), "--format", "json", "--plots", str(tmp_path / "plots")]
    assert main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["batch"] for row in shown["tables"][0]["rows"]] == [32, 64]
    assert len(list((tmp_path / "plots").glob("hyperparameters-*.png"))) == 2
    assert main([*arguments, "--strict"]) == 2
    assert "one timed run alone shows nothing" in capsys.readouterr().err
