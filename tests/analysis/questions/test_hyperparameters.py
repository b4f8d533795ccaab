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


def test_runs_of_one_name_in_two_folders_are_two_curves():
    runs = [
        run
        for folder, accuracy in (("one", 0.6), ("two", 0.8))
        for batch in (32, 64)
        for run in made_runs(f"{folder}/b{batch}", seconds=[5.0], global_batch=batch, curve=[0.5, accuracy])
    ]
    found = find(select([replace(run, folder=run.folder.parent / "r1") for run in runs]))
    (plot,) = [plot for plot in found.plots if plot.name == "hyperparameters-accuracy"]
    assert sorted(row[-1] for row in plot.data.rows if row[-2] == 2) == [60.0, 60.0, 80.0, 80.0]
