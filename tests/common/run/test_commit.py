"""A run's state in memory, cut for other ranks: every place of the global batch keeps its sums."""

import numpy as np
import pytest

from common.config import Config
from common.data.sharding import share_out
from common.run.commit import SUMS_OF_PLACES, shared_anew
from common.run_folder.checkpoints import Checkpoint, PartialEpoch
from common.task.shares import shares_of

IMAGES = 13


def checkpoint_of(sizes):
    """A checkpoint inside an epoch in which place p of the global batch has the sums p and 100 + p."""
    ranks = []
    for rank, size in enumerate(sizes):
        places = np.arange(sum(sizes[:rank]), sum(sizes[:rank]) + size)
        state = {"losses_of_places": places.astype(float), "correct_of_places": places + 100}
        state["generator"] = np.array([rank])
        ranks.append(PartialEpoch(steps=3, training_seconds=2.0, state=state, weights={"bn.mean": np.array([rank])}))
    return Checkpoint(1, 10, {"w": np.ones(2)}, {"w.momentum_buffer": np.zeros(2)}, ranks)


@pytest.mark.parametrize("before", [1, 2, 3, 5, IMAGES])
@pytest.mark.parametrize("after", [1, 2, 4, IMAGES])
def test_the_sums_of_all_places_go_on(before, after):
    sizes = [share_out(IMAGES, parts=(1.0,) * ranks) for ranks in (before, after)]
    before, after = (shares_of(Config(), samples) for samples in sizes)
    cut = shared_anew(checkpoint_of(sizes[0]), before=before, after=after)
    assert [len(rank.state["losses_of_places"]) for rank in cut.ranks] == list(sizes[1])
    for name, first in zip(SUMS_OF_PLACES, (0, 100), strict=True):
        assert np.concatenate([rank.state[name] for rank in cut.ranks]).tolist() == list(range(first, first + IMAGES))
    assert (cut.epoch, cut.step, cut.steps_inside) == (1, 10, 3)
    assert [rank.training_seconds for rank in cut.ranks] == [2.0] * len(after)


def test_a_new_rank_has_no_generator_and_the_first_ranks_statistics():
    """Between epochs there is nothing to cut."""
    whole = Checkpoint(2, 20, {"w": np.ones(2)}, {})
    two, three = shares_of(Config(), (7, 6)), shares_of(Config(), (5, 4, 4))
    assert shared_anew(whole, before=(), after=three) is whole
    cut = shared_anew(checkpoint_of((7, 6)), before=two, after=three)
    assert [rank.state.get("generator") for rank in cut.ranks] == [np.array([0]), np.array([1]), None]
    assert [int(rank.weights["bn.mean"][0]) for rank in cut.ranks] == [0, 1, 0]
