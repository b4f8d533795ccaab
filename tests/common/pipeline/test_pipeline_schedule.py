"""The order of passes in a pipeline: every message is sent before it is waited for, and few activations are held."""

import itertools

import pytest

from common.pipeline.schedule import Operation, ideal_bubble, most_held, operations

SHAPES = list(itertools.product(("gpipe", "1f1b"), (1, 2, 3, 4, 7), (1, 2, 4, 5, 16)))


def all_stages(schedule, stages, microbatches):
    return [operations(schedule, stage=stage, stages=stages, microbatches=microbatches) for stage in range(stages)]


@pytest.mark.parametrize(("schedule", "stages", "microbatches"), SHAPES)
def test_stages_never_wait_for_each_other_in_a_circle(schedule, stages, microbatches):
    """Sends do not block; a pass waits for the same pass of the stage before (backward: after) it."""
    left = all_stages(schedule, stages, microbatches)
    done = set()
    while any(left):
        progressed = False
        for stage, order in enumerate(left):
            if not order:
                continue
            neighbor = stage - 1 if order[0].is_forward else stage + 1
            if not 0 <= neighbor < stages or (neighbor, order[0]) in done:
                done.add((stage, order.pop(0)))
                progressed = True
        assert progressed, left
    assert len(done) == 2 * stages * microbatches


@pytest.mark.parametrize(("schedule", "stages", "microbatches"), SHAPES)
def test_microbatches_keep_their_order_and_end_before_they_are_forgotten(schedule, stages, microbatches):
    for stage, order in enumerate(all_stages(schedule, stages, microbatches)):
        for is_forward in (True, False):
            numbers = [one.microbatch for one in order if one.is_forward is is_forward]
            assert numbers == list(range(microbatches))  # which the messages of one sort rely on
        for number in range(microbatches):
            assert order.index(Operation(True, number)) < order.index(Operation(False, number))
        assert most_held(order) == (microbatches if schedule == "gpipe" else min(stages - stage, microbatches))


def test_the_bubble_is_that_of_the_formula():
    """Of 4 stages and 8 microbatches, each pass of one unit of time: 3 of 11 units are lost."""
    assert ideal_bubble(stages=4, microbatches=8) == pytest.approx(3 / 11)
    assert ideal_bubble(stages=1, microbatches=8) == 0
