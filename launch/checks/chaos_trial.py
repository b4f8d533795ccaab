"""One trial of `python -m launch chaos`: start ranks, do something to one of them, see what became of the run."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import psutil

from common.checks.chaos_record import HostKind, Kind, SignalKind, Trial, Way
from common.distributed.launchers import launcher_rank
from common.errors import UserError
from common.run_folder.records import read_run
from common.run_folder.world_changes import ElasticRecord, WorldChange
from common.utils.paths import ROOT
from launch.checks.chaos_verdict import MOST_STARTS, has_finished, is_kept, is_readable, same_run
from launch.checks.file_faults import ACTIONS
from launch.checks.host_faults import can_have_hosts, fill_shared_memory, on_a_host_of_its_own, set_network
from launch.starting.elastic import ElasticStart
from launch.starting.launchers import launcher_at
from launch.starting.processes import PROGRAMS, trainer_environment

RANKS = 2
SETTINGS = ["--dataset", "synthetic:4000x28x28x1x10", "--model", "mlp", "--dtype", "float64", "--no-dropout"]
EPOCHS = 12
SETTINGS += ["--batch-size", "32", "--threads", "1", "--checkpoint-minutes", "0.01", "--stall-seconds", "4"]
LONG_EPOCHS = 150  # of a run that is struck again and again
MEAN_SECONDS = 15.0  # from one strike to the next
MARK = "HOROVOD_TWINS_CHAOS"  # variable of all processes of a trial
WAIT_SECONDS = 90.0  # for the end of a run after a fault
AGAIN_SECONDS = 600.0  # of a run that is struck again and again
POLL_SECONDS = 0.1
PAUSE_SECONDS = 2.0
RANK_WAYS: tuple[Way, ...] = ("mpi", "gloo", "elastic")
PAUSE: Kind = "pause of 2 s"
HOST_KINDS = tuple(kind for kind in get_args(HostKind) if kind != PAUSE)
# Of a rank: what horovodrun itself prints when a rank has ended has no tag.
ODD_OUTPUT = re.compile(r"<stderr>:.*(Traceback|terminate called|Segmentation fault|Fatal Python|received signal)")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to whom, and when.

    Attributes:
        share: of the time that an undisturbed run takes, or of its file operations; or
        epochs: that are recorded.
        again: whether ranks are struck until the end, at random moments (a Poisson process).
    """

    framework: str
    way: Way
    kind: Kind
    victim: str
    share: float = 0.0
    epochs: int | None = None
    again: bool = False

    @property
    def length(self) -> int:
        """Epochs of the run."""
        return LONG_EPOCHS if self.again else EPOCHS


def draw_fault(seed: int, number: int, *, frameworks: Sequence[str], ways: Collection[Way] = RANK_WAYS) -> Fault:
    """Return the fault of a trial, which seed and number decide: the first that is drawn for ranks of these ways."""
    drawn = random.Random(f"{seed} {number}")
    while (fault := _drawn(drawn, frameworks=frameworks)).way not in ways:
        pass
    return fault


