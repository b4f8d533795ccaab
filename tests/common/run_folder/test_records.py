"""The run folder: records survive writing and reading, damage is reported in one line, writes are atomic."""

import errno
import json
import os
import re
import socket
import subprocess
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from builders import finished_record, make_epoch, make_record, make_status, write_run
from hypothesis import given
from hypothesis import strategies as st
from waiting import wait_until

from common import json_records
from common.__main__ import main
from common.checks.parity_record import ParityRecord
from common.errors import UserError
from common.run_folder import records, run_writer
from common.run_folder.records import (
    EpochRecord,
    NotRecorded,
    RunRecord,
    read_epochs,
    read_run,
    write_epochs,
    write_record,
)
from common.run_folder.run_writer import RunWriter
from common.utils.atomic import write_atomically
from common.utils.paths import ROOT


def full_record():
    """Return a record with values of every type: lists, pairs, text that is no ASCII, what is unknown."""
    return finished_record(
        host="Äpfel",
        settings={"data": {"image_size": [14, 20]}, "training": {"max_steps": 7}},
        world={"gpus": [None, None]},
        totals={"validation_seconds": NotRecorded("not timed apart")},
        status=make_status(),
    )


def moment(seconds_ago):
    return (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat(timespec="milliseconds")


def test_records_survive_writing_and_reading(tmp_path):
    writer = RunWriter.create(tmp_path / "runs" / "a", full_record())
    epochs = [make_epoch(1, validation_loss=0.5), make_epoch(2, training_loss=NotRecorded("lost"))]
    for epoch in epochs:
        writer.add_epoch(epoch)
    run = read_run(tmp_path / "runs" / "a")
    assert run.record == writer.record == replace(full_record(), status=run.record.status)
    assert run.epochs == writer.epochs == epochs
    writer.end("finished", message="done")
    writer.end("interrupted", message="later: the first end wins")
    status = read_run(run.folder).record.status
    assert (status.state, status.message) == ("finished", "done") and status.ended_at is not None
    assert sorted(path.name for path in run.folder.iterdir()) == ["epochs.jsonl", "run.json"]


@given(
    values=st.lists(
        st.none() | st.floats(allow_nan=False) | st.text(max_size=9).map(NotRecorded), min_size=3, max_size=3
    )
)
def test_any_epoch_survives_its_file_and_so_does_a_diverged_loss(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    diverged = make_epoch(2, training_loss=float("nan"), validation_loss=float("inf"))
    epoch = make_epoch(1, training_loss=values[0], validation_loss=values[1], images_per_second=values[2])
    write_epochs(folder, [epoch, diverged])
    first, second = read_epochs(folder)
    assert first == epoch
    assert second.training_loss != second.training_loss and second.validation_loss == float("inf")


def write_changed(folder, *fields):
    """Write a run folder of a full record in which fields have another value, or are missing."""
    record = json.loads(json.dumps(asdict(full_record())))
    for field in fields:
        *way, last = field["field"].split(".")
        part = record
        for key in way:
            part = part[key]
        part[last] = field.get("value")
        if "value" not in field:
            del part[last]
    write_run(folder, make_record())
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_a_record_from_before_a_setting_has_its_default(tmp_path):
    names = [
        "config.device.channels_last",
        "config.device.pinned_memory",
        "config.device.share_gpu",
        "world.pinned_memory",
    ]
    read = read_run(write_changed(tmp_path / "run", *({"field": name} for name in names))).record
    assert (read.config.device.channels_last, read.config.device.pinned_memory) == (True, False)
    assert read.world.pinned_memory is None and read.config.device.share_gpu is False


@pytest.mark.parametrize(
    "refusal", tomllib.loads((ROOT / "tests/refusals/records.toml").read_text())["refusal"], ids=str
)
def test_a_record_that_does_not_follow_the_schema_is_one_line(refusal, tmp_path):
    folder = write_changed(tmp_path / "run", refusal)
    with pytest.raises(UserError) as error:
        read_run(folder)
    message = str(error.value)
    assert refusal["words"] in message and str(folder) in message and "\n" not in message and "Received" in message


def lines(*numbers):
    return "".join(json.dumps(asdict(make_epoch(number))) + "\n" for number in numbers).encode()


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("run.json", b"{", ""),
        ("epochs.jsonl", b"half a li", ""),
        *(("epochs.jsonl", lines(*numbers), "missing or dup") for numbers in ([2], [1, 3], [1, 1], [2, 1])),
        ("run.json", None, "not a run folder"),
        ("epochs.jsonl", None, "not a run folder"),
    ],
)
def test_a_damaged_run_folder_is_one_line(name, content, part, tmp_path):
    folder = write_run(tmp_path / "run", make_record(status=make_status(state="finished")))
    read_run(folder)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"^[^\n]*{part}[^\n]*\Z") as error:
        read_run(folder)
    assert str(folder) in str(error.value)


HERE = socket.gethostname()


