"""The order of passes in a pipeline: every message is sent before it is waited for, and few activations are held."""

import itertools

import pytest

from common.pipeline.schedule import Operation, ideal_bubble, most_held, operations

SHAPES = list(itertools.product(("gpipe", "1f1b"), (1, 2, 3, 4, 7), (1, 2, 4, 5, 16)))


@pytest.mark.parametrize(("schedule", "stages", "microbatches"), SHAPES)
def test_stages_never_wait_for_each_other_in_a_circle_and_hold_few_activations(schedule, stages, microbatches):
    """Sends do not block; a pass waits for the same pass of the stage before (backward: after) it."""
    orders = [operations(schedule, stage=stage, stages=stages, microbatches=microbatches) for stage in range(stages)]
    for stage, order in enumerate(orders):
        for is_forward in (True, False):
            numbers = [one.microbatch for one in order if one.is_forward is is_forward]
            assert numbers == list(range(microbatches))  # which the messages of one sort rely on
        for number in range(microbatches):
            assert order.index(Operation(True, number)) < order.index(Operation(False, number))
        assert most_held(order) == (microbatches if schedule == "gpipe" else min(stages - stage, microbatches))
    done, left = set(), [list(order) for order in orders]
    while any(left):
        before = len(done)
        for stage, order in enumerate(left):
            neighbor = stage - 1 if order and order[0].is_forward else stage + 1
            if order and (not 0 <= neighbor < stages or (neighbor, order[0]) in done):
                done.add((stage, order.pop(0)))
        assert len(done) > before, left


def test_the_bubble_is_that_of_the_formula():
    """Of 4 stages and 8 microbatches, each pass of one unit of time: 3 of 11 units are lost."""
    assert ideal_bubble(stages=4, microbatches=8) == pytest.approx(3 / 11)
    assert ideal_bubble(stages=1, microbatches=8) == 0
