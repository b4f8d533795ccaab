"""`--gradient-groups auto`: in how many groups gradients are averaged fastest, measured before training."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median

from common.config import GRADIENT_GROUPS, Groups
from common.distributed.communicator import Communicator
from common.run_folder.sharing import MeasuredGroups
from common.training.run_setup import RunSetup
from common.training.trainer import Trainer

DEFAULT: Groups = "one"
LEAST_GAIN = 0.02  # of the time of an update with the default, below which it stays
# Each number of groups trains in as many blocks, in turns, so that what changes on the machine meets all alike. The
# first update of a block waits for all ranks and is not timed.
BLOCKS = 5
BLOCK_UPDATES = 3


def measure_groups(setup: RunSetup, *, comm: Communicator, build: Callable[[RunSetup], Trainer]) -> MeasuredGroups:
    """Return the fastest number of groups, the same on all ranks, which all call this; the slowest rank's time counts.

    Args:
        build: returns a trainer whose weights are thrown away; all of them are in memory at once.
    """
    if comm.size == 1:
        return MeasuredGroups(chosen=DEFAULT)
    trainers = {name: build(replace(setup, groups=MeasuredGroups(chosen=name))) for name in GRADIENT_GROUPS}
    seconds: dict[Groups, list[float]] = {name: [] for name in trainers}
    for _ in range(BLOCKS):
        for name, trainer in trainers.items():
            seconds[name].append(_seconds_of_an_update(trainer))
    of_ranks = comm.allgather({name: 1e3 * median(times) for name, times in seconds.items()})
    slowest = {name: max(times[name] for times in of_ranks) for name in trainers}
    return MeasuredGroups(chosen=choose(slowest), milliseconds=slowest)


def choose(times: Mapping[Groups, float]) -> Groups:
    """Return the fastest number of groups, or the default where it is as fast to within the noise."""
    fastest = min(times, key=lambda name: times[name])
    return fastest if times[fastest] < (1 - LEAST_GAIN) * times[DEFAULT] else DEFAULT


def _seconds_of_an_update(trainer: Trainer) -> float:
    trainer.start_epoch(1)
    trainer.train_segment(min(1, trainer.steps_left - 1))
    before, updates = trainer.result().seconds, min(BLOCK_UPDATES, trainer.steps_left)
    trainer.train_segment(updates)
    return (trainer.result().seconds - before) / updates
