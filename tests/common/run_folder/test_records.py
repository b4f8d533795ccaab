"""The run folder: records survive writing and reading, damage is reported in one line, writes are atomic."""

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from builders import make_epoch, make_record, make_status
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from waiting import wait_until

from common.__main__ import main
from common.checks.parity_record import ParityRecord
from common.config import config_from_dict
from common.errors import UserError
from common.run_folder import records
from common.run_folder.records import (
    DataRecord,
    EpochRecord,
    Hashes,
    ModelRecord,
    NotRecorded,
    RunRecord,
    RunWriter,
    Status,
    Totals,
    World,
    read_run,
)
from common.utils.atomic import write_atomically

FULL = {
    "config": config_from_dict({"data": {"image_size": [14, 20]}, "training": {"max_steps": 7}}),
    "world": World(
        size=2,
        local_size=2,
        hosts=["node1"],
        controller="mpi",
        threads_per_rank=1,
        cores=2,
        oversubscribed=False,
        devices=["cpu", "cpu"],
        gpus=[None, None],
    ),
    "data": DataRecord(
        name="mnist",
        training_samples=54_000,
        validation_samples=6_000,
        test_samples=10_000,
        dropped_samples_per_epoch=96,
        global_batch_size=128,
        steps_per_epoch=421,
        image_shape=(28, 28, 1),
        class_names=["zero", "Äpfel"],
        mean=[0.1307],
        standard_deviation=[0.3081],
    ),
    "model": ModelRecord(name="cnn", outputs=10, parameters=21_840, multiply_adds_per_image=480_500),
    "hashes": Hashes(initial_weights="ab", sample_order=NotRecorded("an old run")),
    "totals": Totals(
        epochs=1,
        steps=421,
        startup_seconds=3.5,
        training_seconds=2.0,
        validation_seconds=NotRecorded("not timed apart"),
        test_seconds=0.5,
        images_per_second=26_944.0,
        test_loss=0.07,
        test_accuracy=0.98,
    ),
}


def moment(seconds_ago):
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="milliseconds")


