"""A run: sums over counts, the slowest rank's times, early stop, totals, resume. Two ranks without Horovod."""

import json
import math
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from builders import make_config, make_task
from fake_ranks import run_ranks
from played_run import LostRankError, Played, PlayedRun, device_of, play

from common.config import config_from_dict, parse_command_line
from common.distributed.console import Console, readable_seconds
from common.distributed.launchers import AT_ONCE
from common.errors import UserError
from common.measurement.exchange_meter import ExchangeMeter
from common.measurement.metrics import Sums
from common.measurement.timing import process_age
from common.model.weights import load_weights, weights_hash
from common.run.console_report import warning_lines
from common.run.listeners import free_timeline
from common.run.measured import Measured
from common.run.run import Run
from common.run.world import describe_world
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import Evaluation, NotRecorded, read_run
from common.run_folder.run_writer import RunWriter
from common.run_folder.start_times import BEGAN_AT, STARTED_AT, SUBMITTED_AT, TIMESTAMPS
from common.strategies.sharing import ring_record

TWO_RANKS = {"training": {"batch_size": 15}}
VALIDATED = {"data": {"validation_share": 0.25}}


def totals(run):
    return run.record.totals


def test_a_run_without_a_name_has_one_and_verbose_shows_all_settings(tmp_path, capsys):
    config = make_config(tmp_path, record={"name": None, "verbose": True}, optimizer={"optimizer": "adamw"})
    play(config, lambda played: None, size=2)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("torch-mlp-synthetic-np2-20")
    shown = capsys.readouterr().out
    assert "optimizer: AdamW, " in shown and "weight_decay 0.0" in shown and "multiply-adds per image" in shown


def test_a_run_that_ends_while_its_folder_is_opened_is_on_record_as_ended(tmp_path):
    """A signal, say, before all ranks have met: the recorder is there as soon as the folder is."""

    def opened(comm):
        run = Run(framework="torch", comm=comm, console=Console(comm, progress="lines"))
        if comm.rank:
            describe_world(device_of(), task=make_task(config), comm=comm)
            raise LostRankError
        try:
            Played.open(run, make_task(config, size=2))
        finally:
            run.recorder.end("interrupted", message="by the test")

    config = make_config(tmp_path, **TWO_RANKS)
    run_ranks(2, opened)
    assert read_run(tmp_path / "run").state == "interrupted"


def test_the_end_names_the_next_commands(tmp_path, capsys):
    config = make_config(tmp_path, training={"epochs": 1, "seed": 3})
    play(config, lambda played: (played.end_epoch(1), played.finish()), size=2)
    *_, test, trained, folder, then, last = capsys.readouterr().out.splitlines()
    assert test == "test: loss 0.4000, accuracy 75.00 % (30/40)"
    assert trained.startswith("trained 1 epoch in ") and folder == f"run folder: {tmp_path / 'run'}"
    assert then.startswith("next: python -m launch train --framework keras --np 2 --controller gloo -- ")
    assert last == f"then: python -m analysis frameworks {config.record.runs_folder}"
    other = parse_command_line(shlex.split(then.partition(" -- ")[2]), program="keras_impl/train.py")
    assert replace(other, record=config.record) == config


