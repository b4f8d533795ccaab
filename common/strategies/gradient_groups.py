"""`--gradient-groups auto`: in how many groups gradients are averaged fastest, measured before training."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from common.config import GRADIENT_GROUPS, Groups
from common.distributed.communicator import Communicator
from common.run.epoch import Trial
from common.run_folder.sharing import MeasuredGroups
from common.task.task import Task

DEFAULT: Groups = "one"
# The default stays unless another number of groups is faster in every block, and by this part of the median time.
LEAST_GAIN = 0.02
# Each number of groups trains in as many blocks, in turns, so that what changes on the machine meets all alike. The
# first update of a block waits for all ranks and is not timed.
BLOCKS = 5
BLOCK_UPDATES = 3


def measure_groups(task: Task, *, comm: Communicator, build: Callable[[Task], Trial]) -> MeasuredGroups:
    """Return the fastest number of groups, the same on all ranks, which all call this; the slowest rank's time counts.

    Args:
        build: returns a trial; all of them are in memory at once.
    """
    if comm.size == 1:
        return MeasuredGroups(chosen=DEFAULT)
    trials = {name: build(replace(task, groups=MeasuredGroups(chosen=name))) for name in GRADIENT_GROUPS}
    seconds: dict[Groups, list[float]] = {name: [] for name in trials}
    for _ in range(BLOCKS):
        for name, trial in trials.items():
            seconds[name].append(_seconds_of_an_update(trial))
    of_ranks = comm.allgather(seconds)
    slowest = {name: [max(block) for block in zip(*(one[name] for one in of_ranks), strict=True)] for name in trials}
    return MeasuredGroups(
        chosen=choose(slowest), milliseconds={name: 1e3 * median(times) for name, times in slowest.items()}
    )


def choose(times: Mapping[Groups, Sequence[float]]) -> Groups:
    """Return the number of groups of the least median, of those that are faster than the default beyond the noise.

    Args:
        times: of each block.
    """
    medians = {name: median(blocks) for name, blocks in times.items()}
    faster = [
        name
        for name, blocks in times.items()
        if medians[name] < (1 - LEAST_GAIN) * medians[DEFAULT]
        and all(ours < theirs for ours, theirs in zip(blocks, times[DEFAULT], strict=True))
    ]
    return min(faster, key=lambda name: medians[name], default=DEFAULT)


def _seconds_of_an_update(trial: Trial) -> float:
    trial.train(1)
    updates = min(BLOCK_UPDATES, trial.task.steps_of_epoch(1))
    return trial.train(updates).seconds / updates
