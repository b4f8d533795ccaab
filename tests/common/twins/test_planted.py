"""Differences that people make are found at the right layer, with the right cause; other ways to write are equal."""

import pytest
from twins_planted import MODELS, outcomes, plants_of

pytestmark = pytest.mark.ranks
LEAST_FOUND = 0.95
EACH = 4  # which plants CI tries


def test_there_are_enough_plants():
    plants = {model: plants_of(model) for model in MODELS}
    assert len(plants) >= 6
    assert sum(len(found) for found, _ in plants.values()) >= 40


@pytest.mark.parametrize("step", [pytest.param(EACH, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("model", MODELS)
def test_planted_differences_are_named(model, step, tmp_path):
    plants, rewrites = plants_of(model)
    names = [*list(plants)[::step], *rewrites[::step]]
    found = outcomes(model, tmp_path, only=names)
    missed = [one for one in found if not one.found]
    assert [one for one in missed if not one.planted] == []
    planted = sum(one.planted for one in found)
    assert planted - len(missed) >= min(LEAST_FOUND * planted, planted - 1), missed
