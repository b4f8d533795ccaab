"""The session: sums over counts, the slowest rank's times, early stop, totals, resume. Two ranks without Horovod."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from builders import make_config, make_setup, random_weights
from played_session import play

from common.config import config_from_dict
from common.distributed.console import readable_seconds
from common.distributed.exchange_meter import ExchangeMeter
from common.errors import UserError
from common.measurement.metrics import Sums
from common.measurement.timing import process_age
from common.model.weights import load_weights, weights_hash
from common.run_folder.checkpoints import checkpoint_folders
from common.run_folder.records import Evaluation, NotRecorded, RunWriter, read_run
from common.strategies.sharing import ring_record
from common.training import checkpointer as checkpointer_module
from common.training.console_report import start_lines
from common.training.measured import Measured
from common.utils.at_once import AT_ONCE
from common.utils.timestamps import BEGAN_AT, STARTED_AT, SUBMITTED_AT, TIMESTAMPS


def totals(run):
    return run.record.totals


def test_an_epoch_of_two_ranks_by_hand(tmp_path, capsys):
    config = make_config(tmp_path, training={"batch_size": 15}, data={"validation_share": 0.25})
    # 90 training samples: 3 steps of 2 x 15, no sample left out.
    results = [
        {
            "training": Sums(loss=90.0, correct=30, samples=45),
            "training_seconds": 2.0,
            "data_wait_seconds": 0.5,
            "validation": Sums(loss=10.0, correct=5, samples=20),
            "validation_seconds": 0.25,
        },
        {
            "training": Sums(loss=45.0, correct=15, samples=45),
            "training_seconds": 4.0,
            "data_wait_seconds": 0.125,
            "validation": Sums(loss=5.0, correct=7, samples=10),
            "validation_seconds": 0.5,
        },
    ]

    def script(played):
        return played.end_epoch(1, weights=random_weights(played.setup), **results[played.comm.rank])

    assert play(config, script, size=2) == [True, True]
    run = read_run(tmp_path / "run")
    (epoch,) = run.epochs
    assert (epoch.training_loss, epoch.training_accuracy) == (135 / 90, 45 / 90)
    assert (epoch.validation_loss, epoch.validation_accuracy) == (0.5, 0.4)
    assert (epoch.training_seconds, epoch.data_wait_seconds, epoch.validation_seconds) == (4.0, 0.5, 0.5)
    assert epoch.images_per_second == 90 / 4.0
    assert (epoch.epoch, epoch.steps, epoch.learning_rate) == (1, 3, 0.01)
    setup = make_setup(config, size=2)
    assert epoch.weights_hash == weights_hash(random_weights(setup))
    assert run.record.world.devices == ["cpu 0", "cpu 1"]
    assert run.record.world.size == 2 and run.state == "running"
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if line.startswith("epoch"))
    for part in (
        "epoch 1/3",
        "22 images/s",
        "loss 1.5000",
        "accuracy 50.00 %",
        "validation loss 0.5000",
        "40.00 %",
        "4.5 s",
    ):
        assert part in line
    assert shown.count("epoch 1/3") == 1, "only rank 0 prints"
    assert "15 x 2 ranks = 30 images per update, 3 updates per epoch, the last 0 samples" in shown


def test_totals_by_hand(tmp_path, capsys):
    def script(played):
        played.session.record_initial_test(Measured(sums=Sums(23.0, 1, 10)))
        continues = [played.end_epoch(1), played.end_epoch(2, training_seconds=3.0, validation_seconds=0.25)]
        continues.append(played.end_epoch(3, training_seconds=5.0 + played.comm.rank))
        played.session.phases.startup_seconds = 7.0 + played.comm.rank
        played.finish(Sums(4.0, 7 + played.comm.rank, 10), seconds=0.5 + played.comm.rank)
        return continues

    config = make_config(tmp_path, training={"batch_size": 15})
    assert play(config, script, size=2) == [[True, True, False]] * 2
    run = read_run(tmp_path / "run")
    found = totals(run)
    assert (found.epochs, found.steps) == (3, 12)
    assert (found.training_seconds, found.validation_seconds, found.test_seconds) == (2.0 + 3.0 + 6.0, 0.25, 1.5)
    assert found.images_per_second == 12 * 30 / 11.0
    assert (found.startup_seconds, found.data_wait_seconds) == (8.0, 1.5), "the slowest rank's"
    assert (found.first_epoch_seconds, found.steady_images_per_second) == (2.0, 8 * 30 / 9.0)
    assert (found.test_loss, found.test_accuracy) == (0.4, 0.75)
    assert run.record.initial_test == Evaluation(loss=2.3, accuracy=0.1)
    assert run.state == "finished"
    weights = load_weights(run.folder / "weights.safetensors")
    assert run.record.hashes.final_weights == weights_hash(weights)
    shown = capsys.readouterr().out
    assert "test loss 0.4000, accuracy 75.00 % (15/20)" in shown
    assert f"run folder: {tmp_path / 'run'}" in shown and "trained 3 epochs in 11.0 s, 33 images/s" in shown
    assert "before training: test loss 2.3000, accuracy 10.00 % (2/20)" in shown


def test_what_ranks_exchanged_is_joined_in_their_order(tmp_path):
    def script(played):
        meter = ExchangeMeter(updates=4, sent_bytes=80 + played.comm.rank, received_bytes=40, seconds=0.5)
        part = ring_record(played.setup, meter, rank=played.comm.rank)
        lags = {"0": 3, "10": 1} if played.comm.rank == 0 else {"2": 4, "0": 1}
        played.finish(sharing=replace(part, staleness=lags, clock_lead=2 + played.comm.rank))

    config = make_config(tmp_path, training={"batch_size": 15}, optimizer={"momentum": 0.0})
    play(config, script, size=2)
    sharing = read_run(tmp_path / "run").record.sharing
    assert [worker.sent_bytes for worker in sharing.workers] == [20.0, 20.25]
    assert {(one.received_bytes, one.exchange_seconds, one.images) for one in sharing.workers} == {(10.0, 0.5, 60)}
    assert sharing.staleness == {"0": 4, "2": 4, "10": 1} and list(sharing.staleness) == ["0", "2", "10"]
    assert (sharing.clock_lead, sharing.servers) == (3, 0)
    parameters = make_setup(config, size=2).spec.parameters
    assert (sharing.formula, sharing.formula_bytes) == ("ring: 2 (N-1)/N S", 4 * parameters)


def test_seconds_of_exchanges_are_not_recorded_on_a_gpu(tmp_path):
    def script(played):
        played.finish(sharing=ring_record(played.setup, ExchangeMeter(updates=4, seconds=0.5), rank=0))

    play(make_config(tmp_path, training={"batch_size": 15}), script, size=2, gpu="M60")
    sharing = read_run(tmp_path / "run").record.sharing
    assert sharing and all(isinstance(worker.exchange_seconds, NotRecorded) for worker in sharing.workers)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"device": {"compression": "fp16"}}, 0.5),
        ({"strategy": {"strategy": "averaging", "average_every": 4}}, 2 / 4),
        ({"strategy": {"strategy": "averaging", "average_every": "epoch", "average_state": False}}, 1 / 4),
        ({"strategy": {"strategy": "averaging", "average_every": 1}, "optimizer": {"optimizer": "adam"}}, 3),
        ({"strategy": {"strategy": "averaging", "average_every": 1}, "optimizer": {"momentum": 0.0}}, 1),
    ],
)
def test_the_formula_of_a_ring(settings, values, tmp_path):
    """Of 3 ranks, each sends 2 (N-1)/N times the bytes; here in float32 values for each weight, per update."""
    setup = make_setup(make_config(tmp_path, training={"batch_size": 10}, **settings), size=3)
    record = ring_record(setup, ExchangeMeter(), rank=0)
    assert record and record.formula_bytes == pytest.approx(2 * 2 / 3 * 4 * values * setup.spec.parameters)
    assert ring_record(make_setup(setup.config, size=1), ExchangeMeter(), rank=0) is None


def test_the_last_start_records_what_came_before_it(tmp_path, monkeypatch, capsys):
    now, age = time.time(), process_age()
    for name in TIMESTAMPS:
        monkeypatch.delenv(name, raising=False)

    def script(played):
        played.end_epoch(played.done + 1)
        played.finish()

    play(make_config(tmp_path, training={"epochs": 1}), script)
    found = totals(read_run(tmp_path / "run"))
    assert (found.queue_seconds, found.launch_seconds) == (None, None)
    assert "(start-up" in capsys.readouterr().out

    monkeypatch.setenv(SUBMITTED_AT, str(now - 99_070))
    monkeypatch.setenv(BEGAN_AT, str(now - 99_000))
    monkeypatch.setenv(STARTED_AT, str(now - 90_000))
    play(make_config(tmp_path, training={"epochs": 2}, record={"resume": str(tmp_path / "run")}), script)
    run = read_run(tmp_path / "run")
    found = totals(run)
    assert found.queue_seconds == pytest.approx(70)
    # To the start of this process, however long the tests have run.
    assert found.launch_seconds == pytest.approx(90_000 - age, abs=0.1)
    assert run.record.world.launcher == "none"
    assert "(launch " in capsys.readouterr().out
    assert not set(TIMESTAMPS) & set(run.record.environment.variables), "they would make all starts different"


def test_max_steps_cuts_the_last_epoch(tmp_path):
    def script(played):
        continues = [played.end_epoch(epoch) for epoch in (1, 2)]
        played.finish()
        return continues

    assert play(make_config(tmp_path, training={"max_steps": 6}), script) == [[True, False]]
    run = read_run(tmp_path / "run")
    assert [epoch.steps for epoch in run.epochs] == [4, 2] and totals(run).steps == 6
    assert totals(run).images_per_second == 6 * 30 / 4.0


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("patience", "losses", "ends_after"),
    [
        (None, [1.0, 2.0, 3.0, 4.0, 5.0], 5),
        (1, [1.0, 0.9, 0.9, 0.1], 3),
        (2, [1.0, 0.9, 0.95, 0.8, 0.85, 0.84], 6),
        (2, [1.0, 1.1, 0.9, 1.0, 0.9, 0.1], 5),
        (2, [1.0, NAN, NAN, NAN], 3),
        (1, [NAN, 1.0, 0.5, 0.6], 4),
        (1, [INF, NAN, 1.0], 2),
    ],
)
def test_early_stop(patience, losses, ends_after, tmp_path):
    training = {"epochs": len(losses) + 1, "early_stop": patience, "batch_size": 15}
    config = make_config(tmp_path, training=training, data={"validation_share": 0.25})

    def script(played):
        for epoch, loss in enumerate(losses, start=1):
            if not played.end_epoch(epoch, validation=Sums(loss * 10, 5, 10)):
                return epoch
        return epoch

    assert play(config, script, size=2) == [ends_after] * 2


def test_an_epoch_without_validation_does_not_count_for_early_stop(tmp_path):
    config = make_config(tmp_path, training={"epochs": 9, "early_stop": 1}, data={"validation_share": 0.25})

    def script(played):
        validations = [Sums(10, 5, 10), Sums(), Sums(9, 5, 10), Sums(), Sums(9, 5, 10)]
        return [played.end_epoch(epoch, validation=sums) for epoch, sums in enumerate(validations, start=1)]

    assert play(config, script) == [[True, True, True, True, False]]
    assert read_run(tmp_path / "run").epochs[1].validation_loss is None


@pytest.mark.parametrize(
    ("target", "right", "ends_after"),
    [(0.8, [5, 8, 9], 2), (0.81, [5, 8, 9], 3), (1.0, [5, 8, 9], None), (None, [5, 10, 9], None)],
)
def test_the_target_accuracy_ends_a_run_and_its_time_is_recorded(target, right, ends_after, tmp_path, capsys):
    training = {"epochs": 4, "target_accuracy": target, "batch_size": 15}
    config = make_config(tmp_path, training=training, data={"validation_share": 0.25})

    def script(played):
        ended = None
        for epoch, correct in enumerate(right, start=1):
            if not played.end_epoch(epoch, validation=Sums(10, correct, 10)):
                ended = epoch
                break
        played.finish(Sums(1, 1, 2))
        return ended

    assert play(config, script, size=2) == [ends_after] * 2
    run = read_run(tmp_path / "run")
    assert totals(run).epochs_to_target == ends_after
    spent = [figure for epoch in run.epochs for figure in (epoch.training_seconds, epoch.validation_seconds)]
    assert totals(run).seconds_to_target == (None if ends_after is None else pytest.approx(sum(spent)))
    assert (
        f"target reached: validation accuracy {10 * right[(ends_after or 1) - 1]}.00 %" in capsys.readouterr().out
    ) == (ends_after is not None)


def test_weights_that_differ_stop_all_ranks_before_anything_is_written(tmp_path):
    def script(played):
        weights = random_weights(played.setup)
        if played.comm.rank:
            weights["fc2.bias"] = np.nextafter(weights["fc2.bias"], 9)
        played.end_epoch(1, weights=weights)

    for error in play(make_config(tmp_path, training={"batch_size": 15}), script, size=2):
        assert isinstance(error, UserError) and "fc2.bias" in str(error) and "after epoch 1" in str(error)
    run = read_run(tmp_path / "run")
    assert run.epochs == [] and not (run.folder / "checkpoints").exists()


def test_a_checkpoint_that_cannot_be_written_ends_all_ranks(tmp_path, monkeypatch):
    def full(*args, **settings):
        raise OSError(28, "No space left on device", "/runs/a")

    monkeypatch.setattr(checkpointer_module, "save_checkpoint", full)
    config = make_config(tmp_path, training={"batch_size": 15})
    for error in play(config, lambda played: played.end_epoch(1), size=2):
        assert isinstance(error, UserError) and "writing the checkpoint failed: No space left" in str(error)


def test_a_folder_that_exists_ends_all_ranks(tmp_path):
    (tmp_path / "run").mkdir()
    config = make_config(tmp_path, training={"batch_size": 15})
    for error in play(config, lambda played: None, size=2):
        assert isinstance(error, UserError) and "exists already" in str(error)
    assert list((tmp_path / "run").iterdir()) == []


def test_more_threads_than_cores_is_reported_and_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    play(make_config(tmp_path, training={"batch_size": 15}), lambda played: None, size=2)
    world = read_run(tmp_path / "run").record.world
    assert world.oversubscribed
    correct = "The run is correct, but its times do not count as a speedup"
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"note: 2 ranks on 1 core: each rank has half a core, so a step takes about 2 times as long, and all "
        f"together are no faster. {correct}",
        "note: for times that count, give each rank a core: -np 1 at most",
    ]
    setup = make_setup(make_config(tmp_path, training={"batch_size": 15}), size=2)
    unlike = {"cores": 2, "threads_per_rank": 4, "local_size": 1}, {"local_size": 3, "cores": 2, "hosts": ["a", "b"]}
    assert [start_lines(setup, replace(world, **changes))[-2:] for changes in unlike] == [
        [f"note: 1 rank on 2 cores: 4 threads per rank are more than its cores. {correct}",
         "note: for times that count, give each rank no more threads than cores: --threads 2"],
        [f"note: 3 ranks on 2 cores: each rank has 0.67 of a core, so a step takes about 1.5 times as long, and "
         f"all together are no faster. {correct}",
         "note: for times that count, give each rank a core: 2 ranks per host at most"],
    ]  # fmt: skip


def test_a_run_records_how_many_are_made_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(AT_ONCE, "3")
    play(make_config(tmp_path, training={"batch_size": 15}), lambda played: None)
    world = read_run(tmp_path / "run").record.world
    assert world.at_once == 3


def resumed(config, **training):
    changes = {"record": {"resume": str(Path(config.record.runs_folder) / "run")}, "training": training}
    return config_from_dict(changes, base=config)


def run_some(config, epochs, *, end="interrupted"):
    """Train a few epochs, then end the run."""

    def script(played):
        for epoch in range(played.done + 1, epochs + 1):
            played.end_epoch(epoch)
        if end:
            played.end(end)
        else:
            played.finish()

    play(config, script)


def test_a_resumed_run_continues_where_it_was(tmp_path, capsys):
    config = make_config(tmp_path)
    run_some(config, 1)
    assert read_run(tmp_path / "run").state == "interrupted"

    def script(played):
        assert [played.end_epoch(epoch) for epoch in (2, 3)] == [True, False]
        played.finish()
        return played.done

    assert play(resumed(config), script) == [1]
    run = read_run(tmp_path / "run")
    assert [epoch.epoch for epoch in run.epochs] == [1, 2, 3] and run.state == "finished"
    assert (totals(run).epochs, totals(run).training_seconds) == (3, 6.0)
    assert run.record.status.resumed_after_epochs == [1]
    assert "after epoch 1" in capsys.readouterr().out


def test_waiting_that_an_older_part_of_a_run_lacks_is_not_recorded_for_the_whole(tmp_path):
    config = make_config(tmp_path)
    run_some(config, 1)
    file = tmp_path / "run" / "epochs.jsonl"
    line = json.loads(file.read_text()) | {"data_wait_seconds": {"not_recorded": "read inside the step"}}
    file.write_text(json.dumps(line) + "\n")

    def script(played):
        played.end_epoch(2)
        played.finish()

    play(resumed(config), script)
    assert totals(read_run(tmp_path / "run")).data_wait_seconds == NotRecorded("read inside the step")


def test_one_epoch_has_no_steady_state(tmp_path):
    run_some(make_config(tmp_path, training={"epochs": 1}), 1, end=None)
    found = totals(read_run(tmp_path / "run"))
    assert (found.first_epoch_seconds, found.steady_images_per_second) == (2.0, None)


def test_a_line_without_its_checkpoint_is_written_anew(tmp_path):
    """A crash may come between the two; the checkpoint rules."""
    config = make_config(tmp_path, record={"keep": 0})
    run_some(config, 2)
    (newest,) = (tmp_path / "run" / "checkpoints").glob("epoch-0002")
    newest.rename(newest.with_name("lost"))
    assert play(resumed(config), lambda played: played.done) == [1]
    assert [epoch.epoch for epoch in read_run(tmp_path / "run").epochs] == [1]


def test_a_finished_run_can_be_prolonged(tmp_path):
    config = make_config(tmp_path)
    run_some(config, 3, end=None)
    assert (tmp_path / "run" / "weights.safetensors").exists()
    assert play(resumed(config, epochs=4), lambda played: played.done) == [3]
    # The old final weights are not those of the resumed run.
    assert not (tmp_path / "run" / "weights.safetensors").exists()


def refused(config, *, size=1):
    before = {path: path.read_bytes() for path in Path(config.record.runs_folder).rglob("*") if path.is_file()}
    try:
        results = play(config, lambda played: "went on", size=size)
    except UserError as error:
        results = [error]
    assert all(isinstance(found, UserError) for found in results)
    after = {path: path.read_bytes() for path in Path(config.record.runs_folder).rglob("*") if path.is_file()}
    assert before == after, "nothing is overwritten"
    assert "\n" not in str(results[0])
    return str(results[0])


def test_what_cannot_be_resumed_is_refused(tmp_path):
    config = make_config(tmp_path)
    assert "not a run folder" in refused(resumed(config))
    play(config, lambda played: played.end_epoch(1))
    assert "still running" in refused(resumed(config))


def test_only_the_same_framework_and_ranks_resume(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    run_some(config, 3, end=None)
    assert "nothing is left to do: 3 epochs are done" in refused(resumed(config))
    assert "another number of ranks. Received: -np 2. Start it with -np 1" in refused(resumed(config, epochs=9), size=2)
    text = (tmp_path / "run" / "run.json").read_text()
    (tmp_path / "run" / "run.json").write_text(text.replace('"framework": "torch"', '"framework": "keras"'))
    assert "Use keras_impl/train.py" in refused(resumed(config, epochs=9))
    (tmp_path / "run" / "run.json").write_text(text)
    lines = (tmp_path / "run" / "epochs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "epochs.jsonl").write_text("".join(lines[:2]))
    assert "ends before the checkpoint" in refused(resumed(config, epochs=9))


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

    def go_on(played):
        played.end_epoch(played.done + 1)
        played.end("interrupted")
        return played.done

    assert play(resumed(config), go_on) == [1]
    assert [epoch.epoch for epoch in read_run(tmp_path / "run").epochs] == [1, 2]
    assert [folder.name for folder in checkpoint_folders(tmp_path / "run")] == ["epoch-0002"]


def test_a_run_ended_before_its_test_is_resumed_for_the_test_alone(tmp_path):
    config = make_config(tmp_path)

    def end(played):
        for epoch in (1, 2, 3):
            played.end_epoch(epoch)
        played.end("interrupted")

    play(config, end)

    def go_on(played):
        is_complete = played.session.is_complete(step=played.step)
        played.finish(Sums(4.0, 7, 10))
        return is_complete

    assert play(resumed(config), go_on) == [True]
    run = read_run(tmp_path / "run")
    assert run.state == "finished" and totals(run).epochs == 3


def test_other_samples_are_refused(tmp_path):
    config = make_config(tmp_path)
    run_some(config, 1)
    text = (tmp_path / "run" / "run.json").read_text()
    order = read_run(tmp_path / "run").record.hashes.sample_order
    (tmp_path / "run" / "run.json").write_text(text.replace(str(order), "0" * 32))
    assert "the data set has other samples" in refused(resumed(config, epochs=9))


def test_a_run_cut_within_an_epoch_is_not_resumed(tmp_path):
    config = make_config(tmp_path, training={"max_steps": 6})
    run_some(config, 2)
    assert "cut short by --max-steps" in refused(resumed(config, max_steps=12))


def test_the_default_name_contains_what_is_trained(tmp_path):
    config = make_config(tmp_path)
    config = replace(config, record=replace(config.record, name=None))
    play(config, lambda played: None)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("torch-mlp-synthetic-np1-20")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"), (7.25, "7.2 s"), (99.4, "99.4 s"), (99.6, "1 min 40 s"), (245, "4 min 05 s"),
        (3599.6, "1 h 00 min"), (7380, "2 h 03 min"),
    ],
)  # fmt: skip
def test_seconds_in_words(seconds, words):
    assert readable_seconds(seconds) == words
