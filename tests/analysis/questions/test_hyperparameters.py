"""`python -m analysis hyperparameters`: which runs form a study."""

from dataclasses import replace

from analysis_builders import made_runs, select

from analysis.questions.hyperparameters.command import find


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
