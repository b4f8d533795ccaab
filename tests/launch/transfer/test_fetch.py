"""`python -m launch fetch`: every byte arrives, nothing half, nothing overwritten; by a shell here, a fake `ssh`."""

import errno
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from builders import HASHES, make_epoch, make_record, make_run, make_status
from made_programs import add_script, ended_with_the_test
from processes import HANG_SECONDS
from sites_and_jobs import job_record, own_site
from waiting import wait_until

from common.run_folder.records import read_run
from common.run_folder.run_writer import RunWriter
from launch.__main__ import main
from launch.jobs.job import write_record as write_job

# Names that shells, tar and checksum programs trip over.
STRANGE = ["a b", "-rf", "$(touch owned)", "it's", 'quo"te', "back\\slash", "line\nend", "car\rriage", "ä😀", "*", "~",
           "\\n", os.fsdecode(b"not-utf8-\xff"), "x" * 200]  # fmt: skip
TABLES = tomllib.loads(Path(__file__).with_name("fetch.toml").read_text())
RUNNING = {"state": "running", "heartbeat_at": "2099-01-01T00:00:00.000+00:00"}
SSH = """
echo "$*" >> {calls}
while [ "$1" = -o ]; do shift 2; done
[ "$1" = node1 ] || {{ echo "ssh: Could not resolve hostname $1: Name or service not known" >&2; exit 255; }}
shift
script=$(mktemp)
cat > $script
{edit}
cd {home} && HOME={home} && export HOME && exec sh -c "$*" < $script
"""


def content(folder):
    """Return path -> bytes of all files in a folder, hidden ones too; or of a file in its place."""
    if folder.is_file():
        return folder.read_bytes()
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Transfer:
    """Fetches from the folder `there` to the folder `to`.

    Runs come from node1, which is this machine with another home: a program `ssh` on PATH.
    """

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.there, self.to, self.home = folder, folder / "there", folder / "to", folder / "home"
        self.calls, self.capsys = folder / "calls", capsys
        self.home.mkdir()
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        self.edit("")

    def edit(self, lines):
        """Let `ssh` change each `$script` that it is sent, or do something else, before it runs it; THERE: the runs."""
        edit = lines.replace("THERE", str(self.there))
        add_script(self.folder / "bin" / "ssh", SSH.format(calls=self.calls, home=self.home, edit=edit))

    def fetch(self, *words, code=0):
        """Run the command; return what it printed, errors included."""
        self.capsys.readouterr()
        assert main(["fetch", *(words or ["--from", f"node1:{self.there}"]), "--folder", str(self.to)]) == code
        shown = self.capsys.readouterr()
        assert len(shown.err.splitlines()) == (code == 2), shown.err
        return shown.out + shown.err

    def is_whole(self, *names):
        """Return whether there are these runs and no leftovers."""
        return sorted(path.name for path in self.to.iterdir()) == sorted(names) if self.to.exists() else not names


@pytest.fixture
def transfer(tmp_path, monkeypatch, capsys):
    return Transfer(tmp_path, monkeypatch, capsys)


def test_a_folder_of_runs_arrives_as_it_is(transfer):
    there, to = transfer.there, transfer.folder / "deep" / "runs"
    transfer.to = to
    make_run(there / "a", big=3_000_000)
    make_run(there / "smoke" / "b-r1")
    make_run(there / "smoke" / "set-aside" / "b-r1-1", state="failed")
    (there / "smoke" / "logs").mkdir()
    (there / "smoke" / "logs" / "b-r1.log").write_text("no run")
    (there / "a" / ".run.json.abc").write_text("half wri")
    (there / "a" / "empty").write_text("")
    os.link(there / "a/run.json", there / "a/twin.json")
    shown = transfer.fetch("--from", str(there))
    expected = content(there / "a")
    del expected[".run.json.abc"]
    assert content(to / "a") == expected
    assert content(to / "smoke") == {f"b-r1/{name}": text for name, text in content(there / "smoke/b-r1").items()}
    assert transfer.is_whole("a", "smoke")
    assert (to / "a/twin.json").stat().st_nlink == 1, "a file of two names is two files"
    assert f"fetched: {to / 'a'}, finished, 2 epochs" in shown and "2 runs here" in shown
    assert read_run(to / "a").epochs == read_run(there / "a").epochs
    # Once more: all is left alone, to the last date, also beside what a reader here has half written.
    (to / "a" / ".run.json.abc").write_text("half wri")
    before = {path: path.stat().st_mtime_ns for path in to.rglob("*")}
    shown = transfer.fetch("--from", str(there))
    assert shown.count("is here already") == 2 and "to copy" not in shown
    assert {path: path.stat().st_mtime_ns for path in to.rglob("*")} == before


