import dataclasses

import pytest
from analysis_builders import select, study
from builders import make_trace, make_world

from analysis.output.tables import in_figures
from analysis.questions.clouds.finding import find


# test_clouds
@pytest.mark.parametrize(("outlier", "is_shown"), [(300.0, False), (90.0, True)])
def test_the_best_in_energy_is_that_of_less(outlier, is_shown):
    """Ten runs near 100 J against nine near 90 and one more: of 300 it makes the mean larger and the median not."""
    watts = {"cte-power": [100.0, 101.0] * 5, "aws-p3-8xlarge": [90.0, 91.0, 89.0] * 3 + [outlier]}
    runs = []
    for site, of_site in watts.items():
        traces = [[make_trace({"training": 1}, {"cpu0": {"training": power}})] for power in of_site]
        for number, trace in enumerate(traces):
            runs += study(f"{site}-{number}", seconds=[100.0], site=site, traces=trace, first=number)
    found = find(select(runs))
    assert ("The best in energy is aws-p3-8xlarge, " in found.answer) == is_shown
    assert "The best in energy is cte-power" not in found.answer


# test_studies
def test_times_of_more_threads_than_cores_do_not_count():
    crowded = dataclasses.replace(make_world("cpu"), oversubscribed=True)
    runs = select(study("plain"), study("crowded", world=crowded)).runs
    assert list(runs.groupby("oversubscribed")["timed"].sum()) == [1, 0]


@pytest.mark.parametrize(
    ("value", "figures", "text"),
    [
        (150.4, 2, "150"),
        (1.54, 2, "1.5"),
        (2.0, 3, "2"),
        (12345.0, 2, "12,000"),
        (0.0000123, 2, "0.000012"),
        (0, 3, "0"),
        (9.996, 3, "10"),
    ],
)
def test_figures_are_never_in_scientific_notation(value, figures, text):
    assert in_figures(value, figures) == text
    assert in_figures(-value, figures) == (f"-{text}" if value else text)