def write_run(folder, record, *epochs):
    """Write the two files without a writer's thread."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(asdict(record)))
    (folder / "epochs.jsonl").write_text("".join(json.dumps(asdict(epoch)) + "\n" for epoch in epochs))
    return folder


def test_records_survive_writing_and_reading(tmp_path):
    writer = RunWriter.create(tmp_path / "runs" / "a", make_record(**FULL))
    epochs = [make_epoch(1, validation_loss=0.5), make_epoch(2, training_loss=NotRecorded("lost"))]
    for epoch in epochs:
        writer.add_epoch(epoch)
    run = read_run(tmp_path / "runs" / "a")
    assert run.record == writer.record == replace(make_record(**FULL), status=run.record.status)
    assert run.epochs == writer.epochs == epochs
    writer.end("finished", message="done")
    assert sorted(path.name for path in run.folder.iterdir()) == ["epochs.jsonl", "run.json"]


@given(
    values=st.lists(
        st.none() | st.floats(allow_nan=False) | st.text(max_size=9).map(NotRecorded), min_size=3, max_size=3
    )
)
def test_any_epoch_survives_json(values):
    epoch = make_epoch(1, training_loss=values[0], validation_loss=values[1], images_per_second=values[2])
    line = json.dumps(asdict(epoch))
    assert "\n" not in line
    assert TypeAdapter(EpochRecord).validate_json(line, strict=True) == epoch


def test_a_diverged_loss_can_be_read(tmp_path):
    folder = write_run(tmp_path, make_record(), make_epoch(1, training_loss=float("nan"), validation_loss=float("inf")))
    epoch = read_run(folder).epochs[0]
    assert epoch.training_loss != epoch.training_loss and epoch.validation_loss == float("inf")


def change(path, value):
    """Return a function that sets a value inside a run.json, or removes it (value ...)."""

    def apply(record):
        *way, last = path.split(".")
        for key in way:
            record = record[key]
        if value is ...:
            del record[last]
        else:
            record[last] = value

    return apply


def test_a_record_from_before_a_setting_has_its_default(tmp_path):
    record = json.loads(json.dumps(asdict(make_record(**FULL))))
    folder = write_run(tmp_path, make_record())
    for name in ("channels_last", "pinned_memory", "share_gpu"):
        change(f"config.device.{name}", ...)(record)
    change("world.pinned_memory", ...)(record)
    (folder / "run.json").write_text(json.dumps(record))
    read = read_run(folder).record
    assert (read.config.device.channels_last, read.config.device.pinned_memory) == (True, False)
    assert read.world.pinned_memory is None and read.config.device.share_gpu is False


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (change("framework", ...), "framework"),
        (change("status.state", "asleep"), "asleep"),
        (change("status.state", ...), "status"),
        (change("status.heartbeat_at", "yesterday"), "yesterday"),
        (change("status.heartbeat_at", "2026-01-31T12:00:00"), "zone"),
        (change("status.process", "12"), "'12'"),
        (change("origin", "invented"), "invented"),
        (change("data.training_samples", 3.5), "3.5"),
        (change("data.image_shape", [28, 28]), "image_shape"),
        (change("data.extra", 1), "extra"),
        (change("site", 7), "site"),
        (change("site", {"not_recorded": "no field for it"}), "site"),
        (change("config.training.epochs", -1), "--epochs -1"),
        (change("config.training.epochs", True), "epochs"),
        (change("config.training.forgotten", 1), "forgotten"),
        (change("world", {"not_recorded": 3}), "world"),
        (change("schema_version", 99), "99"),
        (change("schema_version", ...), "None"),
        (change("surprise", 1), "surprise"),
    ],
)
def test_a_record_that_does_not_follow_the_schema_is_one_line(damage, part, tmp_path):
    record = json.loads(json.dumps(asdict(make_record(**FULL))))
    folder = write_run(tmp_path, make_record())
    damage(record)
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(UserError) as error:
        read_run(folder)
    message = str(error.value)
    assert part in message and str(folder) in message and "\n" not in message and "Received" in message


def lines(*numbers):
    return "".join(json.dumps(asdict(make_epoch(number))) + "\n" for number in numbers).encode()


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        *(("run.json", content, "") for content in (b"", b"{", b"[]", b'"text"', b"\xff\xfe\x00", b"{}")),
        *(("epochs.jsonl", content, "") for content in (b"{}\n", b"\xff\n", b"\n", b"half a li")),
        *(("epochs.jsonl", lines(*numbers), "missing or dup") for numbers in ([2], [1, 3], [1, 1], [2, 1])),
        ("run.json", None, "not a run folder"),
        ("epochs.jsonl", None, "not a run folder"),
    ],
)
def test_a_damaged_run_folder_is_one_line(name, content, part, tmp_path):
    folder = write_run(tmp_path, make_record(status=make_status(state="finished")), make_epoch(1))
    read_run(folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"^[^\n]*{part}[^\n]*\Z") as error:
        read_run(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("state", ["running", "killed"])
def test_a_run_between_its_two_files_has_no_epochs(state, tmp_path):
    """A process may end between writing one and the other, and another one may look at the folder then."""
    process = os.getpid() if state == "running" else gone_process()
    status = make_status(state="running", host=socket.gethostname(), process=process)
    write_run(tmp_path / "run", make_record(status=status))
    (tmp_path / "run" / "epochs.jsonl").unlink()
    run = read_run(tmp_path / "run")
    assert (run.epochs, run.state) == ([], state)


def test_a_run_that_goes_on_removes_what_a_killed_process_left(tmp_path):
    RunWriter.create(tmp_path / "run", make_record()).end("interrupted")
    left = [tmp_path / "run" / f".{name}.partial-0123" for name in ("run.json", "epochs.jsonl", "weights.safetensors")]
    for file in left:
        file.touch()
    (tmp_path / "run" / ".mine").touch()
    RunWriter(tmp_path / "run", make_record(), epochs=[]).end("finished")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".mine", "epochs.jsonl", "run.json"]


def gone_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_states(tmp_path):
    here = socket.gethostname()

    def state_of(**changes):
        return read_run(write_run(tmp_path, make_record(status=make_status(**changes)))).state

    assert state_of(host=here, process=os.getpid()) == "running"
    assert state_of(host=here, process=gone_process()) == "killed"
    # Processes of another host are invisible: the heartbeat decides.
    assert state_of(host="elsewhere", process=gone_process(), heartbeat_at=moment(50)) == "running"
    assert state_of(host="elsewhere", heartbeat_at=moment(70)) == "killed"
    assert state_of(host=here, process=os.getpid(), heartbeat_at=moment(70)) == "killed"
    for state in ("finished", "failed", "interrupted"):
        assert state_of(state=state, host=here, process=gone_process(), heartbeat_at=moment(9999)) == state


def test_an_imported_run_without_status_is_finished(tmp_path):
    unknown = NotRecorded("not in the document")
    record = make_record(origin="published", config=unknown, environment=unknown, status=unknown, totals=unknown)
    run = read_run(write_run(tmp_path, record))
    assert run.state == "finished" and run.record == record


def test_an_existing_run_folder_is_not_changed(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=rf"exists already.*Received: {folder}\. Give another --name"):
        RunWriter.create(folder, make_record())
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EACCES, "permissions"), (errno.EROFS, "can be written"), (errno.ENOSPC, "Free some space")],
)
def test_a_folder_that_cannot_be_made_is_one_line(number, words, tmp_path, monkeypatch):
    def refuse(self, *args, **settings):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError) as error:
        RunWriter.create(tmp_path / "runs" / "a", make_record())
    message = str(error.value)
    assert words in message and os.strerror(number) in message and str(tmp_path / "runs") in message
    assert "\n" not in message


def test_a_file_in_the_place_of_the_runs_folder_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="Received"):
        RunWriter.create(tmp_path / "runs" / "a", make_record())


def full_disk(*args, **settings):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")


def test_a_full_disk_is_one_line_and_the_old_record_stays(tmp_path, monkeypatch):
    writer = RunWriter.create(tmp_path / "a", make_record())
    writer.add_epoch(make_epoch(1))
    before = read_run(tmp_path / "a")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match=r"No space left on device.*Free some space"):
        writer.add_epoch(make_epoch(2))
    with pytest.raises(OSError, match="No space left"):
        writer.end("finished")
    after = read_run(tmp_path / "a")
    assert after.epochs == before.epochs and after.record.status.state == "running"
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["epochs.jsonl", "run.json"]
    # The failed write had no effect: the run can still be recorded as failed.
    monkeypatch.undo()
    writer.end("failed", message="disk full")
    assert read_run(tmp_path / "a").state == "failed"


def test_the_first_end_wins(tmp_path):
    writer = RunWriter.create(tmp_path / "a", make_record())
    writer.end("interrupted", message="received SIGINT")
    writer.end("failed", message="later")
    run = read_run(tmp_path / "a")
    assert (run.state, run.record.status.message) == ("interrupted", "received SIGINT")
    assert run.record.status.ended_at is not None


def heartbeat(folder):
    status = read_run(folder).record.status
    return status.heartbeat_at


def test_the_heartbeat_moves_until_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "HEARTBEAT_SECONDS", 0.01)
    started = moment(30)
    others = set(threading.enumerate())
    writer = RunWriter.create(tmp_path / "a", make_record(status=make_status(started_at=started, heartbeat_at=started)))
    wait_until(lambda: heartbeat(tmp_path / "a") > started)
    later = heartbeat(tmp_path / "a")
    wait_until(lambda: heartbeat(tmp_path / "a") > later)
    writer.end("finished")
    wait_until(lambda: not [t for t in set(threading.enumerate()) - others if t.name == "heartbeat"])
    last = (tmp_path / "a" / "run.json").read_text()
    assert read_run(tmp_path / "a").state == "finished" and (tmp_path / "a" / "run.json").read_text() == last


def test_the_heartbeat_outlives_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "HEARTBEAT_SECONDS", 0.01)
    failures = []

    def fail_twice(path, text):
        if len(failures) < 2:
            failures.append(1)
            full_disk()
        write_atomically(path, text)

    started = moment(30)
    writer = RunWriter.create(tmp_path / "a", make_record(status=make_status(heartbeat_at=started)))
    monkeypatch.setattr(records, "write_atomically", fail_twice)
    wait_until(lambda: len(failures) == 2)
    wait_until(lambda: heartbeat(tmp_path / "a") > started)
    writer.end("finished")


def test_a_reader_never_sees_part_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "HEARTBEAT_SECONDS", 0.001)
    long = {f"HOROVOD_{number}": "x" * 200 for number in range(500)}
    record = make_record()
    environment = replace(record.environment, variables=long)
    writer = RunWriter.create(tmp_path / "a", replace(record, environment=environment))
    seen = []
    errors = []
    stop = threading.Event()

    def read():
        while not stop.is_set():
            try:
                run = read_run(tmp_path / "a")
            except BaseException as error:
                errors.append(error)
                return
            seen.append(len(run.epochs))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 61):
        writer.add_epoch(make_epoch(number))
    wait_until(lambda: errors or (seen and seen[-1] == 60))
    stop.set()
    reader.join()
    writer.end("finished")
    assert not errors and seen == sorted(seen) and len(set(seen)) > 1


def test_a_failed_atomic_write_leaves_no_files(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_the_schema_command_names_every_field(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert list(schema) == ["run.json", "epochs.jsonl", "parity.json"]
    assert list(schema["parity.json"]["properties"]) == [field.name for field in fields(ParityRecord)]
    assert list(schema["run.json"]["properties"]) == [field.name for field in fields(RunRecord)]
    assert list(schema["epochs.jsonl"]["properties"]) == [field.name for field in fields(EpochRecord)]
    parts = schema["run.json"]["$defs"]
    for part in (World, DataRecord, ModelRecord, Hashes, Status, Totals):
        assert list(parts[part.__name__]["properties"]) == [field.name for field in fields(part)]
    for part in (*parts.values(), schema["epochs.jsonl"]):
        assert part["description"] and part["additionalProperties"] is False


def test_a_run_whose_process_waits_to_be_reaped_is_killed(tmp_path):
    """In a container often nobody takes note of the end of a process whose parent has ended before."""
    process = subprocess.Popen(["true"])
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    status = make_status(host=socket.gethostname(), process=process.pid)
    assert records.state_of(make_record(status=status)) == "killed"
    process.wait()
