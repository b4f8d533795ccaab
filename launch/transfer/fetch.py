"""`python -m launch fetch`: bring run folders back from where they were made.

    python -m launch fetch JOB                           of a job that was submitted from here
    python -m launch fetch --from HOST:FOLDER            of any machine that ssh reaches

Every file is checked by its SHA-256 there. A run comes under a hidden name and gets its own once it is whole. One that
is here already is left alone if it is the same, replaced if it is an earlier state of the run there, else kept.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from common.distributed.console import counted, readable_seconds
from common.errors import UserError, expanded, user_errors
from common.run_folder.records import read_run
from common.utils.atomic import temporary_folder_beside
from common.utils.command_line import word
from common.utils.paths import ROOT
from launch.jobs.job import JOBS_FOLDER, read_job
from launch.jobs.schedulers import scheduler
from launch.starting.ssh import Ssh
from launch.transfer.fetched_runs import RemoteRun, Root, find_runs, sums_of, why_not_replaceable
from launch.transfer.remote_files import RemoteFolder, checksum, shown

ROUNDS = 6  # a running run changes while it is copied; what changed is copied again


def add_command(commands: Any) -> None:
    """Add the command to argparse's subcommands."""
    parser = commands.add_parser(
        "fetch",
        help="bring run folders back, checked by checksums",
        description="Copy run folders of a job, or of a folder on another machine, to this one.",
    )
    parser.add_argument("job", metavar="JOB", nargs="?", help="a job that `status` shows")
    parser.add_argument("--from", dest="source", metavar="HOST:FOLDER", help="instead: a run, or a folder with runs")
    parser.add_argument(
        "--folder", type=word, default="runs", metavar="FOLDER", help="where they are put (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs-folder", type=word, default=JOBS_FOLDER, help="where jobs are kept (default: %(default)s)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run the command.

    Raises:
        UserError: there are no runs, they cannot be had, or one must not take the place of the one here.
    """
    if (options.job is None) == (options.source is None):
        raise UserError(
            f"one thing is fetched. Received: {options.job or 'no job'} and {options.source or 'no --from'}. "
            "Name a job, or give --from HOST:FOLDER"
        )
    place, roots = _of_words(options.source) if options.job is None else _of_job(options)
    fetching = RunFetcher(place, roots, to=expanded(options.folder))
    began = time.monotonic()
    with user_errors("fetching runs"):
        fetching.run()
    print(f"{counted(len(fetching.settled) - len(fetching.refused), 'run')} here, "
          f"checked in {readable_seconds(time.monotonic() - began)}")  # fmt: skip
    if fetching.refused:
        more = f" (and {len(fetching.refused) - 1} more)" if len(fetching.refused) > 1 else ""
        raise UserError(f"{fetching.refused[0]}{more}")


def _of_job(options: argparse.Namespace) -> tuple[RemoteFolder, list[Root]]:
    record, job_folder = read_job(options.job, parent=expanded(options.jobs_folder))
    site = record.read_site()
    shell = scheduler(site.scheduler).shell(record, job_folder)
    paths = record.runs if shell else [str(expanded(path)) for path in record.runs]
    # Machines that a job has set up have the project where their shell begins.
    folder = site.project_folder or ("" if shell else str(ROOT))
    return RemoteFolder(shell, folder), [Root.at(path, name=PurePosixPath(path).name) for path in paths]


def _of_words(words: str) -> tuple[RemoteFolder, list[Root]]:
    """Return what HOST:FOLDER means; a folder alone is one of this machine."""
    host, colon, folder = words.partition(":")
    if "/" in host or not colon:  # the colon is one of the folder's name
        host, folder = "", words
    if not folder or not words.isprintable() or host.startswith("-") or (colon and not host and folder != words):
        raise UserError(f"--from names no folder. Received: --from {words!r}. Write HOST:FOLDER, as in node1:runs")
    if not host:
        return RemoteFolder([], ""), [Root.at(str(expanded(folder).absolute()), name="")]
    # ssh begins in the home folder.
    path = "." if folder == "~" else folder.removeprefix("~/")
    return RemoteFolder(Ssh().command(host), ""), [Root.at(path, name="")]


@dataclass
class _PartialRun:
    """A run on its way: the hidden folder that it comes into, and path within -> SHA-256 of what has come."""

    folder: Path
    sums: dict[str, str] = field(default_factory=dict)

    def prepare(self, sums: Mapping[str, str], *, here: Path) -> list[str]:
        """Bring it as near to what is there as can be done from here; return what has to come from there.

        Args:
            sums: of the run there.
            here: an earlier state of it, of which what is the same need not come again; may be missing.
        """
        for name in self.sums.keys() - sums.keys():  # not there any more
            (self.folder / name).unlink()
            del self.sums[name]
        for name, digest in sums.items():
            old, new = here / name, self.folder / name
            if name not in self.sums and old.is_file() and checksum(old) == digest:
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(old, new)
                self.sums[name] = checksum(new)
        return [name for name, digest in sums.items() if self.sums.get(name) != digest]


class RunFetcher:
    """Fetches the runs in some folders of a machine.

    Attributes:
        settled: where runs are put here that are done, copied or refused.
        refused: in words, why one is not.
    """

    def __init__(self, place: RemoteFolder, roots: Sequence[Root], *, to: Path) -> None:
        self.settled: set[Path] = set()
        self.refused: list[str] = []
        self._place, self._roots, self._to = place, roots, to
        self._incoming: dict[Path, _PartialRun] = {}
        self._leftovers = ExitStack()

    def run(self) -> None:
        """Fetch them, and print a line for each.

        Raises:
            UserError: there are none, or they cannot be had. Those that were whole by then stay.
        """
        with self._leftovers:
            for _ in range(ROUNDS):
                entries = self._place.entries([root.path for root in self._roots])
                runs = [run for root in self._roots for run in find_runs(entries, root, to=self._to)]
                if not runs:
                    where = ", ".join(shown(root.path) for root in self._roots)
                    raise UserError(f"there is no run. Received: {where}. Wait for the first, or name another folder")
                self._copy([run for run in runs if run.to not in self.settled])
                changed = [run for run in runs if run.to not in self.settled]
                if not changed:
                    return
        raise UserError(
            f"a run does not come as it is there. Received: {shown(changed[0].path)}. It changes meanwhile, or the "
            "connection damages it: fetch it when it has ended"
        )

    def _copy(self, runs: Sequence[RemoteRun]) -> None:
        """Settle all runs that do not change meanwhile."""
        plain = [run for run in runs if not self._has_special_files(run) and not self._is_same_folder(run)]
        sums = self._place.checksums([f"{run.path}/{name}" for run in plain for name in run.files])
        coming: list[tuple[RemoteRun, dict[str, str]]] = []
        for run in plain:
            of_run = {name: digest for name in run.files if (digest := sums.get(f"{run.path}/{name}"))}
            if len(of_run) < len(run.files):
                continue  # a file has gone meanwhile
            if sums_of(run.to) == of_run:
                self._settle(run, "is here already")
            else:
                coming.append((run, of_run))
        wanted = {
            f"{run.path}/{name}": (run, name)
            for run, of_run in coming
            for name in self._of(run).prepare(of_run, here=run.to)
        }
        try:
            if wanted:
                self._receive(wanted)
        finally:  # also where the connection broke
            for run, of_run in coming:
                if self._of(run).sums == of_run:
                    self._put(run)

    def _of(self, run: RemoteRun) -> _PartialRun:
        if run.to not in self._incoming:
            run.to.parent.mkdir(parents=True, exist_ok=True)
            folder = self._leftovers.enter_context(temporary_folder_beside(run.to))
            self._incoming[run.to] = _PartialRun(folder / "run")
        return self._incoming[run.to]

    def _receive(self, wanted: Mapping[str, tuple[RemoteRun, str]]) -> None:
        total = sum(run.files[name].size for run, name in wanted.values())
        print(f"{counted(len(wanted), 'file')} to copy, {total / 1e6:,.1f} MB", flush=True)

        def into(path: str) -> Path:
            run, name = wanted[path]
            self._of(run).sums.pop(name, None)
            return self._of(run).folder / name

        def came(path: str, digest: str) -> None:
            run, name = wanted[path]
            self._of(run).sums[name] = digest

        with tqdm(total=total, unit="B", unit_scale=True, disable=not sys.stderr.isatty(), leave=False) as bar:
            self._place.receive(list(wanted), into=into, came=came, advance=bar.update)

    def _has_special_files(self, run: RemoteRun) -> bool:
        odd = [name for name, entry in run.files.items() if entry.kind != "f"]
        if odd:
            path = shown(f"{run.path}/{odd[0]}")
            self._refuse(run, f"a run holds something other than plain files. Received: {path}. Remove it there")
        return bool(odd)

    def _is_same_folder(self, run: RemoteRun) -> bool:
        here = run.is_here()
        if here:
            self._settle(run, "is on a shared file system")
        return here

    def _put(self, run: RemoteRun) -> None:
        """Give a complete run its name, unless something else than an earlier state of it has that name."""
        new = self._of(run).folder
        if not run.to.exists() and not run.to.is_symlink():
            new.rename(run.to)
            self._settle(run, "fetched")
            return
        reason = why_not_replaceable(run.to, new)
        if reason:
            self._refuse(
                run,
                f"the run here is not an earlier state of the one there: {reason}. Received: {shown(run.to)} and "
                f"{shown(run.path)}. Move the one here away, or fetch into another --folder folder",
            )
            return
        before = new.with_name("before")
        run.to.rename(before)
        try:
            new.rename(run.to)
        except BaseException:
            before.rename(run.to)
            raise
        self._settle(run, "replaced an earlier state")

    def _settle(self, run: RemoteRun, words: str) -> None:
        self.settled.add(run.to)
        print(f"{words}: {shown(run.to)}, {_describe(run.to)}", flush=True)

    def _refuse(self, run: RemoteRun, reason: str) -> None:
        self.settled.add(run.to)
        self.refused.append(reason)
        print(f"not fetched: {shown(run.to)}", flush=True)


def _describe(folder: Path) -> str:
    """Return state and epochs of a run, in words."""
    with suppress(UserError):
        found = read_run(folder)
        words = f"{found.state}, {counted(len(found.epochs), 'epoch')}"
        return f"{words} so far: fetch it again later" if found.state == "running" else words
    return "with a record that cannot be read"
