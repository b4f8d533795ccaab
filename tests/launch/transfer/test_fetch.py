"""`python -m launch fetch`: every byte arrives, nothing half, nothing overwritten; by a shell here, a fake `ssh`."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import HASHES, make_epoch, make_record, make_run, make_status
from made_programs import ended_with_the_test
from processes import HANG_SECONDS
from sites_and_jobs import job_record, own_site
from waiting import wait_until

from common.errors import UserError
from common.run_folder.records import RunWriter, read_run, write_record
from launch.__main__ import main
from launch.jobs.job import write_record as write_job
from launch.transfer.fetch import RunFetcher
from launch.transfer.fetched_runs import Root, why_not_replaceable
from launch.transfer.remote_files import RemoteFolder

# Names that shells, tar and checksum programs trip over.
STRANGE = ["a b", "-rf", "$(touch owned)", "it's", 'quo"te', "back\\slash", "line\nend", "car\rriage", "ä😀", "*", "~",
           "\\n", os.fsdecode(b"not-utf8-\xff"), "x" * 200]  # fmt: skip


def content(folder):
    """Return path -> bytes of all files in a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def fetched(capsys, *words, code=0):
    """Run the command; return what it printed, errors included."""
    capsys.readouterr()
    assert main(["fetch", *words]) == code
    shown = capsys.readouterr()
    assert len(shown.err.splitlines()) == (code == 2), shown.err
    return shown.out + shown.err


def only_whole(to, *names):
    """Check that there are these runs and no leftovers."""
    assert sorted(path.name for path in to.iterdir()) == sorted(names)


def test_a_folder_of_runs_arrives_as_it_is(tmp_path, capsys):
    there, to = tmp_path / "there", tmp_path / "deep" / "runs"
    make_run(there / "a", big=3_000_000)
    make_run(there / "smoke" / "b-r1")
    make_run(there / "smoke" / "set-aside" / "b-r1-1", state="failed")
    (there / "smoke" / "logs").mkdir()
    (there / "smoke" / "logs" / "b-r1.log").write_text("no run")
    (there / "a" / ".run.json.abc").write_text("half wri")
    (there / "a" / "empty").write_text("")
    shown = fetched(capsys, "--from", str(there), "--folder", str(to))
    expected = content(there / "a")
    del expected[".run.json.abc"]
    assert content(to / "a") == expected
    assert content(to / "smoke") == {f"b-r1/{name}": text for name, text in content(there / "smoke/b-r1").items()}
    only_whole(to, "a", "smoke")
    assert f"fetched: {to / 'a'}, finished, 2 epochs" in shown and "2 runs here" in shown
    assert read_run(to / "a").epochs == read_run(there / "a").epochs
    # Once more: all is left alone, to the last date.
    before = {path: path.stat().st_mtime_ns for path in to.rglob("*")}
    shown = fetched(capsys, "--from", str(there), "--folder", str(to))
    assert shown.count("is here already") == 2 and "to copy" not in shown
    assert {path: path.stat().st_mtime_ns for path in to.rglob("*")} == before


def test_one_run_keeps_its_name(tmp_path, capsys):
    make_run(tmp_path / "there" / "a b")
    fetched(capsys, "--from", f"{tmp_path}/there/a b/", "--folder", str(tmp_path / "to"))
    assert content(tmp_path / "to" / "a b") == content(tmp_path / "there" / "a b")