def test_names_with_any_character(transfer):
    there, to = transfer.there, transfer.to
    for name in STRANGE:
        make_run(there / name, epochs=1)
        (there / name / name).write_text(name, errors="surrogateescape")
        (there / name / "in" / name).mkdir(parents=True)
        (there / name / "in" / name / "c").write_text("c")
    transfer.fetch()
    assert content(to) == content(there) and len(content(to)) == 5 * len(STRANGE)
    assert not Path("owned").exists() and not (transfer.home / "owned").exists()
    assert transfer.fetch().count("is here already") == len(STRANGE)


@pytest.mark.parametrize(
    "folder", ["work/runs", "~/work/runs", "./work/../work/runs/", "{home}/work/runs", "{home}/work/runs/a b/"]
)
def test_by_ssh(transfer, folder):
    """A folder of runs, or one run, which keeps its name."""
    make_run(transfer.home / "work" / "runs" / "a b")
    transfer.fetch("--from", f"node1:{folder.format(home=transfer.home)}")
    assert transfer.is_whole("a b") and content(transfer.to) == content(transfer.home / "work/runs")
    calls = transfer.calls.read_text()
    assert all("BatchMode=yes" in call and "ConnectTimeout=" in call for call in calls.splitlines())
    assert calls.rstrip().endswith("node1 sh"), "no command contains a path that a shell could read otherwise"


def test_a_host_or_programs_that_are_not_there_are_one_line(transfer, monkeypatch):
    shown = transfer.fetch("--from", "node2:runs", code=2)
    assert "Could not resolve hostname node2" in shown and "exit code 255" in shown
    make_run(transfer.there / "a")
    few = transfer.folder / "few"
    few.mkdir()
    for name in ("sh", "find", "xargs", "base64"):
        (few / name).symlink_to(shutil.which(name) or "")
    for path, words in (
        (few, "no checksum could be had. Received: xargs: sha256sum: No such file"),
        (transfer.folder, "sh cannot be run: No such file or directory"),
    ):
        monkeypatch.setenv("PATH", str(path))
        assert words in transfer.fetch("--from", str(transfer.there), code=2)
    assert not transfer.to.exists()


@pytest.mark.parametrize("after", [0, 100, 512, 2_500_000, 3_900_000])
def test_a_connection_that_breaks_leaves_nothing_half(after, transfer):
    """It breaks after so many bytes of a stream of files."""
    there, to = transfer.there, transfer.to
    make_run(there / "a", big=2_000_000)
    make_run(there / "b", big=2_000_000)
    transfer.edit(f'if grep -q "tar -cf" $script; then sh $script | head -c {after}; exit 255; fi')
    shown = transfer.fetch(code=2)
    assert "the connection failed, or broke" in shown and "exit code 255" in shown
    assert "Give the same command again" in shown
    whole = ["a"] if after > 2_100_000 else []
    assert transfer.is_whole(*whole)
    assert all(content(to / name) == content(there / name) for name in whole)
    # The same again, with a connection that holds: what has come whole does not come again.
    transfer.edit("")
    assert transfer.fetch().count("is here already") == len(whole)
    assert content(to) == content(there)


def test_sigterm_leaves_nothing_half(transfer):
    make_run(transfer.there / "a", big=1000)
    half = transfer.folder / "half"
    transfer.edit(f"if grep -q 'tar -cf' $script; then sh $script | head -c 1500; touch {half}; sleep 600; fi")
    words = ["fetch", "--from", f"node1:{transfer.there}", "--folder", str(transfer.to)]
    program = subprocess.Popen([sys.executable, "-m", "launch", *words], start_new_session=True)
    with ended_with_the_test(program) as process:
        wait_until(lambda: half.exists() or process.poll() is not None)
        assert [path.name[:3] for path in transfer.to.iterdir()] == [".a."]
        process.terminate()
        assert process.wait(HANG_SECONDS) == 130
        assert transfer.is_whole()


@pytest.mark.parametrize("row", TABLES["edit"], ids=lambda row: row["id"])
def test_what_does_not_come_as_it_is_said_to_be_is_refused(row, transfer):
    make_run(transfer.there / "a", **RUNNING)
    transfer.edit(row["lines"])
    assert row["refused"].replace("THERE", str(transfer.there)) in transfer.fetch(code=2)
    assert transfer.is_whole() and not (transfer.folder / "evil").exists() and not Path("/tmp/evil").exists()


def test_a_run_that_changes_on_the_way_is_copied_again(transfer):
    there = transfer.there
    make_run(there / "a", epochs=1, **RUNNING)
    later = make_run(transfer.folder / "later" / "a", epochs=2, **RUNNING)
    # Between the checksums and the copy, once, the run writes its next epoch and drops its old checkpoint.
    transfer.edit(f"if grep -q 'tar -cf' $script && [ -e {later} ]; then rm -r THERE/a; mv {later} THERE/a; fi")
    transfer.fetch()
    assert content(transfer.to / "a") == content(there / "a") and len(read_run(transfer.to / "a").epochs) == 2
    assert transfer.is_whole("a")


