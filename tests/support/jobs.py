"""Jobs for servers of ranks (`rank_server.py`), each done once for all tests that look at it."""

import json
import os
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from rank_server import ServerError, Start, do

from common.model.weights import load_weights
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import WEIGHTS_FILE, read_run

FRAMEWORKS = ("torch", "keras")


def cases_of(table):
    """Return a mark for tests of rows: parameters `framework`, one after the other, and `name`.

    Args:
        table: name -> row of `settings` or `arguments`, a text or words, which may have `frameworks`, `launcher`, and
            `quick`: frameworks whose row is in `make test`; others are left to CI.
    """
    parameters = []
    for framework in FRAMEWORKS:
        for name, row in table.items():
            if framework in row.get("frameworks", FRAMEWORKS):
                words = row["settings"] if "settings" in row else row["arguments"]
                words = words.split() if isinstance(words, str) else words
                start = start_of(framework, launcher=row.get("launcher", "mpirun2"), arguments=words)
                marks = [pytest.mark.start(start), *([] if framework in row.get("quick", ()) else [pytest.mark.ci])]
                parameters.append(pytest.param(framework, name, marks=marks, id=f"{framework}-{name}"))
    return pytest.mark.parametrize(("framework", "name"), parameters, indirect=["framework"])


# Of tests with the fixture `framework`: only PyTorch's is in `make test`.
keras_in_ci = pytest.mark.parametrize(
    "framework", ["torch", pytest.param("keras", marks=pytest.mark.ci)], indirect=True
)
JOB_SECONDS = 350  # below the limit of a test, so that the error names the job; compilers on a busy machine take long


@dataclass(frozen=True)
class Job:
    """One run of a program.

    Attributes:
        name: of the job; results are found by it.
        arguments: of the program; paths are relative to the folder of the `Jobs`.
        program: train, predict or export; "outputs" for the linear outputs of a run for the first test images; or
            "module:function" of tests/support.
        patch: names in `patches.py` of what is broken or replaced before; joined by "+".
        watch: folder whose files are hashed before and after.
        launcher: see `processes.launcher_command`.
        after: names of jobs that have to be done before.
        seconds: limit.
    """

    name: str
    arguments: tuple[str, ...]
    program: str = "train"
    patch: str = ""
    watch: str = ""
    launcher: str = "mpirun2"
    after: tuple[str, ...] = ()
    seconds: float = JOB_SECONDS


def train(name, *arguments, **options):
    """Return a job that trains; the run has its name, with "_" for a space."""
    return Job(name, (*arguments, "--name", name.replace(" ", "_")), **options)


def words_of(settings, named):
    """Return the words of settings, the first of which may be a name, whose settings come first."""
    first, *words = settings.split()
    return (*(words_of(named[first], named) if first in named else [first]), *words)


def jobs_in(file):
    """Yield the jobs of a table of fields of `Job`; a row with `settings` trains a run of its name.

    The first word of settings and arguments may be a name of the table `settings`, whose words come first.
    """
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    for row in table["job"]:
        name = ("--name", row["name"].replace(" ", "_")) if "settings" in row else ()
        words = words_of(row.pop("settings", "") or row.pop("arguments"), table["settings"])
        yield Job(**row | {"arguments": (*words, *name), "after": tuple(row.get("after", ()))})


def resumed(name, run, *arguments, after=None, **options):
    """Return a job that resumes the run of another job."""
    return Job(name, ("--resume", f"runs/{run.replace(' ', '_')}", *arguments), after=(after or run,), **options)


@dataclass(frozen=True)
class Outcome:
    """What a job did on one rank."""

    code: int
    stdout: str
    stderr: str
    value: object
    untouched: bool | None
    ends_server: bool


def last_value(flag, arguments):
    """Return what follows the last such flag; None: it is not there."""
    return next((arguments[i + 1] for i in reversed(range(len(arguments))) if arguments[i] == flag), None)


