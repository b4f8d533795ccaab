"""The first update and the first evaluation are rehearsed before start-up ends, alike in both frameworks, and undone.

A row of `rehearsed.toml` is a run with all that it rehearses (`patches.noted_rehearsal`), and the same run without.
"""

import tomllib
from pathlib import Path

import pytest
from jobs import Job, Jobs, cases_of, check_bit_for_bit, keras_in_ci, relative_difference, train, words_of

from common.model.weights import load_weights
from common.run_folder.records import WEIGHTS_FILE

pytestmark = pytest.mark.ranks

TABLE = tomllib.loads(Path(__file__).with_name("rehearsed.toml").read_text())
CASES = {row["name"]: row for row in TABLE["case"]}
CNN = words_of("cnn", TABLE["settings"])


def all_jobs():
    """Return each run with and without a rehearsal."""
    for name, case in CASES.items():
        settings, launcher = words_of(case["settings"], TABLE["settings"]), case.get("launcher", "mpirun2")
        for job, patch in ((name, "noted_rehearsal"), (f"{name} unrehearsed", "unrehearsed")):
            patch = "+".join(filter(None, (case.get("patch", ""), patch)))
            yield train(job, *settings, launcher=launcher, patch=patch)
    inside = (*CNN, "--steps-per-epoch", "6", "--checkpoint-minutes", "1e-9", "--resume-or-start", "--name", "part")
    yield Job("part", inside, patch="stopped")
    yield Job("resumed", inside, patch="noted_rehearsal", after=("part",))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("rehearsed"), all_jobs())


def of_start(noted):
    """Return all that a worker notes until its start-up ends."""
    return ("evaluation", "evaluation", *noted, "all tensors moved", "nothing is left of it", "start-up ends")


def noted(jobs, framework, name):
    """Return what each worker noted until its start-up ended."""
    lines = [outcome.stdout.splitlines() for outcome in jobs.outcomes(framework, name)]
    words = [[line.removeprefix("noted: ") for line in rank if line.startswith("noted: ")] for rank in lines]
    return [tuple(rank[: rank.index("start-up ends") + 1]) for rank in words if rank]


@cases_of(CASES)
def test_an_update_and_evaluations_are_rehearsed_before_start_up_ends(jobs, framework, name):
    """Forward and backward pass, exchange and update, of which nothing is left; the same in both frameworks."""
    jobs.run(framework, name)
    workers = noted(jobs, framework, name)
    assert workers
    assert set(workers) == {of_start(CASES[name]["noted"])}


@keras_in_ci
def test_a_run_resumed_inside_an_epoch_rehearses_too(jobs, framework):
    """Momentum and averages of the optimizer included; that it ends as an unbroken run is in `test_resumed.py`."""
    assert jobs.run(framework, "resumed").record.status.resumed_after_steps == [3]
    assert set(noted(jobs, framework, "resumed")) == {of_start(CASES["allreduce"]["noted"])}


@cases_of(CASES)
def test_a_rehearsed_run_trains_the_same_weights(jobs, framework, name):
    run, plain = jobs.run(framework, name), jobs.run(framework, f"{name} unrehearsed")
    if tolerance := CASES[name].get("tolerance"):
        weights, expected = (load_weights(one.folder / WEIGHTS_FILE) for one in (run, plain))
        assert max(relative_difference(weights[tensor], array) for tensor, array in expected.items()) <= tolerance
    else:
        check_bit_for_bit(run, plain)
    counts = [
        [(worker.updates, worker.sent_bytes, worker.received_bytes) for worker in one.record.sharing.workers]
        for one in (run, plain)
        if one.record.sharing
    ]
    assert len(counts) == 0 or counts[0] == counts[1]
