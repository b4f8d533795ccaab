"""What the two parity workers share: the jobs they are given, and what each rank does for them.

A job is done by the trainer's own parts (data path, model, loss, optimizer, wrap, loop), many in one start of ranks.
Rank 0 writes its arrays to `<results>/<job>.safetensors`; `launch.checks.parity` compares those of both frameworks.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from common.checks.differences import relative_difference, worst_difference
from common.checks.parity_cases import Dtype, Mode, make_spec, make_task, random_weights
from common.config import add_onednn_option
from common.distributed.communicator import Communicator
from common.errors import EXIT_CODE_USER_ERROR, UserError, as_user_error
from common.measurement.metrics import Sums
from common.model.specs import ModelSpec
from common.model.weights import Weights, load_weights, save_weights
from common.run.epoch import Trial
from common.run_folder.checkpoints import PartialEpoch
from common.task.task import Task

Arrays = dict[str, np.ndarray]
STATES_AHEAD = 2  # states that wait for the follower; one of ResNet-34 in float64 has half a gigabyte
PATIENCE_SECONDS = 300.0  # for the other framework's next state
POLL_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True)
class ParityJob:
    """One thing to do in both frameworks.

    Attributes:
        kind: start: the first weights, there and back; outputs: outputs, losses and gradients of random weights;
            training: updates from the first weights; exchange: each update from the state the leader had before it.
        optimizer: of `common.checks.parity_cases.OPTIMIZERS`, for training and exchange.
        mode: for outputs.
        updates: for training and exchange.
        traced: keep the weights after every update, too.
        strategy: allreduce, or one of `common.checks.parity_cases.STRATEGIES`, for training.
    """

    kind: Literal["start", "outputs", "training", "exchange"]
    model: str
    dtype: Dtype = "float64"
    optimizer: str = "momentum"
    mode: Mode = "training"
    updates: int = 1
    traced: bool = False
    strategy: str = "allreduce"

    @property
    def name(self) -> str:
        """Name of the file of the results."""
        about = {"start": "", "outputs": self.mode}.get(self.kind, f"{self.optimizer}-{self.updates}")
        strategy = "" if self.strategy == "allreduce" else self.strategy
        return "-".join(part for part in (self.kind, self.model, about, self.dtype, strategy) if part)


class Twin:
    """One framework's training, update by update: each is an epoch."""

    def __init__(self, trial: Trial) -> None:
        self.strategy = trial.strategy
        self._trial = trial
        self._own = PartialEpoch()  # what this rank alone starts the next update with

    def update(self, number: int) -> Sums:
        """Make an update, counted from 1; return this rank's sums over its batch, as the weights were before."""
        sums = self._trial.train(1, number=number, own=self._own).sums
        self._own = self.strategy.end_epoch()
        return sums


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is asked for: its jobs, a folder for their results, one for states on their way, and `--onednn`."""

    jobs: list[ParityJob]
    results: Path
    states: Path
    onednn: str


# (task, learning rates, communicator) -> what trains it
BuildTrial = Callable[[Task, np.ndarray, Communicator], Trial]
# (spec, weights, dtype, training) -> arrays by name
Outputs = Callable[[ModelSpec, Weights, Dtype, bool], Arrays]


def read_worker_settings(arguments: Sequence[str] | None) -> WorkerSettings:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description="Ranks of `python -m launch parity`, which starts them.")
    parser.add_argument("--jobs", type=Path, required=True, help="JSON file")
    parser.add_argument("--results", type=Path, required=True, help="folder of the results")
    parser.add_argument("--states", type=Path, required=True, help="folder of states on their way")
    add_onednn_option(parser)
    options = parser.parse_args(arguments)
    jobs = [ParityJob(**job) for job in json.loads(options.jobs.read_text())]
    return WorkerSettings(jobs, options.results, options.states, options.onednn)


def do_jobs(
    settings: WorkerSettings, *, comm: Communicator, build_trial: BuildTrial, outputs: Outputs, leads: bool
) -> int:
    """Do all jobs and write their results; return the exit code: 0, or 2 for a user error.

    Args:
        leads: whether the other framework follows this one in exchanges.
    """
    gc.freeze()  # what the frameworks made when imported stays; to look through it after each job takes a second
    try:
        for job in settings.jobs:
            if job.kind == "outputs":
                spec = make_spec(job.model)
                weights = {name: value.astype(job.dtype) for name, value in random_weights(spec).items()}
                arrays = outputs(spec, weights, job.dtype, job.mode == "training")
            else:
                arrays = _do_with_twin(job, comm, build_trial, leads=leads, folder=settings.states)
            if comm.rank == 0:
                save_weights(settings.results / f"{job.name}.safetensors", arrays, durable=False)
            del arrays
            gc.collect()  # a model is a ring of references, and ResNet-34 with its optimizer has half a gigabyte
    except (UserError, OSError, MemoryError) as error:
        print(f"error: {as_user_error(error)}", file=sys.stderr)
        return EXIT_CODE_USER_ERROR
    return 0


def _do_with_twin(job: ParityJob, comm: Communicator, build_trial: BuildTrial, *, leads: bool, folder: Path) -> Arrays:
    task, rates = make_task(
        job.model, job.optimizer, dtype=job.dtype, updates=job.updates, size=comm.size, strategy=job.strategy
    )
    twin = Twin(build_trial(task, rates, comm))
    if job.kind == "start":
        return twin.strategy.weights()
    if job.kind == "training":
        return _train(twin, job, comm)
    return (_lead if leads else _follow)(twin, job, comm, folder=folder)


def _train(twin: Twin, job: ParityJob, comm: Communicator) -> Arrays:
    losses, trace, first = [], [], twin.strategy.weights()
    for number in range(1, job.updates + 1):
        losses.append(_loss_of_update(twin, number, comm))
        if job.traced:
            trace.append(twin.strategy.weights())
    weights = twin.strategy.weights()
    comm.check_same_weights(weights, when=f"after {job.name}")
    arrays = {"losses": np.array(losses), **_named("weights", weights), **_named("state", _state(twin, job.updates))}
    # What does not move proves nothing.
    arrays["moved"] = np.array([min(relative_difference(weights[name], first[name]) for name in weights)])
    return arrays | {f"trace/{name}": np.stack([one[name] for one in trace]) for name in weights if trace}


def _lead(twin: Twin, job: ParityJob, comm: Communicator, *, folder: Path) -> Arrays:
    """Train, and show the other framework the state before each update and after the last."""
    losses = []
    for number in range(1, job.updates + 2):
        if comm.rank == 0:
            _wait(lambda: len(list(folder.glob("*.safetensors"))) < STATES_AHEAD)
            state = _state(twin, number - 1) if number > 1 else {}  # PyTorch makes it at the first update
            shown = {**_named("weights", twin.strategy.weights()), **_named("state", state)}
            save_weights(_state_file(folder, job, number), shown, durable=False)
        if number <= job.updates:
            losses.append(_loss_of_update(twin, number, comm))
    return {"losses": np.array(losses)}


def _follow(twin: Twin, job: ParityJob, comm: Communicator, *, folder: Path) -> Arrays:
    """Make each update from the state that the other framework had; compare with what it had then."""
    losses, weights_differ, state_differs, moved = [], [], [], []
    weights, state = _shown(folder, job, 1)
    for number in range(1, job.updates + 1):
        twin.strategy.load(weights, state)
        losses.append(_loss_of_update(twin, number, comm))
        before = weights
        weights, state = _shown(folder, job, number + 1)
        comm.allgather(None)  # all have read the state before
        if comm.rank == 0:
            _state_file(folder, job, number).unlink()
            weights_differ.append(worst_difference(twin.strategy.weights(), weights)[0])
            state_differs.append(worst_difference(_state(twin, number), state)[0])
            moved.append(min(relative_difference(weights[name], before[name]) for name in weights))
    comm.check_same_weights(twin.strategy.weights(), when=f"after {job.name}")
    if comm.rank == 0:
        _state_file(folder, job, job.updates + 1).unlink()
    return {
        "losses": np.array(losses),
        "weights_difference": np.array(weights_differ),
        "state_difference": np.array(state_differs),
        "moved": np.array(moved),
    }


def _loss_of_update(twin: Twin, number: int, comm: Communicator) -> float:
    sums = comm.sum(np.array(twin.update(number), np.float64))
    loss = Sums(*sums.tolist()).mean_loss
    assert loss is not None, "an update has samples"
    return loss


def _state(twin: Twin, updates: int) -> Arrays:
    """Return the optimizer state after so many updates, with their number even where the optimizer does not count."""
    return {"step": np.array([updates]), **twin.strategy.optimizer_state()}


def _named(group: str, arrays: Arrays) -> Arrays:
    return {f"{group}/{name}": value for name, value in arrays.items()}


def _state_file(folder: Path, job: ParityJob, number: int) -> Path:
    return folder / f"{job.name}-{number:04}.safetensors"


def _shown(folder: Path, job: ParityJob, number: int) -> tuple[Weights, Weights]:
    """Return weights and optimizer state before an update, when they are there."""
    file = _state_file(folder, job, number)
    _wait(file.exists)
    arrays = load_weights(file)
    weights, state = (
        {name.removeprefix(group): value for name, value in arrays.items() if name.startswith(group)}
        for group in ("weights/", "state/")
    )
    return weights, state


def _wait(condition: Callable[[], bool]) -> None:
    since = time.monotonic()
    while not condition():
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise UserError(
                f"the other framework's ranks do not respond. Received: nothing for {PATIENCE_SECONDS:.0f} s. "
                "See their log"
            )
        time.sleep(POLL_SECONDS)
