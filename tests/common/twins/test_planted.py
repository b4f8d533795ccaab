"""Differences that people make are found at the right layer, with the right cause; other ways to write are equal."""

import pytest
from twins_planted import MODELS, outcomes, plants_of

pytestmark = pytest.mark.ranks
LEAST_FOUND = 0.95


def test_there_are_enough_plants():
    plants = {model: plants_of(model) for model in MODELS}
    assert len(plants) >= 6
    assert sum(len(found) for found, _ in plants.values()) >= 40


@pytest.mark.ci
@pytest.mark.parametrize("model", MODELS)
def test_all(model, tmp_path):
    found = outcomes(model, tmp_path)
    missed = [one for one in found if not one.found]
    assert [one for one in missed if not one.planted] == []
    planted = sum(one.planted for one in found)
    assert planted - len(missed) >= min(LEAST_FOUND * planted, planted - 1), missed
