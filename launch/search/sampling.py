"""Samplers, pruners and distributions of Optuna by the names of a search file."""

import warnings
from collections.abc import Mapping

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GridSampler, QMCSampler, RandomSampler, TPESampler

from common.run_folder.search_record import Value
from launch.search.search_file import Axis, Range, SearchFile, grid_size, steps_of

optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would print a line for each trial


def distributions_of(space: Mapping[str, Axis]) -> dict[str, BaseDistribution]:
    """Return setting -> distribution."""
    return {name: _distribution(axis) for name, axis in space.items()}


def _distribution(axis: Axis) -> BaseDistribution:
    if not isinstance(axis, Range):
        return CategoricalDistribution(axis)
    if axis.is_whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    step = None if axis.step is None else float(axis.step)
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log, step=step)


def fixed_points(file: SearchFile) -> list[dict[str, Value]]:
    """Return the points of a sampler that does not look at scores, the same at every call: setting -> value.

    More trials begin with the points of fewer.
    """
    # Sobol's first point would be drawn at random, before the sampler knows the space.
    left_out = 1 if file.keys.sampler == "quasi-random" else 0
    study = optuna.create_study(sampler=_fixed_sampler(file))
    distributions = distributions_of(file.space)
    points = [study.ask(distributions).params for _ in range(trials_each(file) + left_out)]
    return points[left_out:]


def trials_each(file: SearchFile) -> int:
    """Return the number of trials of each framework."""
    return file.keys.trials or grid_size(file)


def _fixed_sampler(file: SearchFile) -> BaseSampler:
    seed = file.keys.seed
    if file.keys.sampler == "grid":
        return GridSampler({name: steps_of(axis) for name, axis in file.space.items()}, seed=seed)
    if file.keys.sampler == "quasi-random":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # its version is pinned
            return QMCSampler(qmc_type="sobol", scramble=True, seed=seed)
    return RandomSampler(seed=seed)


def adaptive_sampler(file: SearchFile, *, worker: int, made: int) -> BaseSampler:
    """Return a sampler that chooses points by scores.

    Args:
        file: of the search.
        worker: number of this command among those that share the study.
        made: trials that the study has already, so that a resumed search does not draw its first points again.
    """
    seed = int(np.random.SeedSequence([file.keys.seed, worker, made]).generate_state(1)[0])
    if file.keys.sampler == "cma-es":
        return CmaEsSampler(seed=seed, warn_independent_sampling=False)  # choices are drawn at random
    return TPESampler(seed=seed)


def pruner_of(file: SearchFile, *, epochs: int) -> BasePruner:
    """Return the pruner; `epochs` of a whole trial."""
    pruners: dict[str, BasePruner] = {
        "none": NopPruner(),
        "median": MedianPruner(),
        "successive-halving": SuccessiveHalvingPruner(),
        "hyperband": HyperbandPruner(max_resource=epochs),
    }
    return pruners[file.keys.pruner]