def test_totals_by_hand(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(AT_ONCE, "3")
    monkeypatch.setattr(PlayedRun, "evaluated", Measured(sums=Sums(23.0, 1, 10)))  # before training

    def script(played):
        continues = [played.end_epoch(1), played.end_epoch(2, training_seconds=3.0, validation_seconds=0.25)]
        continues.append(played.end_epoch(3, training_seconds=5.0 + played.comm.rank))
        played.run.phases.startup_seconds = 7.0 + played.comm.rank
        played.finish(Sums(4.0, 7 + played.comm.rank, 10), seconds=0.5 + played.comm.rank)
        return continues

    config = make_config(tmp_path, training={"batch_size": 15, "evaluate_first": True})
    assert play(config, script, size=2) == [[True, True, False]] * 2
    run = read_run(tmp_path / "run")
    summed = totals(run)
    assert (summed.epochs, summed.steps) == (3, 12)
    assert (summed.training_seconds, summed.validation_seconds, summed.test_seconds) == (2.0 + 3.0 + 6.0, 0.25, 1.5)
    assert summed.images_per_second == 12 * 30 / 11.0
    assert (summed.startup_seconds, summed.data_wait_seconds) == (8.0, 1.5), "the slowest rank's"
    assert (summed.first_epoch_seconds, summed.steady_images_per_second) == (2.0, 8 * 30 / 9.0)
    assert (summed.test_loss, summed.test_accuracy) == (0.4, 0.75)
    assert run.record.initial_test == Evaluation(loss=2.3, accuracy=0.1)
    assert (run.state, run.record.world.at_once) == ("finished", 3)
    weights = load_weights(run.folder / "weights.safetensors")
    assert run.record.hashes.final_weights == weights_hash(weights)
    assert "trained 3 epochs in 11.0 s, 33 images/s" in capsys.readouterr().out


def test_what_ranks_exchanged_is_joined_in_their_order(tmp_path):
    lags = [{"0": 3, "10": 1}, {"2": 4}, {"0": 1}]

    def script(played):
        rank = played.comm.rank
        meter = ExchangeMeter(updates=4, sent_bytes=80 + rank, received_bytes=40, seconds=0.5)
        played.finish(
            sharing=replace(ring_record(played.task, meter, rank=rank), staleness=lags[rank], clock_lead=rank)
        )

    config = make_config(tmp_path, training={"batch_size": 10})
    play(config, script, size=3)
    sharing = read_run(tmp_path / "run").record.sharing
    assert [worker.sent_bytes for worker in sharing.workers] == [20.0, 20.25, 20.5]
    of_workers = {(worker.received_bytes, worker.exchange_seconds, worker.images) for worker in sharing.workers}
    assert of_workers == {(10.0, 0.5, 40)}
    assert sharing.staleness == {"0": 4, "2": 4, "10": 1} and list(sharing.staleness) == ["0", "2", "10"]
    assert (sharing.clock_lead, sharing.servers, sharing.formula) == (2, 0, "ring: 2 (N-1)/N S")
    alone = make_task(config)
    assert sharing.formula_bytes == pytest.approx(2 * 2 / 3 * 4 * alone.spec.parameters)
    assert ring_record(alone, ExchangeMeter(), rank=0) is None

    play(make_config(tmp_path, record={"name": "on-gpu"}, **TWO_RANKS), script, size=2, gpu="M60")
    workers = read_run(tmp_path / "on-gpu").record.sharing.workers
    assert workers and all(isinstance(worker.exchange_seconds, NotRecorded) for worker in workers)


def test_the_last_start_records_what_came_before_it(tmp_path, monkeypatch, capsys):
    now, age = time.time(), process_age()
    for name in TIMESTAMPS:
        monkeypatch.delenv(name, raising=False)

    def script(played):
        played.end_epoch(played.done + 1)
        played.finish()

    play(make_config(tmp_path, training={"epochs": 1}), script)
    before = totals(read_run(tmp_path / "run"))
    assert (before.queue_seconds, before.launch_seconds) == (None, None)
    assert (before.first_epoch_seconds, before.steady_images_per_second) == (2.0, None), "one epoch is no steady state"
    assert "(start-up" in capsys.readouterr().out

    monkeypatch.setenv(SUBMITTED_AT, str(now - 99_070))
    monkeypatch.setenv(BEGAN_AT, str(now - 99_000))
    monkeypatch.setenv(STARTED_AT, str(now - 90_000))
    play(make_config(tmp_path, training={"epochs": 2}, record={"resume": str(tmp_path / "run")}), script)
    run = read_run(tmp_path / "run")
    assert totals(run).queue_seconds == pytest.approx(70)
    # To the start of this process, however long the tests have run.
    assert totals(run).launch_seconds == pytest.approx(90_000 - age, abs=0.1)
    assert run.record.world.launcher == "none"
    assert "(launch " in capsys.readouterr().out
    assert not set(TIMESTAMPS) & set(run.record.environment.variables), "they would make all starts different"


NAN, INF = math.nan, math.inf


def play_validated(folder, training, validations):
    """Train one epoch after the other until the run is complete, then end it with its test; return the run."""

    def script(played):
        for epoch, sums in enumerate(validations, start=1):
            if not played.end_epoch(epoch, validation=sums):
                break
        played.finish()
        return epoch

    training = {"epochs": len(validations) + 1, "batch_size": 15} | training
    ended = play(make_config(folder, training=training, **VALIDATED), script, size=2)
    run = read_run(folder / "run")
    assert ended == [len(run.epochs)] * 2
    return run


@pytest.mark.parametrize(
    ("patience", "losses", "ends_after"),
    [
        (None, [1.0, 2.0, 3.0, 4.0, 5.0], 5),
        (1, [1.0, 0.9, 0.9, 0.1], 3),
        (1, [1.0, None, 0.9, None, 0.9, 0.1], 5),  # an epoch without validation does not count
        (2, [1.0, 0.9, 0.95, 0.8, 0.85, 0.84, 0.1], 6),
        (2, [1.0, NAN, NAN, NAN], 3),
        (1, [NAN, 1.0, 0.5, 0.6, 0.1], 4),
        (1, [INF, NAN, 1.0], 2),
    ],
)
def test_early_stop(patience, losses, ends_after, tmp_path):
    validations = [Sums() if loss is None else Sums(loss * 10, 5, 10) for loss in losses]
    run = play_validated(tmp_path, {"early_stop": patience}, validations)
    assert [epoch.validation_loss is None for epoch in run.epochs] == [loss is None for loss in losses[:ends_after]]


@pytest.mark.parametrize(
    ("target", "right", "reached"),
    [(0.8, [5, 8, 9], 2), (0.81, [5, 8, 9, 9], 3), (1.0, [5, 8, 9], None), (None, [5, 10, 9], None)],
)
def test_the_target_accuracy_ends_a_run_and_its_time_is_recorded(target, right, reached, tmp_path, capsys):
    run = play_validated(tmp_path, {"target_accuracy": target}, [Sums(10, correct, 10) for correct in right])
    assert len(run.epochs) == (reached or len(right))
    spent = sum(epoch.training_seconds + epoch.validation_seconds for epoch in run.epochs)
    assert totals(run).epochs_to_target == reached
    assert totals(run).seconds_to_target == (pytest.approx(spent) if reached else None)
    said = f"target reached: validation accuracy {10 * right[-1 if reached is None else reached - 1]}.00 %"
    assert (said in capsys.readouterr().out) == (reached is not None)


def test_more_threads_than_cores_is_reported_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    config = make_config(tmp_path, **TWO_RANKS)
    play(config, lambda played: None, size=2)
    world, task = read_run(tmp_path / "run").record.world, make_task(config, size=2)
    assert world.oversubscribed
    threads = {"cores": 2, "threads_per_rank": 4, "local_size": 1}
    hosts = {"cores": 2, "local_size": 3, "hosts": ["a", "b"]}
    lines = [warning_lines(task, replace(world, **changes)) for changes in ({}, threads, hosts)]
    words = [
        ("2 ranks on 1 core: each rank has half a core, so a step takes about 2 times as long", "at most -np 1"),
        ("1 rank on 2 cores: each rank has more threads (4) than cores", "--threads 2"),
        (
            "3 ranks on 2 cores: each rank has 0.67 of a core, so a step takes about 1.5 times as long",
            "2 ranks per host",
        ),
    ]
    for (problem, remedy), (line,) in zip(words, lines, strict=True):
        assert line.startswith(f"Warning: {problem}") and "its timings are invalid" in line and remedy in line


def test_onednn_of_every_rank_is_recorded_and_what_is_not_as_asked_is_said(tmp_path, capsys):
    for name, onednn in (("both", [True, True]), ("none", [False, False]), ("some", [False, True])):
        play(
            make_config(tmp_path, record={"name": name}, **TWO_RANKS),
            lambda played: None,
            size=2,
            device="cpu",
            onednn=onednn,
        )
        world = read_run(tmp_path / name).record.world
        assert world.onednn == ["on" if is_on else "off" for is_on in onednn]
    lines = [line for line in capsys.readouterr().out.splitlines() if "oneDNN" in line]
    assert lines == [
        "Warning: this build of the framework has no oneDNN (--onednn on), and trains without it",
        "Warning: only some ranks use oneDNN (1): the others are slower, and all ranks wait for them",
    ]
    play(make_config(tmp_path, record={"name": "gpu"}), lambda played: None, device="cuda:0", gpu="H100")
    assert read_run(tmp_path / "gpu").record.world.onednn == [None]


def resumed(config, **training):
    changes = {"record": {"resume": str(Path(config.record.runs_folder) / "run")}, "training": training}
    return config_from_dict(changes, base=config)


def run_some(config, epochs, *, end="interrupted"):
    """Train some epochs, then end the run; None ends it with its test. Return the epoch from which it went on."""

    def script(played):
        for epoch in range(played.done + 1, epochs + 1):
            played.end_epoch(epoch)
        if end is None:
            played.finish()
        elif end != "running":
            played.end(end)
        return played.done

    (done,) = play(config, script)
    return done


def test_waiting_that_an_older_part_of_a_run_lacks_is_not_recorded_for_the_whole(tmp_path):
    config = make_config(tmp_path)
    run_some(config, 1)
    file = tmp_path / "run" / "epochs.jsonl"
    line = json.loads(file.read_text()) | {"data_wait_seconds": {"not_recorded": "read inside the step"}}
    file.write_text(json.dumps(line) + "\n")
    assert run_some(resumed(config), 2, end=None) == 1
    assert totals(read_run(tmp_path / "run")).data_wait_seconds == NotRecorded("read inside the step")


def test_a_line_without_its_checkpoint_is_written_anew(tmp_path):
    """A crash may come between the two; the checkpoint rules."""
    config = make_config(tmp_path, record={"keep": 0})
    run_some(config, 2)
    newest = tmp_path / "run" / "checkpoints" / "epoch-0002"
    newest.rename(newest.with_name("lost"))
    assert play(resumed(config), lambda played: played.done) == [1]
    assert [epoch.epoch for epoch in read_run(tmp_path / "run").epochs] == [1]


def test_a_run_ended_between_a_checkpoint_and_its_line_continues_from_the_one_before(tmp_path, monkeypatch):
    config = make_config(tmp_path)

    def end(played):
        played.end_epoch(1)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(RunWriter, "add_epoch", Mock(side_effect=KeyboardInterrupt))
            played.end_epoch(2)
        played.end("interrupted")

    play(config, end)
    assert len(read_run(tmp_path / "run").epochs) == 1
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["epoch-0001", "epoch-0002"]
    assert run_some(resumed(config), 2) == 1
    assert [epoch.epoch for epoch in read_run(tmp_path / "run").epochs] == [1, 2]
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["epoch-0002"]


def test_a_run_ended_before_its_test_is_resumed_for_the_test_alone_and_can_be_prolonged(tmp_path):
    config = make_config(tmp_path)
    run_some(config, 3)

    def finish(played):
        played.finish(Sums(4.0, 7, 10))
        return played.epoch is None

    assert play(resumed(config), finish) == [True]
    run = read_run(tmp_path / "run")
    assert run.state == "finished" and (totals(run).epochs, totals(run).training_seconds) == (3, 6.0)
    assert run.record.sharing is None, "no update was made since the last start"
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert play(resumed(config, epochs=4), lambda played: played.done) == [3]
    # The old final weights are not those of the resumed run.
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def test_what_is_trained_already_is_not_cut_off(tmp_path):
    config = make_config(tmp_path)
    run_some(config, 3)
    before = contents(tmp_path)
    for shorter in ({"epochs": 2}, {"max_steps": 9}):
        with pytest.raises(
            UserError, match=r"after update 12\. Received: settings that end after update [89]\. Give more"
        ):
            play(resumed(config, **shorter), lambda played: "went on")
    assert contents(tmp_path) == before


def test_a_finished_run_that_a_stopping_rule_ended_is_not_resumed(tmp_path):
    training = {"target_accuracy": 0.8, "epochs": 3}
    play_validated(tmp_path, training, [Sums(10, 9, 10)])
    before = contents(tmp_path)
    config = read_run(tmp_path / "run").record.config
    for epochs in (3, 9):
        for error in play(resumed(config, epochs=epochs), lambda played: "went on", size=2):
            assert str(error).startswith(
                "nothing is left to do: target reached: validation accuracy 90.00 % after 1 epoch"
            )
    assert contents(tmp_path) == before


def test_a_run_that_goes_on_does_not_need_the_weights_that_it_started_from(tmp_path):
    run_some(make_config(tmp_path), 1)
    gone = {"training": {"start_weights": str(tmp_path / "gone")}}
    make_task(make_config(tmp_path, **gone, record={"resume_or_start": True}))
    for record in ({}, {"resume_or_start": True, "name": "other"}):
        with pytest.raises(UserError, match="gone"):
            make_task(make_config(tmp_path, **gone, record=record))


def test_each_start_of_a_run_has_a_timeline_of_its_own(tmp_path):
    for name in ("timeline.json", "timeline-2.json", "timeline-3.json"):
        assert free_timeline(tmp_path) == tmp_path / name
        (tmp_path / name).touch()


def test_a_run_goes_on_when_nobody_reads_what_it_prints(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", Mock(write=Mock(side_effect=BrokenPipeError)))
    run_some(make_config(tmp_path), 3, end=None)
    assert read_run(tmp_path / "run").state == "finished"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FINISHED, INTERRUPTED, RUNNING = None, "interrupted", "running"


@pytest.mark.parametrize(
    ("end", "file", "change", "words"),
    [  # more: `refusals/ranks.toml`
        (RUNNING, "", (), "still running"),
        (FINISHED, "run.json", ('"torch"', '"keras"'), "Use keras_impl/train.py"),
        (FINISHED, "epochs.jsonl", (r"\n.*\n\Z", "\n"), "ends before the checkpoint"),
        (INTERRUPTED, "run.json", (r'"sample_order": "\w+"', '"sample_order": "0"'), "data set have changed"),
    ],
)
def test_what_cannot_be_resumed_is_refused_and_nothing_is_changed(end, file, change, words, tmp_path):
    config = make_config(tmp_path)
    run_some(config, 3, end=end)
    if change:
        path = tmp_path / "run" / file
        path.write_text(re.sub(*change, path.read_text()))
    before = contents(tmp_path)
    with pytest.raises(UserError, match=rf"^[^\n]*{words}[^\n]*\Z"):
        play(resumed(config, epochs=9), lambda played: "went on")
    assert contents(tmp_path) == before


def test_seconds_in_words():
    words = ["0.0 s", "7.2 s", "99.4 s", "1 min 40 s", "4 min 05 s", "1 h 00 min", "2 h 03 min"]
    assert [readable_seconds(seconds) for seconds in (0.04, 7.25, 99.4, 99.6, 245, 3599.6, 7380)] == words
