"""What the questions find in made runs, by the tables beside this file: see `support/question_cases.py`."""

from datetime import date
from functools import partial
from pathlib import Path

import pytest
from question_cases import cases_in, check_case

from analysis.questions import frameworks, times, tune
from analysis.questions.clouds import finding as clouds
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.energy import command as energy
from analysis.questions.hyperparameters import command as hyperparameters
from analysis.questions.scaling import command as scaling
from analysis.questions.strategies import command as strategies
from common.sites.table import read_sites

FINDS = {
    "clouds": partial(clouds.find, pricing=Pricing(sites=read_sites(), today=date(2026, 1, 1))),
    "energy": energy.find,
    "frameworks": frameworks.find,
    "hyperparameters": hyperparameters.find,
    "scaling": scaling.find,
    "startup": clouds.find,
    "strategies": strategies.find,
    "times": times.find,
    "tune": tune.find,
}
CASES = [
    pytest.param(name, *param.values, id=f"{name}: {param.id}")
    for name in FINDS
    for param in cases_in(Path(__file__).with_name(f"{name}.toml"))
]


@pytest.mark.parametrize(("question", "case"), CASES)
def test_what_is_found(question, case, plots):
    check_case(case, FINDS[question])