def start_of(framework, *, launcher, arguments):
    """Return the start that has what these arguments of a program fix for life."""
    start = Start(framework, launcher)
    threads, parts = (last_value(flag, arguments) for flag in ("--threads", "--stages"))
    parts = int(parts or last_value("--model-ranks", arguments) or 1)
    keras = framework == "keras"
    share = max(1, len(os.sched_getaffinity(0)) // start.size)
    return replace(
        start,
        threads=int(threads or share) if keras else None,
        onednn=(last_value("--onednn", arguments) or "on") if keras else "on",
        parts=parts if parts < start.size else 1,
        multiworker="multiworker" in arguments,
        replicas=int(last_value("--replicas", arguments) or 1) if keras else 1,
        timeline="--horovod-timeline" in arguments and start.size > 1,
    )


def do_job(job, *, start, folder):
    """Do a job in a folder; return its outcome on each rank.

    Raises:
        ServerError: a rank died, the job took too long, or it ended with an error that is no user's.
    """
    message = {
        "name": job.name,
        "arguments": [str(argument) for argument in job.arguments],
        "program": job.program,
        "patch": job.patch,
        "watch": job.watch,
        "folder": str(folder),
        "variables": {"HOROVOD_TWINS_CACHE": str(folder / "cache")},
    }
    outcomes = [Outcome(**answer) for answer in do(start, message, seconds=job.seconds)]
    bugs = "\n".join(outcome.stderr for outcome in outcomes if outcome.code == 1)
    if bugs:
        raise ServerError(f"{job.name} of {start.framework} on {start.launcher} failed:\n{bugs}")
    return outcomes


class Jobs:
    """Does what a test asks for, once, and what that needs before it; each framework has a folder of its own."""

    def __init__(self, folder, jobs):
        self.folder = folder
        self.jobs = {job.name: job for job in jobs}
        self._done = {}

    def place(self, framework):
        """Return the folder of a framework, in which its jobs run."""
        place = self.folder / framework
        place.mkdir(exist_ok=True)
        return place

    def outcomes(self, framework, name):
        if (framework, name) not in self._done:
            self._done[framework, name] = self._do(framework, self.jobs[name])
        outcomes = self._done[framework, name]
        assert isinstance(outcomes, list), outcomes
        return outcomes

    def _do(self, framework, job):
        for needed in job.after:
            self.outcomes(framework, needed)
        start = start_of(framework, launcher=job.launcher, arguments=self._flags(job))
        try:
            return do_job(job, start=start, folder=self.place(framework))
        except ServerError as error:
            return str(error)

    def _flags(self, job):
        """Return the arguments of a job, after those of the run that it resumes."""
        if job.after and "--resume" in job.arguments:
            return (*self._flags(self.jobs[job.after[0]]), *job.arguments)
        return job.arguments

    def run(self, framework, name):
        """Return a run that has ended well on all ranks."""
        outcomes = self.outcomes(framework, name)
        assert {outcome.code for outcome in outcomes} == {0}, outcomes
        arguments = self.jobs[name].arguments
        run_name = last_value("--name", arguments) or Path(last_value("--resume", arguments)).name
        run = read_run(self.place(framework) / "runs" / run_name)
        assert run.state == "finished"
        return run

    def weights(self, framework, name):
        return load_weights(self.run(framework, name).folder / WEIGHTS_FILE)


def relative_difference(value, reference):
    """Largest difference over the largest entry of the reference; infinite for other shapes and for no numbers."""
    if value.shape != reference.shape or not np.all(np.isfinite(value)):
        return float("inf")
    return float(np.max(np.abs(value.astype(np.float64) - reference)) / np.max(np.abs(reference)))


MEASURED = {"checkpoint_seconds": 0, "hash": ""}  # of a checkpoint's state: seconds, and the hash that covers them


def check_bit_for_bit(run, whole):
    """Check that two runs ended alike, bit for bit: weights, optimizer, figures of every epoch, what the ranks have."""
    assert run.record.hashes == whole.record.hashes
    for ours, theirs in zip(run.epochs, whole.epochs, strict=True):
        assert (ours.epoch, ours.steps, ours.weights_hash) == (theirs.epoch, theirs.steps, theirs.weights_hash)
        assert (ours.training_loss, ours.training_accuracy) == (theirs.training_loss, theirs.training_accuracy)
        assert (ours.validation_loss, ours.validation_accuracy) == (theirs.validation_loss, theirs.validation_accuracy)
        assert ours.learning_rate == theirs.learning_rate
    assert run.record.totals.test_loss == whole.record.totals.test_loss
    assert run.record.totals.steps == whole.record.totals.steps
    assert run.record.initial_test == whole.record.initial_test
    (checkpoint,), (twin,) = checkpoint_folders(run.folder), checkpoint_folders(whole.folder)
    assert checkpoint.name == twin.name == f"epoch-{len(whole.epochs):04d}"
    files = {file.name for file in twin.iterdir()}
    assert {file.name for file in checkpoint.iterdir()} == files >= {"weights.safetensors", "optimizer.safetensors"}
    for file in files - {"state.json"}:
        assert (checkpoint / file).read_bytes() == (twin / file).read_bytes(), file
    states = [json.loads((folder / "state.json").read_text()) for folder in (checkpoint, twin)]
    assert {**states[0], **MEASURED} == {**states[1], **MEASURED}