def test_names_with_any_character(tmp_path, capsys):
    there, to = tmp_path / "there", tmp_path / "to"
    for name in STRANGE:
        make_run(there / name, epochs=1)
        (there / name / name).write_text(name, errors="surrogateescape")
        (there / name / "in" / name).mkdir(parents=True)
        (there / name / "in" / name / "c").write_text("c")
    fetched(capsys, "--from", str(there), "--folder", str(to))
    assert content(to) == content(there) and len(content(to)) == 5 * len(STRANGE)
    assert not Path("owned").exists()
    assert fetched(capsys, "--from", str(there), "--folder", str(to)).count("is here already") == len(STRANGE)


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Put a program `ssh` on PATH that runs its words in a shell, in another home folder; return that folder."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    home.mkdir()
    program = programs / "ssh"
    program.write_text(
        f"""#!/bin/sh
        echo "$*" >> {tmp_path}/calls
        while [ "$1" = -o ]; do shift 2; done
        [ "$1" = node1 ] || {{ echo "ssh: Could not resolve hostname $1: Name or service not known" >&2; exit 255; }}
        shift
        cd {home} && HOME={home} && export HOME && exec sh -c "$*"
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return home


@pytest.mark.parametrize("folder", ["work/runs", "~/work/runs", "./work/../work/runs/", "{home}/work/runs"])
def test_by_ssh(ssh, folder, tmp_path, capsys):
    make_run(ssh / "work" / "runs" / "a")
    shown = fetched(capsys, "--from", f"node1:{folder.format(home=ssh)}", "--folder", str(tmp_path / "to"))
    assert content(tmp_path / "to" / "a") == content(ssh / "work/runs/a") and "fetched" in shown
    calls = (tmp_path / "calls").read_text()
    assert all("BatchMode=yes" in call and "ConnectTimeout=" in call for call in calls.splitlines())
    assert calls.rstrip().endswith("node1 sh"), "no command contains a path that a shell could read otherwise"


def test_a_host_that_is_not_there_is_one_line(ssh, tmp_path, capsys):
    shown = fetched(capsys, "--from", "node2:runs", "--folder", str(tmp_path / "to"), code=2)
    assert "Could not resolve hostname node2" in shown and "exit code 255" in shown
    assert not (tmp_path / "to").exists()


def broken_place(tmp_path, *, after):
    """Return this machine, but for a connection that breaks after so many bytes of a stream of files."""
    program = tmp_path / "broken"
    program.write_text(
        f"""#!/bin/sh
        cat > {tmp_path}/script
        if grep -q "tar -cf" {tmp_path}/script; then sh {tmp_path}/script | head -c {after}; exit 255; fi
        exec sh {tmp_path}/script
        """
    )
    program.chmod(0o755)
    return RemoteFolder([str(program)], "")


@pytest.mark.parametrize("after", [0, 100, 512, 2_500_000, 3_900_000])
def test_a_connection_that_breaks_leaves_nothing_half(after, tmp_path):
    there, to = tmp_path / "there", tmp_path / "to"
    make_run(there / "a", big=2_000_000)
    make_run(there / "b", big=2_000_000)
    root = Root.at(str(there), name="")
    with pytest.raises(UserError, match=r"the connection failed, or broke.*exit code 255.*Give the same command again"):
        RunFetcher(broken_place(tmp_path, after=after), [root], to=to).run()
    whole = [name for name in ("a", "b") if (to / name).exists()]
    only_whole(to, *whole)
    assert whole == (["a"] if after > 2_100_000 else [])
    assert all(content(to / name) == content(there / name) for name in whole)
    # The same again, with a connection that holds: what has come whole does not come again.
    again = RunFetcher(RemoteFolder([], ""), [root], to=to)
    again.run()
    assert content(to) == content(there) and not again.refused


def test_sigterm_leaves_nothing_half(tmp_path):
    make_run(tmp_path / "there" / "a", big=1000)
    slow = tmp_path / "ssh"
    slow.write_text(f"#!/bin/sh\ncat > {tmp_path}/s\ngrep -q 'tar -cf' {tmp_path}/s || exec sh {tmp_path}/s\n"
                    f"sh {tmp_path}/s | head -c 1500\ntouch {tmp_path}/half\nsleep 600\n")  # fmt: skip
    slow.chmod(0o755)
    words = ["fetch", "--from", f"node1:{tmp_path}/there", "--folder", str(tmp_path / "to")]
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = [sys.executable, "-m", "launch", *words]
    with ended_with_the_test(subprocess.Popen(program, env=variables, start_new_session=True)) as process:
        wait_until(lambda: (tmp_path / "half").exists() or process.poll() is not None)
        assert [path.name[:3] for path in (tmp_path / "to").iterdir()] == [".a."]
        process.terminate()
        assert process.wait(HANG_SECONDS) == 130
        assert list((tmp_path / "to").iterdir()) == []


def answer(tmp_path, edit):
    """Return this machine, but for a program that edits each script before it is run."""
    program = tmp_path / "editing"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/script\n{edit}\nsh {tmp_path}/script\n")
    program.chmod(0o755)
    return RemoteFolder([str(program)], "")


def test_a_byte_that_is_damaged_on_the_way_is_found(tmp_path):
    there, to = tmp_path / "there", tmp_path / "to"
    make_run(there / "a")
    place = answer(tmp_path, f"sed -i 's/tar -cf .*/& | sed s,2026,2027,/' {tmp_path}/script")
    with pytest.raises(UserError, match=rf"does not come as it is there. Received: {there}/a"):
        RunFetcher(place, [Root.at(str(there), name="")], to=to).run()
    only_whole(to)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "a//evil", "a/./evil"])
def test_names_that_lead_out_are_refused(name, tmp_path):
    there = tmp_path / "there"
    make_run(there / "a")
    # What find prints of epochs.jsonl is written otherwise, as a machine might that means ill.
    place = answer(tmp_path, f"sed -i 's,^find .*,& | sed -z s:there/a/epochs.jsonl:there/{name}:,' {tmp_path}/script")
    with pytest.raises(UserError, match=r"leads out of its folder|connection failed") as error:
        RunFetcher(place, [Root.at(str(there), name="")], to=tmp_path / "to").run()
    assert "leads out" in str(error.value)
    assert not (tmp_path / "to").exists() and not (tmp_path / "evil").exists()


def test_a_file_that_was_not_asked_for_is_refused(tmp_path):
    there, to = tmp_path / "there", tmp_path / "to"
    make_run(there / "a")
    (tmp_path / "evil").write_text("evil")
    place = answer(tmp_path, f"sed -i 's,tar -cf .*,tar -cf - -P {tmp_path}/evil,' {tmp_path}/script")
    with pytest.raises(UserError, match=rf"not asked for. Received: a file named {tmp_path}/evil"):
        RunFetcher(place, [Root.at(str(there), name="")], to=to).run()
    only_whole(to)


@pytest.mark.parametrize("kind", ["link", "broken link", "link to a folder", "pipe"])
def test_links_and_pipes_are_refused_and_the_other_runs_come(kind, tmp_path, capsys):
    there, to = tmp_path / "there", tmp_path / "to"
    make_run(there / "a")
    make_run(there / "b")
    odd = there / "a" / "odd"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        target = {"link": "/etc/passwd", "broken link": "nowhere", "link to a folder": "/etc"}[kind]
        odd.symlink_to(target)
    shown = fetched(capsys, "--from", str(there), "--folder", str(to), code=2)
    assert f"other than plain files. Received: {odd}" in shown and "fetched: " in shown
    only_whole(to, "b")


def test_a_file_of_two_names_is_two_files(tmp_path, capsys):
    make_run(tmp_path / "there" / "a")
    os.link(tmp_path / "there/a/run.json", tmp_path / "there/a/twin.json")
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"))
    assert content(tmp_path / "to") == content(tmp_path / "there") and shown.count("to copy") == 1
    assert (tmp_path / "to/a/twin.json").stat().st_nlink == 1


def grown(tmp_path, *, first, second):
    """Return the run there in its second state, and the runs here with its first."""
    here = make_run(tmp_path / "to" / "a", **first)
    there = make_run(tmp_path / "there" / "a", **second)
    return there, here


RUNNING = {"state": "running", "heartbeat_at": "2099-01-01T00:00:00.000+00:00"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"epochs": 1, "state": "running"}, {"epochs": 3}),  # it was running, and has ended since
        ({"epochs": 0, "state": "running"}, {"epochs": 1, "state": "interrupted"}),
        ({"epochs": 2, "state": "running"}, {"epochs": 2, "state": "failed", "message": "no more disk"}),
        (
            {"epochs": 2, "state": "interrupted"},
            {"epochs": 4, "started_at": "2026-01-01T12:00:03.000+00:00", "resumed_after_epochs": [2]},
        ),
    ],
)
def test_an_earlier_state_is_replaced(first, second, tmp_path, capsys):
    there, here = grown(tmp_path, first=first, second=second)
    (here / "weights.safetensors").write_text("of a run that was resumed since")
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"))
    assert f"replaced an earlier state: {here}" in shown
    assert content(here) == content(there), "nothing of the old state is left"
    only_whole(tmp_path / "to", "a")
    assert why_not_replaceable(there, here) is None


def test_an_earlier_state_stays_where_its_place_cannot_be_taken(tmp_path, capsys, monkeypatch):
    _, here = grown(tmp_path, first={"epochs": 1, "state": "running"}, second={"epochs": 2})
    before, rename = content(here), Path.rename

    def refuse(path, target):
        if path.name == "run":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"), code=2)
    assert "fetching runs failed: No space left on device" in shown
    assert content(here) == before
    only_whole(tmp_path / "to", "a")


def test_what_is_the_same_need_not_come_again(tmp_path, capsys):
    there, here = grown(tmp_path, first={"epochs": 1, "state": "running"}, second={"epochs": 2})
    for folder in (there, here):
        (folder / "timeline.json").write_bytes(b"t" * 5_000_000)
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"))
    assert "3 files to copy, 0.0 MB" in shown
    assert content(here) == content(there)


def add(folder, name="notes.txt", text="mine"):
    (folder / name).write_text(text)


def other_weights(folder):
    write_record(folder, replace(read_run(folder).record, hashes=replace(HASHES, initial_weights="other")))


@pytest.mark.parametrize(
    ("first", "second", "change", "reason"),
    [
        ({"epochs": 3}, {"epochs": 2}, None, "its 3 epochs are not the first of the 2 there"),
        ({"epochs": 1, "state": "running"}, {"epochs": 2}, add, "notes.txt is here only"),
        (
            {"epochs": 2}, {"epochs": 2}, lambda here: add(here, "checkpoints/epoch-0002/weights.safetensors"),
            "it has ended, and files of it differ",
        ),
        ({"epochs": 1, "started_at": "2026-01-01T10:00:00.000+00:00"}, {"epochs": 2}, None, "it is of another start"),
        ({"epochs": 2, "state": "running", "heartbeat_at": "2026-02-01T00:00:00.000+00:00"},
         {"epochs": 3}, None, "it is later"),
        ({"epochs": 1, "state": "running"}, {"epochs": 2}, lambda here: add(here, "run.json", "{"),
         "a record cannot be read"),
        (
            {"epochs": 1, "state": "interrupted"},
            {"epochs": 2, "started_at": "2026-01-01T13:00:00.000+00:00", "resumed_after_epochs": [1]},
            other_weights, "first weights or order of the samples differ",
        ),
        ({"epochs": 1, "state": "running"}, {"epochs": 2}, lambda here: (here / "link").symlink_to("/etc/passwd"),
         "it is not a folder of plain files"),
    ],
)  # fmt: skip
def test_nothing_else_is_overwritten(first, second, change, reason, tmp_path, capsys):
    there, here = grown(tmp_path, first=first, second=second)
    make_run(tmp_path / "there" / "b")
    if change:
        change(here)
    before = content(here)
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"), code=2)
    error = shown.splitlines()[-1]
    assert f"not an earlier state of the one there: {reason}" in error and f"{here} and {there}" in error
    assert content(here) == before
    only_whole(tmp_path / "to", "a", "b")


def test_a_file_in_the_place_of_a_run_is_kept(tmp_path, capsys):
    make_run(tmp_path / "there" / "a")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "a").write_text("mine")
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"), code=2)
    assert "it is not a folder of plain files" in shown and (tmp_path / "to/a").read_text() == "mine"


def test_a_running_run_is_fetched_whole_and_reported_as_running(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("common.run_folder.records.HEARTBEAT_SECONDS", 0.2)
    there = tmp_path / "there" / "a"
    writer = RunWriter.create(there, make_record(status=make_status(), hashes=HASHES))
    (there / "timeline.json").write_bytes(os.urandom(3_000_000))
    try:
        writer.add_epoch(make_epoch(1))
        shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"))
        assert "running, 1 epoch so far: fetch it again later" in shown
        writer.add_epoch(make_epoch(2))
    finally:
        writer.end("finished")
    assert len(read_run(tmp_path / "to" / "a").epochs) == 1
    shown = fetched(capsys, "--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to"))
    assert "replaced an earlier state" in shown and "finished, 2 epochs" in shown
    assert content(tmp_path / "to" / "a") == content(there)


def test_a_run_that_changes_on_the_way_is_copied_again(tmp_path):
    there, to = tmp_path / "there", tmp_path / "to"
    make_run(there / "a", epochs=1, **RUNNING)
    later = make_run(tmp_path / "later" / "a", epochs=2, **RUNNING)
    # Between the checksums and the copy, once, the run writes its next epoch and drops its old checkpoint.
    place = answer(
        tmp_path,
        f"if grep -q 'tar -cf' {tmp_path}/script && [ -e {later} ]; then rm -r {there}/a; mv {later} {there}/a; fi",
    )
    RunFetcher(place, [Root.at(str(there), name="")], to=to).run()
    assert content(to / "a") == content(there / "a") and len(read_run(to / "a").epochs) == 2
    only_whole(to, "a")


def test_a_run_that_keeps_changing_is_given_up(tmp_path):
    there, to = tmp_path / "there", tmp_path / "to"
    make_run(there / "a", **RUNNING)
    place = answer(tmp_path, f"date +%s.%N >> {there}/a/events")
    (there / "a" / "events").write_text("")
    with pytest.raises(
        UserError, match=r"does not come as it is there\. Received: .*/there/a\. It changes meanwhile, or"
    ):
        RunFetcher(place, [Root.at(str(there), name="")], to=to).run()
    only_whole(to)


def test_runs_on_a_file_system_that_both_see_are_left_alone(tmp_path, capsys):
    run = make_run(tmp_path / "runs" / "a", **RUNNING)
    (tmp_path / "same").symlink_to(tmp_path / "runs")
    before = (run / "run.json").stat()  # reading it may change the time of the last access
    shown = fetched(capsys, "--from", str(tmp_path / "same"), "--folder", str(tmp_path / "runs"))
    assert "is on a shared file system" in shown
    after = (run / "run.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    only_whole(tmp_path / "runs", "a")


def make_job(tmp_path, *runs, site="local"):
    """Write a job that writes some runs; return the words that fetch it."""
    folder = tmp_path / "jobs" / "job1"
    folder.mkdir(parents=True)
    record = job_record(site, name="job1", id="1@1.00", repeats=len(runs), runs=list(runs))
    write_job(folder, record)
    return ["job1", "--jobs-folder", str(tmp_path / "jobs"), "--folder", str(tmp_path / "to")]


def test_the_runs_of_a_job(tmp_path, capsys):
    site = own_site(tmp_path, project_folder=str(tmp_path / "project"))
    words = make_job(tmp_path, "runs/a-r1", "runs/a-r2", "runs/smoke", site=site)
    (tmp_path / "project").mkdir()
    assert "there is no run. Received: ./runs/a-r1, ./runs/a-r2" in fetched(capsys, *words, code=2)
    make_run(tmp_path / "project" / "runs" / "a-r1")  # the second has not started
    make_run(tmp_path / "project" / "runs" / "smoke" / "cell-r1")
    make_run(tmp_path / "project" / "runs" / "of another job")
    fetched(capsys, *words)
    only_whole(tmp_path / "to", "a-r1", "smoke")
    assert content(tmp_path / "to/smoke/cell-r1") == content(tmp_path / "project/runs/smoke/cell-r1")


@pytest.mark.parametrize(
    "shell",
    [
        ["sh", "-c"],  # as kubectl exec POD -- bash -c
        ["ssh", "node1"],
        ["ssh", "node1", "cd work &&"],  # as SkyPilot's machines
        ["env"],
    ],
)
def test_the_shells_of_schedulers(shell, ssh, tmp_path, capsys, monkeypatch):
    words = make_job(tmp_path, "runs/a")
    there = ssh / "work" if "cd work &&" in shell else ssh
    make_run(there / "runs" / "a")
    monkeypatch.setattr("launch.jobs.schedulers.local.shell", lambda record, folder: shell)
    monkeypatch.chdir(ssh)
    fetched(capsys, *words)
    assert content(tmp_path / "to" / "a") == content(there / "runs/a")


def test_programs_that_are_not_there_are_one_line(tmp_path, capsys, monkeypatch):
    make_run(tmp_path / "there" / "a")
    words = ["--from", str(tmp_path / "there"), "--folder", str(tmp_path / "to")]
    few = tmp_path / "few"
    few.mkdir()
    for name in ("sh", "find", "xargs", "base64"):
        (few / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(few))
    assert "no checksum could be had. Received: xargs: sha256sum: No such file" in fetched(capsys, *words, code=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sh cannot be run: No such file or directory" in fetched(capsys, *words, code=2)
    assert not (tmp_path / "to").exists()


def test_what_must_not_be_read_is_one_line(tmp_path):
    make_run(tmp_path / "there" / "a")
    # Root may read everything: find is made to say what it says to others.
    refusal = f"find: '{tmp_path}/there/a/checkpoints': Permission denied"
    place = answer(tmp_path, f"sed -i 's,^find .*,&; echo \"{refusal}\" >\\&2,' {tmp_path}/script")
    with pytest.raises(UserError, match=r"not all of the runs can be read. Received: find: .*: Permission denied"):
        RunFetcher(place, [Root.at(str(tmp_path / "there"), name="")], to=tmp_path / "to").run()
    assert not (tmp_path / "to").exists()
