"""A run that was ended and resumed is the unbroken one, bit for bit, checkpoint included.

One table, `resumed.toml`. A patch ends each run on all ranks inside its first epoch, after update 3, and inside its
second, after its update 2; then it is resumed once more. What a killed process leaves is in `test_killed.py`.
"""

import tomllib
from pathlib import Path

import pytest
from jobs import Job, Jobs, cases_of, check_bit_for_bit, last_value, resumed, train, words_of

pytestmark = pytest.mark.ranks

OFTEN = ("--checkpoint-minutes", "1e-9")  # after every update
EPOCHS = 2
TABLE = tomllib.loads(Path(__file__).with_name("resumed.toml").read_text())


def cases(rows):
    """Return name -> case, whose settings are words."""
    return {row["name"]: row | {"settings": words_of(row["settings"], TABLE["settings"])} for row in rows}


CASES, AT_AN_EPOCHS_END = cases(TABLE["inside"]), cases(TABLE["at_the_end"])


def all_jobs():
    """Return, for each case, an unbroken run and one that is ended and resumed."""
    for name, case in CASES.items():
        launcher, patched = case.get("launcher", "mpirun2"), case.get("patch", "")
        yield train(f"{name} whole", *case["settings"], launcher=launcher, patch=patched)
        part = (*case["settings"], *OFTEN, "--resume-or-start", "--name", f"{name} part".replace(" ", "_"))
        patches = {"part": "stopped", "again": "stopped_later", "resumed": "no_second_broadcast"}
        for number, (job, patch) in enumerate(patches.items()):
            after = () if number == 0 else (f"{name} {list(patches)[number - 1]}",)
            if (name, job) == ("cnn", "resumed"):
                after = (*after, "too short")
            patch = "+".join(filter(None, (patched, patch)))
            yield Job(f"{name} {job}", part, launcher=launcher, patch=patch, after=after)
    for name, case in AT_AN_EPOCHS_END.items():
        launcher = case.get("launcher", "mpirun2")
        yield train(f"{name} whole", *case["settings"], launcher=launcher)
        yield train(f"{name} part", *case["settings"], "--epochs", "1", launcher=launcher)
        yield resumed(f"{name} resumed", f"{name} part", "--epochs", str(EPOCHS), launcher=launcher)
    # Checkpoints now and then, after some 30 ms; and commands that are repeated after the run of "cnn" has ended.
    cnn, run = CASES["cnn"]["settings"], "runs/cnn_part"
    yield train("segments", *cnn, "--checkpoint-minutes", "0.0005")
    again = (*cnn, *OFTEN, "--resume-or-start", "--name", "cnn_part")
    yield Job("after its end", again, watch=run, after=("cnn resumed", "cnn whole"))
    yield Job("too short", ("--resume", run, "--max-steps", "8"), watch=run, after=("cnn again", "cnn whole"))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("resumed"), all_jobs())


@cases_of(CASES)
def test_a_run_ended_inside_epochs_ends_bit_for_bit_as_an_unbroken_one(jobs, framework, name):
    run, whole = jobs.run(framework, f"{name} resumed"), jobs.run(framework, f"{name} whole")
    for job in ("part", "again"):
        assert {outcome.code for outcome in jobs.outcomes(framework, f"{name} {job}")} == {2}
    first = {"again": "epoch 0 and 3 updates", "resumed": "epoch 1 and 2 updates"}
    for job, where in first.items():
        assert f"after {where} of the next\n" in jobs.outcomes(framework, f"{name} {job}")[0].stdout
    assert run.record.status.resumed_after_epochs == [0, 1]
    steps = int(last_value("--steps-per-epoch", CASES[name]["settings"]))
    assert run.record.status.resumed_after_steps == [3, steps + 2]
    if name == "profile":
        assert run.record.profile.steps == EPOCHS * steps - (steps + 2) - run.record.profile.left_out_steps
        assert run.record.profile.parts_over_step == pytest.approx(1.0, abs=0.05)
    check_bit_for_bit(run, whole)


@cases_of(AT_AN_EPOCHS_END)
def test_a_run_resumed_after_an_epoch_ends_bit_for_bit_as_an_unbroken_one(jobs, framework, name):
    run, whole = jobs.run(framework, f"{name} resumed"), jobs.run(framework, f"{name} whole")
    assert "after epoch 1\n" in jobs.outcomes(framework, f"{name} resumed")[0].stdout
    assert run.record.status.resumed_after_epochs == [1]
    check_bit_for_bit(run, whole)


def test_segments_change_nothing(jobs, framework):
    check_bit_for_bit(jobs.run(framework, "segments"), jobs.run(framework, "cnn whole"))


def test_settings_that_end_before_the_checkpoint_are_refused(jobs, framework):
    ranks = jobs.outcomes(framework, "too short")
    assert [outcome.code for outcome in ranks] == [2, 2] and all(outcome.untouched for outcome in ranks)
    words = "the checkpoint is inside an epoch, after update 8. Received: settings that end after update 8."
    assert words in ranks[0].stderr


def test_a_command_that_is_run_again_after_the_end_does_nothing(jobs, framework):
    ranks = jobs.outcomes(framework, "after its end")
    assert [outcome.code for outcome in ranks] == [0, 0] and all(outcome.untouched for outcome in ranks)
    assert ranks[0].stdout == "the run is already finished: runs/cnn_part\n"