def test_a_run_that_goes_on_removes_what_a_killed_process_left(tmp_path):
    RunWriter.create(tmp_path / "run", make_record()).end("interrupted")
    left = [tmp_path / "run" / f".{name}.partial-0123" for name in ("run.json", "epochs.jsonl", "weights.safetensors")]
    for file in left:
        file.touch()
    (tmp_path / "run" / ".mine").touch()
    RunWriter(tmp_path / "run", make_record(), epochs=[]).end("finished")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".mine", "epochs.jsonl", "run.json"]


def test_states(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder, gone = write_run(tmp_path / "run", make_record()), ended.pid

    def state_of(**changes):
        write_record(folder, make_record(status=make_status(**changes)))
        return read_run(folder).state

    assert state_of(host=HERE, process=os.getpid()) == "running"
    assert state_of(host=HERE, process=gone) == "killed"
    # Processes of another host are invisible: the heartbeat decides.
    assert state_of(host="elsewhere", process=gone, heartbeat_at=moment(50)) == "running"
    assert state_of(host="elsewhere", heartbeat_at=moment(70)) == "killed"
    assert state_of(host=HERE, process=os.getpid(), heartbeat_at=moment(70)) == "killed"
    for state in ("finished", "failed", "interrupted"):
        assert state_of(state=state, host=HERE, process=gone, heartbeat_at=moment(9999)) == state
    # In a container often nobody takes note of the end of a process whose parent has ended before.
    unreaped = subprocess.Popen(["true"])
    wait_until(lambda: psutil.Process(unreaped.pid).status() == psutil.STATUS_ZOMBIE)
    assert state_of(host=HERE, process=unreaped.pid) == "killed"
    unreaped.wait()
    # A process may end between writing its two files, and another one may look at the folder then.
    (folder / "epochs.jsonl").unlink()
    for process, state in ((os.getpid(), "running"), (gone, "killed")):
        assert state_of(host=HERE, process=process) == state and read_run(folder).epochs == []


def test_the_heartbeat_moves_until_the_end_and_outlives_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(run_writer, "HEARTBEAT_SECONDS", 0.01)
    started, failures = moment(30), []

    def heartbeat():
        return read_run(tmp_path / "a").record.status.heartbeat_at

    def fail_twice(path, text):
        if len(failures) < 2:
            failures.append(1)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")
        write_atomically(path, text)

    others = set(threading.enumerate())
    writer = RunWriter.create(tmp_path / "a", make_record(status=make_status(started_at=started, heartbeat_at=started)))
    monkeypatch.setattr(json_records, "write_atomically", fail_twice)
    wait_until(lambda: len(failures) == 2)
    wait_until(lambda: heartbeat() > started)
    later = heartbeat()
    wait_until(lambda: heartbeat() > later)
    writer.end("finished")
    wait_until(lambda: not [t for t in set(threading.enumerate()) - others if t.name == "heartbeat"])
    last = (tmp_path / "a" / "run.json").read_text()
    assert read_run(tmp_path / "a").state == "finished" and (tmp_path / "a" / "run.json").read_text() == last


def test_a_reader_never_sees_part_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(run_writer, "HEARTBEAT_SECONDS", 0.001)
    record = make_record()
    long = replace(record.environment, variables={f"HOROVOD_{number}": "x" * 200 for number in range(500)})
    writer = RunWriter.create(tmp_path / "a", replace(record, environment=long))

    def read():
        seen = [0]
        while seen[-1] < 60:
            seen.append(len(read_run(tmp_path / "a").epochs))
        return seen

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read)
        for number in range(1, 61):
            writer.add_epoch(make_epoch(number))
        seen = reading.result(timeout=60)
    writer.end("finished")
    assert seen == sorted(seen) and len(set(seen)) > 2


def test_the_schema_command_names_every_field(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    parts = schema["run.json"]["$defs"]
    classes = {"run.json": RunRecord, "epochs.jsonl": EpochRecord, "parity.json": ParityRecord}
    assert list(schema) == list(classes)
    for name, described in classes.items():
        assert list(schema[name]["properties"]) == [field.name for field in fields(described)]
    for part in (*parts.values(), schema["epochs.jsonl"]):
        assert part["description"] and part["additionalProperties"] is False


def test_records_from_before_onednn_was_on_are_read_as_what_the_framework_decided():
    """All runs of this repository; those of later versions say what was in force."""
    read, files = [], sorted((ROOT / "analysis" / "data").glob(f"*/*/{records.RUN_FILE}"))
    for file in files:
        written, record = json.loads(file.read_text()), records.read_record(file.parent)
        asked = written["config"]["model"].get("onednn", "auto")
        read.append(asked)
        assert record.config.model.onednn == ("framework" if asked == "auto" else asked), file
        assert record.world.onednn == written["world"].get("onednn"), file
    assert {"auto", "on"} <= set(read)


def test_no_pattern_counts_letters(capsys):
    """A pattern that counts to 200 took 26 MB: each repetition is compiled with all letters of Unicode."""
    assert main(["schema"]) == 0
    patterns = re.findall(r'"pattern": "(.*)"', capsys.readouterr().out)
    assert patterns and not [pattern for pattern in patterns if "{" in pattern]