def _drawn(drawn: random.Random, *, frameworks: Sequence[str]) -> Fault:
    signals = 3 * get_args(SignalKind)  # as there are three ways to start ranks, and as many victims
    kind: Kind = drawn.choice([*signals, PAUSE, *ACTIONS, *(HOST_KINDS if can_have_hosts() else ())])
    framework, share = drawn.choice(list(frameworks)), drawn.uniform(0.0, 1.05)
    if kind in ACTIONS:  # of rank 0, which writes; a rank that comes anew has other file operations
        way: Way = drawn.choice(["mpi", "gloo"])
        return Fault(framework=framework, way=way, kind=kind, victim="0", share=min(share, 0.999))
    if kind in HOST_KINDS:
        # Ranks of one host exchange over MPI in shared memory, over Gloo by its network.
        way, epochs = "mpi" if kind == "full shared memory" else "gloo", drawn.randrange(1, EPOCHS)
        in_start_up = kind == "full shared memory" and drawn.random() < 0.5
        return Fault(
            framework=framework,
            way=way,
            kind=kind,
            victim="host",
            share=share / 2,
            epochs=None if in_start_up else epochs,
        )
    fault = Fault(
        framework=framework,
        way=drawn.choice(["mpi", "gloo", "elastic"]),
        kind=kind,
        victim=drawn.choice(["0", "1", "launcher"]),
        share=share,
    )
    is_of_a_rank = fault.way == "elastic" and fault.victim != "launcher"
    if is_of_a_rank and kind not in ("SIGSTOP", PAUSE) and drawn.random() < 0.75:
        return replace(fault, epochs=drawn.randrange(1, EPOCHS), again=True)
    return replace(fault, epochs=drawn.randrange(1, EPOCHS)) if drawn.random() < 0.5 else fault


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A run without a fault; `operations`: of rank 0 on its files."""

    folder: Path
    seconds: float
    operations: int


class Trials:
    """Makes runs in a folder, each with a log beside it of what its ranks print.

    Args:
        library: as `build_library` made it.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self._library = library
        self._undisturbed: dict[tuple[str, str, int], Undisturbed] = {}

    def make(self, fault: Fault, *, seed: int = 1, number: int) -> Trial:
        """Make a trial.

        Raises:
            UserError: an undisturbed run fails.
        """
        name = f"trial-{seed}-{number}"
        self._remove(name)  # of a campaign that was cut short
        try:
            return self._make(fault, name, seed=seed, number=number)
        finally:  # also where the campaign is interrupted
            self._kill(name)

    def _make(self, fault: Fault, name: str, *, seed: int, number: int) -> Trial:
        reference = self._reference(fault)
        folder, shared = self.folder / name, _shared_memory()
        operation = 1 + int(fault.share * reference.operations) if fault.kind in ACTIONS else None
        began = time.monotonic()
        process = self._start(fault, name=name, operation=operation)
        self._wait_for_moment(fault, name=name, launcher=process, seconds=reference.seconds)
        before = self._epochs(name)
        at, patience = time.monotonic(), WAIT_SECONDS + 3 * reference.seconds
        strikes = int(self._strike(fault, name=name, launcher=process))
        if fault.again:
            strikes += self._strike_again(fault, name=name, seed=number, launcher=process, within=AGAIN_SECONDS)
        hung = not self._ended(name, within=patience)
        ended_seconds = time.monotonic() - at
        self._clear(name, process)
        if operation:
            strikes = int(self._was_reached(name, operation=operation))
        good, kept, starts = is_readable(folder), is_kept(folder, epochs=before or 0), 1
        while not has_finished(folder) and starts < MOST_STARTS:
            starts += 1
            again = self._start(fault, name=name)
            hung = not self._ended(name, within=patience) or hung
            self._clear(name, again)
        is_finished = has_finished(folder)
        return Trial(
            number=number,
            seed=seed,
            framework=fault.framework,
            way=fault.way,
            kind=fault.kind,
            victim=fault.victim,
            strikes=strikes,
            operation=operation,
            after_seconds=at - began,
            epochs_before=before,
            ended_seconds=ended_seconds,
            hung=hung,
            is_readable=good,
            is_kept=kept,
            starts=starts if is_finished else 0,
            is_equal=is_finished and same_run(folder, reference.folder, is_elastic=fault.way == "elastic"),
            # What had to be killed, with all that would have cleaned up after it, leaves something.
            left_behind=[] if hung else sorted(_shared_memory() - shared),
            changes=_changes(folder),
            traceback=ODD_OUTPUT.search(self.log(name).read_text(errors="replace")) is not None,
        )

    def _reference(self, fault: Fault) -> Undisturbed:
        key = fault.framework, fault.way, fault.length
        if key not in self._undisturbed:
            name = f"undisturbed-{fault.framework}-{fault.way}-{fault.length}"
            folder, log = self.folder / name, self.log(name)
            self._remove(name)  # of the campaign before it was cut short
            began = time.monotonic()
            is_counted = fault.way != "elastic"
            try:
                process = self._start(fault, name=name, operation=0 if is_counted else None)
                if not self._ended(name, within=4 * WAIT_SECONDS) or process.wait() or not has_finished(folder):
                    raise UserError(f"a run without any fault fails. Received: {name}. See {log}")
            finally:
                self._kill(name)
            seconds, counted = time.monotonic() - began, int(log.with_suffix(".count").read_text() if is_counted else 0)
            self._undisturbed[key] = Undisturbed(folder=folder, seconds=seconds, operations=counted)
        return self._undisturbed[key]

    def log(self, name: str) -> Path:
        """Return the file with what all starts of a run have printed."""
        return self.folder / f"{name}.log"

    def _start(self, fault: Fault, *, name: str, operation: int | None = None) -> subprocess.Popen[bytes]:
        """Start the ranks of a run; the file operation with this number fails (0: all are counted)."""
        settings = [
            *SETTINGS,
            "--epochs",
            str(fault.length),
            "--runs-folder",
            str(self.folder),
            "--name",
            name,
            "--resume-or-start",
        ]
        words, variables = ["horovodrun", "-np", str(RANKS), f"--{fault.way}"], {}
        if fault.way == "elastic":
            place = self.folder / f"hosts-{name}"
            place.mkdir(exist_ok=True)
            start = ElasticStart(launcher=launcher_at(None, hosts=None), np=RANKS, least=1, most=RANKS, folder=place)
            start.write_files()
            words, variables = start.words(), start.variables
            settings.append("--elastic")
        else:
            settings += ["--on-stall", "end"]
        if operation is not None:
            order = f"0 {operation} {ACTIONS.get(fault.kind, 0)} {self.folder / name}"
            variables |= {"LD_PRELOAD": str(self._library), "FILE_FAULTS": order}
            variables["FILE_FAULTS_COUNT"] = str(self.log(name).with_suffix(".count"))
        words += [sys.executable, str(ROOT / PROGRAMS[fault.framework]), *settings]
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                on_a_host_of_its_own(words) if fault.kind in HOST_KINDS else words,
                env={**trainer_environment(), **variables, MARK: f"{self.folder}/{name}"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for_moment(self, fault: Fault, *, name: str, launcher: subprocess.Popen[bytes], seconds: float) -> None:
        if fault.kind in ACTIONS:
            return  # comes of itself
        if fault.epochs is None:
            time.sleep(fault.share * seconds)
            return
        deadline = time.monotonic() + WAIT_SECONDS
        while (self._epochs(name) or 0) < fault.epochs and launcher.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)

    def _strike(self, fault: Fault, *, name: str, launcher: subprocess.Popen[bytes]) -> bool:
        """Send the signal to the victim, and return whether it was there: it may not have begun, or have ended."""
        if fault.kind in ACTIONS or (fault.kind in HOST_KINDS and launcher.poll() is not None):
            return False
        if fault.kind in HOST_KINDS:
            return _strike_host(fault.kind, launcher.pid)
        is_pause = fault.kind == PAUSE
        number = signal.SIGSTOP if is_pause else signal.Signals[fault.kind]
        victims = [psutil.Process(launcher.pid)] if launcher.poll() is None and fault.victim == "launcher" else []
        if fault.victim != "launcher":
            victims = [one for one in self._processes(name) if _rank_of(one) == fault.victim]
        was_there = False
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                if fault.kind == "SIGSTOP" and fault.victim != "launcher":
                    _wait_for_watcher(victim)
                victim.send_signal(number)
                was_there = True
        if is_pause or (number == signal.SIGSTOP and fault.victim == "launcher"):  # hangs as long as somebody wants
            time.sleep(PAUSE_SECONDS)
            for victim in victims:
                with suppress(psutil.NoSuchProcess):
                    victim.send_signal(signal.SIGCONT)
        return was_there

    def _strike_again(
        self, fault: Fault, *, name: str, seed: int, launcher: subprocess.Popen[bytes], within: float
    ) -> int:
        """Send the signal to one rank after the other until the launcher ends, or for a time; return how often."""
        drawn, number, strikes = random.Random(seed), signal.Signals[fault.kind], 0
        last = time.monotonic() + within
        while not _waited(launcher, seconds=drawn.expovariate(1 / MEAN_SECONDS)) and time.monotonic() < last:
            ranks = sorted((one for one in self._processes(name) if _rank_of(one)), key=lambda one: one.pid)
            if len(ranks) > 1:  # without its last rank a run ends
                with suppress(psutil.NoSuchProcess):
                    drawn.choice(ranks).send_signal(number)
                    strikes += 1
        return strikes

    def _was_reached(self, name: str, *, operation: int) -> bool:
        """Return whether a rank has come to a file operation: one that was ended by force has not counted them."""
        try:
            return int(self.log(name).with_suffix(".count").read_text()) >= operation
        except (OSError, ValueError):
            return True

    def _remove(self, name: str) -> None:
        """End and remove all that there is of a run."""
        self._kill(name)
        for folder in (self.folder / name, self.folder / f"hosts-{name}"):
            shutil.rmtree(folder, ignore_errors=True)
        for suffix in (".log", ".count"):
            self.log(name).with_suffix(suffix).unlink(missing_ok=True)

    def _kill(self, name: str) -> None:
        processes = self._processes(name)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=PAUSE_SECONDS)

    def _processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of a trial, by the variable that they have inherited."""
        mark, found = f"{self.folder}/{name}", []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _ended(self, name: str, *, within: float) -> bool:
        deadline = time.monotonic() + within
        while self._processes(name):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _clear(self, name: str, launcher: subprocess.Popen[bytes]) -> None:
        """End what is left of a trial."""
        self._kill(name)
        launcher.wait()

    def _epochs(self, name: str) -> int | None:
        try:
            return len(read_run(self.folder / name).epochs)
        except UserError:
            return None


def _strike_host(kind: Kind, launcher: int) -> bool:
    """Strike the host of a launcher, and return whether it was there."""
    if kind == "full shared memory":
        return fill_shared_memory(launcher)
    was_there = set_network(launcher, up=False)
    if kind == "network down for 2 s":
        time.sleep(PAUSE_SECONDS)
        set_network(launcher, up=True)
    return was_there


def _wait_for_watcher(rank: psutil.Process) -> None:
    """Return once a rank that has just been started has its watcher, which its first import starts."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not rank.children() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS / 10)


def _waited(process: subprocess.Popen[bytes], *, seconds: float) -> bool:
    """Wait for a process, and return whether it has ended."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _changes(folder: Path) -> list[WorldChange]:
    """Return the changes of the ranks of a run, without the names of hosts."""
    try:
        record = read_run(folder).record.elastic
    except UserError:
        return []
    changes = record.changes if isinstance(record, ElasticRecord) else []
    return [replace(one, ended=[], joined=[]) for one in changes]


def _rank_of(process: psutil.Process) -> str | None:
    """Return the number that a trainer was started with; None: it is no trainer."""
    with suppress(psutil.Error):  # it has just ended
        words = process.cmdline()
        if len(words) > 1 and words[1].endswith("_impl/train.py"):
            return str(launcher_rank(process.environ()))
    return None


def _shared_memory() -> set[str]:
    """Return the names of this user's shared memory that no living process has mapped."""
    found = set()
    for file in SHARED_MEMORY.glob("*"):
        with suppress(OSError):
            if file.stat().st_uid == os.getuid():
                found.add(file.name)
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            found -= set(re.findall(rf"{SHARED_MEMORY}/(\S+)", maps.read_text()))
    return found