@pytest.mark.parametrize("target", ["/etc/passwd", "nowhere", "/etc", ""])
def test_links_and_pipes_are_refused_and_the_other_runs_come(target, transfer):
    make_run(transfer.there / "a")
    make_run(transfer.there / "b")
    odd = transfer.there / "a" / "odd"
    if target:
        odd.symlink_to(target)
    else:
        os.mkfifo(odd)
    shown = transfer.fetch(code=2)
    assert f"other than plain files. Received: {odd}" in shown and "fetched: " in shown
    assert transfer.is_whole("b")


# What is here already


def both_states(row, transfer):
    """Make the run there, and the run here in its own state; return both."""
    return make_run(transfer.there / "a", **row["there"]), make_run(transfer.to / "a", **row["here"])


@pytest.mark.parametrize("row", TABLES["replaced"], ids=lambda row: row["id"])
def test_an_earlier_state_is_replaced_by_what_has_changed(row, transfer):
    there, here = both_states(row, transfer)
    (here / "weights.safetensors").write_text("of a run that was resumed since")
    for folder in (there, here):
        (folder / "timeline.json").write_bytes(b"t" * 5_000_000)
    shown = transfer.fetch()
    assert f"replaced an earlier state: {here}" in shown
    assert re.search(r"\d files? to copy, 0\.0 MB", shown), "what is the same does not come again"
    assert content(here) == content(there), "nothing of the old state is left"
    assert transfer.is_whole("a")


def test_an_earlier_state_stays_where_its_place_cannot_be_taken(transfer, monkeypatch):
    _, here = both_states(TABLES["replaced"][0], transfer)
    before, rename = content(here), Path.rename

    def refuse(path, target):
        if path.name == "run":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    assert "fetching runs failed: No space left on device" in transfer.fetch(code=2)
    assert content(here) == before
    assert transfer.is_whole("a")


@pytest.mark.parametrize("row", TABLES["kept"], ids=lambda row: row["reason"])
def test_nothing_else_is_overwritten(row, transfer):
    there, here = both_states(row, transfer)
    make_run(transfer.there / "b")
    for name, text in row.get("files", {}).items():
        (here / name).write_text(text)
    if "edit" in row:
        (here / "run.json").write_text((here / "run.json").read_text().replace(*row["edit"]))
    if "link" in row:
        (here / "link").symlink_to(row["link"])
    if "instead" in row:
        shutil.rmtree(here)
        here.write_text(row["instead"])
    before = content(here)
    error = transfer.fetch(code=2).splitlines()[-1]
    assert f"not an earlier state of the one there: {row['reason']}" in error and f"{here} and {there}" in error
    assert content(here) == before
    assert transfer.is_whole("a", "b")


def test_a_running_run_is_fetched_whole_and_reported_as_running(transfer, monkeypatch):
    monkeypatch.setattr("common.run_folder.run_writer.HEARTBEAT_SECONDS", 0.2)
    there = transfer.there / "a"
    writer = RunWriter.create(there, make_record(status=make_status(), hashes=HASHES))
    (there / "timeline.json").write_bytes(os.urandom(3_000_000))
    try:
        writer.add_epoch(make_epoch(1))
        assert "running, 1 epoch so far: fetch it again later" in transfer.fetch()
        writer.add_epoch(make_epoch(2))
    finally:
        writer.end("finished")
    assert len(read_run(transfer.to / "a").epochs) == 1
    shown = transfer.fetch()
    assert "replaced an earlier state" in shown and "finished, 2 epochs" in shown
    assert content(transfer.to / "a") == content(there)


def test_runs_on_a_file_system_that_both_see_are_left_alone(transfer):
    run = make_run(transfer.to / "a", **RUNNING)
    transfer.there.symlink_to(transfer.to)
    before = (run / "run.json").stat()  # reading it may change the time of the last access
    assert "is on a shared file system" in transfer.fetch()
    after = (run / "run.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert transfer.is_whole("a")


# Jobs; by the shells of schedulers in `tests/launch/jobs/`


def test_the_runs_of_a_job(transfer):
    project = transfer.folder / "project"
    project.mkdir()
    site = own_site(transfer.folder, project_folder=str(project))
    job, runs = transfer.folder / "jobs" / "job1", ["runs/a-r1", "runs/a-r2", "runs/smoke"]
    job.mkdir(parents=True)
    write_job(job, job_record(site, name="job1", id="1@1.00", repeats=3, runs=runs))
    words = ["job1", "--jobs-folder", str(job.parent)]
    assert "there is no run. Received: ./runs/a-r1, ./runs/a-r2" in transfer.fetch(*words, code=2)
    make_run(project / "runs" / "a-r1")  # the second has not started
    make_run(project / "runs" / "smoke" / "cell-r1")
    make_run(project / "runs" / "of another job")
    transfer.fetch(*words)
    assert transfer.is_whole("a-r1", "smoke")
    assert content(transfer.to / "smoke/cell-r1") == content(project / "runs/smoke/cell-r1")
