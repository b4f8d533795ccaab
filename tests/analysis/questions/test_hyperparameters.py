"""`python -m analysis hyperparameters`: which runs form a study, the answer, and the plots."""

from dataclasses import replace
from pathlib import Path

import pytest
from analysis_builders import made_run, made_runs, rows_of, said, select
from question_cases import case_in, selection_of

from analysis.questions.hyperparameters.command import find
from common.run_folder.records import NotRecorded

CASES = Path(__file__).with_name("hyperparameters.toml")


def plots_of(case):
    """Return the plots of the case of this name."""
    return find(selection_of(case_in(CASES, case))).plots


def test_panels_are_resolutions_and_lines_are_batches():
    accuracy, time = plots_of("fastest, most accurate and collapsed, as in the thesis")
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
    median = plots_of("several runs are one trial with their median")[0].figure.axes[0]
    assert len(median.get_lines()) == 3 + 1 + 1  # runs, their median, the other's
    assert [plot.name for plot in plots_of("the share of validation samples")] == ["hyperparameters-validation"]


def test_runs_whose_share_is_not_recorded_are_listed_by_name():
    unknown = dict.fromkeys(("data", "config", "hashes"), NotRecorded("an example"))
    found = find(select([made_run(name, seconds=20.0, validation=3.0, **unknown) for name in ("ten", "one")]))
    assert [row["validation samples"] for row in rows_of(found, "Time by the share")] == ["ten", "one"]
    assert "not recorded: they are listed by name" in said(found)


def test_resolutions_of_prepared_data_are_a_sweep():
    """Their files have other names, and other means of their pixels."""
    runs = []
    for size, mean in (([43, 32], 0.31), ([64, 48], 0.29)):
        for run in made_runs(f"{size[0]}", seconds=[5.0, 5.1], size=size, curve=[0.5, 0.6]):
            data = replace(run.record.data, name=f"prepared:data/{size[0]}x{size[1]}.safetensors", mean=[mean])
            runs.append(replace(run, record=replace(run.record, data=data)))
    found = find(select(runs))
    (points,) = [table.rows for table in found.tables if table.title.startswith("Time and validation accuracy")]
    assert len(points) == 2, found.answer
