"""Shares: the parts of an update that copies of the model take, and what their losses weigh."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import Config, config_from_dict
from common.errors import UserError
from common.model.specs import model_spec
from common.task.shares import check_batch_norm, divided, shares_of

SETTINGS = {
    "plain": {},
    "passes": {"device": {"backward_passes_per_step": 3}},
    "pipeline": {"strategy": {"strategy": "layers"}, "parts": {"stages": 2, "microbatches": 4}},
}


@pytest.mark.parametrize(("name", "passes"), [("plain", 1), ("passes", 3), ("pipeline", 4)])
@given(samples=st.lists(st.integers(1, 99), min_size=1, max_size=9))
def test_shares_are_one_after_the_other_and_their_losses_average_to_the_updates(name, passes, samples):
    shares = shares_of(config_from_dict(SETTINGS[name]), samples)
    assert [share.samples for share in shares] == samples and shares[0].first_sample == 0
    assert all(second.first_sample == first.first_sample + first.samples for first, second in pairwise(shares))
    assert {share.passes for share in shares} == {passes}
    # By hand, and as copies compute it: the mean of a pass times its factor, summed over passes, averaged over copies.
    losses = [7.0 * copy + 1 for copy in range(len(samples))]
    mean = sum(share.samples * loss for share, loss in zip(shares, losses, strict=True)) / sum(samples)
    of_copies = [passes * loss * share.loss_factor for share, loss in zip(shares, losses, strict=True)]
    assert sum(of_copies) / len(shares) == pytest.approx(mean)


def test_with_averaging_each_copy_learns_from_its_own_mean():
    averaging = config_from_dict({"strategy": {"strategy": "averaging", "average_every": 2}})
    assert [(share.loss_factor, share.weight) for share in shares_of(averaging, (3, 1))] == [(1.0, 1.5), (1.0, 0.5)]


def test_an_update_is_divided_by_speed_and_keeps_its_size_with_other_copies():
    passes = config_from_dict({"training": {"batch_size": 10}, "device": {"backward_passes_per_step": 2}})
    assert divided(passes, parts=(3.0, 1.0), first_copies=2) == (30, 10)
    assert divided(passes, parts=(1.0,) * 3, first_copies=2) == (14, 14, 12)
    with pytest.raises(UserError, match=r"every rank needs an image in each update. Received: 11 ranks for 10 images"):
        divided(passes, parts=(1.0,) * 11, first_copies=1)


def test_batch_norm_sees_more_than_one_value_in_each_pass():
    spec = model_spec("resnet34", input_shape=(1, 32, 32), outputs=3)
    passes = config_from_dict({"device": {"backward_passes_per_step": 4}})
    check_batch_norm(spec, shares_of(Config(), (2, 3)))
    check_batch_norm(spec, shares_of(passes, (8,)))
    for config, samples in ((Config(), (4, 1)), (passes, (4,))):
        with pytest.raises(UserError, match="sees only one value per channel"):
            check_batch_norm(spec, shares_of(config, samples))
